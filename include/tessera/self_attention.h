// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_SELF_ATTENTION_H
#define TESSERA_SELF_ATTENTION_H

#include <tessera/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

// The fields of all calls of the module. Those from mask to offset are explained at tsr_attention_forward.
//
// num_heads      heads of queries, at least 1.
// num_kv_heads   heads of keys and values, a divisor of num_heads; 0: as num_heads.
// interleaved    RoPE's pairs are (2i, 2i + 1); without it (i, i + rotary_dim / 2).
#define TSR_SELF_ATTENTION_FIELDS                                                                  \
    int64_t num_heads;                                                                             \
    int64_t num_kv_heads;                                                                          \
    tsr_mask mask;                                                                                 \
    float softmax_scale;                                                                           \
    float softcap;                                                                                 \
    int32_t has_window_left;                                                                       \
    int32_t has_window_right;                                                                      \
    int64_t window_left;                                                                           \
    int64_t window_right;                                                                          \
    double dropout_p;                                                                              \
    uint64_t seed;                                                                                 \
    uint64_t offset;                                                                               \
    int32_t interleaved

// The self-attention module: QKV projection, attention, output projection.
//
//   qkv = x w_qkv^T + b_qkv               a row holds the heads of q, then those of k, then those of v
//   q, k = rope(q), rope(k)               cos and sin given; token i of a sequence is at position i
//   attention = softmax(scores(q, k)) v   as tsr_attention_forward, seqlen_q = seqlen_k = seqlen
//   y = attention w_out^T + b_out
//
// Shapes    x, y (batch, seqlen, embed_dim). With qkv_dim = (num_heads + 2 num_kv_heads) head_dim:
//           w_qkv (qkv_dim, embed_dim), b_qkv (qkv_dim), w_out (embed_dim, num_heads head_dim),
//           b_out (embed_dim): the weights of linear layers. head_dim 1 to 256.
//           cos, sin (num_positions, rotary_dim / 2), both or none, num_positions at least seqlen,
//           rotary_dim even and at most head_dim: see tsr_rope_table.
// Saved     qkv (batch, seqlen, qkv_dim), after RoPE; attention (batch, seqlen, num_heads head_dim);
//           lse (batch, num_heads, seqlen): the inputs of backward. Each is optional; an absent qkv or
//           attention lives in the workspace, an absent lse is not stored.
// Strides   last dimension contiguous, all others any. Elements of an output must not overlap.
// Dtypes    x, w_qkv, w_out, y, qkv, attention alike: f32, bf16, f16. b_qkv, b_out: that one or f32,
//           each for itself. lse, cos, sin f32. f64 throughout on "reference".
// Aliasing  outputs overlap nothing.
// variant   the variant of attention: "default" leaves it to the library, "flash1", "flash2" and "naive"
//           force that one. "reference" takes the oracle of each part. On CUDA "cuda" leaves all parts to the
//           library.
// Workspace one block for the whole module, linear in seqlen except for "naive"; the parts work within it.
// Numerics  those of tsr_matmul_forward, tsr_rope_forward and tsr_attention_forward in turn; qkv and
//           attention are rounded to x's dtype between them, also on "reference". Bitwise
//           repeatable, for any number of threads.
// NaN       A NaN in a token of x affects only y of that token and of those that see it. Backward: a NaN in a token of x
//           or dy affects only dx of its sequence, dw and db.
// CUDA      f32, bf16, f16, within the limits of the three parts.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Vaswani et al.: Attention is all you need, arXiv:1706.03762. Grouped heads: Ainslie et
//           al., arXiv:2305.13245.
typedef struct tsr_self_attention_forward_args {
    TSR_CALL_FIELDS;
    tsr_tensor x;         // in  (batch, seqlen, embed_dim)
    tsr_tensor w_qkv;     // in  (qkv_dim, embed_dim)
    tsr_tensor b_qkv;     // in  (qkv_dim), optional
    tsr_tensor w_out;     // in  (embed_dim, num_heads head_dim)
    tsr_tensor b_out;     // in  (embed_dim), optional
    tsr_tensor cos;       // in  (num_positions, rotary_dim / 2), optional
    tsr_tensor sin;       // in  (num_positions, rotary_dim / 2), optional
    tsr_tensor y;         // out (batch, seqlen, embed_dim)
    tsr_tensor qkv;       // out (batch, seqlen, qkv_dim), optional
    tsr_tensor attention; // out (batch, seqlen, num_heads head_dim), optional
    tsr_tensor lse;       // out (batch, num_heads, seqlen), optional
    TSR_SELF_ATTENTION_FIELDS;
} tsr_self_attention_forward_args;

#define TSR_SELF_ATTENTION_FORWARD_ARGS(...)                                                       \
    ((tsr_self_attention_forward_args){.size = sizeof(tsr_self_attention_forward_args),            \
                                       __VA_ARGS__})

TSR_API tsr_status tsr_self_attention_forward(tsr_context *ctx,
                                              const tsr_self_attention_forward_args *args);
