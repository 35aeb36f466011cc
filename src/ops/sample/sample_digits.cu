// SPDX-License-Identifier: Apache-2.0
// A pass of the selection of the last token that top_k or top_p leaves of rows of logits (rows, vocab): sums of weights (top_k: of
// ones) by the next digit of the key, of the tokens that have the digits found so far. Blocks add their sums in integers, so their
// order changes nothing; a row's last block finds the digit. Groups below the digits found are not read.
// Floor: the logits read once, from the second-level cache.
// Limit: atomics in shared memory on the same digits.
// Figures: docs/kernels/sample.md.
// The host defines
//     DTYPE
#include "ops/sample/sample_device.cuh"

enum { EACH = SAMPLE_NUM_DIGITS / SAMPLE_THREADS, WARPS = SAMPLE_THREADS / 32 };

struct task {
    struct sample_options options;
    struct sample_state state;
    float max, scale;
};

struct shared {
    unsigned low[SAMPLE_NUM_DIGITS], high[SAMPLE_NUM_DIGITS]; // of sums
    unsigned long long of_warps[WARPS];
    int is_last;
};

DEVICE int is_first(const struct sample_params *p) { return p->shift == SAMPLE_FIRST_SHIFT; }

// Whether a key has the digits found so far.
DEVICE int has_prefix(const struct sample_params *p, unsigned key, unsigned prefix) {
    const int known = p->shift > 0 ? SAMPLE_FIRST_SHIFT : SAMPLE_SECOND_SHIFT;
    return is_first(p) || (key ^ prefix) >> known == 0;
}

DEVICE unsigned digit_of(const struct sample_params *p, unsigned key) {
    return key >> p->shift & (SAMPLE_NUM_DIGITS - 1);
}

// Whether the row takes part.
DEVICE int begin_task(const struct sample_params *p, long long row, struct task *task) {
    const unsigned largest = largest_key(p, &p->z, row);
    task->options = options_of(p, row);
    task->state = p->states[row];
    task->max = float_of_key(largest);
    if (!is_drawn(&task->options, largest)) return 0;
    task->scale = sample_scale(task->options.temperature);
    if (!(p->is_top_p ? task->options.top_p < 1 : has_top_k(p, &task->options))) return 0;
    return is_first(p) || !task->state.is_short;
}

// A sum of 64 bits by additions of 32, of which nearly all need one.
DEVICE void add(struct shared *shared, unsigned digit, unsigned long long w) {
    const unsigned low = (unsigned)w, before = atomicAdd(&shared->low[digit], low);
    const unsigned high = (unsigned)(w >> 32) + (before + low < before);
    if (high != 0) atomicAdd(&shared->high[digit], high);
}

// Tokens with the state's key are not added: only some of them remain.
DEVICE void add_slice(const struct sample_params *p, const struct slice *s, const struct task *task,
                      struct shared *shared) {
    const int lead = lead_of(&p->z, s->row);
    const unsigned above = task->state.key;
    const unsigned least = is_first(p) ? above : task->state.prefix;
    for (int d = (int)threadIdx.x; d < SAMPLE_NUM_DIGITS; d += SAMPLE_THREADS)
        shared->low[d] = shared->high[d] = 0;
    __syncthreads();
    for (int g = s->first + WARP; g < s->last; g += WARPS) {
        float z[GROUP];
        if (p->z.group_key[s->row * p->num_groups + g] < least) continue;
        load_numbers(z, &p->z, s->row, col_of(g, lead), p->vocab);
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            const unsigned key = key_of(z[i]);
            if (key <= above || !has_prefix(p, key, task->state.prefix)) continue;
            const unsigned long long w = p->is_top_p ? weight_of(z[i], task->max, task->scale) : 1;
            if (w > 0) add(shared, digit_of(p, key), w);
        }
    }
    __syncthreads();
    for (int d = (int)threadIdx.x; d < SAMPLE_NUM_DIGITS; d += SAMPLE_THREADS) {
        const unsigned long long sum = (unsigned long long)shared->high[d] << 32 | shared->low[d];
        if (sum > 0) atomicAdd(&p->sums[s->row * SAMPLE_NUM_DIGITS + d], sum);
    }
}

