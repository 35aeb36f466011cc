// SPDX-License-Identifier: Apache-2.0
// Quantised rows to numbers: a thread takes eight columns. The format, the row list and the scales beside x are branches that all
// threads of a block take alike.
// Floor: x read once, y written once: 2.56 bytes a number from Q4_0 to bf16.
// Limit: not yet measured.
// Figures: docs/kernels/dequantize.md.
// The host defines
//     DTYPE: the dtype of y
#include "cuda/device/elements_params.h"
#include "cuda/device/quant.cuh"

DEVICE float load_beside(const struct elements_view *view, int dtype, long long row, long long at) {
    at += row * view->stride;
    if (dtype == DTYPE_F32) return ((const float *)view->data)[at];
    const unsigned bits = ((const unsigned short *)view->data)[at];
    return dtype == DTYPE_BF16 ? float_of_bf16(bits) : float_of_f16(bits);
}

// The scales of eight columns, which are of one group.
DEVICE void load_scales(struct quant_unit *u, const struct dequantize_params *p, long long source,
                        long long col) {
    const long long group = col / p->group;
    u->has_zero = u->has_offset = 0;
    if (p->scale.data == 0) return;
    if (p->format == QUANT_MXFP4) {
        const unsigned e = ((const unsigned char *)p->scale.data)[source * p->scale.stride + group];
        u->scale = e == 255 ? __int_as_float(0x7fffffff) : half_power(e);
        return;
    }
    u->scale = load_beside(&p->scale, p->scale_dtype, source, group);
    u->has_zero = p->zero.data != 0;
    if (u->has_zero) u->zero = load_beside(&p->zero, p->scale_dtype, source, group);
    u->has_offset = p->minimum.data != 0;
    if (u->has_offset) u->offset = load_beside(&p->minimum, p->scale_dtype, source, group);
}

DEVICE long long source_of(const struct dequantize_params *p, long long row) {
    if (p->x_rows == 0) return row;
    const long long source = p->x_rows[row * p->x_rows_stride];
    return source < p->num_x_rows ? source : -1;
}

DEVICE void store_eight(const struct dequantize_params *p, long long row, long long col, int count,
                        const float x[8]) {
    const long long at = row * p->y.stride + col;
    if (!p->is_aligned) {
        EACH_OF_EIGHT(i) if (i < count) store(p->y.data, at + i, x[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i += GROUP) store_bytes(p->y.data, at + i, narrow(x + i));
}

extern "C" __global__ void __launch_bounds__(DEQUANTIZE_THREADS)
    dequantize(const struct dequantize_params p) {
    const long long step = (long long)gridDim.x * DEQUANTIZE_THREADS;
    begin_early();
    for (long long unit = (long long)blockIdx.x * DEQUANTIZE_THREADS + threadIdx.x;
         unit < p.num_units; unit += step) {
        const long long row = unit / p.units_of_row;
        const long long col = unit % p.units_of_row * DEQUANTIZE_NUMBERS;
        const long long source = source_of(&p, row);
        const int count = p.cols - col < 8 ? (int)(p.cols - col) : 8;
        float x[8];
        EACH_OF_EIGHT(i) x[i] = 0;
        if (source >= 0) {
            struct quant_unit u;
            const unsigned char *block = (const unsigned char *)p.x.data + source * p.x.stride +
                                         col / p.block_cols * p.block_bytes;
            load_scales(&u, &p, source, col);
            read_quant(&u, p.format, block, (int)(col % p.block_cols), count);
            numbers_of_quant(x, &u);
        }
        store_eight(&p, row, col, count, x);
    }
}