TSR_API tsr_status tsr_self_attention_forward_prepare(tsr_context *ctx,
                                                      const tsr_self_attention_forward_args *args,
                                                      size_t *workspace_bytes);

// Gradients of the module, from the inputs and the saved tensors of forward:
//
//   dattention = dy w_out,  dw_out = dy^T attention,  db_out = sum dy
//   dqkv = that of attention, then of RoPE
//   dx = dqkv w_qkv,  dw_qkv = dqkv^T x,  db_qkv = sum dqkv       sums over batch and seqlen
//
// Shapes    dy as y; dx, dw_qkv, dw_out as x, w_qkv, w_out; db_qkv (qkv_dim), db_out (embed_dim).
// Optional  dx, dw_qkv, db_qkv, dw_out, db_out: an absent one is not computed.
// Dtypes    dy, dx, dw_qkv, dw_out: x's. db_qkv, db_out: x's or f32, each for itself.
// Numerics  dattention and dqkv are rounded to x's dtype in the workspace, also on "reference". dw and db
//           are summed in fp32, in a fixed order.
// Otherwise as forward.
typedef struct tsr_self_attention_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor x;         // in  (batch, seqlen, embed_dim)
    tsr_tensor w_qkv;     // in  (qkv_dim, embed_dim)
    tsr_tensor w_out;     // in  (embed_dim, num_heads head_dim)
    tsr_tensor cos;       // in  (num_positions, rotary_dim / 2), optional
    tsr_tensor sin;       // in  (num_positions, rotary_dim / 2), optional
    tsr_tensor qkv;       // in  (batch, seqlen, qkv_dim), what forward saved
    tsr_tensor attention; // in  (batch, seqlen, num_heads head_dim), what forward saved
    tsr_tensor lse;       // in  (batch, num_heads, seqlen), what forward saved
    tsr_tensor dy;        // in  (batch, seqlen, embed_dim)
    tsr_tensor dx;        // out as x, optional
    tsr_tensor dw_qkv;    // out as w_qkv, optional
    tsr_tensor db_qkv;    // out (qkv_dim), optional
    tsr_tensor dw_out;    // out as w_out, optional
    tsr_tensor db_out;    // out (embed_dim), optional
    TSR_SELF_ATTENTION_FIELDS;
} tsr_self_attention_backward_args;

#define TSR_SELF_ATTENTION_BACKWARD_ARGS(...)                                                      \
    ((tsr_self_attention_backward_args){.size = sizeof(tsr_self_attention_backward_args),          \
                                        __VA_ARGS__})

TSR_API tsr_status tsr_self_attention_backward(tsr_context *ctx,
                                               const tsr_self_attention_backward_args *args);
TSR_API tsr_status tsr_self_attention_backward_prepare(tsr_context *ctx,
                                                       const tsr_self_attention_backward_args *args,
                                                       size_t *workspace_bytes);

// The memory of the module in bytes, before any tensor exists, for contiguous tensors of these sizes and this context's
// threads and instruction set. It is exact: a workspace is what _prepare will give, a sum what must be allocated.
//
// head_dim       0: embed_dim / num_heads.
// rotary_dim     0: without RoPE, else with tables of seqlen positions.
// has_bias       with b_qkv and b_out of this dtype.
// flags, variant those of the later calls; workspace is ignored.
typedef struct tsr_self_attention_estimate_args {
    TSR_CALL_FIELDS;
    tsr_dtype dtype;
    int32_t has_bias;
    int64_t batch;
    int64_t seqlen;
    int64_t embed_dim;
    int64_t head_dim;
    int64_t rotary_dim;
    TSR_SELF_ATTENTION_FIELDS;
} tsr_self_attention_estimate_args;

#define TSR_SELF_ATTENTION_ESTIMATE_ARGS(...)                                                      \
    ((tsr_self_attention_estimate_args){.size = sizeof(tsr_self_attention_estimate_args),          \
                                        __VA_ARGS__})

typedef struct tsr_self_attention_memory {
    size_t weight_bytes;              // w_qkv, w_out, b_qkv, b_out, cos, sin
    size_t activation_bytes;          // x, y
    size_t saved_bytes;               // qkv, attention, lse
    size_t gradient_bytes;            // dy, dx, dw_qkv, dw_out, db_qkv, db_out
    size_t inference_workspace_bytes; // of a forward that saves nothing
    size_t forward_workspace_bytes;   // of a forward that saves all
    size_t backward_workspace_bytes;  // of a backward with all gradients
    size_t inference_bytes;           // weights, activations and workspace of inference
    size_t training_bytes; // all tensors and the larger workspace: the peak of a training step
} tsr_self_attention_memory;

// Errors: INVALID_ARGUMENT, UNSUPPORTED (variant).
TSR_API tsr_status tsr_self_attention_estimate(tsr_context *ctx,
                                               const tsr_self_attention_estimate_args *args,
                                               tsr_self_attention_memory *memory);

#ifdef __cplusplus
}
#endif
#endif
