// SPDX-License-Identifier: Apache-2.0
// Tiles of fp32 in shared memory for backward, from numbers of any dtype: BLOCK queries against BLOCK keys, 16 x 16
// threads with a square of each product. Rows lie DEPTH-wise, four numbers longer than the deepest, so that sixteen
// rows are read in pieces of 16 bytes from different banks. The host or the includer defines
//     BLOCK (16, 32 or 64), DEPTH
//
// Numbers that are not finite, in rows that are summed over, would leak through weights of 0. So they become 0 when they are
// loaded, and their row's mark NaN, which reaches the weights of the pairs that see each other.
#ifndef TSRI_ATTENTION_BACKWARD_FMA_CUH
#define TSRI_ATTENTION_BACKWARD_FMA_CUH

#if !defined(BLOCK) || !defined(DEPTH)
#error "BLOCK or DEPTH is not defined"
#endif
#define ANY_DTYPE
#include "ops/attention/cuda/backward/attention_backward_device.cuh"

#define THREADS 256
#define EACH (BLOCK / 16)        // rows and columns of a thread's square
#define SCORE_STRIDE (BLOCK + 4) // of scores in shared memory
#define TX ((int)threadIdx.x % 16)
#define TY ((int)threadIdx.x / 16)

// The row stride of tiles that are `dims` deep.
DEVICE int tile_stride(int dims) { return (dims + 31) / 32 * 32 + 4; }

// Four numbers of a row; zeros if left is 0 or less.
DEVICE float4 load_piece(const void *data, long long from, int left, int dtype, int is_vector) {
    float x[4] = {0, 0, 0, 0};
    if (left <= 0) return make_float4(0, 0, 0, 0);
    if (is_vector && left >= 4) {
        if (dtype == DTYPE_F32) return *(const float4 *)((const float *)data + from);
        uint2 four = *(const uint2 *)((const unsigned short *)data + from);
        if (dtype == DTYPE_BF16)
            return make_float4(float_of_bf16(four.x & 0xffff), float_of_bf16(four.x >> 16),
                               float_of_bf16(four.y & 0xffff), float_of_bf16(four.y >> 16));
        return make_float4(float_of_f16(four.x & 0xffff), float_of_f16(four.x >> 16),
                           float_of_f16(four.y & 0xffff), float_of_f16(four.y >> 16));
    }
#pragma unroll
    for (int c = 0; c < 4; c++)
        if (c < left) x[c] = load_any(data, from + c, dtype);
    return make_float4(x[0], x[1], x[2], x[3]);
}

DEVICE float cleaned(float x, float *mark) {
    if (fabsf(x) < INFINITE) return x;
    *mark = NOT_A_NUMBER;
    return 0;
}

// Loads rows [first, first + BLOCK) of a head whose row 0 is at `at`; zeros from row `end` on and beyond dims. mark: 0, or one
// number for each row, which the caller has set to 0. Several pieces are in flight at a time.
DEVICE void load_tile(float *tile, int stride, const void *data, long long at, long long row_stride,
                      int first, int end, int dims, int dtype, int is_vector, float *mark) {
    enum { AT_A_TIME = 4 };
    int pieces = (stride - 4) / 4;
    for (int n = threadIdx.x; n < BLOCK * pieces; n += AT_A_TIME * THREADS) {
        float4 x[AT_A_TIME];
#pragma unroll
        for (int u = 0; u < AT_A_TIME; u++) {
            int row = (n + u * THREADS) / pieces, col = (n + u * THREADS) % pieces * 4;
            int is_there = row < BLOCK && first + row < end;
            x[u] = load_piece(data, at + (first + row) * row_stride + col,
                              is_there ? dims - col : 0, dtype, is_vector);
        }
#pragma unroll
        for (int u = 0; u < AT_A_TIME; u++) {
            int row = (n + u * THREADS) / pieces, col = (n + u * THREADS) % pieces * 4;
            if (row >= BLOCK) continue;
            if (mark != 0) {
                x[u].x = cleaned(x[u].x, mark + row);
                x[u].y = cleaned(x[u].y, mark + row);
                x[u].z = cleaned(x[u].z, mark + row);
                x[u].w = cleaned(x[u].w, mark + row);
            }
            *(float4 *)(tile + row * stride + col) = x[u];
        }
    }
}

