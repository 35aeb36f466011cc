// SPDX-License-Identifier: Apache-2.0
// What the kernels on tensor cores share: tiles of rows in shared memory, and the softmax of 16 queries whose
// scores a warp holds as fragments (mma.cuh): s[n][2 h + e] is query h * 8 + lane / 4, key n * 8 + lane % 4 * 2 + e. The host
// defines
//     DTYPE, HEAD_DIM (64, 128, 192, 256: at least both head dims, but HEAD_DIM_V where that is given), BLOCK_N (keys of a tile),
//     FEATURES (1: softcap, bias, ALiBi, dropout, any softmax_scale)
// and the kernel BLOCK_M (queries) and THREADS.
#ifndef TSRI_ATTENTION_MMA_CUH
#define TSRI_ATTENTION_MMA_CUH

#include "cuda/device/mma.cuh"
#include "ops/attention/cuda/attention_tasks.cuh"

#if !defined(HEAD_DIM) || !defined(BLOCK_N) || !defined(FEATURES)
#error "HEAD_DIM, BLOCK_N or FEATURES is not defined"
#endif

#ifndef HEAD_DIM_V
#define HEAD_DIM_V HEAD_DIM
#endif

#define EACH_COLUMN_TILE(n) _Pragma("unroll") for (int n = 0; n < BLOCK_N / 8; n++)
#define EACH_DIM_TILE(n) _Pragma("unroll") for (int n = 0; n < HEAD_DIM_V / 8; n++)
#define EACH_HALF(h) _Pragma("unroll") for (int h = 0; h < 2; h++)
#define ALL_LANES 0xffffffffu
#define LANE ((int)(threadIdx.x % 32))
#if DTYPE == DTYPE_F32
#define ELEMENT float
#else
#define ELEMENT unsigned short
#endif
#define LN_2 0.6931471805599453f

// ---- Tiles ------------------------------------------------------------------------------------
// A tile is stored in slabs of 64 columns (fp32: 32) of all rows. A slab's rows have 128 bytes, in which the pieces of 16 bytes
// are permuted by the row's number, so that the same piece of eight rows lies in different banks. This is also wgmma's layout of
// 128 bytes.

#define SLAB_BYTES(rows) ((rows)*128)
#define TILE_BYTES(rows) (SLAB_BYTES(rows) * (HEAD_DIM * ELEMENT_BYTES / 128))

DEVICE unsigned piece_at(int row, int piece, int rows) {
    return (unsigned)(piece / 8 * SLAB_BYTES(rows) + row * 128 + ((piece % 8 ^ row % 8) * 16));
}

// A thread loads one column of pieces, every ROW_STEP-th row. In wide rows it loads one column in each of several spans.
#define PIECES (HEAD_DIM_V / GROUP)
#define SPAN (PIECES * 8 > THREADS ? THREADS / 8 : PIECES)
#define ROW_STEP (THREADS / SPAN) // a multiple of 8
#define MY_PIECE ((int)(threadIdx.x % SPAN))
#define MY_ROW ((int)(threadIdx.x / SPAN))

// How many bytes of this thread's piece lie within dims columns.
DEVICE int piece_bytes(int dims) {
    int bytes = (dims - MY_PIECE * GROUP) * ELEMENT_BYTES;
    return bytes < 0 ? 0 : bytes > 16 ? 16 : bytes;
}

// This thread's first piece of the rows that start at row `first` of the batch.
DEVICE const char *piece_from(const struct attention_tensor *t, int batch, long long first,
                              int head) {
    return (const char *)t->data +
           (attention_at(t, batch, first + MY_ROW, head) + MY_PIECE * GROUP) * ELEMENT_BYTES;
}

// Starts the copy of rows [0, num_rows) of `rows`, their first dims columns, into a tile; the rest becomes 0. Rows of fp32 that
// are not aligned are copied element by element.
DEVICE void load_tile(unsigned tile, const char *from, long long row_stride, int rows, int num_rows,
                      int dims, int is_aligned) {
    unsigned to = tile + piece_at(MY_ROW, MY_PIECE, rows);
#pragma unroll
    for (int span = 0; span < PIECES / SPAN; span++) {
        const char *at = from;
        if (dims == HEAD_DIM && num_rows >= rows && is_aligned) {
#pragma unroll
            for (int r = 0; r < rows; r += ROW_STEP) {
                copy_async_whole(to + r * 128, at);
                at += ROW_STEP * ELEMENT_BYTES * row_stride;
            }
        } else {
            int bytes = piece_bytes(dims - span * SPAN * GROUP);
#pragma unroll 1
            for (int r = 0; r < rows; r += ROW_STEP) {
                int there = MY_ROW + r < num_rows ? bytes : 0;
                if (is_aligned)
                    copy_async(to + r * 128, at, there);
                else
                    for (int c = 0; c < 16; c += 4)
                        copy_async_word(to + r * 128 + c, at + c, c < there ? 4 : 0);
                at += ROW_STEP * ELEMENT_BYTES * row_stride;
            }
        }
        to += SPAN / 8 * SLAB_BYTES(rows);
        from += SPAN * 16;
    }
}

