// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: the routing of tokens to experts.
#ifndef TESSERA_MOE_ROUTE_H
#define TESSERA_MOE_ROUTE_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// The score of an expert (scoring_func in model configurations).
typedef enum tsr_moe_scoring {
    TSR_MOE_SOFTMAX = 0, // of the token's logits over all experts
    TSR_MOE_SIGMOID,     // of the expert's logit
    TSR_MOE_SCORING_COUNT
} tsr_moe_scoring;

// The score of a group of experts.
typedef enum tsr_moe_group_score {
    TSR_MOE_GROUP_TOP2 = 0, // the sum of its two best experts' (DeepSeek-V3, GLM-4.5: noaux_tc)
    TSR_MOE_GROUP_MAX,      // its best expert's (DeepSeek-V2: group_limited_greedy)
    TSR_MOE_GROUP_SCORE_COUNT
} tsr_moe_group_score;

// Chooses top_k of num_experts experts for each token and gives each a weight. With E = num_experts, K = top_k:
//   1. s[t, e] = softmax over e of logits[t, e], or sigmoid(logits[t, e])
//   2. c[t, e] = s[t, e] + correction_bias[e], which chooses and does nothing else
//   3. With num_groups > 1, group g is experts [g E / num_groups, (g + 1) E / num_groups). The topk_groups groups of the
//      highest group_score remain, and only their experts can be chosen. Groups of one expert change nothing.
//   4. topk_ids[t, :] are the K experts of the highest c, the best first.
//   5. w[t, k] = s[t, topk_ids[t, k]]; unless no_renormalize is set, divided by their sum over k (sigmoid: sum + 1e-20)
//   6. topk_weights = w routed_scaling, rounded to round_weights.
// Equal values go to the lower index, of experts and of groups.
//
// Models    Mixtral, Qwen3-MoE (norm_topk_prob), gpt-oss: the defaults. Qwen2-MoE, DeepSeek-V2 (with groups:
//           TSR_MOE_GROUP_MAX): no_renormalize. DeepSeek-V3, GLM-4.5: sigmoid, correction_bias, groups, routed_scaling;
//           MiniMax-M2 without groups. Llama 4: sigmoid, K = 1, no_renormalize. Ernie 4.5: correction_bias beside softmax.
//           A model in 16 bits that rounds its weights to that dtype (Qwen, gpt-oss, Llama 4) does it last: round_weights.
// Shapes    logits: (..., num_experts), leading dimensions collapse to tokens of one stride; topk_ids, topk_weights:
//           (..., top_k), each of one stride; 1 <= E <= 1024, 1 <= K <= min(E, 32). No tokens are legal: then every
//           other output is 0.
// Strides   last dimension of the three contiguous; the other tensors contiguous.
// Dtypes    logits f32, bf16, f16; correction_bias, topk_weights and the other real outputs f32; topk_ids, tokens_per_expert
//           and num_nan_rows int32. On "reference" also f64 logits with f64 instead of f32.
// Choice    is defined exactly, so that every variant and device gives the same ids. Without a bias, and without groups that
//           TSR_MOE_GROUP_TOP2 limits, c is the logit itself: both scorings preserve its order, and logits that differ
//           choose even where fp32 scores are equal. Otherwise c is the fp32 score of fp32 logits, computed by a fixed sequence
//           of fp32 operations (src/ops/moe_route/moe_route_score_params.h), plus the bias, rounded; a group's score is in fp32
//           too.
// Optional  (T tokens; P[t, e] = s[t, e] for softmax, s[t, e] / (sum_e s[t, e] + 1e-20) for sigmoid)
//           tokens_per_expert[e]   the number of times that e is in topk_ids
//           mean_probs[e]          P_e = mean over t of P[t, e]
//           load_balance_loss      E sum_e f_e P_e with f_e = tokens_per_expert[e] / (T K): 1 if all is even. (Hugging Face's
//                                  load_balancing_loss_func counts f_e per token and gives K times as much.)
//           z_loss                 mean over t of lse[t]^2
//           usage_variance         mean over e of (f_e - 1 / E)^2: the population's variance of f
//           lse[t]                 log sum_e exp(logits[t, e])
//           num_nan_rows           tokens whose weights are NaN by the rule below; nothing waits for it
// Masked    a logit of -inf masks its expert: it has score 0, no bias brings it back, and it is chosen only if too few
//           others remain, then with weight 0. A group counts its masked experts as 0 if it has others, else it comes last.
//           A token with only masked experts has weights 0, lse -inf, and adds 0 to mean_probs and z_loss. A bias that
//           makes c NaN is one of -inf.
// NaN       a token with a NaN among its logits, or for softmax +inf, gets ids 0 to K - 1 in order and weights, mean_probs
//           and losses of NaN. lse is NaN with a +inf too; sigmoid(+inf) is 1.
// Aliasing  none: no output overlaps an input or another output.
// Numerics  fp32, sums over tokens in double. With m the largest logit that counts and x the expert's, the error of an unscaled
//           weight w is
//             softmax      2^-24 w (12 + K + |x - m|) + 2^-125, m among the K chosen
//             raw softmax  2^-24 w (20 + E / 32 + |x - m|) + 2^-125; that of P too
//             sigmoid      2^-24 w (12 + K) + 2^-125 / S, S the sum that divides it, 1 for raw weights
//           and then times |routed_scaling|, plus the rounding to round_weights. The error of the others is
//             P of sigmoid       2^-24 P (12 + E / 32) + 2^-125 / (sum_e s[t, e] + 1e-20)
//             lse                d = 2^-24 (16 + E / 32);  z_loss: the mean over t of d (2 |lse| + d)
//             mean_probs         the mean over t of P's
//             load_balance_loss  E sum_e f_e (that of P_e) + 2^-22 load_balance_loss
//           All plus the rounding to f32. Bitwise repeatable for any number of threads; ids, weights and lse batch-invariant.
//           Ids are the same in every variant and on every device, and so are the bits of weights, except in "reference".
// CUDA      the same; bits of the sums over tokens repeat on one kind of card.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Shazeer et al.: Outrageously large neural networks, arXiv:1701.06538; Fedus, Zoph, Shazeer: Switch Transformers,
//           arXiv:2101.03961 (balance); Zoph et al.: ST-MoE, arXiv:2202.08906 (z-loss); DeepSeek-V3, arXiv:2412.19437.
typedef struct tsr_moe_route_forward_args {
    TSR_CALL_FIELDS;
    tsr_tensor logits;            // in  (..., num_experts)
    tsr_tensor correction_bias;   // in  (num_experts), f32, optional
    tsr_tensor topk_ids;          // out (..., top_k), int32
    tsr_tensor topk_weights;      // out (..., top_k), f32
    tsr_tensor tokens_per_expert; // out (num_experts), int32, optional
    tsr_tensor mean_probs;        // out (num_experts), f32, optional
    tsr_tensor load_balance_loss; // out (1), f32, optional
    tsr_tensor z_loss;            // out (1), f32, optional
    tsr_tensor usage_variance;    // out (1), f32, optional
    tsr_tensor lse;               // out (...), f32, optional
    tsr_tensor num_nan_rows;      // out (1), int32, optional
    tsr_moe_scoring scoring;
    int32_t no_renormalize; // norm_topk_prob = false
    float routed_scaling;   // routed_scaling_factor; 1 unless has_routed_scaling
    int32_t has_routed_scaling;
    int32_t num_groups;  // n_group; divides num_experts; 0: one group
    int32_t topk_groups; // topk_group; 0: all groups. They have at least top_k experts
    tsr_moe_group_score group_score;
    tsr_dtype
        round_weights; // TSR_BF16 or TSR_F16; TSR_DTYPE_NONE, TSR_F32 and TSR_F64: no rounding
} tsr_moe_route_forward_args;

