// SPDX-License-Identifier: Apache-2.0
// Sums over an expert's rows: a block takes a part of the rows and a span of columns, 16 bytes a lane. A warp loads AT_ONCE rows
// before it uses the first; every WARPS-th such batch is its own. The warps' sums are added in order, and are the expert's
// gradient or, of an expert with several parts, a row of the workspace.
// Floor: rows read once.
// Limit: memory.
// Figures: docs/kernels/moe_rows.md.
// The host defines
//     DTYPE: the dtype of rows
#include "ops/moe_bias/moe_bias_device.cuh"

enum { AT_ONCE = 8, STEP = AT_ONCE * WARPS, SPAN = 32 * GROUP, BLOCKS = 4 };
#define EACH_ROW(j) _Pragma("unroll") for (int j = 0; j < AT_ONCE; j++)
#define EACH_ELEMENT(i) _Pragma("unroll") for (int i = 0; i < GROUP; i++)

DEVICE int first_part(const struct moe_bias_params *p, int expert) {
    return offset_at(p, expert) / PART + expert;
}

// The last expert whose parts begin at or before `part`: a warp tries 32 at a time.
DEVICE int expert_of(const struct moe_bias_params *p, int part) {
    int low = 0, end = p->num_experts;
    while (end - low > 1) {
        const int step = (end - low + 31) / 32, expert = low + step * LANE;
        const int is_before = LANE == 0 || (expert < end && first_part(p, expert) <= part);
        const unsigned past = ~__ballot_sync(ALL_LANES, is_before);
        low += step * ((past != 0 ? __ffs((int)past) - 1 : 32) - 1);
        end = end < low + step ? end : low + step;
    }
    return low;
}

// The rows of a part. One that does not exist is -1 with weight 0.
struct listed {
    int row[PART];
    float weight[PART];
};

DEVICE void list_rows(struct listed *listed, const struct moe_bias_params *p, int first,
                      int count) {
    for (int i = (int)threadIdx.x; i < PART && i < count + STEP; i += 32 * WARPS) {
        const long long at = first + i;
        int row = -1;
        if (i < count)
            row = p->row_tokens.data != 0 ? p->row_tokens.data[at * p->row_tokens.stride] : (int)at;
        if (row < 0 || row >= p->num_source_rows) row = -1;
        listed->row[i] = row;
        listed->weight[i] = row < 0               ? 0
                            : p->row_weights != 0 ? p->row_weights[at * p->weights_stride]
                                                  : 1;
    }
}

// AT_ONCE rows of the list from `base` on, columns [col, col + GROUP).
DEVICE void add_groups(float sum[GROUP], const struct listed *listed, int base,
                       const struct moe_bias_params *p, int col) {
    uint4 raw[AT_ONCE];
    float x[GROUP];
    EACH_ROW(j) {
        const int row = listed->row[base + j];
        raw[j] = make_uint4(0, 0, 0, 0);
        load_bytes_if(&raw[j], p->rows, row * p->rows_stride + col, row >= 0 && col < p->cols);
    }
    EACH_ROW(j) {
        widen(raw[j], x);
        EACH_ELEMENT(i) sum[i] = fmaf(listed->weight[base + j], x[i], sum[i]);
    }
}

DEVICE void add_elements(float sum[GROUP], const struct listed *listed, int base,
                         const struct moe_bias_params *p, int col) {
    for (int j = 0; j < AT_ONCE; j++) {
        const int row = listed->row[base + j];
        EACH_ELEMENT(i) {
            if (row >= 0 && col + i < p->cols)
                sum[i] = fmaf(listed->weight[base + j],
                              load(p->rows, row * p->rows_stride + col + i), sum[i]);
        }
    }
}

// Rows [first, first + count) of an expert's list, columns from `begin` on, to `place` or dbias.
DEVICE void sum_part(const struct moe_bias_params *p, int first, int count, int begin, float *place,
                     long long expert) {
    __shared__ struct listed listed;
    __shared__ float sums[WARPS][SPAN];
    const int group = LANE * GROUP, col = begin + (int)threadIdx.x;
    float all[GROUP] = {0};
    list_rows(&listed, p, first, count);
    __syncthreads();
    for (int base = WARP * AT_ONCE; base < count; base += STEP) {
        float sum[GROUP] = {0};
        if (p->is_aligned)
            add_groups(sum, &listed, base, p, begin + group);
        else
            add_elements(sum, &listed, base, p, begin + group);
        EACH_ELEMENT(i) all[i] += sum[i];
    }
    EACH_ELEMENT(i) sums[WARP][group + i] = all[i];
    __syncthreads();
    if (threadIdx.x < SPAN && col < p->cols) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += sums[w][threadIdx.x];
        if (place != 0)
            place[col] = sum;
        else
            store_any(p->dbias, expert * p->dbias_stride + col, sum, p->dbias_dtype);
    }
    __syncthreads(); // the next unit's list
}

extern "C" __global__ void __launch_bounds__(32 * MOE_BIAS_WARPS, BLOCKS)
    moe_bias_sum(const struct moe_bias_params p) {
    begin_early();
    for (long long unit = blockIdx.x; unit < p.num_units; unit += gridDim.x) {
        const int number = (int)(unit / p.spans), begin = (int)(unit % p.spans) * SPAN;
        const int expert = expert_of(&p, number);
        const struct range range = rows_of(&p, expert);
        const long long part = number - first_part(&p, expert), past = part * PART;
        if (part < 0 || (part > 0 && past >= range.count)) continue; // a number of no part
        const int left = range.count - (int)past;
        sum_part(&p, range.first + (int)past, left < PART ? left : PART, begin,
                 range.count > PART ? place_of(&p, range, part) : 0, expert);
    }
}
