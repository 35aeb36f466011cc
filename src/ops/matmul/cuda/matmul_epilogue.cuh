// SPDX-License-Identifier: Apache-2.0
// From products to c: alpha, bias, activation, gate, residual, accumulation, in the order of tessera/matmul.h; or to
// partial sums if k is split. A warp hands over its rows of 64 products through shared memory, in the order in which
// its instructions left them, and reads them back as COLS adjacent columns of a row: 16 bytes of a 16-bit dtype, and
// full cache lines. Most kernels of matmul end here.
#ifndef TSRI_MATMUL_EPILOGUE_CUH
#define TSRI_MATMUL_EPILOGUE_CUH

#include "cuda/device/activation.cuh"
#include "ops/matmul/cuda/matmul_tiles.cuh"

#define COLS 8
#define EACH_COL(i) _Pragma("unroll") for (int i = 0; i < COLS; i++)

// A warp's floats in shared memory; padding puts neighbouring rows 8 banks apart.
#define STAGING_STRIDE 72
#define STAGING_FLOATS(rows) ((rows)*STAGING_STRIDE)

// The factor of the products with b, or with b_up. In fp8 kernels (HAS_SCALES) it includes the tensors' scales.
DEVICE float factor(const struct matmul_params *p, int is_up) {
    float alpha = p->alpha;
#ifdef HAS_SCALES
    const float *of_b = is_up ? p->b_up_scale.data : p->b_scale.data;
    if (p->is_block_scaled) return alpha;
    if (p->a_scale.data != 0) alpha *= *p->a_scale.data;
    if (of_b != 0) alpha *= *of_b;
#endif
    return alpha;
}

// `count` elements of a line; if count is COLS and is_vector is set, all of them with aligned loads.
DEVICE void load_cols(float x[COLS], const void *data, long long at, int is_f32, int count,
                      int is_vector) {
    if (!is_vector || count < COLS) {
        EACH_COL(i) x[i] = i < count ? load_either(data, at + i, is_f32) : 0;
        return;
    }
#if DTYPE != DTYPE_F32
    if (!is_f32) {
        widen(*(const uint4 *)((const unsigned short *)data + at), x);
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < COLS; i += 4) {
        float4 four = *(const float4 *)((const float *)data + at + i);
        x[i] = four.x;
        x[i + 1] = four.y;
        x[i + 2] = four.z;
        x[i + 3] = four.w;
    }
}

DEVICE void store_cols(const float x[COLS], void *data, long long at, int is_f32, int count,
                       int is_vector) {
    if (!is_vector || count < COLS) {
        EACH_COL(i) {
            if (i < count) store_either(data, at + i, x[i], is_f32);
        }
        return;
    }
#if DTYPE != DTYPE_F32
    if (!is_f32) {
        *(uint4 *)((unsigned short *)data + at) = narrow(x);
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < COLS; i += 4)
        *(float4 *)((float *)data + at + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
}

// Columns [col, col + COLS) of a row of c; v and, with a gate, up are the products.
DEVICE void finish(const struct matmul_params *p, const long long index[3], long long row,
                   long long col, float v[COLS], const float up[COLS]) {
    if (row >= p->m || col >= p->n) return;
    int count = p->n - col < COLS ? (int)(p->n - col) : COLS;
    int is_vector = p->c_is_vector;
    float x[COLS];
    const float alpha = factor(p, 0);
    EACH_COL(i) v[i] *= alpha;
    if (p->bias != 0) {
        load_cols(x, p->bias, index[2] * p->groups.bias + col, p->bias_is_f32, count, is_vector);
        EACH_COL(i) v[i] += x[i];
    }
    if (p->activation != ACTIVATION_NONE) {
        EACH_COL(i) v[i] = activate(p->activation, v[i]);
    }
    if (is_gated(p)) {
        const float of_up = factor(p, 1);
        EACH_COL(i) x[i] = 0;
        if (p->bias_up != 0)
            load_cols(x, p->bias_up, index[2] * p->groups.bias_up + col, p->bias_up_is_f32, count,
                      is_vector);
        EACH_COL(i) v[i] *= gate(p->activation, fmaf(of_up, up[i], x[i]));
    }
    if (p->residual.data != 0) {
        long long at = batch_offset(&p->residual, index) + row * p->residual.line + col;
        load_cols(x, p->residual.data, at, p->residual_is_f32, count, is_vector);
        EACH_COL(i) v[i] += x[i];
    }
    long long at = batch_offset(&p->c, index) + row * p->c.line + col;
    if (p->is_accumulating) {
        load_cols(x, p->c.data, at, p->c_is_f32, count, is_vector);
        EACH_COL(i) v[i] += x[i];
    }
    store_cols(v, p->c.data, at, p->c_is_f32, count, is_vector);
}

// The start of a row's partial sums.
DEVICE float *partial_row(const struct matmul_params *p, long long split, long long batch,
                          int is_up, long long row) {
    long long stack = split * p->num_batches + batch;
    if (is_gated(p)) stack = 2 * stack + is_up;
    return p->partial + (stack * p->m + row) * p->partial_row;
}

// Stores a tile's products: in c, or as partial sums that another kernel finishes.
DEVICE void emit(const struct matmul_params *p, const struct tile *t, long long row, long long col,
                 float v[COLS], const float up[COLS]) {
    if (row >= t->end_row) return;
    if (p->num_splits == 1) {
        finish(p, t->index, row, col, v, up);
        return;
    }
    if (row >= p->m || col >= p->n) return; // partial_row is a multiple of COLS
    store_cols(v, partial_row(p, t->split, t->batch, 0, row), col, 1, COLS, 1);
    if (is_gated(p)) store_cols(up, partial_row(p, t->split, t->batch, 1, row), col, 1, COLS, 1);
}

// Finishes the rows of a warp's 64 columns from its staging memory: rows of c from `row` on, columns of the tile from
// `first` on.
DEVICE void emit_rows(const struct matmul_params *p, const struct tile *t, const float *staging,
                      int lane, int rows, long long row, int first) {
    int groups = is_gated(p) ? 4 : 8; // groups of COLS columns of c
#pragma unroll 1
    for (int i = lane; i < rows * groups; i += 32) {
        int r = i / groups, j = i % groups * COLS;
        float v[COLS], up[COLS];
        load_cols(v, staging, r * STAGING_STRIDE + j, 1, COLS, 1);
        if (is_gated(p)) load_cols(up, staging, r * STAGING_STRIDE + j + 32, 1, COLS, 1);
        emit(p, t, row + r, t->col + column_in_c(p, first) + j, v, up);
    }
}

#endif
