// SPDX-License-Identifier: Apache-2.0
// c (m x n) = a (m x k) b (k x n) for up to 4 rows. b is read once, in groups of 16 bytes; each thread starts several
// loads while the block widens its part of a into shared memory. If lines of b run along k, a warp makes dot products
// with two columns (one of b and one of b_up with a gate). If they run along n, a thread has a group of columns, and
// the warps of a block divide k. k is split further over blocks if there are few columns.
// Floor: b read once.
// Limit: that reading.
// Figures: docs/kernels/matmul_cuda.md.
// The host defines
//     DTYPE
#include "ops/matmul/cuda/matmul_epilogue.cuh"

#define MAX_ROWS 4  // MATMUL_GEMV_ROWS
#define WARPS 8     //
#define DOT_COLS 16 // columns of a tile if lines run along k
#define AXPY_COLS (32 * GROUP)
#define AT_ONCE 4
#define STEP_K (32 * GROUP) // per step of a warp's dot products

// Row r of a's part is at a + r * k_of_split; elements beyond the part's end are 0.
DEVICE void fill_a(float *a, const struct matmul_params *p, const struct tile *t, int rows) {
    int left = (int)(t->end_k - t->first_k), length = (int)p->k_of_split;
    long long offset = batch_offset(&p->a, t->index);
    for (int r = 0; r < rows; r++)
        for (int i = threadIdx.x; i < length; i += WARPS * 32) {
            long long k = t->first_k + i;
            long long at = p->a_is_mn ? k * p->a.line + r : r * p->a.line + k;
            a[r * length + i] = r < p->m && i < left ? load(p->a.data, offset + at) : 0;
        }
}

DEVICE void load_shared(float x[GROUP], const float *from) {
#pragma unroll
    for (int i = 0; i < GROUP; i += 4) {
        float4 four = *(const float4 *)(from + i);
        x[i] = four.x;
        x[i + 1] = four.y;
        x[i + 2] = four.z;
        x[i + 3] = four.w;
    }
}

// ---- Lines along k: a warp's two columns ----------------------------------------------------------

// A group of a line from k on, of which `left` elements exist. The rest is set to 0, because the memory there may hold
// anything.
DEVICE uint4 load_line(const char *line, int k, int left) {
    if (left >= GROUP) return load_bytes(line, k);
    unsigned word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < GROUP; i++)
#if DTYPE == DTYPE_F32
        if (i < left) word[i] = ((const unsigned *)line)[k + i];
#else
        if (i < left) word[i / 2] |= ((const unsigned short *)line)[k + i] << i % 2 * 16;
#endif
    return make_uint4(word[0], word[1], word[2], word[3]);
}

DEVICE void add_dots(const struct matmul_params *p, const struct tile *t, float *a,
                     const int rows) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int left = (int)(t->end_k - t->first_k), length = (int)p->k_of_split;
    const char *line[2];
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const struct matmul_operand *b = is_gated(p) && c == 1 ? &p->b_up : &p->b;
        long long col = t->col + (is_gated(p) ? warp : 2 * warp + c);
        if (col >= p->n) col = p->n - 1;
        line[c] = (const char *)b->data +
                  (batch_offset(b, t->index) + col * b->line + t->first_k) * ELEMENT_BYTES;
    }
    const int at_once = rows == 1 ? AT_ONCE : AT_ONCE / 2; // limited by registers
    uint4 raw[AT_ONCE][2];
#define LOAD_LINES(first)                                                                          \
    _Pragma("unroll") for (int u = 0; u < at_once; u++)                                            \
        _Pragma("unroll") for (int c = 0; c < 2; c++) {                                            \
        int k = (first) + u * STEP_K + lane * GROUP;                                               \
        raw[u][c] = load_line(line[c], k, left - k);                                               \
    }
    LOAD_LINES(0)
    fill_a(a, p, t, rows);
    __syncthreads();
    float acc[MAX_ROWS][2] = {{0}};
    for (int first = 0; first < left; first += at_once * STEP_K) {
        uint4 now[AT_ONCE][2];
#pragma unroll
        for (int u = 0; u < at_once; u++)
#pragma unroll
            for (int c = 0; c < 2; c++) now[u][c] = raw[u][c];
        LOAD_LINES(first + at_once * STEP_K)
#pragma unroll
        for (int u = 0; u < at_once; u++) {
            int k = first + u * STEP_K + lane * GROUP;
            if (k >= left) continue;
            float b[2][GROUP];
#pragma unroll
            for (int c = 0; c < 2; c++) widen(now[u][c], b[c]);
#pragma unroll
            for (int r = 0; r < rows; r++) {
                float x[GROUP];
                load_shared(x, a + r * length + k);
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float sum = 0;
#pragma unroll
                    for (int i = 0; i < GROUP; i++) sum += x[i] * b[c][i];
                    acc[r][c] += sum;
                }
            }
        }
    }
    __syncthreads(); // a is no longer needed
    float *sums = a;
