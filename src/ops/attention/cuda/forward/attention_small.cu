// SPDX-License-Identifier: Apache-2.0
// Attention's forward of up to 256 keys, for 16-bit dtypes by the tensor cores' m16n8k16. A block asks for 16 ROWS queries of a
// head and all the keys, then for all the values, before anything else, so that it goes to memory once. GROUPS warps share 16
// queries; each goes once through its part of the keys, with all its scores in registers, and all of them put together what they
// have, each for some of the columns. The blocks come in before the kernel ahead has ended, and know by then what they are for.
// Floor: q, k and v read once, out written once; 2 (head_dim + head_dim_v) FLOPs for each visible pair of query and key.
// Limit: the way to memory and back, then that of a warp through its keys, each step waiting for the one ahead.
// Figures: docs/kernels/attention_cuda_small.md.
// The host defines
//     DTYPE, HEAD_DIM (attention_mma.cuh)
#define ROWS 2 // warps beside each other
#define GROUPS (8 / ROWS)
#define BLOCK_M (16 * ROWS)
#define BLOCK_N 16 // keys of a step
#define THREADS 256
#define FEATURES 0
#define MOST_STEPS (256 / BLOCK_N / GROUPS) // of a warp
#include "ops/attention/cuda/forward/attention_small_mma.cuh"

#define Q_BYTES TILE_BYTES(BLOCK_M)

extern __shared__ __align__(1024) unsigned char shared_tiles[];

// Addresses of this thread's pieces of rows. Computed before the previous kernel has ended.
struct source {
    const char *at;
    long long step;
    int bytes;
};
DEVICE struct source source_of(const struct attention_tensor *t, int batch, long long first,
                               int head, int dims) {
    struct source source = {piece_from(t, batch, first, head), t->seq * (ROW_STEP * ELEMENT_BYTES),
                            piece_bytes(dims)};
    asm volatile("" : "+l"(source.at), "+l"(source.step), "+r"(source.bytes));
    return source;
}
// Loads the first `rows` rows of a tile; zeros from row `end` on and beyond the head's columns.
DEVICE void load_rows(unsigned tile, struct source source, int rows, int end) {
    load_pieces(tile, source.at, source.step, source.bytes, rows, 0, rows, end);
}

// ---- The kernel -----------------------------------------------------------------------------------

// Values that all warps share.
struct work {
    struct attention_task t;
    int first, rows, is_mixed; // is_mixed: some query does not see some key
    unsigned q_tile, k_tile, v_tile;
};

// Attention of a warp to its part of the keys, from `key` of the tiles on.
DEVICE void attend(const struct attention_forward_params *f, const struct work *w, int steps,
                   int key, int first_row, float (*o)[4], float max[2], float sum[2]) {
    const struct attention_params *p = &f->p;
    const int lane = LANE, j = w->first + key, i = w->t.first + first_row;
    float s[2 * MOST_STEPS][4];
    multiply_scores(s, steps, w->q_tile + piece_at(first_row + lane % 16, lane / 16, BLOCK_M),
                    w->k_tile + piece_at(key + lane % 8 + lane / 16 * 8, lane / 8 % 2, w->rows),
                    w->rows, p->head_dim);
    if (j + steps * BLOCK_N > attention_end_key(p, &w->t.s, i) ||
        j < attention_first_key(p, &w->t.s, i + 15)) {
#pragma unroll
        for (int n = 0; n < steps; n++) modify_scores(s + 2 * n, p, &w->t, i, j + n * BLOCK_N);
    }
    weigh_all(s, steps, max, sum, f->scale_log2);
    COPY_WAIT(0);
    __syncthreads();
    start_output(o);
    const unsigned v_at = w->v_tile + piece_at(key + lane % 16, lane / 16, w->rows);
    multiply_values(o, s, steps, v_at, w->rows, p->head_dim_v);
    if (!w->is_mixed || is_output_finite(o)) return;
    unsigned weights[MOST_STEPS][4];
#pragma unroll
    for (int n = 0; n < steps; n++) pack_weights(weights[n], s + 2 * n);
    sum_what_is_seen(o, weights, steps, p, &w->t.s, i, j, w->v_tile, key, w->rows);
}

