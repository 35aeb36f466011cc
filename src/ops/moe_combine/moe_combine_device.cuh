// SPDX-License-Identifier: Apache-2.0
// What the kernels of the weighted sum share: groups of 16 bytes of rows at any address, the rows of a token, the shared expert's
// gate. A lane's group has consecutive columns whatever the alignment, so that sums are in one order.
#ifndef TSRI_MOE_COMBINE_DEVICE_CUH
#define TSRI_MOE_COMBINE_DEVICE_CUH

#include "cuda/device/numbers.cuh"
#include "ops/moe_combine/moe_combine_params.h"

enum { AT_ONCE = MOE_COMBINE_AT_ONCE };
#define LANE ((int)(threadIdx.x % 32))
#define WARP ((int)(threadIdx.x / 32))
#define ALL_LANES 0xffffffffu
#define NOT_A_NUMBER __int_as_float(0xffc00000)
#define EACH_ROW(j) _Pragma("unroll") for (int j = 0; j < AT_ONCE; j++)
#define EACH_ELEMENT(i) _Pragma("unroll") for (int i = 0; i < GROUP; i++)

// The first `count` elements from `at` on, others 0, one by one.
DEVICE uint4 fetch_apart(const void *data, long long at, int count) {
    unsigned word[4] = {0, 0, 0, 0};
    EACH_ELEMENT(i) {
        if (i >= count) continue;
        const unsigned bits = ELEMENT_BYTES == 4 ? ((const unsigned *)data)[at + i]
                                                 : ((const unsigned short *)data)[at + i];
        word[i * ELEMENT_BYTES / 4] |= bits << i * ELEMENT_BYTES % 4 * 8;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// The same of a group; if rows are aligned, it is whole or empty.
DEVICE uint4 fetch(const void *data, long long at, int count, int is_aligned) {
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (!is_aligned) return fetch_apart(data, at, count);
    load_bytes_if(&raw, data, at, count > 0);
    return raw;
}

DEVICE void put(void *data, long long at, const float x[GROUP], int count, int is_aligned,
                int is_past) {
    if (!is_aligned) {
        EACH_ELEMENT(i) if (i < count) store(data, at + i, x[i]);
    } else if (count > 0 && is_past) {
        store_bytes_past(data, at, narrow(x));
    } else if (count > 0) {
        store_bytes(data, at, narrow(x));
    }
}

// Columns of a lane's group: GROUP, fewer at the end of a row.
DEVICE int count_at(int col, int hidden) {
    return hidden - col < 0 ? 0 : hidden - col < GROUP ? hidden - col : GROUP;
}

// One assignment a lane, from the k-th on. No row is -1 with weight 0; a row out of range is -1 with weight NaN.
struct held {
    int row;
    float weight;
};

DEVICE struct held hold_rows(const struct moe_combine_assignments *a, long long token, int k) {
    struct held held = {-1, 0};
    if (k + LANE >= a->top_k) return held;
    held.row = a->rows[token * a->rows_stride + k + LANE];
    if (held.row >= 0 && held.row < a->num_rows) {
        held.weight = a->weights != 0 ? a->weights[token * a->weights_stride + k + LANE] : 1;
    } else {
        if (held.row != -1) held.weight = NOT_A_NUMBER;
        held.row = -1;
    }
    return held;
}

// AT_ONCE assignments in every lane: those that lanes `from` and following hold.
struct batch {
    int row[AT_ONCE];
    float weight[AT_ONCE];
};

DEVICE void spread_rows(struct batch *batch, struct held held, int from) {
    EACH_ROW(j) {
        batch->row[j] = __shfl_sync(ALL_LANES, held.row, from + j);
        batch->weight[j] = __shfl_sync(ALL_LANES, held.weight, from + j);
    }
}

// A group of columns of each of the first `num` rows, 0 where there is no row. num: a constant.
DEVICE void fetch_rows(uint4 *raw, const int num, const struct moe_combine_view *rows,
                       const struct batch *batch, int col, int count, int is_aligned) {
    EACH_ROW(j) {
        if (j >= num) break;
        raw[j] = make_uint4(0, 0, 0, 0);
        if (is_aligned)
            load_bytes_if(&raw[j], rows->data, batch->row[j] * rows->stride + col,
                          batch->row[j] >= 0 && count > 0);
        else if (batch->row[j] >= 0)
            raw[j] = fetch_apart(rows->data, batch->row[j] * rows->stride + col, count);
    }
}

// 1 / (1 + e^-x), and its derivative in *slope.
DEVICE float sigmoid_of(float x, float *slope) {
    const float e = expf(-fabsf(x)), below = e / (1 + e); // of -|x|
    *slope = below / (1 + e);
    return x < 0 ? below : 1 - below;
}

#endif
