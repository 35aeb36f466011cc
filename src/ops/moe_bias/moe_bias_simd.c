// SPDX-License-Identifier: Apache-2.0
// Sums over an expert's rows, compiled once per instruction set: 16 rows are added in registers, some vectors of columns at a time,
// and each such sum to a row of sums in the first-level cache, so that rows are read in order and errors grow slowly.
// Floor: each row read once.
// Limit: memory.
// Figures: docs/kernels/moe_rows.md.
#include "cpu/simd_elements.h"
#include "cpu/simd_nan.h"
#include "ops/moe_bias/moe_bias_problem.h"

enum { AT_ONCE = 16, BLOCK = 8 }; // rows; vectors of columns

// Rows that are summed at once.
struct group {
    const void *row[AT_ONCE];
    float weight[AT_ONCE];
    int count;
};

static struct group group_at(const struct moe_bias_problem *p, int64_t first, int64_t last,
                             int64_t col) {
    struct group group = {.count = (int)tsri_min(last - first, AT_ONCE)};
    const bool has_weights = p->row_weights.dtype != TSR_DTYPE_NONE;
    for (int r = 0; r < group.count; r++) {
        group.row[r] = (const char *)tsri_row(&p->rows, moe_bias_source(p, first + r)) +
                       col * tsri_dtype_bytes(p->rows.dtype);
        group.weight[r] = has_weights ? *(const float *)tsri_row(&p->row_weights, first + r) : 1.0f;
    }
    return group;
}

// Adds columns from i on to sums: `width` vectors, or with SIMD_PART the first n lanes of one.
SIMD_INLINE void add_columns(tsr_dtype dtype, enum simd_access access, const struct group *group,
                             int64_t i, int width, int64_t n, float *sums) {
    vf sum[BLOCK];
    for (int v = 0; v < width; v++) sum[v] = vf_set1(0.0f);
    for (int r = 0; r < group->count; r++) {
        const vf weight = vf_set1(group->weight[r]);
        for (int v = 0; v < width; v++)
            sum[v] = vf_fma(weight, vf_get(access, dtype, group->row[r], i + v * VL, n), sum[v]);
    }
    for (int v = 0; v < width; v++)
        vf_store(sums + i + v * VL, vf_load(sums + i + v * VL) + sum[v]);
}

SIMD_INLINE void add_rows(tsr_dtype dtype, const struct moe_bias_problem *p,
                          const struct moe_bias_piece *piece, float *sums) {
    const int64_t cols = piece->num_cols;
    for (int64_t r = piece->first; r < piece->last; r += AT_ONCE) {
        const struct group group = group_at(p, r, piece->last, piece->col);
        int64_t i = 0;
        for (; i + BLOCK * VL <= cols; i += BLOCK * VL)
            add_columns(dtype, SIMD_WHOLE, &group, i, BLOCK, VL, sums);
        for (; i + VL <= cols; i += VL) add_columns(dtype, SIMD_WHOLE, &group, i, 1, VL, sums);
        if (i < cols) add_columns(dtype, SIMD_PART, &group, i, 1, cols - i, sums);
    }
}

static void put(const struct moe_bias_problem *p, const struct moe_bias_piece *piece, int64_t i,
                vf sum) {
    const int64_t left = piece->num_cols - i;
    vf_store_as_n(p->dbias.dtype, tsri_row(&p->dbias, piece->expert), piece->col + i,
                  vf_one_nan(sum), left < VL ? left : VL);
}

static void sum(const struct moe_bias_problem *p, const struct moe_bias_piece *piece) {
    _Alignas(64) float sums[MOE_BIAS_COLS + VL];
    const int64_t cols = piece->num_cols;
    for (int64_t i = 0; i < cols; i += VL) vf_store(sums + i, vf_set1(0.0f));
    switch (p->rows.dtype) {
    case TSR_BF16: add_rows(TSR_BF16, p, piece, sums); break;
    case TSR_F16: add_rows(TSR_F16, p, piece, sums); break;
    default: add_rows(TSR_F32, p, piece, sums);
    }
    if (piece->sums != NULL)
        memcpy(piece->sums, sums, (size_t)cols * sizeof *sums);
    else
        for (int64_t i = 0; i < cols; i += VL) put(p, piece, i, vf_load(sums + i));
}

// Sums of 64 parts each, then the sum of these.
static void merge(const struct moe_bias_problem *p, const struct moe_bias_piece *piece,
                  int64_t num_parts) {
    enum { SPAN = 64 };
    for (int64_t i = 0; i < piece->num_cols; i += VL) {
        const int64_t left = piece->num_cols - i, n = left < VL ? left : VL;
        vf all = vf_set1(0.0f);
        for (int64_t first = 0; first < num_parts; first += SPAN) {
            vf some = vf_set1(0.0f);
            for (int64_t c = first; c < num_parts && c < first + SPAN; c++)
                some = some + vf_load_n(piece->sums + c * p->dbias.cols + i, n);
            all = all + some;
        }
        put(p, piece, i, all);
    }
}

const struct moe_bias_kernels TSRI_KERNEL_TABLE(moe_bias) = {
    .sum = sum,
    .merge = merge,
};
