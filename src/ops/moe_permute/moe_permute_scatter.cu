// SPDX-License-Identifier: Apache-2.0
// Second half of the permutation, and all of it for few assignments, which one block has: every assignment gets its row. A
// block adds up the counts of all blocks and of those before it; its warps, which have consecutive assignments, add the counts
// of the warps before them; within a warp, equal experts are ranked by lane. So the order is that of the assignments, whichever
// thread runs first.
// Floor: ids read, 4 bytes an assignment, and up to 12 written.
// Limit: the counts of all blocks, which each block reads; rows written one element at a time.
// Figures: docs/kernels/moe.md.
#include "ops/moe_permute/moe_permute_device.cuh"

enum { AHEAD = 4, MOST_PARTS = 8 };

extern __shared__ int counters[]; // a table, if the experts are few

// One counter an expert: the next row of each warp's assignments, and the end of the expert's rows.
struct table {
    int *next; // (warps, num_experts)
    int *ends; // (num_experts)
};

// Loads AHEAD times 32 assignments, this lane's AHEAD of them. An assignment beyond the warp's last one has no expert.
DEVICE void load_ids(const struct moe_permute_params *p, unsigned base, unsigned last,
                     int id[AHEAD]) {
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
        id[a] = last - base > a * 32 + LANE ? id_of(p, (int)base + a * 32 + LANE) : -1;
}

// The counts of each warp.
DEVICE void count_warps(const struct moe_permute_params *p, const struct table *table,
                        unsigned first, unsigned last) {
    int id[AHEAD];
    for (int i = threadIdx.x; i < NUM_WARPS * p->num_experts; i += blockDim.x) table->next[i] = 0;
    __syncthreads();
    for (unsigned base = first; base < last; base += 32 * AHEAD) {
        load_ids(p, base, last, id);
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (is_expert(p, id[a])) atomicAdd(&table->next[WARP * p->num_experts + id[a]], 1);
    }
    __syncthreads();
}

// Assignments of an expert in all blocks, and in the blocks before this one. A tile of `width` experts: several threads
// share the blocks of one expert. All threads call it; the first `width` get the result.
DEVICE void add_blocks(const struct moe_permute_params *p, const struct table *table, int tile,
                       int width, int *total, int *before) {
    __shared__ int totals[MOE_PERMUTE_THREADS];
    __shared__ int befores[MOE_PERMUTE_THREADS];
    const int room = (int)blockDim.x / width, parts = room < MOST_PARTS ? room : MOST_PARTS;
    const int part = (int)threadIdx.x / width, e = tile + (int)threadIdx.x % width;
    int sum = 0, early = 0;
    if (p->blocks == 1) {
        if (part == 0 && e < p->num_experts)
            for (int w = 0; w < NUM_WARPS; w++) sum += table->next[w * p->num_experts + e];
        *total = sum;
        *before = 0;
        return;
    }
    if (part < parts && e < p->num_experts)
#pragma unroll 8
        for (int b = part; b < p->blocks; b += parts) {
            const int count = p->counts[(long long)b * p->num_experts + e];
            sum += count;
            early += b < (int)blockIdx.x ? count : 0;
        }
    totals[threadIdx.x] = sum;
    befores[threadIdx.x] = early;
    __syncthreads();
    for (int i = 1; i < parts && part == 0; i++) {
        sum += totals[i * width + (int)threadIdx.x];
        early += befores[i * width + (int)threadIdx.x];
    }
    *total = sum;
    *before = early;
    __syncthreads();
}

// Sum of x over the threads before this one; *all: over all threads.
DEVICE int add_before(int x, int *all) {
    __shared__ int of_warp[MOE_PERMUTE_THREADS / 32];
    int upto = x; // this lane included
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        const int other = __shfl_up_sync(ALL_LANES, upto, i);
        upto += LANE >= i ? other : 0;
    }
    if (LANE == 31) of_warp[WARP] = upto;
    __syncthreads();
    int sum = upto - x;
    *all = 0;
    for (int w = 0; w < NUM_WARPS; w++) {
        sum += w < WARP ? of_warp[w] : 0;
        *all += of_warp[w];
    }
    __syncthreads();
    return sum;
}

