// SPDX-License-Identifier: Apache-2.0
// The oracle: the definition of tessera/sample.h, row by row, with all tokens in order. The choice uses the weights of
// sample_weight.h, as the contract says; logprobs are in double.
#include "ops/sample/sample_problem.h"

// A row; arrays of vocab elements.
struct row {
    float *z;
    int32_t *counts;
    uint64_t *order; // key and index, so that the largest is the first token in order
    bool *is_left;
    struct sample_options options;
    float max;
};

static size_t row_bytes(int64_t vocab) {
    return (size_t)vocab * (sizeof(uint64_t) + sizeof(float) + sizeof(int32_t) + sizeof(bool));
}

void sample_plan_reference(const void *problem, const struct tsri_limits *limits,
                           struct tsri_plan *plan) {
    tsri_plan_serial(problem, limits, plan);
    plan->workspace_bytes = row_bytes(((const struct sample_problem *)problem)->logits.cols);
}

static float logit_of(const struct sample_problem *p, int64_t row, int64_t v) {
    return (float)tsri_load(p->logits.dtype, tsri_row(&p->logits, row), v);
}

// False if a number is NaN.
static bool read_row(const struct sample_problem *p, int64_t r, struct row *row) {
    const int64_t vocab = p->logits.cols;
    bool is_number = true;
    row->max = -INFINITY;
    for (int64_t v = 0; v < vocab; v++) row->counts[v] = 0;
    for (int64_t i = 0; i < p->history.cols; i++) {
        const int32_t token = ((const int32_t *)tsri_row(&p->history, r))[i];
        if (token >= 0 && token < vocab) row->counts[token]++;
    }
    for (int64_t v = 0; v < vocab; v++) {
        float x = logit_of(p, r, v);
        if (row->counts[v] > 0) x = sample_penalised(x, row->counts[v], &row->options);
        if (p->bias.data != NULL) x += (float)tsri_load(p->bias.dtype, tsri_row(&p->bias, r), v);
        row->z[v] = sample_bounded(x);
        is_number &= !isnan(x);
        row->max = fmaxf(row->max, row->z[v]);
    }
    return is_number;
}

// ---- Order: a heap sort, the largest first -------------------------------------------------------

static void sink(uint64_t *heap, int64_t at, int64_t count) {
    const uint64_t moved = heap[at];
    for (int64_t below = 2 * at + 1; below < count; below = 2 * at + 1) {
        if (below + 1 < count && heap[below + 1] < heap[below]) below++;
        if (heap[below] >= moved) break;
        heap[at] = heap[below];
        at = below;
    }
    heap[at] = moved;
}

static void sort(uint64_t *order, int64_t count) {
    for (int64_t i = count / 2; i-- > 0;) sink(order, i, count);
    for (int64_t last = count - 1; last > 0; last--) {
        const uint64_t least = order[0];
        order[0] = order[last];
        order[last] = least;
        sink(order, 0, last);
    }
}

static int64_t token_of(uint64_t entry) { return (int64_t)(0xffffffffu - (uint32_t)entry); }

// ---- Steps 3 to 7 -----------------------------------------------------------------------------

static uint64_t weight_of(const struct row *row, int64_t v) {
    return (uint64_t)sample_weight(row->z[v], row->max, sample_scale(row->options.temperature));
}

// Sets is_left of the tokens that the filters leave; returns their number.
static int32_t filter(const struct sample_problem *p, struct row *row) {
    const struct sample_options *o = &row->options;
    int64_t count = 0;
    int32_t kept = 0;
    for (int64_t v = 0; v < p->logits.cols; v++) {
        row->is_left[v] = false;
        if (row->z[v] == -INFINITY) continue;
        row->order[count++] =
            (uint64_t)sample_key_of(row->z[v]) << 32 | (0xffffffffu - (uint32_t)v);
    }
    sort(row->order, count);
    if (sample_has_top_k(p, o)) count = tsri_min(count, o->top_k);
    if (o->top_p < 1) {
        uint64_t sum = 0, before = 0;
        for (int64_t i = 0; i < count; i++) sum += weight_of(row, token_of(row->order[i]));
        const uint64_t needed = sample_needed(o->top_p, sum);
        int64_t left = 0;
        while (left < count && before < needed)
            before += weight_of(row, token_of(row->order[left++]));
        count = left;
    }
    for (int64_t i = 0; i < count; i++) {
        const int64_t v = token_of(row->order[i]);
        row->is_left[v] = (double)weight_of(row, v) >= (double)o->min_p * (double)SAMPLE_ONE;
        kept += row->is_left[v];
    }
    return kept;
}

static int32_t draw(const struct sample_problem *p, int64_t r, const struct row *row) {
    uint64_t sum = 0, upto = 0;
    int32_t v = 0;
    for (int64_t i = 0; i < p->logits.cols; i++)
        if (row->is_left[i]) sum += weight_of(row, i);
    const uint64_t target = sample_row_target(p, r, sum);
    for (;; v++) {
        if (row->is_left[v]) upto += weight_of(row, v);
        if (upto > target) return v;
    }
}

static double logprob_of(const struct sample_problem *p, int64_t r, const struct row *row,
                         int32_t id) {
    double sum = 0, max = -INFINITY;
    if (p->is_logprob_raw) {
        for (int64_t v = 0; v < p->logits.cols; v++)
            max = fmax(max, (double)sample_bounded(logit_of(p, r, v)));
        for (int64_t v = 0; v < p->logits.cols && max > -INFINITY; v++)
            sum += exp((double)sample_bounded(logit_of(p, r, v)) - max);
        return max == -INFINITY ? max : (double)sample_bounded(logit_of(p, r, id)) - max - log(sum);
    }
    const double temperature = (double)row->options.temperature;
    if (temperature == 0) return 0;
    for (int64_t v = 0; v < p->logits.cols; v++)
        if (row->is_left[v]) sum += exp(((double)row->z[v] - (double)row->max) / temperature);
    return ((double)row->z[id] - (double)row->max) / temperature - log(sum);
}

tsr_status sample_reference_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                                void *workspace) {
    (void)ctx, (void)plan;
    const struct sample_problem *p = problem;
    const int64_t vocab = p->logits.cols;
    struct row row = {.order = workspace};
    row.z = (void *)(row.order + vocab);
    row.counts = (void *)(row.z + vocab);
    row.is_left = (void *)(row.counts + vocab);
    if (p->num_nan_rows != NULL) *p->num_nan_rows = 0;
    for (int64_t r = 0; r < p->logits.rows; r++) {
        struct sample_result result = {0};
        row.options = sample_options_of(p, r);
        result.is_nan = !read_row(p, r, &row);
        if (result.is_nan) {
            result.logprob = (double)NAN;
        } else if (row.max == -INFINITY) {
            result.logprob = -INFINITY;
        } else {
            if (row.options.temperature > 0) {
                result.kept = filter(p, &row);
                result.id = draw(p, r, &row);
            } else {
                while (row.z[result.id] != row.max) result.id++;
                result.kept = 1;
            }
            if (p->logprobs != NULL) result.logprob = logprob_of(p, r, &row, result.id);
        }
        sample_store(p, r, &result);
    }
    return TSR_OK;
}
