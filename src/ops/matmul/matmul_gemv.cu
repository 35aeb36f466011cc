// SPDX-License-Identifier: Apache-2.0
// Matmul of a few rows, where reading b is the whole cost. The host defines
//     DTYPE
// b is read once, in groups of 16 bytes, several of a thread on their way. Where its lines run along k, a warp makes dot
// products of two columns (of b and b_up where there is a gate); where they run along n, a thread has a group of
// columns, and the warps of a block share k. k is split further over blocks where columns are few.
#include "ops/matmul/matmul_epilogue.cuh"

#define MAX_ROWS 4  // as in matmul_cuda_plan.c
#define WARPS 8     //
#define DOT_COLS 16 // columns of a tile, where lines run along k
#define AXPY_COLS (32 * GROUP)
#define AT_ONCE 4

// GROUP elements of a, columns k, k + 1, ... of a row, which count of are there.
DEVICE void load_a(float x[GROUP], const struct matmul_params *p, long long at, int count) {
    if (p->a_is_vector && !p->a_is_mn && count >= GROUP) {
        widen(*(const uint4 *)((const char *)p->a.data + at * ELEMENT_BYTES), x);
        return;
    }
    long long step = p->a_is_mn ? p->a.line : 1;
#pragma unroll
    for (int i = 0; i < GROUP; i++) x[i] = i < count ? load(p->a.data, at + i * step) : 0;
}

DEVICE long long at_a(const struct matmul_params *p, const struct tile *t, int row, long long k) {
    return batch_offset(&p->a, t->index) + (p->a_is_mn ? k * p->a.line + row : row * p->a.line + k);
}

// ---- Lines along k: a warp's two columns ----------------------------------------------------------

DEVICE void add_dots(const struct matmul_params *p, const struct tile *t, float *sums) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const void *from[2];
    long long at[2];
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const struct matmul_operand *b = is_gated(p) && c == 1 ? &p->b_up : &p->b;
        long long col = t->col + (is_gated(p) ? warp : 2 * warp + c);
        from[c] = b->data;
        if (col >= p->n) col = p->n - 1;
        at[c] = batch_offset(b, t->index) + col * b->line;
    }
    float acc[MAX_ROWS][2] = {{0}};
    for (long long first = t->first_k + lane * GROUP; first < t->end_k;
         first += AT_ONCE * 32 * GROUP) {
        uint4 raw[AT_ONCE][2];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                long long k = first + u * (32 * GROUP);
                raw[u][c] = make_uint4(0, 0, 0, 0);
                // A line's end is within a group only where the stack ends too, if at all: b is aligned, so the
                // group lies in one piece of memory, but what is beyond k may be anything.
                if (k + GROUP <= t->end_k) raw[u][c] = load_bytes(from[c], at[c] + k);
            }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            long long k = first + u * (32 * GROUP);
            if (k >= t->end_k) continue;
            int count = t->end_k - k < GROUP ? (int)(t->end_k - k) : GROUP;
            float b[2][GROUP];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                widen(raw[u][c], b[c]);
                if (count < GROUP)
#pragma unroll
                    for (int i = 0; i < GROUP; i++)
                        b[c][i] = i < count ? load(from[c], at[c] + k + i) : 0;
            }
#pragma unroll
            for (int r = 0; r < MAX_ROWS; r++) {
                if (r >= p->m) continue;
                float a[GROUP];
                load_a(a, p, at_a(p, t, r, k), count);
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float sum = 0;
#pragma unroll
                    for (int i = 0; i < GROUP; i++) sum += a[i] * b[c][i];
                    acc[r][c] += sum;
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < MAX_ROWS; r++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float sum = acc[r][c];
#pragma unroll
            for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
            if (lane == 0)
                sums[r * DOT_COLS + (is_gated(p) ? c * WARPS + warp : 2 * warp + c)] = sum;
        }
    __syncthreads();
    int groups = is_gated(p) ? 1 : DOT_COLS / COLS, i = threadIdx.x;
    if (i >= groups * MAX_ROWS) return;
    float v[COLS], up[COLS];
    EACH_COL(e) v[e] = sums[i / groups * DOT_COLS + i % groups * COLS + e];
    EACH_COL(e) up[e] = sums[i / groups * DOT_COLS + WARPS + e];
    emit(p, t, i / groups, t->col + i % groups * COLS, v, up);
}

// ---- Lines along n: a thread's columns ------------------------------------------------------------

DEVICE void add_axpys(const struct matmul_params *p, const struct tile *t, float *sums) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    long long col = t->col + lane * GROUP, left = p->n - col;
    int count = left <= 0 ? 0 : left < GROUP ? (int)left : GROUP;
    long long at = batch_offset(&p->b, t->index) + col;
    float acc[MAX_ROWS][GROUP] = {{0}};
    for (long long first = t->first_k + warp * AT_ONCE; first < t->end_k;
         first += WARPS * AT_ONCE) {
        float b[AT_ONCE][GROUP];
        uint4 raw[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            raw[u] = make_uint4(0, 0, 0, 0);
            if (first + u < t->end_k && count == GROUP)
                raw[u] = load_bytes(p->b.data, at + (first + u) * p->b.line);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            widen(raw[u], b[u]);
            if (first + u < t->end_k && count < GROUP)
#pragma unroll
                for (int i = 0; i < GROUP; i++)
                    if (i < count) b[u][i] = load(p->b.data, at + (first + u) * p->b.line + i);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
            for (int r = 0; r < MAX_ROWS; r++) {
                if (r >= p->m || first + u >= t->end_k) continue;
                float a = load(p->a.data, at_a(p, t, r, first + u));
#pragma unroll
                for (int i = 0; i < GROUP; i++) acc[r][i] += a * b[u][i];
            }
    }
#pragma unroll
    for (int r = 0; r < MAX_ROWS; r++)
#pragma unroll
        for (int i = 0; i < GROUP; i += 4)
            *(float4 *)(sums + (warp * MAX_ROWS + r) * AXPY_COLS + lane * GROUP + i) =
                make_float4(acc[r][i], acc[r][i + 1], acc[r][i + 2], acc[r][i + 3]);
    __syncthreads();
    int groups = AXPY_COLS / COLS, i = threadIdx.x;
    if (i >= groups * MAX_ROWS) return;
    float v[COLS], x[COLS];
    EACH_COL(e) v[e] = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        load_cols(x, sums, (w * MAX_ROWS + i / groups) * AXPY_COLS + i % groups * COLS, 1, COLS, 1);
        EACH_COL(e) v[e] += x[e];
    }
    emit(p, t, i / groups, t->col + i % groups * COLS, v, v);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 2)
    matmul_gemv(const struct matmul_params p) {
    __shared__ float4 sums[WARPS * MAX_ROWS * AXPY_COLS / 4];
    struct tile t =
        find_tile(&p, p.first_tile + blockIdx.x, MAX_ROWS, p.b_is_mn ? AXPY_COLS : DOT_COLS);
    if (p.b_is_mn)
        add_axpys(&p, &t, (float *)sums);
    else
        add_dots(&p, &t, (float *)sums);
}