// ---- Values that are not finite -----------------------------------------------------------------
// A query must not touch the NaN of a key that it does not see, not even times 0. If a tile is only seen in part and holds such
// values, they are removed from it and added for the queries that see them.

#if DTYPE != DTYPE_F32
#if DTYPE == DTYPE_BF16
#define EXPONENT 0x7f80u
#else
#define EXPONENT 0x7c00u
#endif
DEVICE int is_low_nonfinite(unsigned pair) { return (pair & EXPONENT) == EXPONENT; }
DEVICE int is_high_nonfinite(unsigned pair) { return is_low_nonfinite(pair >> 16); }

// Loops over this thread's pieces of a tile of values, in all of its spans.
#define EACH_OWN_PIECE(row, piece)                                                                 \
    _Pragma("unroll") for (int span_ = 0; span_ < PIECES / SPAN; span_++)                          \
        _Pragma("unroll 1") for (int row = MY_ROW, piece = MY_PIECE + span_ * SPAN; row < BLOCK_N; \
                                 row += ROW_STEP)

// A product with 0 is 0 or NaN, in either half.
DEVICE unsigned add_pair_with_zero(unsigned pair, unsigned sum) {
#if DTYPE == DTYPE_BF16
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(0));
#else
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(0));
#endif
    return sum;
}
DEVICE unsigned add_product_with_zero(uint4 piece, unsigned sum) {
    sum = add_pair_with_zero(piece.x, sum);
    sum = add_pair_with_zero(piece.y, sum);
    sum = add_pair_with_zero(piece.z, sum);
    return add_pair_with_zero(piece.w, sum);
}
DEVICE int is_nan(unsigned sum) { return (sum & 0x7fff7fffu) != 0; } // of such products
DEVICE int has_nonfinite(const unsigned char *v_tile) {
    unsigned sum = 0;
    EACH_OWN_PIECE(row, piece)
    sum = add_product_with_zero(*(const uint4 *)(v_tile + piece_at(row, piece, BLOCK_N)), sum);
    return is_nan(sum);
}

DEVICE void take_nonfinite_out(unsigned char *v_tile) {
    EACH_OWN_PIECE(row, piece) {
        unsigned *pair = (unsigned *)(v_tile + piece_at(row, piece, BLOCK_N));
#pragma unroll 1
        for (unsigned *end = pair + 4; pair < end; pair++) {
            unsigned low = is_low_nonfinite(*pair) ? 0 : *pair & 0xffffu;
            *pair = low | (is_high_nonfinite(*pair) ? 0 : *pair & 0xffff0000u);
        }
    }
}

DEVICE unsigned load_pair(unsigned shared) {
    unsigned pair;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(shared) : "memory");
    return pair;
}

// The query of row `row`, counted in the same way as t->first.
#ifndef QUERY_OF
#define QUERY_OF(p, row) (row)
#endif

// Adds them for 16 queries from i on, from the tile of keys from j on.
DEVICE void add_nonfinite(float (*o)[4], const struct attention_params *p,
                          const struct attention_sequence *s, int i, int j, unsigned v_tile) {
    EACH_HALF(h) {
        int query = QUERY_OF(p, i + h * 8 + LANE / 4);
        int key = attention_first_key(p, s, query) - j, end = attention_end_key(p, s, query) - j;
        if (end > BLOCK_N) end = BLOCK_N;
#pragma unroll 1
        for (key = key < 0 ? 0 : key; key < end; key++) EACH_DIM_TILE(n) {
                unsigned pair = load_pair(v_tile + piece_at(key, n, BLOCK_N) + LANE % 4 * 4);
                if (is_low_nonfinite(pair)) o[n][2 * h] += float_of_half(pair & 0xffff);
                if (is_high_nonfinite(pair)) o[n][2 * h + 1] += float_of_half(pair >> 16);
            }
    }
}

#endif

// ---- Softmax ----------------------------------------------------------------------------------
// Scores are q k; with FEATURES they are natural, after the scale. Maxima are in the units of scores, except in bf16 without
// FEATURES: there they are in log2, so that one multiply-add turns a score into its exponent. That step rounds: for scores of 1e8
// all weights of a row are off by the same factor, up to 2^32. This exceeds f16 and fp32's error bound, so these take an exact
// difference.
#define IS_EXACT (FEATURES || DTYPE != DTYPE_BF16)
#define IS_RAW (IS_EXACT && !FEATURES)
#define UNIT (FEATURES ? LOG2_E : scale_log2) // of maxima, in log2

