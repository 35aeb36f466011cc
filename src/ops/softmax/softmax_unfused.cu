// SPDX-License-Identifier: Apache-2.0
// Softmax and its gradient unfused, to measure against: each pass goes over the whole tensor and leaves what it found in
// memory, in fp32, as operations of a framework do that know nothing of each other. A block takes a row. The pass is a
// branch that all threads take alike, so that one kernel a dtype does. The host defines
//     DTYPE, THREADS_PER_ROW (512)
#include "cuda/device/sweeps.cuh"
#include "ops/softmax/softmax_params.h"

DEVICE void store_floats(float *data, const float x[GROUP], int width) {
    if (width == 1) {
        data[0] = x[0];
        return;
    }
#pragma unroll
    for (int i = 0; i < GROUP; i += 4)
        *(float4 *)(data + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
}

DEVICE void load_floats(float x[GROUP], const float *data, int width) {
    x[0] = data[0];
    if (width == 1) return;
#pragma unroll
    for (int i = 0; i < GROUP; i += 4) {
        float4 four = *(const float4 *)(data + i);
        x[i] = four.x;
        x[i + 1] = four.y;
        x[i + 2] = four.z;
        x[i + 3] = four.w;
    }
}

// The row in `scratch`, and what there is one of a row in `of_rows`.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    softmax_unfused(const struct softmax_params p) {
    DECLARE_REDUCER(reducer);
    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {
        long long in_at = row * p.in_stride[0], dy_at = row * p.in_stride[1];
        float *scratch = p.scratch + row * p.cols, *of_row = p.of_rows + row;
        float x[GROUP], other[GROUP], all;
        switch (p.pass) {
        case SOFTMAX_PASS_MAX:
            all = -INFINITE;
            SWEEP(p, col, width) {
                load_some(x, p.in[0], in_at + col, width);
#pragma unroll
                for (int i = 0; i < GROUP; i++)
                    if (i < width) all = fmaxf(all, x[i]);
            }
            all = reduce_max(all, &reducer);
            if (ROW_THREAD == 0) *of_row = all == -INFINITE ? 0 : all;
            break;
        case SOFTMAX_PASS_EXP_SUM: {
            float max = *of_row, sum = 0;
            SWEEP(p, col, width) {
                load_some(x, p.in[0], in_at + col, width);
#pragma unroll
                for (int i = 0; i < GROUP; i++)
                    if (i < width) sum += x[i] = exp2_fast((x[i] - max) * LOG2_E);
                store_floats(scratch + col, x, width);
            }
            sum = reduce_sum(sum, &reducer); // all have read the maximum
            if (ROW_THREAD == 0) *of_row = sum;
            break;
        }
        case SOFTMAX_PASS_DIVIDE: {
            float inverse = *of_row == 0 ? 0 : 1 / *of_row;
            SWEEP(p, col, width) {
                load_floats(x, scratch + col, width);
#pragma unroll
                for (int i = 0; i < GROUP; i++) x[i] *= inverse;
                store_some(x, p.out, row * p.out_stride + col, width);
            }
            break;
        }
        case SOFTMAX_PASS_PRODUCT:
            SWEEP(p, col, width) {
                load_some(x, p.in[0], in_at + col, width);
                load_some(other, p.in[1], dy_at + col, width);
#pragma unroll
                for (int i = 0; i < GROUP; i++) x[i] *= other[i];
                store_floats(scratch + col, x, width);
            }
            break;
        case SOFTMAX_PASS_SUM:
            all = 0;
            SWEEP(p, col, width) {
                load_floats(x, scratch + col, width);
#pragma unroll
                for (int i = 0; i < GROUP; i++)
                    if (i < width) all += x[i];
            }
            all = reduce_sum(all, &reducer);
            if (ROW_THREAD == 0) *of_row = all;
            break;
        default: // SOFTMAX_PASS_COMBINE
            all = *of_row;
            SWEEP(p, col, width) {
                load_some(x, p.in[0], in_at + col, width);
                load_some(other, p.in[1], dy_at + col, width);
#pragma unroll
                for (int i = 0; i < GROUP; i++) x[i] *= other[i] - all;
                store_some(x, p.out, row * p.out_stride + col, width);
            }
        }
    }
}