// Combines the warps' results for 16 queries from shared memory: one float4 per lane for eight columns, warp after warp, then a
// maximum and a sum for each row and warp.
#define COLUMN_TILES (HEAD_DIM / 8)
#define SHARE (COLUMN_TILES / GROUPS) // of a warp
#define KEPT_TILES(dims) ((dims) <= HEAD_DIM / 2 ? COLUMN_TILES / 2 : COLUMN_TILES)
#define SUMS_AT(tiles) (THREADS * (tiles))

DEVICE void put_together(const struct attention_forward_params *f, const struct work *w,
                         const float4 *parts, int row_group, int group) {
    const struct attention_params *p = &f->p;
    const int tiles = KEPT_TILES(p->head_dim_v);
    const float2 *sums = (const float2 *)(parts + SUMS_AT(tiles)) + row_group * 16;
    const int lane = LANE, i = w->t.first + row_group * 16;
    const float trouble = sink_trouble(attention_sink_at(p, w->t.batch, w->t.head));
    float factor[GROUPS][2];
    EACH_HALF(h) {
        float2 x[GROUPS];
        float max = -INFINITE, total = 0;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            x[g] = sums[g * BLOCK_M + h * 8 + lane / 4];
            max = fmaxf(max, x[g].x);
        }
        const float zero = max == -INFINITE ? 0 : max;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            factor[g][h] = exp2_fast(IS_EXACT ? (x[g].x - zero) * f->scale_log2 : x[g].x - zero);
            total += x[g].y * factor[g][h];
        }
        const float part = total == 0 ? 0 : 1 / total + trouble;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) factor[g][h] *= part;
        const int row = i + h * 8 + lane / 4;
        if (group == 0 && p->lse != 0 && lane % 4 == 0 && row < w->t.s.len_q)
            p->lse[attention_lse_at(p, w->t.batch, w->t.head, w->t.s.q_first + row)] =
                (total == 0 ? -INFINITE : max * (IS_RAW ? p->softmax_scale : LN_2) + logf(total)) +
                trouble;
    }
    unsigned char *const tile = shared_tiles;
#pragma unroll
    for (int c = 0; c < SHARE; c++) {
        const int n = group * SHARE + c;
        if (n * 8 >= p->head_dim_v) break;
        float o[4] = {0, 0, 0, 0};
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const float4 x = parts[((g * ROWS + row_group) * tiles + n) * 32 + lane];
            o[0] += x.x * factor[g][0];
            o[1] += x.y * factor[g][0];
            o[2] += x.z * factor[g][1];
            o[3] += x.w * factor[g][1];
        }
        EACH_HALF(h)
        *(unsigned *)(tile + piece_at(row_group * 16 + h * 8 + lane / 4, n, BLOCK_M) +
                      lane % 4 * 4) = pair_of_floats(o[2 * h], o[2 * h + 1]);
    }
    __syncwarp();