DEVICE float max_of_four(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}
DEVICE float sum_of_four(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

DEVICE void start_output(float (*o)[4]) {
    EACH_DIM_TILE(n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
}

// A sink is in the row from the start; its weight is in one of the four lanes that share a row. is_nan_in_sum: a sink of NaN is in
// the sum too, for finish_rows without FEATURES.
DEVICE void start_rows(float max[2], float sum[2], float (*o)[4], const struct attention_params *p,
                       int batch, int head, int is_nan_in_sum) {
    const float sink = attention_sink_at(p, batch, head), max_of_all = sink_maximum(sink);
    EACH_HALF(h) {
        max[h] = FEATURES ? max_of_all
                 : IS_RAW ? max_of_all / p->softmax_scale
                          : max_of_all * LOG2_E;
        sum[h] = LANE % 4 == 0 ? sink_sum(sink) : 0.0f;
        if (is_nan_in_sum) sum[h] += sink_trouble(sink);
    }
    start_output(o);
}

// Modifies the scores of queries from i on and keys from j on; -inf for keys that a query does not see.
DEVICE void modify_scores(float (*s)[4], const struct attention_params *p,
                          const struct attention_task *t, int i, int j) {
    EACH_HALF(h) {
        int query = i + h * 8 + LANE / 4;
        int begin = attention_first_key(p, &t->s, query), end = attention_end_key(p, &t->s, query);
#if FEATURES
        struct attention_query terms = {0};
        if (query >= t->s.len_q) end = begin; // there is no bias
        if (begin < end) terms = attention_query_at(p, &t->s, t->batch, t->head, query);
#endif
        EACH_COLUMN_TILE(n) EACH_HALF(e) {
            int key = j + n * 8 + LANE % 4 * 2 + e;
            float *x = &s[n][2 * h + e];
#if FEATURES
            float unused;
            if (key >= begin && key < end)
                *x = attention_score(p, &terms, key, *x * p->softmax_scale, &unused);
            else
                *x = -INFINITE;
#else
            if (key < begin || key >= end) *x = -INFINITE;
#endif
        }
    }
}

// Whether the maximum of new scores exceeds the one so far by more than RENEW_AT.
#define RENEW_AT 8.0f
#define IS_ABOVE(top, max) (IS_EXACT ? ((top) - (max)) * UNIT > RENEW_AT : (top) > (max) + RENEW_AT)

// Renews the maxima and scales the sums if is_higher in some lane; alpha is then the factor of o. False: nothing is renewed. Same
// result in all lanes.
DEVICE int renew_where(int is_higher, const float top[2], float max[2], float sum[2],
                       float alpha[2], float scale_log2) {
    if (!__any_sync(ALL_LANES, is_higher)) return 0;
    EACH_HALF(h) {
        float next = fmaxf(top[h], max[h]), shift = next == -INFINITE ? 0 : max[h] - next;
        alpha[h] = exp2_fast(IS_EXACT ? shift * UNIT : shift);
        max[h] = next;
        sum[h] *= alpha[h];
    }
    return 1;
}
DEVICE int renew_maxima(float (*s)[4], float max[2], float sum[2], float alpha[2],
                        float scale_log2) {
    float top[2];
    int is_higher = 0;
    EACH_HALF(h) {
        top[h] = -INFINITE;
        EACH_COLUMN_TILE(n) top[h] = fmaxf(top[h], fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        top[h] = max_of_four(top[h]);
        if (!IS_EXACT) top[h] *= scale_log2;
        is_higher |= IS_ABOVE(top[h], max[h]);
    }
    return renew_where(is_higher, top, max, sum, alpha, scale_log2);
}

DEVICE void scale_rows(float (*o)[4], const float alpha[2]) {
    EACH_DIM_TILE(n) EACH_HALF(h) {
        o[n][2 * h] *= alpha[h];
        o[n][2 * h + 1] *= alpha[h];
    }
}

// Turns scores into weights and adds them to the sums, before dropout: groups [first, end) of 8 keys.
DEVICE void weigh_some(float (*s)[4], const float max[2], float sum[2], float scale_log2, int first,
                       int end) {
    EACH_HALF(h) {
        float zero = max[h] == -INFINITE ? 0 : max[h], more[2] = {0, 0};
#pragma unroll
        for (int n = first; n < end; n++) EACH_HALF(e) {
                float *x = &s[n][2 * h + e];
                *x = exp2_fast(IS_EXACT ? (*x - zero) * UNIT : *x * scale_log2 - zero);
                more[e] += *x;
            }
        sum[h] += more[0] + more[1];
    }
}
DEVICE void weigh(float (*s)[4], const float max[2], float sum[2], float scale_log2) {
    weigh_some(s, max, sum, scale_log2, 0, BLOCK_N / 8);
}

// Sets dropped weights to 0, without keep_scale, which the output gets at the end.
DEVICE void drop_weights(float (*s)[4], const struct attention_params *p,
                         const struct attention_task *t, int i, int j) {
    EACH_HALF(h) EACH_COLUMN_TILE(n) {
        int key = j + n * 8 + LANE % 4 * 2;
        uint4 words = attention_philox(p, t->batch, t->head, i + h * 8 + LANE / 4, key / 4);
        EACH_HALF(e) if (attention_keep(p, words, key + e) == 0) s[n][2 * h + e] = 0;
    }
}

// Two tiles of weights as the operand of 16 keys.
DEVICE void pack_weights(unsigned a[4], const float (*s)[4]) {
    a[0] = pair_of_floats(s[0][0], s[0][1]);
    a[1] = pair_of_floats(s[0][2], s[0][3]);
    a[2] = pair_of_floats(s[1][0], s[1][1]);
    a[3] = pair_of_floats(s[1][2], s[1][3]);
}

// ---- Output -----------------------------------------------------------------------------------

// Stores this lane's part of a row, times factor, into a tile.
DEVICE void store_row(unsigned char *tile, int row, float (*o)[4], int h, float factor) {
#if DTYPE == DTYPE_F32
    // Eight adjacent columns of each slab (attention_split.cuh).
#pragma unroll
    for (int n = 0; n < HEAD_DIM_V / 8; n += 4) EACH_HALF(e)
    *(float4 *)(tile + piece_at(row, 2 * n + LANE % 4 * 2 + e, BLOCK_M)) =
        make_float4(o[n][2 * h + e] * factor, o[n + 1][2 * h + e] * factor,
                    o[n + 2][2 * h + e] * factor, o[n + 3][2 * h + e] * factor);
#else
    EACH_DIM_TILE(n)
    *(unsigned *)(tile + piece_at(row, n, BLOCK_M) + LANE % 4 * 4) =
        pair_of_floats(o[n][2 * h] * factor, o[n][2 * h + 1] * factor);
#endif
}

// Writes 16 rows from `row` of the tile on into shared memory, and their lse to memory. Without FEATURES registers do not suffice
// to read the sink again: a sink of NaN is in the sum. If the maximum is still -inf, no key has weight, or o itself is NaN.
DEVICE void finish_rows(unsigned char *tile, float (*o)[4], const float max[2], const float sum[2],
                        const struct attention_params *p, const struct attention_task *t,
                        int first_row) {
    float unit = FEATURES ? 1.0f : IS_RAW ? p->softmax_scale : LN_2; // of maxima
    const float trouble = FEATURES ? sink_trouble(attention_sink_at(p, t->batch, t->head)) : 0.0f;
    EACH_HALF(h) {
        const float total = sum_of_four(sum[h]);
        const int is_empty = FEATURES ? total == 0 : max[h] == -INFINITE;
        float factor = is_empty ? 0 : 1 / total + trouble;
        int row = first_row + h * 8 + LANE / 4, i = t->first + row;
        if (FEATURES) factor *= p->keep_scale;
        store_row(tile, row, o, h, factor);
        if (p->lse != 0 && LANE % 4 == 0 && i < t->s.len_q)
            p->lse[attention_lse_at(p, t->batch, t->head, t->s.q_first + i)] =
                (total == 0 ? -INFINITE : max[h] * unit + logf(total)) + trouble;
    }
}

// Writes `count` rows that this warp finished to the output, in whole pieces, or by elements if it is not aligned.
DEVICE void store_rows(const unsigned char *tile, const struct attention_params *p,
                       const struct attention_task *t, int first_row, int count, int is_aligned) {
    __syncwarp();
#pragma unroll 4
    for (int at = LANE; at < count * PIECES; at += 32) {
        int row = first_row + at / PIECES, piece = at % PIECES, i = t->first + row;
        int dims = p->head_dim_v - piece * GROUP;
        if (i >= t->s.len_q || dims <= 0) continue;
        const unsigned char *from = tile + piece_at(row, piece, BLOCK_M);
        long long to = attention_at(&p->out, t->batch, t->s.q_first + i, t->head) + piece * GROUP;
        if (dims >= GROUP && is_aligned)
            store_bytes(p->out.data, to, *(const uint4 *)from);
        else
            for (int c = 0, end = is_aligned || dims < GROUP ? dims : GROUP; c < end; c++)
                ((ELEMENT *)p->out.data)[to + c] = ((const ELEMENT *)from)[c];
    }
}

#endif
