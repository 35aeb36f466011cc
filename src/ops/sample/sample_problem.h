// SPDX-License-Identifier: Apache-2.0
// Shared by the files of sample: the problem that the entry makes, and the kernels of one ISA.
#ifndef TSRI_SAMPLE_PROBLEM_H
#define TSRI_SAMPLE_PROBLEM_H

#include <tessera/sample.h>

#include "context/op_table.h"
#include "cpu/cpu_isa.h"
#include "ops/sample/sample_weight.h"

enum { SAMPLE_MAX_VOCAB = 1 << 22 };

// Of each row; NULL: the scalar serves. Real ones are f32, f64 beside f64 logits.
struct sample_rows_options {
    const void *temperature, *top_p, *min_p;
    const void *repetition_penalty, *presence_penalty, *frequency_penalty;
    const int32_t *top_k, *seed, *offset;
};

struct sample_problem {
    struct tsri_rows logits;     // (rows, vocab)
    struct tsri_rows history;    // (rows, history_len); 0 columns if absent
    struct tsri_rows bias;       // (rows, vocab), stride 0 if one serves all; data NULL if absent
    struct sample_options given; // the scalars
    struct sample_rows_options of_rows;
    int32_t *ids, *kept, *num_nan_rows; // the last two may be NULL
    void *logprobs;                     // may be NULL; f64 beside f64 logits
    bool is_logprob_raw;
    uint64_t seed, offset;
};

static inline tsr_dtype sample_real(const struct sample_problem *p) {
    return p->logits.dtype == TSR_F64 ? TSR_F64 : TSR_F32;
}
static inline bool sample_has_history(const struct sample_problem *p) {
    return p->history.cols > 0;
}
// Whether z may be something other than the logit.
static inline bool sample_has_changes(const struct sample_problem *p) {
    return sample_has_history(p) || p->bias.data != NULL;
}
static inline bool sample_has_raw(const struct sample_problem *p) {
    return p->logprobs != NULL && p->is_logprob_raw;
}
// Whether a row may have a filter that needs the order of its tokens.
static inline bool sample_may_have_order(const struct sample_problem *p) {
    return p->of_rows.top_k != NULL || p->of_rows.top_p != NULL || p->given.top_k > 0 ||
           p->given.top_p < 1;
}
static inline bool sample_has_top_k(const struct sample_problem *p,
                                    const struct sample_options *o) {
    return o->top_k > 0 && o->top_k < p->logits.cols;
}

// sample_values.c
struct sample_options sample_options_of(const struct sample_problem *p, int64_t row);
// floor(u sum) of a row.
uint64_t sample_row_target(const struct sample_problem *p, int64_t row, uint64_t sum);

// What a row gives.
struct sample_result {
    int32_t id, kept;
    bool is_nan;
    double logprob;
};
void sample_store(const struct sample_problem *p, int64_t row, const struct sample_result *result);

// Tokens that a filter leaves: z above `least`, or equal to it up to index `last`, and not -inf; and w >= least_weight.
struct sample_filter {
    float least, least_weight;
    int64_t last;
};

// Of a group of tokens, consecutive ones that are weighed together. Sums of their weights are exact in double.
enum {
    SAMPLE_GROUP = 256,
    SAMPLE_WEIGHTS = SAMPLE_GROUP + 16
}; // a buffer of weights has whole vectors

// Kernels on columns [first, last) of x, f32, bf16 or f16; as z, that is at most the largest finite number.
struct sample_kernels {
    // z of logits and bias (NULL: none), as fp32.
    void (*add)(tsr_dtype dtype, const void *x, const float *bias, int64_t first, int64_t last,
                float *z);
    // At most a group's keys of z.
    void (*keys)(tsr_dtype dtype, const void *x, int64_t first, int64_t last, uint32_t *key);
    // max[g]: of group g. first is a group's. False if a number is NaN.
    bool (*maxima)(tsr_dtype dtype, const void *x, int64_t first, int64_t last, float *max);
    // At most a group's weights that the filter leaves, 0 for others, into w (SAMPLE_WEIGHTS). Returns their sum and adds the
    // number of tokens that remain to *kept; NULL: not wanted.
    uint64_t (*weigh)(tsr_dtype dtype, const void *x, int64_t first, int64_t last, float max,
                      float scale, const struct sample_filter *filter, float *w, int64_t *kept);
};
TSRI_DECLARE_KERNELS(sample)

// The tokens of a row that may be the last to remain, by index.
struct sample_candidates {
    uint32_t *key, *index; // each of vocab
    float *weight;
    int64_t count;
};
// The token at which the sum of weights in falling order of keys, lower indices first, reaches `needed`. Changes candidates.
// False if all sum to less.
bool sample_select(struct sample_candidates *candidates, uint64_t needed, uint32_t *key,
                   uint32_t *index);

// sample_cpu.c
void sample_plan(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status sample_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// sample_cuda.c
void sample_cuda_plan(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status sample_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status sample_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool sample_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *);

// sample_ref.c
void sample_plan_reference(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status sample_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);

#endif
