// SPDX-License-Identifier: Apache-2.0
// The token of each row of logits (rows, vocab). A block has a row: the sums of its slices say in which one the sum of weights
// exceeds what was drawn, and a scan of that slice finds the token.
// Floor: a slice read, from the second-level cache.
// Limit: latency.
// Figures: docs/kernels/sample.md.
// The host defines
//     DTYPE
#include "ops/sample/sample_device.cuh"

enum { WARPS = SAMPLE_DRAW_THREADS / 32 };

struct shared {
    unsigned long long of_warps[WARPS];
    int id;
};

struct row {
    long long row;
    struct sample_options options;
    struct sample_state state;
    unsigned largest;
    float max, scale, least_weight,
        equal_weight; // equal_weight: of a token with the state's key; 0 if min_p removes it
};

// Where in the row the token is, and what the row's outputs need.
struct place {
    int slice;
    unsigned long long target; // of the slice's sum
    unsigned equal;            // tokens with the state's key that remain from the slice on
    unsigned long long sum;    // of all weights
    unsigned kept;
};

// The sum of x over this thread and those before. *all: of the block.
DEVICE unsigned long long scan(unsigned long long x, unsigned long long *all,
                               struct shared *shared) {
    unsigned long long sum = add_lower_lanes(x);
    if (LANE == 31) shared->of_warps[WARP] = sum;
    __syncthreads();
    const unsigned long long of_warps = add_lower_lanes(shared->of_warps[LANE]);
    const unsigned long long before = __shfl_sync(ALL_LANES, of_warps, WARP > 0 ? WARP - 1 : 0);
    *all = __shfl_sync(ALL_LANES, of_warps, WARPS - 1);
    __syncthreads();
    return sum + (WARP > 0 ? before : 0);
}

// floor(u sum) of the row.
DEVICE unsigned long long target_of(const struct sample_params *p, long long row,
                                    unsigned long long sum) {
    const unsigned long long stream =
        p->row_seed != 0 ? (unsigned)p->row_seed[row] : (unsigned long long)row;
    const unsigned long long offset =
        p->offset + (p->row_offset != 0 ? (unsigned)p->row_offset[row] : 0);
    const uint4 words = philox(p->seed, (unsigned)offset, (unsigned)(offset >> 32),
                               (unsigned)stream, (unsigned)(stream >> 32));
    unsigned long long low;
    return sample_high_product((unsigned long long)words.y << 32 | words.x, sum, &low);
}

// Each warp by itself.
DEVICE void find_slice(const struct sample_params *p, const struct row *row, struct place *place) {
    const long long at = row->row * p->num_slices + LANE;
    const int is_here = LANE < p->num_slices;
    const unsigned equal = is_here ? p->z.slice_equal[at] : 0;
    const unsigned equal_before = (unsigned)add_lower_lanes(equal) - equal;
    const unsigned left = row->state.equal > equal_before ? row->state.equal - equal_before : 0;
    const unsigned long long mine = (is_here ? p->z.slice_sum[at] : 0) +
                                    min(left, equal) * (unsigned long long)row->equal_weight;
    const unsigned long long upto = add_lower_lanes(mine);
    place->sum = __shfl_sync(ALL_LANES, upto, 31);
    place->target = target_of(p, row->row, place->sum);
    place->slice = __ffs((int)__ballot_sync(ALL_LANES, upto > place->target)) - 1;
    place->target -= __shfl_sync(ALL_LANES, upto - mine, place->slice);
    place->equal = __shfl_sync(ALL_LANES, left, place->slice);
    place->kept = __reduce_add_sync(ALL_LANES, is_here ? p->z.slice_above[at] : 0);
    if (row->equal_weight > 0 || row->least_weight == 0) place->kept += row->state.equal;
}

DEVICE unsigned long long weight_at(const struct row *row, float z, unsigned *equal) {
    const unsigned key = key_of(z);
    if (key == row->state.key) {
        const int is_left = *equal > 0;
        *equal -= is_left;
        return is_left ? (unsigned long long)row->equal_weight : 0;
    }
    const float w = sample_weight(z, row->max, row->scale);
    return key > row->state.key && w >= row->least_weight ? (unsigned long long)w : 0;
}

