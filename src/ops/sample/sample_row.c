// SPDX-License-Identifier: Apache-2.0
// A row's arrays and passes.
#include "ops/sample/sample_row.h"

#include <string.h>

static const struct sample_filter no_filter = {-INFINITY, 0, -1};

// ---- Arrays -----------------------------------------------------------------------------------

static void *take(uintptr_t *at, int64_t count, size_t bytes) {
    const uintptr_t taken = *at;
    *at += tsri_round_up((size_t)count * bytes, 64);
    return (void *)taken;
}

// Returns the end of the arrays at `at`.
static uintptr_t place(const struct sample_problem *p, uintptr_t at, struct sample_row *row) {
    const int64_t vocab = p->logits.cols, groups = tsri_ceil_div(vocab, SAMPLE_GROUP);
    const bool has_changes = sample_has_changes(p), has_raw = sample_has_raw(p);
    const int64_t candidates = sample_may_have_order(p) ? vocab : 0;
    row->num_groups = groups;
    row->z.groups.max = take(&at, groups, sizeof(float));
    row->z.groups.sums = take(&at, groups, sizeof(uint64_t));
    row->raw.groups.max =
        has_raw && has_changes ? take(&at, groups, sizeof(float)) : row->z.groups.max;
    row->raw.groups.sums = take(&at, has_raw ? groups : 0, sizeof(uint64_t));
    row->candidates.key = take(&at, candidates, sizeof(uint32_t));
    row->candidates.index = take(&at, candidates, sizeof(uint32_t));
    row->candidates.weight = take(&at, candidates, sizeof(float));
    row->changed = take(&at, has_changes ? vocab : 0, sizeof(float));
    row->counts = take(&at, sample_has_history(p) ? vocab : 0, sizeof(int32_t));
    return at;
}

size_t sample_row_bytes(const struct sample_problem *problem) {
    struct sample_row row;
    return place(problem, 0, &row);
}

void sample_row_open(const struct sample_problem *p, const struct sample_kernels *kernels,
                     int64_t index, void *at, struct sample_row *row) {
    *row = (struct sample_row){
        .problem = p, .kernels = kernels, .index = index, .options = sample_options_of(p, index)};
    place(p, (uintptr_t)at, row);
    row->raw.x = row->z.x = tsri_row(&p->logits, index);
    row->raw.dtype = row->z.dtype = p->logits.dtype;
    row->raw.scale = row->z.scale = SAMPLE_LOG2E;
    if (row->options.temperature > 0) row->z.scale = sample_scale(row->options.temperature);
    if (sample_has_changes(p)) row->z.x = row->changed, row->z.dtype = TSR_F32;
}

// ---- Passes -----------------------------------------------------------------------------------

// z where it differs from the logits. A token of history is met twice or more: first to be counted, then to be changed, once.
void sample_row_change(const struct sample_row *row) {
    const struct sample_problem *p = row->problem;
    const int64_t vocab = p->logits.cols;
    const int32_t *history = tsri_row(&p->history, row->index);
    const float *bias = p->bias.data != NULL ? tsri_row(&p->bias, row->index) : NULL;
    int32_t *counts = row->counts;
    if (!sample_has_changes(p)) return;
    row->kernels->add(row->raw.dtype, row->raw.x, bias, 0, vocab, row->changed);
    if (!sample_has_history(p)) return;
    memset(counts, 0, (size_t)vocab * sizeof *counts);
    for (int64_t i = 0; i < p->history.cols; i++)
        if (history[i] >= 0 && history[i] < vocab) counts[history[i]]++;
    for (int64_t i = 0; i < p->history.cols; i++) {
        const int32_t v = history[i];
        if (v < 0 || v >= vocab || counts[v] == 0) continue;
        const float x = sample_penalised((float)tsri_load(row->raw.dtype, row->raw.x, v), counts[v],
                                         &row->options);
        row->changed[v] = sample_bounded(bias != NULL ? x + bias[v] : x);
        counts[v] = 0;
    }
}

static bool has_raw_maxima(const struct sample_row *row) {
    return row->raw.groups.max != row->z.groups.max;
}

static void find_maxima(const struct sample_row *row, const struct sample_side *side, int64_t first,
                        int64_t last) {
    if (!row->kernels->maxima(side->dtype, side->x, first * SAMPLE_GROUP,
                              sample_group_end(row, last - 1), side->groups.max))
        side->groups.max[first] = NAN;
}

void sample_row_find_maxima(const struct sample_row *row, int64_t first, int64_t last) {
    find_maxima(row, &row->z, first, last);
    if (has_raw_maxima(row)) find_maxima(row, &row->raw, first, last);
}

static float largest(const struct sample_row *row, const struct sample_side *side) {
    float max = -INFINITY;
    for (int64_t g = 0; g < row->num_groups; g++) {
        if (isnan(side->groups.max[g])) return NAN;
        max = fmaxf(max, side->groups.max[g]);
    }
    return max;
}

void sample_row_read_maxima(struct sample_row *row) {
    row->z.max = row->raw.max = largest(row, &row->z);
    if (has_raw_maxima(row)) row->raw.max = largest(row, &row->raw);
    row->is_nan = isnan(row->z.max);
}

static void find_sums(const struct sample_row *row, const struct sample_side *side, int64_t first,
                      int64_t last) {
    float w[SAMPLE_WEIGHTS];
    for (int64_t g = first; g < last; g++)
        side->groups.sums[g] = sample_weigh_group(row, side, g, &no_filter, w, NULL);
}

void sample_row_find_sums(const struct sample_row *row, int64_t first, int64_t last) {
    if (row->is_nan || row->z.max == -INFINITY) return;
    if (sample_has_sums(row)) find_sums(row, &row->z, first, last);
    if (sample_has_raw_sums(row)) find_sums(row, &row->raw, first, last);
}
