// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: the whole layer in one call.
#ifndef TESSERA_MOE_H
#define TESSERA_MOE_H

#include <tessera/activation.h>
#include <tessera/moe_permute.h>
#include <tessera/moe_route.h>

#ifdef __cplusplus
extern "C" {
#endif

// The options of all calls of the layer. Those from scoring to round_weights are explained at tsr_moe_route_forward.
//
// top_k             experts of a token; 0: what topk_ids says, where it is given.
// activation        of the experts; TSR_ACTIVATION_NONE: SiLU with w_gate, GELU without.
// weights_on_input  an expert gets its token times the weight, and its output has weight 1 (Llama 4).
// capacity          with has_capacity, the rows that an expert takes at most: see tsr_moe_permute. A token that no
//                   expert takes gets residual and shared experts only.
#define TSR_MOE_FIELDS                                                                             \
    int64_t top_k;                                                                                 \
    tsr_moe_scoring scoring;                                                                       \
    int32_t no_renormalize;                                                                        \
    float routed_scaling;                                                                          \
    int32_t has_routed_scaling;                                                                    \
    int32_t num_groups;                                                                            \
    int32_t topk_groups;                                                                           \
    tsr_moe_group_score group_score;                                                               \
    tsr_dtype round_weights;                                                                       \
    tsr_activation activation;                                                                     \
    int32_t weights_on_input;                                                                      \
    int64_t capacity;                                                                              \
    int32_t has_capacity

// A mixture of experts: the router chooses top_k of E experts for each token, each expert is an MLP.
//
//   tsr_moe_forward(ctx, &TSR_MOE_FORWARD_ARGS(.x = x, .router = router, .w_gate = w_gate, .w_up = w_up,
//                                              .w_down = w_down, .y = y, .top_k = 8));
//
//   logits = x router^T + logits_bias, in f32
//   topk_ids, topk_weights = tsr_moe_route_forward(logits)
//   h = w_gate[e] x + b_gate[e], w_up[e] x + b_up[e]      for each token x and each of its experts e
//   a = act(h_gate) h_up, or act(h_up) without w_gate
//   y = sum over the token's experts of weight (w_down[e] a + b_down[e]) + shared expert + residual
//
// Shapes    T tokens in any leading dimensions that collapse to one stride. x, y, residual (..., hidden); router (E, hidden);
//           logits_bias, correction_bias (E); logits (..., E); w_gate, w_up (E, intermediate, hidden); w_down (E, hidden,
//           intermediate); b_gate, b_up (E, intermediate), b_down (E, hidden). 1 <= E <= 1024, 1 <= top_k <= min(E, 32).
//           No tokens are legal.
// Router    one of three ways says where tokens go: router; logits, f32; or topk_ids and topk_weights as inputs, where an
//           id of -1 is no expert. In the first two they are outputs, optional.
// Weights   each tensor has any strides with 1 in one of its last two dimensions, so that w_gate and w_up may be the two
//           halves of a tensor (E, 2 intermediate, hidden), or its even and odd rows, and any of them transposed. Halves are
//           the fastest way: products of both are one.
// Shared    an expert that every token passes: shared_w_gate, shared_w_up (intermediate_s, hidden), shared_w_down (hidden,
//           intermediate_s); shared_w_gate if and only if w_gate. Its output is multiplied by sigmoid(<x, shared_gate>)
//           where shared_gate (hidden) is given.
// Saved     for backward: preact (num_rows, 2 intermediate, or intermediate without w_gate), the rows of each expert
//           after those of the expert before, h_gate in the first half; shared_preact (T, 2 intermediate_s, or
//           intermediate_s); topk_ids and topk_weights (..., top_k). num_rows is T top_k or, with has_capacity,
//           min(T top_k, E capacity). Rows from the number of assignments on are undefined. Each is optional.
// Optional  offsets (E + 1), num_dropped (1): as tsr_moe_permute. tokens_per_expert, mean_probs (E), load_balance_loss,
//           z_loss, usage_variance, num_nan_rows (1): as tsr_moe_route_forward; without router and logits, only
//           tokens_per_expert.
// fp8       w_gate, w_up and w_down may be e4m3, forward, with the values of their elements times w_gate_scale, w_up_scale and
//           w_down_scale, f32: (E), one for each expert, or one for each 128 x 128 of a matrix, (E, ceil(intermediate / 128),
//           ceil(hidden / 128)) and, for w_down, (E, ceil(hidden / 128), ceil(intermediate / 128)), as the checkpoints of
//           DeepSeek-V3 have them. The rows of x, or those times their weights, and a are then rounded to e4m3 with a scale for
//           each 128 columns, as tsr_quantize does it, and multiplied in fp8. Scales of experts follow one another; others have
//           strides as weights have.
//           shared_w_gate, shared_w_up and shared_w_down may be e4m3 too, all or none, with a scale for each 128 x 128:
//           shared_w_gate_scale and so on.
// Dtypes    x, y, residual, preact and all w_ alike: f32, bf16, f16; w_ see fp8. Biases: that one or f32, each for itself.
//           router: x's or f32. logits, topk_weights, correction_bias, losses f32. f64 throughout on "reference"; ids and
//           counts int32.
// Aliasing  y may be residual itself; outputs overlap nothing else.
// Workspace one block for the whole layer; on CUDA no synchronisation with the host, so a call can be captured.
// Numerics  those of the parts in turn: tsr_matmul_forward, tsr_moe_route_forward, tsr_moe_permute,
//           tsr_matmul_grouped_forward, tsr_activation_forward, tsr_moe_combine_forward. preact, a and the experts' outputs
//           are rounded to x's dtype between them, also on "reference"; with fp8, a to e4m3 instead (tsr_quantize), and the
//           rows of x. Bitwise repeatable for any number of threads. Under
//           TSR_BATCH_INVARIANT a token's y does not depend on the others, capacity apart.
// NaN       A NaN in a token of x affects only that token's y and the sums over tokens: with router its weights are NaN.
// CUDA      f32, bf16, f16, within the limits of the parts.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Shazeer et al.: Outrageously large neural networks, arXiv:1701.06538; Jiang et al.: Mixtral of experts,
//           arXiv:2401.04088; DeepSeek-V3, arXiv:2412.19437. What backward needs: SonicMoE, arXiv:2512.14080.
typedef struct tsr_moe_forward_args {
    TSR_CALL_FIELDS;
    tsr_tensor x;                 // in  (..., hidden)
    tsr_tensor router;            // in  (num_experts, hidden), optional
    tsr_tensor logits_bias;       // in  (num_experts), optional, with router (gpt-oss)
    tsr_tensor logits;            // in  (..., num_experts), f32, optional, in place of router
    tsr_tensor correction_bias;   // in  (num_experts), f32, optional
    tsr_tensor w_gate;            // in  (num_experts, intermediate, hidden), optional
    tsr_tensor w_up;              // in  (num_experts, intermediate, hidden)
    tsr_tensor w_down;            // in  (num_experts, hidden, intermediate)
    tsr_tensor b_gate;            // in  (num_experts, intermediate), optional, with w_gate
    tsr_tensor b_up;              // in  (num_experts, intermediate), optional
    tsr_tensor b_down;            // in  (num_experts, hidden), optional
    tsr_tensor shared_w_gate;     // in  (intermediate_s, hidden), with w_gate
    tsr_tensor shared_w_up;       // in  (intermediate_s, hidden), optional
    tsr_tensor shared_w_down;     // in  (hidden, intermediate_s), with shared_w_up
    tsr_tensor shared_gate;       // in  (hidden), optional, with shared_w_up
    tsr_tensor residual;          // in  (..., hidden), optional
    tsr_tensor y;                 // out (..., hidden)
    tsr_tensor preact;            // out (num_rows, 2 intermediate or intermediate), optional
    tsr_tensor shared_preact;     // out (T, 2 intermediate_s or intermediate_s), optional
    tsr_tensor topk_ids;          // out (..., top_k), int32, optional; in without router and logits
    tsr_tensor topk_weights;      // out (..., top_k), f32, optional; in without router and logits
    tsr_tensor offsets;           // out (num_experts + 1), int32, optional
    tsr_tensor tokens_per_expert; // out (num_experts), int32, optional
    tsr_tensor mean_probs;        // out (num_experts), f32, optional
    tsr_tensor load_balance_loss; // out (1), f32, optional
    tsr_tensor z_loss;            // out (1), f32, optional
    tsr_tensor usage_variance;    // out (1), f32, optional
    tsr_tensor num_nan_rows;      // out (1), int32, optional
    tsr_tensor num_dropped;       // out (1), int32, optional
    TSR_MOE_FIELDS;
    tsr_tensor w_gate_scale;        // in  (num_experts) or of blocks, f32, with w_gate of e4m3
    tsr_tensor w_up_scale;          // in  as w_gate_scale, with w_up of e4m3
    tsr_tensor w_down_scale;        // in  as w_gate_scale, with w_down of e4m3
    tsr_tensor shared_w_gate_scale; // in  (ceil(intermediate_s / 128), ceil(hidden / 128)), f32
    tsr_tensor shared_w_up_scale;   // in  (ceil(intermediate_s / 128), ceil(hidden / 128)), f32
    tsr_tensor shared_w_down_scale; // in  (ceil(hidden / 128), ceil(intermediate_s / 128)), f32
} tsr_moe_forward_args;

#define TSR_MOE_FORWARD_ARGS(...)                                                                  \
    ((tsr_moe_forward_args){.size = sizeof(tsr_moe_forward_args), __VA_ARGS__})

TSR_API tsr_status tsr_moe_forward(tsr_context *ctx, const tsr_moe_forward_args *args);
TSR_API tsr_status tsr_moe_forward_prepare(tsr_context *ctx, const tsr_moe_forward_args *args,
                                           size_t *workspace_bytes);

// Gradients of <dy, y> + dload_balance_loss load_balance_loss + dz_loss z_loss, from the inputs and what forward saved: x,
// preact, topk_ids and topk_weights, and nothing else. The choice of experts is constant. That of residual is dy itself.
//
// Shapes    as forward; each gradient has the shape of its tensor.
// Optional  every gradient. drouter and dlogits_bias with router, dlogits with logits, dtopk_weights without either.
//           dload_balance_loss and dz_loss, with router or logits.
// Dtypes    dx, dy: x's. Gradients of weights and biases: their tensor's dtype, or f32, each for itself, but gradients of the
//           weights of shared experts and of shared_gate their tensor's. With accumulate, dw_gate, dw_up and dw_down are
//           f32, and the gradient is added to them.
// Strides   gradients of w_ have 1 in their last dimension.
// Numerics  as forward. The gradients of a, of h and of each row of x, the weighted a, and with a router of x's dtype the
//           logits' gradient, are rounded to x's dtype. All sums over tokens in a fixed order.
// Otherwise as forward.
typedef struct tsr_moe_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor x;                  // in  (..., hidden)
    tsr_tensor router;             // in  (num_experts, hidden), optional
    tsr_tensor logits_bias;        // in  (num_experts), optional
    tsr_tensor logits;             // in  (..., num_experts), f32, optional, in place of router
    tsr_tensor w_gate;             // in  (num_experts, intermediate, hidden), optional
    tsr_tensor w_up;               // in  (num_experts, intermediate, hidden)
    tsr_tensor w_down;             // in  (num_experts, hidden, intermediate)
    tsr_tensor b_down;             // in  (num_experts, hidden), optional
    tsr_tensor shared_w_gate;      // in  (intermediate_s, hidden), with w_gate
    tsr_tensor shared_w_up;        // in  (intermediate_s, hidden), optional
    tsr_tensor shared_w_down;      // in  (hidden, intermediate_s), with shared_w_up
    tsr_tensor shared_gate;        // in  (hidden), optional
    tsr_tensor preact;             // in  what forward saved
    tsr_tensor shared_preact;      // in  what forward saved, with shared_w_up
    tsr_tensor topk_ids;           // in  what forward saved, or its input
    tsr_tensor topk_weights;       // in  what forward saved, or its input
    tsr_tensor dy;                 // in  (..., hidden)
    tsr_tensor dload_balance_loss; // in  (1), f32, optional
    tsr_tensor dz_loss;            // in  (1), f32, optional
    tsr_tensor dx;                 // out as x, optional
    tsr_tensor drouter;            // out as router, optional
    tsr_tensor dlogits_bias;       // out as logits_bias, optional
    tsr_tensor dlogits;            // out as logits, optional
    tsr_tensor dtopk_weights;      // out as topk_weights, optional
    tsr_tensor dw_gate;            // out as w_gate, optional; in and out under accumulate
    tsr_tensor dw_up;              // out as w_up, optional; in and out under accumulate
    tsr_tensor dw_down;            // out as w_down, optional; in and out under accumulate
    tsr_tensor db_gate;            // out (num_experts, intermediate), optional
    tsr_tensor db_up;              // out (num_experts, intermediate), optional
    tsr_tensor db_down;            // out (num_experts, hidden), optional
    tsr_tensor dshared_w_gate;     // out as shared_w_gate, optional
    tsr_tensor dshared_w_up;       // out as shared_w_up, optional
    tsr_tensor dshared_w_down;     // out as shared_w_down, optional
    tsr_tensor dshared_gate;       // out as shared_gate, optional
    int32_t accumulate;
    TSR_MOE_FIELDS;
} tsr_moe_backward_args;

