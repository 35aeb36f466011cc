// SPDX-License-Identifier: Apache-2.0
// Attention's forward of up to 64 queries and keys where there are many heads. A block has little of its own and many blocks share
// a multiprocessor, one's copies beside the other's products: a warp has 16 queries of a head and goes through all its keys at
// once, by m16n8k16, with nothing to put together; four warps have one, two or four heads.
// Floor: q, k and v read once, out written once.
// Limit: those bytes.
// Figures: docs/kernels/attention_cuda_small.md.
// The host defines
//     DTYPE, HEAD_DIM (attention_mma.cuh)
#define WARPS 4
#define BLOCK_M 16 // queries of a warp
#define BLOCK_N 16 // keys of a step
#define THREADS (32 * WARPS)
#define FEATURES 0
#define MOST_STEPS 4
#include "ops/attention/cuda/forward/attention_small_mma.cuh"

#define Q_BYTES TILE_BYTES(BLOCK_M)
#define WARP_PIECES (HEAD_DIM / GROUP)      // of a row
#define WARP_ROWS (32 / (HEAD_DIM / GROUP)) // that a warp copies at a time

extern __shared__ __align__(1024) unsigned char shared_tiles[];

// One warp loads rows [first, first + count) of a tile of `rows`; zeros from row `end` on and beyond the head's columns. Row 0 is
// row `at` of the batch.
DEVICE void load_rows(unsigned tile, const struct attention_tensor *from, int batch, long long at,
                      int head, int rows, int first, int count, int end, int dims) {
    const int piece = LANE % WARP_PIECES, left = (dims - piece * GROUP) * ELEMENT_BYTES,
              bytes = left < 0    ? 0
                      : left > 16 ? 16
                                  : left;
    const int row = first + LANE / WARP_PIECES;
    const char *source =
        (const char *)from->data +
        (attention_at(from, batch, at + row, head) + piece * GROUP) * ELEMENT_BYTES;
    const long long step = from->seq * (WARP_ROWS * ELEMENT_BYTES);
#pragma unroll 4
    for (int r = 0; r < count; r += WARP_ROWS) {
        copy_async(tile + piece_at(row + r, piece, rows), source, row + r < end ? bytes : 0);
        source += step;
    }
}

// Values of a warp.
struct work {
    struct attention_task t; // first: its first query
    unsigned q_tile, k_tile, v_tile;
};

// Attention of a warp's queries to 16 steps keys, stored through its tile of queries. steps is a constant.
DEVICE void attend(const struct attention_forward_params *f, const struct work *w, int steps) {
    const struct attention_params *p = &f->p;
    const struct attention_task *t = &w->t;
    const int lane = LANE, i = t->first, rows = steps * BLOCK_N;
    float s[2 * MOST_STEPS][4], o[HEAD_DIM / 8][4], max[2], sum[2];
    multiply_scores(s, steps, w->q_tile + piece_at(lane % 16, lane / 16, BLOCK_M),
                    w->k_tile + piece_at(lane % 8 + lane / 16 * 8, lane / 8 % 2, rows), rows,
                    p->head_dim);
    const int is_mixed =
        !attention_sees_all(f, t, BLOCK_M, 0, rows < t->s.len_k ? rows : t->s.len_k);
    if (is_mixed || rows > t->s.len_k) {
#pragma unroll
        for (int n = 0; n < steps; n++) modify_scores(s + 2 * n, p, t, i, n * BLOCK_N);
    }
    start_rows(max, sum, o, p, t->batch, t->head, !FEATURES);
    weigh_all(s, steps, max, sum, f->scale_log2);
    COPY_WAIT(0);
    __syncthreads();
    multiply_values(o, s, steps, w->v_tile + piece_at(lane % 16, lane / 16, rows), rows,
                    p->head_dim_v);
    if (is_mixed && !is_output_finite(o)) {
        unsigned weights[MOST_STEPS][4];
#pragma unroll
        for (int n = 0; n < steps; n++) pack_weights(weights[n], s + 2 * n);
        sum_what_is_seen(o, weights, steps, p, &t->s, i, 0, w->v_tile, 0, rows);
    }
    unsigned char *const tile = shared_tiles + threadIdx.x / 32 * Q_BYTES;
    finish_rows(tile, o, max, sum, p, t, 0);
    store_rows(tile, p, t, 0, BLOCK_M, 1);
}

extern "C" __global__ void __launch_bounds__(THREADS, HEAD_DIM == 64 ? 4 : 3)
    attention_small_many(const __grid_constant__ struct attention_forward_params f) {
    start_dependents();
    const struct attention_params *p = &f.p;
    const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0),
              sharers = p->seqlen_q > 32   ? 4
                        : p->seqlen_q > 16 ? 2
                                           : 1, // warps of a head
        steps = p->seqlen_k > 32   ? 4
                : p->seqlen_k > 16 ? 2
                                   : 1,
              rows = steps * BLOCK_N;
    const long long number = (long long)blockIdx.x * (WARPS / sharers) + warp / sharers;
    const int is_there = number < f.num_heads;
    const unsigned head = is_there ? (unsigned)number : 0;
    struct work w = {
        {(int)(head / (unsigned)p->num_heads_q), (int)(head % (unsigned)p->num_heads_q)}};
    struct attention_task *const t = &w.t;
    t->kv_head = p->group == 1 ? t->head : t->head / p->group;
    t->first = warp % sharers * BLOCK_M;
    const unsigned base = shared_address(shared_tiles),
                   bytes = (unsigned)(rows * HEAD_DIM * ELEMENT_BYTES);
    w.q_tile = base + warp * Q_BYTES;
    w.k_tile = base + WARPS * Q_BYTES + warp / sharers * 2 * bytes;
    w.v_tile = w.k_tile + bytes;
    wait_for_primary();
    t->s = attention_sequence_at(p, t->batch);
    const int share = rows / sharers, first = warp % sharers * share;
    load_rows(w.q_tile, &p->q, t->batch, t->s.q_first + t->first, t->head, BLOCK_M, 0, BLOCK_M,
              t->s.len_q - t->first, p->head_dim);
    load_rows(w.k_tile, &p->k, t->batch, t->s.k_first, t->kv_head, rows, first, share, t->s.len_k,
              p->head_dim);
    copy_commit();
    load_rows(w.v_tile, &p->v, t->batch, t->s.k_first, t->kv_head, rows, first, share, t->s.len_k,
              p->head_dim_v);
    copy_commit();
    if (!is_there) t->s.len_q = 0;
    COPY_WAIT(1);
    __syncthreads();
    if (steps == 1)
        attend(&f, &w, 1);
    else if (steps == 2)
        attend(&f, &w, 2);
    else
        attend(&f, &w, MOST_STEPS);
}