// Whether this is the last of the row's blocks; then it sees the sums of all.
DEVICE int ends_row(const struct sample_params *p, long long row, struct shared *shared) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        shared->is_last = atomicAdd(&p->states[row].turns, 1u) == (unsigned)p->num_slices - 1;
    __syncthreads();
    __threadfence();
    return shared->is_last;
}

// The weight of the tokens with the state's key that remain.
DEVICE unsigned long long equal_weight(const struct task *task) {
    const struct sample_state *state = &task->state;
    return state->equal * weight_of(float_of_key(state->key), task->max, task->scale);
}

DEVICE unsigned long long needed_of(const struct sample_params *p, long long row,
                                    const struct task *task) {
    if (!is_first(p)) return task->state.needed;
    if (!p->is_top_p) return (unsigned long long)task->options.top_k;
    const unsigned long long mine =
        LANE < p->num_slices ? p->z.slice_sum[row * p->num_slices + LANE] : 0;
    return sample_needed(task->options.top_p, add_lanes(mine) + equal_weight(task));
}

// The selection's end. Numbers of 16 bits have no last digit, whose bits are all alike; those of the number that is +inf are 1.
DEVICE void end_selection(const struct sample_params *p, const struct task *task,
                          struct sample_state *state) {
    unsigned key = state->prefix;
    if (p->shift > 0 && (key >> 31 == 0 || (key ^ key_of(SAMPLE_LARGEST)) >> p->shift == 0))
        key |= (1u << p->shift) - 1;
    state->key = key;
    state->equal = (unsigned)state->needed;
    if (!p->is_top_p) return;
    const unsigned long long w = weight_of(float_of_key(key), task->max, task->scale);
    state->equal = (unsigned)((state->needed + w - 1) / w);
}

// Finds the digit at which the sum from the highest one reaches what is needed.
DEVICE void find_digit(const struct sample_params *p, long long row, const struct task *task,
                       struct shared *shared) {
    unsigned long long *sums = p->sums + row * SAMPLE_NUM_DIGITS, own[EACH], mine = 0, before;
    const unsigned long long needed = needed_of(p, row, task);
    const int highest = SAMPLE_NUM_DIGITS - 1 - EACH * (int)threadIdx.x;
    struct sample_state state = task->state;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        own[i] = __ldcg(&sums[highest - i]);
        sums[highest - i] = 0;
        if (p->is_top_p && state.equal > 0 && has_prefix(p, state.key, state.prefix) &&
            (int)digit_of(p, state.key) == highest - i)
            own[i] += equal_weight(task);
        mine += own[i];
    }
    before = add_lower_lanes(mine);
    if (LANE == 31) shared->of_warps[WARP] = before;
    before -= mine;
    __syncthreads();
    unsigned long long all = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w == WARP) before += all;
        all += shared->of_warps[w];
    }
    if (is_first(p)) state.prefix = 0;
    state.turns = 0;
    state.is_short = all < needed;
    if (state.is_short ? threadIdx.x == 0 : before < needed && needed - before <= mine) {
        int digit = highest;
        state.needed = needed - before;
#pragma unroll
        for (int i = 0; i < EACH - 1; i++)
            if (digit == highest - i && state.needed > own[i]) state.needed -= own[i], digit--;
        if (!state.is_short) state.prefix |= (unsigned)digit << p->shift;
        if (p->is_last && !state.is_short) end_selection(p, task, &state);
        p->states[row] = state;
    }
}

extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS, 3)
    sample_digits(const struct sample_params p) {
    __shared__ struct shared shared;
    begin_early();
    for (long long i = blockIdx.x; i < p.rows * p.num_slices; i += gridDim.x) {
        const struct slice s = slice_of(&p, i);
        struct task task;
        if (!begin_task(&p, s.row, &task)) continue;
        add_slice(&p, &s, &task, &shared);
        if (ends_row(&p, s.row, &shared)) find_digit(&p, s.row, &task, &shared);
        __syncthreads();
    }
}