// s[a][b] = dot product of rows TY + 16 a of x and TX + 16 b of y, `stride - 4` deep.
DEVICE void multiply_rows(float s[EACH][EACH], const float *x, const float *y, int stride) {
#pragma unroll
    for (int a = 0; a < EACH; a++)
#pragma unroll
        for (int b = 0; b < EACH; b++) s[a][b] = 0;
    x += TY * stride;
    y += TX * stride;
#pragma unroll 2
    for (int d = 0; d < stride - 4; d += 4) {
        float4 xs[EACH], ys[EACH];
#pragma unroll
        for (int a = 0; a < EACH; a++) xs[a] = *(const float4 *)(x + a * 16 * stride + d);
#pragma unroll
        for (int b = 0; b < EACH; b++) ys[b] = *(const float4 *)(y + b * 16 * stride + d);
#pragma unroll
        for (int a = 0; a < EACH; a++)
#pragma unroll
            for (int b = 0; b < EACH; b++) {
                s[a][b] += xs[a].x * ys[b].x;
                s[a][b] += xs[a].y * ys[b].y;
                s[a][b] += xs[a].z * ys[b].z;
                s[a][b] += xs[a].w * ys[b].w;
            }
    }
}

// acc[y][column] += sum over the BLOCK rows x of scores[x][y] tile[x][column]: rows TY EACH + a, columns 4 TX + 64 b +
// c.
#define ACCUMULATED (DEPTH / 64 * 4)
DEVICE void accumulate(float acc[EACH][ACCUMULATED], const float *scores, const float *tile,
                       int stride) {
#pragma unroll 4
    for (int x = 0; x < BLOCK; x++) {
        float weights[EACH];
        const float *from = scores + x * SCORE_STRIDE + TY * EACH;
#if BLOCK == 64
        *(float4 *)weights = *(const float4 *)from;
#elif BLOCK == 32
        *(float2 *)weights = *(const float2 *)from;
#else
        *weights = *from;
#endif
#pragma unroll
        for (int b = 0; b < DEPTH / 64; b++) {
            if (b * 64 + 4 >= stride) break; // the same for all threads
            int col = 4 * TX + 64 * b < stride - 4 ? 4 * TX + 64 * b : 0;
            float4 four = *(const float4 *)(tile + x * stride + col);
#pragma unroll
            for (int a = 0; a < EACH; a++) {
                acc[a][4 * b] += weights[a] * four.x;
                acc[a][4 * b + 1] += weights[a] * four.y;
                acc[a][4 * b + 2] += weights[a] * four.z;
                acc[a][4 * b + 3] += weights[a] * four.w;
            }
        }
    }
}

// Stores rows [first, end) of a head; rows from `seen` on are 0.
DEVICE void store_rows(float acc[EACH][ACCUMULATED], float scale, void *data, long long at,
                       long long row_stride, int first, int seen, int end, int dims, int dtype) {
#pragma unroll
    for (int a = 0; a < EACH; a++) {
        int row = first + TY * EACH + a;
        if (row >= end) continue;
#pragma unroll
        for (int b = 0; b < ACCUMULATED; b++) {
            int col = 4 * TX + 64 * (b / 4) + b % 4;
            if (col < dims)
                store_any(data, at + row * row_stride + col, row < seen ? acc[a][b] * scale : 0,
                          dtype);
        }
    }
}

// Weight and gradient of score (a, b) of this thread's square, for query i and key j. 0 if they do not see each other.
DEVICE struct attention_pair pair_at(const struct attention_backward_params *b,
                                     const struct attention_sequence *s, int batch, int head, int i,
                                     int j, float score, float dp, float lse, float lse_low,
                                     float delta, int is_before_cap) {
    const struct attention_params *p = &b->p;
    struct attention_pair pair = {0, 0};
    int far = j - i - s->shift;
    if (i >= s->len_q || j >= s->len_k || far < -p->window_left || far > p->window_right)
        return pair;
    if (!p->has_terms && p->dropout_threshold == 0) {
        pair.weight = exp2_fast((score * p->softmax_scale - lse) * LOG2_E);
        pair.grad = pair.weight * (dp - delta);
        return pair;
    }
    struct attention_query query = attention_query_at(p, s, batch, head, i);
    float keep = 1;
    if (p->dropout_threshold != 0)
        keep = attention_keep(p, attention_philox(p, batch, head, i, j >> 2), j);
    return attention_pair_of(p, &query, j, score, dp, lse, lse_low, delta, keep, is_before_cap);
}

#endif