#pragma unroll
    for (int at = lane; at < 16 * SHARE; at += 32) {
        const int row = at / SHARE, piece = group * SHARE + at % SHARE,
                  left = p->head_dim_v - piece * GROUP;
        if (i + row >= w->t.s.len_q || left <= 0) continue;
        const unsigned char *from = tile + piece_at(row_group * 16 + row, piece, BLOCK_M);
        const long long to =
            attention_at(&p->out, w->t.batch, w->t.s.q_first + i + row, w->t.head) + piece * GROUP;
        store_piece(p->out.data, to, from, left);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, HEAD_DIM == 64 ? 2 : 1)
    attention_small(const __grid_constant__ struct attention_forward_params f) {
    start_dependents();
    const struct attention_params *p = &f.p;
    const unsigned head = blockIdx.x / (unsigned)f.num_tiles;
    struct work w = {
        {(int)(head / (unsigned)p->num_heads_q), (int)(head % (unsigned)p->num_heads_q)}};
    struct attention_task *t = &w.t;
    t->kv_head = t->head / p->group;
    t->first = (int)(blockIdx.x % (unsigned)f.num_tiles) * BLOCK_M;
    if (p->is_packed || p->seqused_k != 0) wait_for_primary(); // it may write the lengths
    t->s = attention_sequence_at(p, t->batch);
    if (t->first >= t->s.len_q) return;
    const int last = (t->first + BLOCK_M < t->s.len_q ? t->first + BLOCK_M : t->s.len_q) - 1;
    t->begin = attention_first_key(p, &t->s, t->first);
    t->end = attention_end_key(p, &t->s, last);
    w.first = t->begin / BLOCK_N * BLOCK_N;
    // Of a warp: 1, 2 or 4.
    int steps = 1;
    while (steps * BLOCK_N * GROUPS < t->end - w.first) steps *= 2;
    w.rows = steps * BLOCK_N * GROUPS;
    const int end = w.first + w.rows < t->s.len_k ? w.first + w.rows : t->s.len_k;
    w.is_mixed = !attention_sees_all(&f, t, BLOCK_M, w.first, end);
    w.q_tile = shared_address(shared_tiles);
    w.v_tile = w.q_tile + Q_BYTES;
    w.k_tile = w.v_tile + (unsigned)(w.rows * HEAD_DIM * ELEMENT_BYTES);
    const struct source q = source_of(&p->q, t->batch, t->s.q_first + t->first, t->head,
                                      p->head_dim),
                        k = source_of(&p->k, t->batch, t->s.k_first + w.first, t->kv_head,
                                      p->head_dim),
                        v = source_of(&p->v, t->batch, t->s.k_first + w.first, t->kv_head,
                                      p->head_dim_v);
    wait_for_primary();
    load_rows(w.q_tile, q, BLOCK_M, t->s.len_q - t->first);
    load_rows(w.k_tile, k, w.rows, t->s.len_k - w.first);
    copy_commit();
    load_rows(w.v_tile, v, w.rows, t->s.len_k - w.first);
    copy_commit();

    const int lane = LANE, warp = threadIdx.x / 32, row_group = warp % ROWS, group = warp / ROWS;
    float o[HEAD_DIM / 8][4], max[2], sum[2];
    start_rows(max, sum, o, p, t->batch, t->head, 0);
    if (group > 0) EACH_HALF(h) max[h] = -INFINITE, sum[h] = 0; // only the first group has the sink
    COPY_WAIT(1);
    __syncthreads();
    const int key = group * steps * BLOCK_N;
    if (steps == 1)
        attend(&f, &w, 1, key, row_group * 16, o, max, sum);
    else if (steps == 2)
        attend(&f, &w, 2, key, row_group * 16, o, max, sum);
    else
        attend(&f, &w, MOST_STEPS, key, row_group * 16, o, max, sum);

    // Keys are no longer read.
    float4 *const parts = (float4 *)(shared_tiles + (w.k_tile - w.q_tile));
    const int tiles = KEPT_TILES(p->head_dim_v);
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) {
        if (n * 8 >= p->head_dim_v) break;
        parts[(warp * tiles + n) * 32 + lane] = make_float4(o[n][0], o[n][1], o[n][2], o[n][3]);
    }
    EACH_HALF(h) {
        const float total = sum_of_four(sum[h]);
        if (lane % 4 == 0)
            ((float2 *)(parts +
                        SUMS_AT(tiles)))[group * BLOCK_M + row_group * 16 + h * 8 + lane / 4] =
                make_float2(max[h], total);
    }
    __syncthreads();
    put_together(&f, &w, parts, row_group, group);
}
