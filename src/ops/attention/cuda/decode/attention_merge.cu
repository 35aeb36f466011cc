// SPDX-License-Identifier: Apache-2.0
// Results of attention to parts of the keys, (parts, rows, columns) with an lse each, into one: a warp for each row, in which a
// lane has four columns of 128 at a time and, for the weights, a part of 32. Parts are added in order (arXiv:1805.02867).
// Floor: outs and lses read once, out and lse written once. docs/kernels/attention_decode.md has no figures of it.
// The host defines
//     DTYPE (2: the tensors' own are known at run time)
#include "cuda/device/any_dtype.cuh"
#include "ops/attention/cuda/decode/attention_decode_params.h"

#define WARPS 4
#define AHEAD 4 // parts whose loads are in flight together
#define ALL 0xffffffffu
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

DEVICE long long row_at(const struct attention_merge_params *p,
                        const struct attention_merge_tensor *t, long long row) {
    unsigned rest = (unsigned)row, one = (unsigned)p->shape[1], two = (unsigned)p->shape[2];
    unsigned last = rest % two;
    rest /= two;
    return rest / one * t->stride[0] + rest % one * t->stride[1] + last * t->stride[2];
}

DEVICE void load_columns(float x[4], const struct attention_merge_params *p, long long at,
                         int num_columns) {
    EACH(i, 4) { x[i] = 0; }
    if (p->is_aligned && num_columns > 0)
        load_four_any(x, p->outs.data, at, p->outs.dtype);
    else
        EACH(i, 4) {
            if (i < num_columns) x[i] = load_any(p->outs.data, at + i, p->outs.dtype);
        }
}

// Columns [c, c + 4) of a row of num_columns columns, before the division by the sum.
DEVICE void add_parts(float o[4], const struct attention_merge_params *p, long long outs,
                      long long lses, float max, int c, int num_columns) {
    int lane = threadIdx.x % 32;
    EACH(i, 4) { o[i] = 0; }
    for (long long first = 0; first < p->num_parts; first += 32) {
        int count = p->num_parts - first < 32 ? (int)(p->num_parts - first) : 32;
        float lse = -INFINITE;
        if (lane < count) lse = ((const float *)p->lses.data)[lses + (first + lane) * p->lses.part];
        float weight = exp2_fast((lse - max) * LOG2_E);
        unsigned counts = __ballot_sync(ALL, !(lse == -INFINITE)); // the others may hold NaN
        for (int s = 0; s < count; s += AHEAD) {
            float x[AHEAD][4];
            EACH(i, AHEAD) {
                int is_part = s + i < count && counts >> (s + i) & 1;
                load_columns(x[i], p, outs + (first + s + i) * p->outs.part + c,
                             is_part ? num_columns : 0);
            }
            EACH(i, AHEAD) {
                float w = __shfl_sync(ALL, weight, s + i & 31);
                if (s + i < count && counts >> (s + i) & 1) EACH(j, 4) {
                        o[j] += w * x[i][j];
                    }
            }
        }
    }
}

DEVICE void merge(const struct attention_merge_params *p, long long row) {
    int lane = threadIdx.x % 32, is_bad = 0;
    long long outs = row_at(p, &p->outs, row), lses = row_at(p, &p->lses, row);
    float max = -INFINITE, sum = 0;
    for (long long s = lane; s < p->num_parts; s += 32) {
        float lse = ((const float *)p->lses.data)[lses + s * p->lses.part];
        is_bad |= !(lse < INFINITE);
        max = fmaxf(max, lse);
    }
    for (int i = 16; i > 0; i /= 2) max = fmaxf(max, __shfl_xor_sync(ALL, max, i));
    if (__any_sync(ALL, is_bad)) max = __int_as_float(0x7fffffff);
    for (long long s = lane; max != -INFINITE && s < p->num_parts; s += 32)
        sum += exp2_fast((((const float *)p->lses.data)[lses + s * p->lses.part] - max) * LOG2_E);
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(ALL, sum, i);
    float inverse = sum == 0 ? 0 : 1 / sum;
    long long out = row_at(p, &p->out, row);
    for (long long first = 0; first < p->dims; first += 128) {
        long long c = first + lane * 4, left = p->dims - c;
        int num_columns = left < 0 ? 0 : left < 4 ? (int)left : 4;
        float o[4] = {0, 0, 0, 0};
        if (max != -INFINITE) add_parts(o, p, outs + first, lses, max, lane * 4, num_columns);
        EACH(i, 4) { o[i] *= inverse; }
        if (p->is_aligned && num_columns > 0)
            store_four_any(p->out.data, out + c, o, p->out.dtype);
        else
            EACH(i, 4) {
                if (i < num_columns) store_any(p->out.data, out + c + i, o[i], p->out.dtype);
            }
    }
    if (lane == 0 && p->lse.data != 0)
        ((float *)p->lse.data)[row_at(p, &p->lse, row)] = sum == 0 ? -INFINITE : max + logf(sum);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    attention_merge(const struct attention_merge_params p) {
    long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    for (; row < p.num_rows; row += (long long)gridDim.x * WARPS) merge(&p, row);
}