#define TSR_MOE_ROUTE_FORWARD_ARGS(...)                                                            \
    ((tsr_moe_route_forward_args){.size = sizeof(tsr_moe_route_forward_args), __VA_ARGS__})

TSR_API tsr_status tsr_moe_route_forward(tsr_context *ctx, const tsr_moe_route_forward_args *args);
TSR_API tsr_status tsr_moe_route_forward_prepare(tsr_context *ctx,
                                                 const tsr_moe_route_forward_args *args,
                                                 size_t *workspace_bytes);

// dlogits = the gradient of sum dtopk_weights topk_weights + dload_balance_loss load_balance_loss + dz_loss z_loss, with
// topk_ids and tokens_per_expert constant. Rounding to round_weights has the gradient 1, as it has in frameworks.
//
// Shapes    as forward. An id of -1 is no expert: its dtopk_weights is not read, and its weight counts in no sum.
// Dtypes    dlogits as logits; otherwise as forward.
// Optional  dload_balance_loss, with which tokens_per_expert is needed, and dz_loss.
// Aliasing  dlogits may be logits itself; any other overlap is INVALID_ARGUMENT.
// Ids       any experts, as the gradient does not choose; a repeated one counts each time. Any other id than -1 and the
//           experts' is INVALID_ARGUMENT on the CPU, before anything is written; on CUDA, where the host does not read
//           ids in device memory, it makes its token's row NaN.
// Special   a token without an id, in a call without losses, has a gradient of 0 whatever its logits are. Otherwise a token
//           that is NaN in forward has one of NaN (with dz_loss also where lse is NaN), and a masked expert one of 0.
// Numerics  fp32. With g = |dtopk_weights routed_scaling|, b = |dload_balance_loss| E f_e / T, z = 2 |dz_loss| (|lse| + 1) / T,
//           p the softmax and N = 2^-24 (40 + E / 16 + K + 2 |x - m|), m the largest logit, the error is
//           softmax       N p (b + sum p b + z); raw: N p (g + sum_k p_k g_k) more; else, with w the unscaled weight and m
//                         among the chosen, N w (g + sum_k w_k g_k) more
//           sigmoid       N (z p + s (1 - s) (b + sum P b) / D), D = sum s + 1e-20; N s (1 - s) g more; renormalised, with
//                         D' that of the chosen, N s (1 - s) (g + sum_k w_k g_k) / D' more
//           plus 2^-120 times the same sums without p, w and s (1 - s), plus 2^-138, plus the rounding to dtype. Bitwise
//           repeatable for any number of threads; a token's gradient depends on others only by the losses' T and f.
typedef struct tsr_moe_route_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor logits;             // in  (..., num_experts)
    tsr_tensor topk_ids;           // in  (..., top_k), int32
    tsr_tensor dtopk_weights;      // in  (..., top_k), f32
    tsr_tensor tokens_per_expert;  // in  (num_experts), int32, optional
    tsr_tensor dload_balance_loss; // in  (1), f32, optional
    tsr_tensor dz_loss;            // in  (1), f32, optional
    tsr_tensor dlogits;            // out (..., num_experts)
    tsr_moe_scoring scoring;
    int32_t no_renormalize;
    float routed_scaling;
    int32_t has_routed_scaling;
} tsr_moe_route_backward_args;

#define TSR_MOE_ROUTE_BACKWARD_ARGS(...)                                                           \
    ((tsr_moe_route_backward_args){.size = sizeof(tsr_moe_route_backward_args), __VA_ARGS__})

TSR_API tsr_status tsr_moe_route_backward(tsr_context *ctx,
                                          const tsr_moe_route_backward_args *args);
TSR_API tsr_status tsr_moe_route_backward_prepare(tsr_context *ctx,
                                                  const tsr_moe_route_backward_args *args,
                                                  size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