// The token in its slice. All threads call it.
DEVICE int find_token(const struct sample_params *p, const struct row *row, struct place *place,
                      struct shared *shared) {
    const struct slice s = slice_of(p, row->row * p->num_slices + place->slice);
    const int lead = lead_of(&p->z, row->row);
    if (threadIdx.x == 0) shared->id = 0;
    for (int first = s.first; first < s.last; first += WARPS) {
        const int g = first + WARP, col = col_of(g, lead);
        const int is_read =
            g < s.last && p->z.group_key[row->row * p->num_groups + g] >= row->state.key;
        float z[GROUP];
        unsigned long long all_equal = 0, all, mine = 0, upto;
        unsigned equal = 0;
#pragma unroll
        for (int i = 0; i < GROUP; i++) z[i] = -INFINITE;
        if (is_read) load_numbers(z, &p->z, row->row, col, p->vocab);
        unsigned left = place->equal;
        if (left > 0) { // a block's threads agree
#pragma unroll
            for (int i = 0; i < GROUP; i++) equal += key_of(z[i]) == row->state.key;
            const unsigned before = (unsigned)scan(equal, &all_equal, shared) - equal;
            left = left > before ? left - before : 0;
        }
        unsigned mine_left = left;
#pragma unroll
        for (int i = 0; i < GROUP; i++) mine += weight_at(row, z[i], &mine_left);
        upto = scan(mine, &all, shared);
        if (place->target < all) {
            unsigned long long target = place->target - (upto - mine);
            if (place->target >= upto - mine && place->target < upto) {
                int id = -1;
#pragma unroll
                for (int i = 0; i < GROUP; i++) {
                    const unsigned long long w = weight_at(row, z[i], &left);
                    if (id < 0 && target < w) id = col + i;
                    if (id < 0) target -= w;
                }
                shared->id = id;
            }
            break;
        }
        place->target -= all;
        place->equal -= (unsigned)min((unsigned long long)place->equal, all_equal);
    }
    __syncthreads();
    return shared->id;
}

// The first token of the largest number.
DEVICE int greatest(const struct sample_params *p, const struct row *row) {
    const long long at = row->row * p->num_slices + LANE;
    const int is_greatest = LANE < p->num_slices && p->z.slice_key[at] == row->largest;
    const int slice = __ffs((int)__ballot_sync(ALL_LANES, is_greatest)) - 1;
    return (int)p->z.slice_index[row->row * p->num_slices + slice];
}

// All lanes call it.
DEVICE float logprob_of(const struct sample_params *p, const struct row *row, int id,
                        unsigned long long sum) {
    const double one = (double)SAMPLE_ONE;
    if (p->is_logprob_raw) {
        const unsigned largest = largest_key(p, &p->raw, row->row);
        const float max = float_of_key(largest);
        const float x =
            sample_bounded(load_any(p->raw.x, row->row * p->raw.stride + id, p->raw_dtype));
        const unsigned long long mine =
            LANE < p->num_slices ? p->raw.slice_sum[row->row * p->num_slices + LANE] : 0;
        if (largest == KEY_OF_MINUS_INF) return -INFINITE;
        return (float)((double)__fadd_rn(x, -max) - log((double)add_lanes(mine) / one));
    }
    if (row->options.temperature == 0) return 0;
    const float z = sample_bounded(load(p->z.x, row->row * p->z.stride + id));
    return (float)((double)__fadd_rn(z, -row->max) / (double)row->options.temperature -
                   log((double)sum / one));
}

DEVICE void take_row(const struct sample_params *p, long long index, struct shared *shared) {
    struct row row = {index};
    struct place place = {0};
    int id = 0;
    float logprob = -INFINITE;
    row.options = options_of(p, index);
    row.state = p->states[index];
    row.largest = largest_key(p, &p->z, index);
    row.max = float_of_key(row.largest);
    const int is_nan =
        row.largest == (unsigned)KEY_OF_NAN || !sample_are_options_valid(&row.options);
    const int has_token = !is_nan && row.largest > KEY_OF_MINUS_INF;
    if (is_nan) logprob = NOT_A_NUMBER;
    if (has_token && row.options.temperature > 0) {
        row.scale = sample_scale(row.options.temperature);
        row.least_weight = SAMPLE_MUL(row.options.min_p, SAMPLE_ONE);
        row.equal_weight = sample_weight(float_of_key(row.state.key), row.max, row.scale);
        if (row.equal_weight < row.least_weight) row.equal_weight = 0;
        find_slice(p, &row, &place);
        id = find_token(p, &row, &place, shared);
    } else if (has_token) {
        place.kept = 1;
        id = greatest(p, &row);
    }
    if (WARP > 0) return;
    if (has_token && p->logprobs != 0) logprob = logprob_of(p, &row, id, place.sum);
    if (LANE > 0) return;
    p->ids[index] = id;
    if (p->kept != 0) p->kept[index] = (int)place.kept;
    if (p->logprobs != 0) p->logprobs[index] = logprob;
    if (p->num_nan_rows != 0 && is_nan) atomicAdd(p->num_nan_rows, 1);
}

extern "C" __global__ void __launch_bounds__(SAMPLE_DRAW_THREADS)
    sample_draw(const struct sample_params p) {
    __shared__ struct shared shared;
    begin_early();
    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {
        take_row(&p, row, &shared);
        __syncthreads();
    }
}
