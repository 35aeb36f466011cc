// SPDX-License-Identifier: Apache-2.0
// Rows to fp8 with a scale for each 128 columns, with an activation, a gate and a row list. As many lanes as a block of columns has
// units of 16 bytes take it: each loads AT_ONCE blocks' units before it uses the first, the lanes' largest values meet by shuffles,
// and each stores its 8 bytes of y (4 of f32). The blocks of a thread block are neighbours. If rows are not aligned, neighbouring
// lanes have neighbouring columns, and every element moves alone.
// Floor: x and up read once, y and y_scale written once: 3.03 bytes an element of bf16, 5.03 with a gate.
// Limit: memory; the second floor is instruction issue.
// Figures: docs/kernels/quantize.md.
// The host defines
//     DTYPE: the dtype of x and up
#include "cuda/device/activation.cuh"
#include "cuda/device/fp8.cuh"
#include "ops/quantize/quantize_params.h"

enum {
    AT_ONCE = QUANTIZE_AT_ONCE,
    LANES = QUANTIZE_BLOCK / GROUP, // of a block of columns
    GROUPS = QUANTIZE_THREADS / LANES,
    TILE = GROUPS * AT_ONCE, // blocks of columns of a thread block
};
#define ALL_LANES 0xffffffffu
#define LANE ((int)(threadIdx.x % LANES))
#define EACH_UNIT(u) _Pragma("unroll") for (int u = 0; u < AT_ONCE; u++)
#define EACH_ELEMENT(i) _Pragma("unroll") for (int i = 0; i < GROUP; i++)

// A block of columns, and the row of x that it comes from: -1 for zeros.
struct unit {
    long long row, block, source;
};

DEVICE long long source_of(const struct quantize_params *p, long long row) {
    if (row >= p->rows) return -1;
    if (p->x_rows == 0) return row;
    const long long source = p->x_rows[row * p->x_rows_stride];
    return source < p->num_x_rows ? source : -1;
}

DEVICE void find_units(struct unit units[AT_ONCE], const struct quantize_params *p,
                       long long tile) {
    const long long number = tile * TILE + threadIdx.x / LANES;
    long long row, block;
    if (p->num_blocks + TILE < 1LL << 32) {
        row = (unsigned)number / (unsigned)p->blocks_of_row;
        block = (unsigned)number % (unsigned)p->blocks_of_row;
    } else {
        row = number / p->blocks_of_row;
        block = number % p->blocks_of_row;
    }
    EACH_UNIT(u) {
        units[u].row = row;
        units[u].block = block;
        units[u].source = source_of(p, row);
        row += p->row_step;
        block += p->block_step;
        if (block >= p->blocks_of_row) {
            block -= p->blocks_of_row;
            row++;
        }
    }
}

// The lane's first column of a unit.
DEVICE long long first_col(const struct quantize_params *p, const struct unit *unit) {
    return unit->block * QUANTIZE_BLOCK + (p->is_aligned ? LANE * GROUP : LANE);
}

DEVICE uint4 fetch(const struct elements_view *view, const struct quantize_params *p,
                   const struct unit *unit) {
    const long long col = first_col(p, unit);
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (p->is_aligned && unit->source >= 0 && col < p->cols)
        raw = load_bytes(view->data, unit->source * view->stride + col);
    return raw;
}

DEVICE void numbers_of(float x[GROUP], uint4 raw, const struct elements_view *view,
                       const struct quantize_params *p, const struct unit *unit) {
    const long long col = first_col(p, unit);
    if (p->is_aligned) {
        widen(raw, x);
        return;
    }
    EACH_ELEMENT(i)
    x[i] = unit->source >= 0 && col + i * LANES < p->cols
               ? load(view->data, unit->source * view->stride + col + i * LANES)
               : 0;
}

// x becomes v. kind: a constant.
DEVICE void activate_unit(int kind, float x[GROUP], const float up[GROUP], int is_gated) {
    EACH_ELEMENT(i) {
        x[i] = activate_dtype(kind, x[i]);
        if (is_gated) x[i] *= gate(kind, up[i]);
    }
}

