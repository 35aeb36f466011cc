// SPDX-License-Identifier: Apache-2.0
// Unfused softmax and its gradient, (rows, cols), as a baseline: each pass sweeps over the whole tensor and leaves its
// result in memory, in fp32, like a framework's separate operations. A block takes a row. Pass and dtype are branches
// that all threads take alike, so one kernel is enough.
// Floor: that of softmax_forward.cu and softmax_backward.cu.
// Limit: memory, which three passes use.
// Figures: docs/kernels/softmax.md.
// The host defines
//     DTYPE (2: the tensors' dtype is known at run time), THREADS_PER_ROW (512)
#include "cuda/device/any_dtype.cuh"
#include "cuda/device/reduce.cuh"
#include "ops/softmax/softmax_params.h"

// Four elements at a time in aligned rows of any dtype: neighbouring threads then access neighbouring 16 bytes of fp32.
enum { FOUR = 4 };
#define SWEEP_FOUR(p, col, width)                                                                  \
    for (int width = (p).is_aligned ? FOUR : 1, col = ROW_THREAD * width; col < (p).cols;          \
         col += THREADS_PER_ROW * width)

DEVICE void load_four(float x[FOUR], const void *data, long long at, int width, int dtype) {
    x[1] = x[2] = x[3] = 0;
    if (width == 1)
        x[0] = load_any(data, at, dtype);
    else
        load_four_any(x, data, at, dtype);
}

DEVICE void store_four(const float x[FOUR], void *data, long long at, int width, int dtype) {
    if (width == 1)
        store_any(data, at, x[0], dtype);
    else
        store_four_any(data, at, x, dtype);
}

// Stores to the intermediate tensor.
DEVICE void store_floats(float *data, const float x[FOUR], int width) {
    if (width == 1)
        data[0] = x[0];
    else
        *(float4 *)data = make_float4(x[0], x[1], x[2], x[3]);
}

DEVICE void load_floats(float x[FOUR], const float *data, int width) {
    x[1] = x[2] = x[3] = 0;
    if (width == 1) {
        x[0] = data[0];
        return;
    }
    float4 four = *(const float4 *)data;
    x[0] = four.x;
    x[1] = four.y;
    x[2] = four.z;
    x[3] = four.w;
}

// `scratch` holds the row; `of_rows` holds one number per row.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    softmax_unfused(const struct softmax_params p) {
    DECLARE_REDUCER(reducer);
    begin_early();
    for (long long row = blockIdx.x; row < p.rows; row += gridDim.x) {
        long long in_at = row * p.in_stride[0], dy_at = row * p.in_stride[1];
        float *scratch = p.scratch + row * p.cols, *of_row = p.of_rows + row;
        float x[FOUR], other[FOUR], all;
        switch (p.pass) {
        case SOFTMAX_PASS_MAX:
            all = -INFINITE;
            SWEEP_FOUR(p, col, width) {
                load_four(x, p.in[0], in_at + col, width, p.dtype);
#pragma unroll
                for (int i = 0; i < FOUR; i++)
                    if (i < width) all = fmaxf(all, x[i]);
            }
            all = reduce_max(all, &reducer);
            if (ROW_THREAD == 0) *of_row = all == -INFINITE ? 0 : all;
            break;
        case SOFTMAX_PASS_EXP_SUM: {
            float max = *of_row, sum = 0;
            SWEEP_FOUR(p, col, width) {
                load_four(x, p.in[0], in_at + col, width, p.dtype);
#pragma unroll
                for (int i = 0; i < FOUR; i++)
                    if (i < width) sum += x[i] = exp2_fast((x[i] - max) * LOG2_E);
                store_floats(scratch + col, x, width);
            }
            sum = reduce_sum(sum, &reducer); // all threads have read the maximum
            if (ROW_THREAD == 0) *of_row = sum;
            break;
        }
        case SOFTMAX_PASS_DIVIDE: {
            float inverse = *of_row == 0 ? 0 : 1 / *of_row;
            SWEEP_FOUR(p, col, width) {
                load_floats(x, scratch + col, width);
#pragma unroll
                for (int i = 0; i < FOUR; i++) x[i] *= inverse;
                store_four(x, p.out, row * p.out_stride + col, width, p.dtype);
            }
            break;
        }
        case SOFTMAX_PASS_PRODUCT:
            SWEEP_FOUR(p, col, width) {
                load_four(x, p.in[0], in_at + col, width, p.dtype);
                load_four(other, p.in[1], dy_at + col, width, p.dtype);
#pragma unroll
                for (int i = 0; i < FOUR; i++) x[i] *= other[i];
                store_floats(scratch + col, x, width);
            }
            break;
        case SOFTMAX_PASS_SUM:
            all = 0;
            SWEEP_FOUR(p, col, width) {
                load_floats(x, scratch + col, width);
#pragma unroll
                for (int i = 0; i < FOUR; i++)
                    if (i < width) all += x[i];
            }
            all = reduce_sum(all, &reducer);
            if (ROW_THREAD == 0) *of_row = all;
            break;
        default: // SOFTMAX_PASS_COMBINE
            all = *of_row;
            SWEEP_FOUR(p, col, width) {
                load_four(x, p.in[0], in_at + col, width, p.dtype);
                load_four(other, p.in[1], dy_at + col, width, p.dtype);
#pragma unroll
                for (int i = 0; i < FOUR; i++) x[i] *= other[i] - all;
                store_four(x, p.out, row * p.out_stride + col, width, p.dtype);
            }
        }
    }
}