// Counts become places; the first block stores what follows from the counts alone. Returns the number of rows.
DEVICE int find_places(const struct moe_permute_params *p, const struct table *table) {
    int width = 32, num_rows = 0, num_dropped = 0;
    while (width < p->num_experts && width < (int)blockDim.x) width *= 2;
    for (int tile = 0; tile < p->num_experts; tile += width) {
        const int e = tile + (int)threadIdx.x;
        int total, before, rows, dropped;
        add_blocks(p, table, tile, width, &total, &before);
        const int is_mine = (int)threadIdx.x < width && e < p->num_experts;
        const int kept = !is_mine ? 0 : total < p->capacity ? total : p->capacity;
        const int begin = num_rows + add_before(kept, &rows);
        (void)add_before(is_mine ? total - kept : 0, &dropped);
        if (is_mine) {
            int place = begin + before;
            table->ends[e] = begin + kept;
            for (int w = 0; w < NUM_WARPS; w++) {
                const int count = table->next[w * p->num_experts + e];
                table->next[w * p->num_experts + e] = place;
                place += count;
            }
            if (blockIdx.x == 0) {
                p->offsets[e + 1] = begin + kept;
                if (p->tokens_per_expert != 0) p->tokens_per_expert[e] = total;
            }
        }
        num_rows += rows;
        num_dropped += dropped;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        p->offsets[0] = 0;
        if (p->num_dropped != 0) *p->num_dropped = num_dropped;
    }
    __syncthreads();
    return num_rows;
}

DEVICE void store_row(const struct moe_permute_params *p, int assignment, int row) {
    if (p->row_tokens != 0) p->row_tokens[row] = (int)((unsigned)assignment / (unsigned)p->top_k);
    if (p->row_weights != 0)
        p->row_weights[row] = p->weights[place_of(p, assignment, p->weights_stride)];
}

DEVICE void place(const struct moe_permute_params *p, const struct table *table, unsigned first,
                  unsigned last) {
    int *const next = table->next + WARP * p->num_experts;
    int id[AHEAD];
    for (unsigned base = first; base < last; base += 32 * AHEAD) {
        load_ids(p, base, last, id);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int i = (int)base + a * 32 + LANE, has_id = is_expert(p, id[a]);
            const unsigned same = __match_any_sync(ALL_LANES, id[a]);
            const int rank = __popc(same & ((1u << LANE) - 1));
            int row = has_id ? next[id[a]] + rank : id[a] == -1 ? -1 : -2;
            __syncwarp();
            if (has_id && rank == 0) next[id[a]] = row + __popc(same);
            __syncwarp();
            if (has_id && row >= table->ends[id[a]]) row = -1; // beyond the capacity
            if (row >= 0) store_row(p, i, row);
            if (last - base > a * 32 + LANE && p->token_rows != 0)
                p->token_rows[place_of(p, i, p->token_rows_stride)] = row;
        }
    }
}

DEVICE void permute(const struct moe_permute_params *p, int *memory) {
    const struct table table = {memory, memory + NUM_WARPS * p->num_experts};
    const int first = (int)blockIdx.x * p->chunk, end = end_of(p, first, p->chunk);
    const int each = p->chunk / NUM_WARPS, skipped = WARP * each;
    const int mine = end - first > skipped ? first + skipped : end;
    const int last = end - mine < each ? end : mine + each;
    count_warps(p, &table, mine, last);
    const int num_rows = find_places(p, &table);
    place(p, &table, mine, last);
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long r = num_rows + (long long)blockIdx.x * blockDim.x + threadIdx.x; r < p->num_rows;
         r += step) {
        if (p->row_tokens != 0) p->row_tokens[r] = -1;
        if (p->row_weights != 0) p->row_weights[r] = 0;
    }
}

extern "C" __global__ void __launch_bounds__(MOE_PERMUTE_THREADS)
    moe_permute_scatter(const struct moe_permute_params p) {
    begin_early();
    if (p.num_experts <= MOE_PERMUTE_SHARED)
        permute(&p, counters);
    else
        permute(&p, p.tables + (long long)blockIdx.x * (NUM_WARPS + 1) * p.num_experts);
}
