// SPDX-License-Identifier: Apache-2.0
// The parameters of the routing's CUDA kernels, passed by value. Both compilers read this file: no library headers.
#ifndef TSRI_MOE_ROUTE_PARAMS_H
#define TSRI_MOE_ROUTE_PARAMS_H

enum { MOE_ROUTE_LOSSES_THREADS = 1024, MOE_ROUTE_BACKWARD_WARPS = 8 };

// Sums over the tokens of each block of moe_route_forward.cu, [block][expert] and [block]. All are NULL if no output sums.
struct moe_route_parts {
    double *probs; // NULL if no output needs them
    double *z;
    int *counts, *nans;
};

// Element (t, e) of logits is at t * logits_stride + e; ids and weights alike.
struct moe_route_forward_params {
    const void *logits;
    const float *bias; // may be NULL
    int *ids;
    float *weights, *lse; // lse may be NULL
    struct moe_route_parts parts;
    long long logits_stride, ids_stride, weights_stride, tokens;
    int num_experts, top_k, dtype, round_dtype; // values of tsr_dtype
    int num_groups, topk_groups, is_group_max;  // topk_groups < num_groups limits the choice
    int is_sigmoid, is_renormalised;
    int is_exact; // logits choose, not scores
    int has_lse;  // lse or z_loss is wanted
    float scaling;
};

struct moe_route_losses_params {
    struct moe_route_parts parts;
    int *tokens_per_expert, *num_nan_rows; // each of these outputs may be NULL
    float *mean_probs, *balance_loss, *z_loss, *usage_variance;
    long long tokens;
    int num_blocks, num_experts, top_k;
};

struct moe_route_backward_params {
    const void *logits;
    const int *ids, *tokens_per_expert;
    const float *dweights, *dbalance_loss, *dz_loss; // the losses' may be NULL
    void *dlogits;
    long long logits_stride, ids_stride, dweights_stride, dlogits_stride, tokens;
    int num_experts, top_k, dtype;
    int is_sigmoid, is_renormalised;
    int is_dense; // all experts get something: losses or raw softmax weights
    float scaling;
    double balance_factor, z_factor; // of the losses' gradients
};

#endif
