// SPDX-License-Identifier: Apache-2.0
// Writes a stack of fp32 matrices as planes of bf16: the first plane holds the bf16 nearest to each number, the second
// the bf16 nearest to the rest, the third what then remains, at most 8 bits. So their sum is the number, except for
// parts below bf16's smallest value, 2^-133. Infinities leave NaN. A lane processes 4 numbers of a line at a time.
// Floor: 4 bytes read and 6 written a number.
// Figures: docs/kernels/matmul_cuda_fp32.md.
#define DTYPE 3 // the dtype that is written
#include "cuda/device/numbers.cuh"
#include "ops/matmul/cuda/matmul_lines.cuh"
#include "ops/matmul/cuda/matmul_wgmma_params.h"

enum { EACH = 2, OF_LANE = 4, OF_WARP = 32 * OF_LANE };

DEVICE void load_four(float v[4], const float *from, long long step, long long count,
                      int is_vector) {
    if (is_vector && count >= 4) {
        const float4 four = *(const float4 *)from;
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = i < count ? from[i * step] : 0;
}

// The nearest bf16, or the one towards 0 if that is infinite.
DEVICE float nearest(float x) {
    const float y = as_stored(x);
    return fabsf(y) == INFINITE ? __uint_as_float(__float_as_uint(x) & 0xffff0000u) : y;
}

extern "C" __global__ void __launch_bounds__(256)
    matmul_planes(const __grid_constant__ struct matmul_lines_params p) {
    wait_for_primary();
    start_dependents();
    const unsigned all = p.end[MATMUL_LINES_OPERANDS - 1], step = gridDim.x * 8;
    for (unsigned item = blockIdx.x * 8 + threadIdx.x / 32; item < all; item += step) {
        unsigned i = item;
        const struct matmul_lines *o = find_lines(&p, &i);
        const struct matmul_copy_params *c = &o->copy;
        const unsigned pieces = (unsigned)((c->filled + OF_WARP * EACH - 1) / (OF_WARP * EACH));
        const unsigned filled_lines = (unsigned)o->filled_lines;
        const unsigned line_of_all = i / pieces, batch = line_of_all / filled_lines;
        const long long line = line_of_all - batch * filled_lines;
        const long long first =
            (long long)(i - line_of_all * pieces) * (OF_WARP * EACH) + threadIdx.x % 32 * OF_LANE;
        const long long width = line < c->lines ? c->width : 0;
        long long index[3];
        batch_index(index, c->batch, batch);
        const float *from = (const float *)c->source + line * c->source_line +
                            index[0] * c->source_batch[0] + index[1] * c->source_batch[1] +
                            index[2] * c->source_batch[2];
        unsigned short *to = (unsigned short *)c->destination + batch * c->destination_batch +
                             line * c->destination_line;
        float v[EACH][4];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const long long at = first + e * OF_WARP;
            load_four(v[e], from + at * c->source_step, c->source_step, width - at, o->is_vector);
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const long long at = first + e * OF_WARP;
            if (at >= c->filled) break;
#pragma unroll
            for (int plane = 0; plane < MATMUL_PLANES; plane++) {
                float now[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    now[j] = nearest(v[e][j]);
                    v[e][j] -= now[j];
                }
                *(uint2 *)(to + plane * o->plane + at) =
                    make_uint2(pair_of_floats(now[0], now[1]), pair_of_floats(now[2], now[3]));
            }
        }
    }
}