// The largest magnitude of the block's numbers: fmaxf passes NaN over.
DEVICE float largest_of_block(const float x[GROUP]) {
    float most = 0;
    EACH_ELEMENT(i) most = fmaxf(most, fabsf(x[i]));
#pragma unroll
    for (int i = LANES / 2; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, i));
    return most;
}

// The same of what is finite; infinities become NaN. They are rare, so all lanes look for them only where a lane has one.
DEVICE float largest_finite_of_block(float x[GROUP]) {
    const float most = largest_of_block(x);
    if (!__any_sync(ALL_LANES, most == INFINITE)) return most;
    EACH_ELEMENT(i) if (fabsf(x[i]) == INFINITE) x[i] = __int_as_float(0x7fffffff);
    return largest_of_block(x);
}

// largest / limit, correctly rounded: limit is 7 times a power of two.
DEVICE float scale_of(float largest, float limit) {
    const float inverse = limit == 448.0f ? 1.0f / 448.0f : 1.0f / 57344.0f;
    const float scale = largest * inverse;
    return fmaf(fmaf(-limit, scale, largest), inverse, scale);
}

DEVICE float inverse_of(float scale) {
    const float inverse = reciprocal_fast(scale);
    return fmaf(inverse, fmaf(-scale, inverse, 1.0f), inverse);
}

DEVICE void store_unit(const float x[GROUP], float factor, const struct quantize_params *p,
                       const struct unit *unit) {
    const long long col = first_col(p, unit);
    unsigned char *y = (unsigned char *)p->y.data + unit->row * p->y.stride + col;
    unsigned word[GROUP / 4];
    if (p->is_e5m2) {
#pragma unroll
        for (int i = 0; i < GROUP; i += 4)
            word[i / 4] = numbers_to_e5m2(x[i] * factor, x[i + 1] * factor) |
                          numbers_to_e5m2(x[i + 2] * factor, x[i + 3] * factor) << 16;
    } else {
#pragma unroll
        for (int i = 0; i < GROUP; i += 4)
            word[i / 4] = numbers_to_e4m3(x[i] * factor, x[i + 1] * factor) |
                          numbers_to_e4m3(x[i + 2] * factor, x[i + 3] * factor) << 16;
    }
    if (unit->row >= p->rows) return;
    if (!p->is_aligned) {
        EACH_ELEMENT(i)
        if (col + i * LANES < p->cols) y[i * LANES] = (unsigned char)(word[i / 4] >> i % 4 * 8);
    } else if (col < p->cols) {
#if GROUP == 8
        *(uint2 *)y = make_uint2(word[0], word[1]);
#else
        *(unsigned *)y = word[0];
#endif
    }
}

DEVICE void quantize_tile(const struct quantize_params *p, long long tile) {
    const float limit = p->is_e5m2 ? 57344.0f : 448.0f;
    struct unit units[AT_ONCE];
    uint4 x_raw[AT_ONCE], up_raw[AT_ONCE];
    find_units(units, p, tile);
    EACH_UNIT(u) {
        x_raw[u] = fetch(&p->x, p, &units[u]);
        if (p->up.data != 0) up_raw[u] = fetch(&p->up, p, &units[u]);
    }
    EACH_UNIT(u) {
        float x[GROUP], up[GROUP];
        numbers_of(x, x_raw[u], &p->x, p, &units[u]);
        if (p->up.data != 0) numbers_of(up, up_raw[u], &p->up, p, &units[u]);
        WITH_CONSTANT_KIND(p->kind, activate_unit, x, up, p->up.data != 0);
        const float scale = scale_of(fmaxf(largest_finite_of_block(x), QUANTIZE_LEAST), limit);
        store_unit(x, inverse_of(scale), p, &units[u]);
        if (LANE == 0 && units[u].row < p->rows)
            ((float *)p->y_scale.data)[units[u].row * p->y_scale.stride + units[u].block] = scale;
    }
}

extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS, QUANTIZE_BLOCKS)
    quantize(const struct quantize_params p) {
    begin_early();
    for (long long tile = blockIdx.x; tile * TILE < p.num_blocks; tile += gridDim.x)
        quantize_tile(&p, tile);
}
