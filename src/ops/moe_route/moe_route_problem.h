// SPDX-License-Identifier: Apache-2.0
// Shared by the files of moe_route: the problem that the entries make, and the kernels of one ISA.
#ifndef TSRI_MOE_ROUTE_PROBLEM_H
#define TSRI_MOE_ROUTE_PROBLEM_H

#include <tessera/moe_route.h>

#include "context/op_table.h"
#include "core/core_index.h"
#include "cpu/cpu_isa.h"

enum { MOE_MAX_EXPERTS = 1024, MOE_MAX_TOP_K = 32 };

// Real tensors are f32, f64 beside f64 logits; optional ones may be NULL.
struct moe_route_problem {
    struct tsri_rows logits;       // (tokens, num_experts)
    struct tsri_rows ids, weights; // (tokens, top_k); backward: weights are dtopk_weights
    struct tsri_rows dlogits;      // backward
    const void *bias;              // (num_experts)
    int32_t *tokens_per_expert;    // forward: output; backward: input
    void *mean_probs;              // forward, as are the next
    void *balance_loss, *z_loss;   // backward: their gradients
    void *usage_variance, *lse;
    int32_t *num_nan_rows;
    tsr_moe_scoring scoring;
    tsr_moe_group_score group_score;
    bool is_renormalised;
    float scaling;
    int num_groups, topk_groups;
    tsr_dtype round_weights;
};

static inline int moe_num_experts(const struct moe_route_problem *p) { return (int)p->logits.cols; }
static inline int moe_top_k(const struct moe_route_problem *p) { return (int)p->ids.cols; }
static inline bool moe_has_limits(const struct moe_route_problem *p) {
    return p->topk_groups < p->num_groups;
}
// Whether logits choose, not scores.
static inline bool moe_is_choice_exact(const struct moe_route_problem *p) {
    return p->bias == NULL && !(moe_has_limits(p) && p->group_score == TSR_MOE_GROUP_TOP2);
}
static inline bool moe_has_probs(const struct moe_route_problem *p) {
    return p->mean_probs != NULL || p->balance_loss != NULL;
}
// Whether an output sums over tokens.
static inline bool moe_has_sums(const struct moe_route_problem *p) {
    return moe_has_probs(p) || p->tokens_per_expert != NULL || p->z_loss != NULL ||
           p->usage_variance != NULL || p->num_nan_rows != NULL;
}

// Sums over tokens, those of a task or all.
struct moe_route_sums {
    double *probs;   // (num_experts)
    int32_t *counts; // (num_experts), assignments
    double z;
    int64_t num_nan;
};

// Stores the outputs that sum over tokens.
void moe_route_finish(const struct moe_route_problem *problem, const struct moe_route_sums *sums);

// Tokens [first, last). sums has zeros; backward does not use it.
typedef void moe_route_kernel(const struct moe_route_problem *problem, int64_t first, int64_t last,
                              struct moe_route_sums *sums);

struct moe_route_kernels {
    moe_route_kernel *forward, *backward;
};
TSRI_DECLARE_KERNELS(moe_route)

// moe_route_cpu.c
void moe_route_plan(const void *, const struct tsri_limits *, struct tsri_plan *);
void moe_route_plan_backward(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status moe_route_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status moe_route_backward_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// moe_route_cuda.c
void moe_route_cuda_plan(const void *, const struct tsri_limits *, struct tsri_plan *);
void moe_route_cuda_plan_backward(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status moe_route_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status moe_route_cuda_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                       void *);
tsr_status moe_route_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status moe_route_cuda_backward_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool moe_route_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *);
bool moe_route_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *);

// moe_route_ref.c
tsr_status moe_route_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status moe_route_reference_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                            void *);

#endif