#pragma unroll
    for (int r = 0; r < rows; r++)
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
    if (i >= groups * rows) return;
    float v[COLS], up[COLS];
    EACH_COL(e) v[e] = sums[i / groups * DOT_COLS + i % groups * COLS + e];
    EACH_COL(e) up[e] = sums[i / groups * DOT_COLS + WARPS + e];
    emit(p, t, i / groups, t->col + i % groups * COLS, v, up);
}

// ---- Lines along n: a thread's columns ------------------------------------------------------------

DEVICE void add_axpys(const struct matmul_params *p, const struct tile *t, float *a,
                      const int rows) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int left = (int)(t->end_k - t->first_k), length = (int)p->k_of_split;
    long long col = t->col + lane * GROUP;
    const int count = p->n - col < GROUP ? (int)(p->n - col) : GROUP;
    const char *line =
        (const char *)p->b.data +
        (batch_offset(&p->b, t->index) + t->first_k * p->b.line + col) * ELEMENT_BYTES;
    uint4 raw[AT_ONCE];
#define LOAD_ROWS(first)                                                                           \
    _Pragma("unroll") for (int u = 0; u < AT_ONCE; u++) {                                          \
        int k = (first) + u * WARPS + warp;                                                        \
        raw[u] =                                                                                   \
            load_line(line + (long long)k * p->b.line * ELEMENT_BYTES, 0, k < left ? count : 0);   \
    }
    LOAD_ROWS(0)
    fill_a(a, p, t, rows);
    __syncthreads();
    float acc[MAX_ROWS][GROUP] = {{0}};
    for (int first = 0; first < left; first += AT_ONCE * WARPS) {
        uint4 now[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) now[u] = raw[u];
        LOAD_ROWS(first + AT_ONCE * WARPS)
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            int k = first + u * WARPS + warp;
            if (k >= left) continue;
            float b[GROUP];
            widen(now[u], b);
#pragma unroll
            for (int r = 0; r < rows; r++) {
                float x = a[r * length + k];
#pragma unroll
                for (int i = 0; i < GROUP; i++) acc[r][i] += x * b[i];
            }
        }
    }
    __syncthreads(); // a is no longer needed
    float *sums = a;
#pragma unroll
    for (int r = 0; r < rows; r++)
#pragma unroll
        for (int i = 0; i < GROUP; i += 4)
            *(float4 *)(sums + (warp * rows + r) * AXPY_COLS + lane * GROUP + i) =
                make_float4(acc[r][i], acc[r][i + 1], acc[r][i + 2], acc[r][i + 3]);
    __syncthreads();
    int groups = AXPY_COLS / COLS, i = threadIdx.x;
    if (i >= groups * rows) return;
    float v[COLS], x[COLS];
    EACH_COL(e) v[e] = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        load_cols(x, sums, (w * rows + i / groups) * AXPY_COLS + i % groups * COLS, 1, COLS, 1);
        EACH_COL(e) v[e] += x[e];
    }
    emit(p, t, i / groups, t->col + i % groups * COLS, v, v);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 2)
    matmul_gemv(const struct matmul_params p) {
    extern __shared__ float4 shared[];
    float *a = (float *)shared;
    struct tile t =
        find_tile(&p, p.first_tile + blockIdx.x, MAX_ROWS, p.b_is_mn ? AXPY_COLS : DOT_COLS);
    if (p.b_is_mn && p.m == 1)
        add_axpys(&p, &t, a, 1);
    else if (p.b_is_mn)
        add_axpys(&p, &t, a, MAX_ROWS);
    else if (p.m == 1)
        add_dots(&p, &t, a, 1);
    else
        add_dots(&p, &t, a, MAX_ROWS);
}
