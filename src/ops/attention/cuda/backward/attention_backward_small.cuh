// SPDX-License-Identifier: Apache-2.0
// Input and output of cuda-small's backward: rows into shared memory, with their statistics, and results from registers. The
// includer, attention_backward_small.cu, defines the macros, struct work and the layout of shared memory.
#ifndef TSRI_ATTENTION_BACKWARD_SMALL_CUH
#define TSRI_ATTENTION_BACKWARD_SMALL_CUH

// ---- Rows into shared memory ----------------------------------------------------------------------

// Loads rows [first, first + count) of a head, some at a time, to a tile of `rows`; zeros from row `end` on and beyond dims
// columns.
DEVICE void load_rows(unsigned tile, int rows, const struct attention_tensor *t,
                      const struct work *w, int first, int count, int end, int dims) {
    const int bytes = piece_bytes(dims);
    const char *at = piece_from(t, w->batch, first, w->head);
    const long long step = t->seq * (ROW_STEP * ELEMENT_BYTES);
    load_pieces(tile, at, step, bytes, rows, first, count, end);
}

// out is kept where the gradients of its stage's scores will be.
DEVICE unsigned out_at(const struct work *w, int first) {
    return w->grads + (unsigned)(first / SMALL_SLAB * SLAB_SIZE);
}

DEVICE void load_stage(const struct attention_backward_small_params *p, const struct work *w,
                       int first) {
    const int count = p->rows - first < STAGE ? p->rows - first : STAGE;
    const unsigned at = (unsigned)first * SMALL_ROW_BYTES;
    load_rows(w->q + at, p->rows, &p->q, w, first, count, p->seqlen_q, p->head_dim);
    load_rows(w->dout + at, p->rows, &p->dout, w, first, count, p->seqlen_q, p->head_dim_v);
    load_rows(out_at(w, first), p->rows, &p->out, w, first, count, p->seqlen_q, p->head_dim_v);
    if (MY_PIECE != 0) return;
    const float *lse = p->lse + w->batch * p->lse_batch + w->head * p->lse_head;
#pragma unroll 1
    for (int row = first + MY_ROW; row < first + count; row += ROW_STEP)
        copy_async_word(w->rows + (unsigned)row * 4, lse + row, row < p->seqlen_q ? 4 : 0);
}

DEVICE int is_nonfinite(uint4 piece) { return is_nan(add_product_with_zero(piece, 0)); }

DEVICE float dot_pair(unsigned x, unsigned y, float sum) {
    sum += float_of_half(x & 0xffff) * float_of_half(y & 0xffff);
    return sum + float_of_half(x >> 16) * float_of_half(y >> 16);
}

// After a stage's rows have arrived, each thread checks the pieces that it loaded itself. Sets lse in log2, inf for rows that do
// not exist or saw no key, and delta = dout . out. If some pairs may not see each other, rows that are not finite become 0 and
// their lse NaN, so that only the keys that they see get NaN.
DEVICE void finish_stage(const struct attention_backward_small_params *p, const struct work *w,
                         int first) {
    const int end = first + STAGE < p->rows ? first + STAGE : p->rows;
    const unsigned out = out_at(w, first) - (unsigned)first * SMALL_ROW_BYTES;
#pragma unroll 2
    for (int row = first + MY_ROW; row < end; row += ROW_STEP) {
        const unsigned at = piece_at(row, MY_PIECE, p->rows);
        const uint4 x = load_piece(w->dout + at), y = load_piece(out + at);
        float sum = dot_pair(x.x, y.x, dot_pair(x.y, y.y, 0));
        sum = dot_pair(x.z, y.z, dot_pair(x.w, y.w, sum));
#pragma unroll
        for (int far = 1; far < SPAN; far *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, far);
        unsigned bad = 0;
        if (p->has_hidden) {
            const int is_bad_q = is_nonfinite(load_piece(w->q + at)), is_bad_dout = is_nonfinite(x);
            if (is_bad_q) fill_piece(w->q + at, 0);
            if (is_bad_dout) fill_piece(w->dout + at, 0);
            bad = __ballot_sync(ALL_LANES, is_bad_q || is_bad_dout) >> LANE / SPAN * SPAN &
                  ((1u << SPAN) - 1);
        }
        if (MY_PIECE != 0) continue;
        float lse = load_float(w->rows + (unsigned)row * 4) * LOG2_E;
        if (lse == -INFINITE || row >= p->seqlen_q) lse = INFINITE, sum = 0;
        store_float(w->rows + (unsigned)row * 4, bad ? NOT_A_NUMBER : lse);
        store_float(w->rows + (unsigned)(p->rows + row) * 4, sum);
    }
}

// Overwrites pieces of keys that are not finite with `word`: NaN in the block's own keys, so that their pairs' gradients are NaN;
// 0 for the product with these gradients.
DEVICE void mark_keys(unsigned tile, int rows, int count, unsigned word) {
    tile += piece_at(MY_ROW, MY_PIECE, rows);
#pragma unroll 1
    for (int r = MY_ROW; r < count; r += ROW_STEP, tile += ROW_STEP * SMALL_ROW_BYTES)
        if (is_nonfinite(load_piece(tile))) fill_piece(tile, word);
}

// ---- Results --------------------------------------------------------------------------------------

// Stores 16 WARP_UNITS rows of `pieces` (4 or 8) pieces from column 8 * first_piece on, from a warp's registers through its own
// part of shared memory.
DEVICE void store_sums(float (*sums)[4], int num_sums, float scale, unsigned char *part,
                       const struct attention_tensor *t, const struct work *w, int row, int end,
                       int first_piece, int dims) {
    const int lane = LANE, pieces = num_sums;
    __syncwarp();
    EACH_UNIT(u) EACH_HALF(h) {
#pragma unroll
        for (int n = 0; n < num_sums; n++) {
            const float *x = sums[u * num_sums + n] + 2 * h;
            *(unsigned *)(part + swizzled(u * 16 + h * 8 + lane / 4, n, pieces) + lane % 4 * 4) =
                pair_of_floats(x[0] * scale, x[1] * scale);
        }
    }
    __syncwarp();
#pragma unroll
    for (int n = lane; n < WARP_UNITS * 16 * pieces; n += 32) {
        const int r = n / pieces, col = (first_piece + n % pieces) * GROUP, left = dims - col;
        if (row + r >= end || left <= 0) continue;
        const unsigned char *from = part + swizzled(r, n % pieces, pieces);
        const long long to = attention_at(t, w->batch, row + r, w->head) + col;
        store_piece(t->data, to, from, left);
    }
}

// Exchanges a warp's sums with its partner, lane by lane.
DEVICE void give(float4 *to, const float (*sums)[DIM_TILES][4]) {
    EACH_UNIT(u)
    EACH_DIM_TILE(n)
    to[(u * DIM_TILES + n) * 32] =
        make_float4(sums[u][n][0], sums[u][n][1], sums[u][n][2], sums[u][n][3]);
}
DEVICE void take(const float4 *from, float (*sums)[DIM_TILES][4]) {
    EACH_UNIT(u) EACH_DIM_TILE(n) {
        const float4 x = from[(u * DIM_TILES + n) * 32];
        sums[u][n][0] += x.x;
        sums[u][n][1] += x.y;
        sums[u][n][2] += x.z;
        sums[u][n][3] += x.w;
    }
}

#endif