#define TSR_MOE_BACKWARD_ARGS(...)                                                                 \
    ((tsr_moe_backward_args){.size = sizeof(tsr_moe_backward_args), __VA_ARGS__})

TSR_API tsr_status tsr_moe_backward(tsr_context *ctx, const tsr_moe_backward_args *args);
TSR_API tsr_status tsr_moe_backward_prepare(tsr_context *ctx, const tsr_moe_backward_args *args,
                                            size_t *workspace_bytes);

// The memory of the layer in bytes, before any tensor exists, for contiguous tensors of these sizes, a router, and this
// context's threads and instruction set. It is exact: a workspace is what _prepare will give, a sum what must be allocated.
//
// router_dtype         TSR_DTYPE_NONE: dtype.
// is_gated             with w_gate and its gradient.
// is_joined            w_gate and w_up are the halves of one tensor (num_experts, 2 intermediate, hidden), and so are their
//                      gradients.
// has_bias             with b_gate (if gated), b_up and b_down of this dtype.
// shared_intermediate  0: without a shared expert. has_shared_gate with one.
// flags, variant       those of the later calls; workspace is ignored.
// weight_dtype         e4m3: of w_gate, w_up and w_down, with scales of blocks if has_block_scales, else of experts; and
// shared_weight_dtype  e4m3: of the weights of the shared expert, with scales of blocks. What training needs is 0 with either.
//                      Otherwise TSR_DTYPE_NONE.
typedef struct tsr_moe_estimate_args {
    TSR_CALL_FIELDS;
    tsr_dtype dtype;
    tsr_dtype router_dtype;
    int32_t is_gated;
    int32_t is_joined;
    int32_t has_bias;
    int32_t has_shared_gate;
    int64_t num_tokens;
    int64_t hidden;
    int64_t intermediate;
    int64_t num_experts;
    int64_t shared_intermediate;
    TSR_MOE_FIELDS;
    tsr_dtype weight_dtype;
    int32_t has_block_scales;
    tsr_dtype shared_weight_dtype;
} tsr_moe_estimate_args;

#define TSR_MOE_ESTIMATE_ARGS(...)                                                                 \
    ((tsr_moe_estimate_args){.size = sizeof(tsr_moe_estimate_args), __VA_ARGS__})

typedef struct tsr_moe_memory {
    size_t weight_bytes;     // router, weights with their scales, biases
    size_t activation_bytes; // x, y
    size_t saved_bytes;    // what backward reads: x, preact, shared_preact, topk_ids, topk_weights
    size_t gradient_bytes; // dy and every gradient in its tensor's dtype
    size_t inference_workspace_bytes; // of a forward that saves nothing
    size_t forward_workspace_bytes;   // of a forward that saves all
    size_t backward_workspace_bytes;  // of a backward with all gradients
    size_t inference_bytes;           // weights, activations and workspace of inference
    size_t training_bytes; // all tensors and the larger workspace: the peak of a training step
} tsr_moe_memory;

// Errors: INVALID_ARGUMENT, UNSUPPORTED (variant).
TSR_API tsr_status tsr_moe_estimate(tsr_context *ctx, const tsr_moe_estimate_args *args,
                                    tsr_moe_memory *memory);

#ifdef __cplusplus
}
#endif
#endif
