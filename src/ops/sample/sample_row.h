// SPDX-License-Identifier: Apache-2.0
// A row of logits in work on the CPU: its arrays in the workspace, and the passes over its groups of tokens.
#ifndef TSRI_SAMPLE_ROW_H
#define TSRI_SAMPLE_ROW_H

#include "ops/sample/sample_problem.h"

// Numbers of a row's groups.
struct sample_groups {
    float *max; // the first of a slice with a NaN is NaN
    uint64_t *sums;
};

// One of a row's two sets of numbers as the kernels read it: z, and the logits as they are given.
struct sample_side {
    const void *x;
    tsr_dtype dtype;
    float max, scale;
    struct sample_groups groups;
};

struct sample_row {
    const struct sample_problem *problem;
    const struct sample_kernels *kernels;
    int64_t index, num_groups;
    struct sample_options options;
    struct sample_side z, raw; // of the same groups where z is the logits
    struct sample_candidates candidates;
    float *changed;  // z where it differs from the logits
    int32_t *counts; // of tokens in history
    bool is_nan;
};

// Bytes of a row's arrays.
size_t sample_row_bytes(const struct sample_problem *problem);
// The row with its arrays at `at`.
void sample_row_open(const struct sample_problem *problem, const struct sample_kernels *kernels,
                     int64_t index, void *at, struct sample_row *row);

// The passes, in this order. Groups [first, last) may be those of a slice; slices may be passed at once.
void sample_row_change(const struct sample_row *row);
void sample_row_find_maxima(const struct sample_row *row, int64_t first, int64_t last);
void sample_row_read_maxima(struct sample_row *row);
void sample_row_find_sums(const struct sample_row *row, int64_t first, int64_t last);

// A group's weights (SAMPLE_WEIGHTS floats), as the kernel does.
static inline int64_t sample_group_end(const struct sample_row *row, int64_t group) {
    return tsri_min((group + 1) * SAMPLE_GROUP, row->problem->logits.cols);
}
static inline uint64_t sample_weigh_group(const struct sample_row *row,
                                          const struct sample_side *side, int64_t group,
                                          const struct sample_filter *filter, float *w,
                                          int64_t *kept) {
    return row->kernels->weigh(side->dtype, side->x, group * SAMPLE_GROUP,
                               sample_group_end(row, group), side->max, side->scale, filter, w,
                               kept);
}
static inline uint64_t sample_sum_of(const struct sample_row *row, const struct sample_side *side) {
    uint64_t sum = 0;
    for (int64_t g = 0; g < row->num_groups; g++) sum += side->groups.sums[g];
    return sum;
}
// Whether the sum of all weights of z is among the sums, and that of the raw logits besides.
static inline bool sample_has_sums(const struct sample_row *row) {
    return row->options.temperature > 0 && !sample_has_top_k(row->problem, &row->options);
}
static inline bool sample_has_raw_sums(const struct sample_row *row) {
    const bool is_same =
        sample_has_sums(row) && row->raw.x == row->z.x && row->raw.scale == row->z.scale;
    return sample_has_raw(row->problem) && !is_same;
}

// sample_choice.c: steps 4 to 7, after the passes.
void sample_row_choose(const struct sample_row *row, struct sample_result *result);

#endif
