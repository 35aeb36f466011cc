// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_ATTENTION_H
#define TESSERA_ATTENTION_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// Which keys a query may see. CAUSAL aligns the diagonal bottom-right: the last query sees the last key.
typedef enum tsr_mask {
    TSR_MASK_NONE = 0,
    TSR_MASK_CAUSAL,          // j <= i + seqlen_k - seqlen_q
    TSR_MASK_CAUSAL_TOP_LEFT, // j <= i
    TSR_MASK_COUNT
} tsr_mask;

// The fields of both forward and backward. For query i and key j of one sequence, with the diagonal at
// d = i + seqlen_k - seqlen_q (TOP_LEFT: d = i):
//
//   s = softmax_scale q_i . k_j
//   s = softcap tanh(s / softcap)         softcap above 0
//   s = s + bias[batch, head, i, j]       bias given
//   s = s - slope[head] |j - d|           alibi_slopes given
//   s = -inf                              j masked, left of d - window_left or right of d + window_right
//
// softmax_scale  0 is 1 / sqrt(head_dim); else its magnitude is at most 2^100.
// softcap        0 is none; else from 2^-100 to 2^100.
// window_left    number of keys kept before the key on the diagonal; unlimited without has_window_left.
// window_right   number of keys kept after it; unlimited without has_window_right.
// dropout_p      in [0, 1). Weight (i, j) is kept if word j mod 4 of Philox4x32-10 with key seed and
//                counter (j / 4 + offset, i, head, batch) is at least dropout_p 2^32, and is then scaled by
//                1 / (1 - dropout_p). The denominator and lse are those without dropout.
// max_seqlen_q   packed: the longest sequence. The workspace depends on it, and longer sequences are truncated to it.
// max_seqlen_k   likewise. For both, 0 is the total; ignored if not packed.
#define TSR_ATTENTION_FIELDS                                                                       \
    tsr_mask mask;                                                                                 \
    float softmax_scale;                                                                           \
    float softcap;                                                                                 \
    int32_t has_window_left;                                                                       \
    int32_t has_window_right;                                                                      \
    int64_t window_left;                                                                           \
    int64_t window_right;                                                                          \
    int64_t max_seqlen_q;                                                                          \
    int64_t max_seqlen_k;                                                                          \
    double dropout_p;                                                                              \
    uint64_t seed;                                                                                 \
    uint64_t offset

// Attention: out_i = sum_j p_ij v_j, p_i = softmax over the keys that query i sees (and its sink).
//
// Shapes    q (batch, seqlen_q, num_heads_q, head_dim), k (batch, seqlen_k, num_heads_kv, head_dim),
//           v (batch, seqlen_k, num_heads_kv, head_dim_v), out (batch, seqlen_q, num_heads_q, head_dim_v).
//           head_dim and head_dim_v 1 to 256. num_heads_q is a multiple of num_heads_kv; query head h
//           reads key head h / (num_heads_q / num_heads_kv).
// Packed    with cu_seqlens_q and cu_seqlens_k (both or none): q (total_q, num_heads_q, head_dim), k and v
//           (total_k, ...), out likewise; sequence b has rows cu_seqlens[b] to cu_seqlens[b + 1].
//           Offsets that fall or lie outside [0, total] are clamped. Rows that belong to no sequence get out 0
//           and lse -inf.
// bias      each dimension of (batch, num_heads_q, seqlen_q, seqlen_k) or 1; packed: seqlen_q and
//           seqlen_k are max_seqlen_q and max_seqlen_k, but no more than the totals.
// alibi_slopes (num_heads_q) or (batch, num_heads_q).
// sinks     (num_heads_q): a further logit in every denominator, without a value. A sink below -2^80 counts as absent.
//           One of 2^80 or more counts as NaN: it makes lse NaN in every row of a sequence, and out NaN in every row
//           in which a key has weight.
// seqused_k (batch): the number of keys of each sequence that count, clamped.
// lse       log sum exp of each row, natural; (batch, num_heads_q, seqlen_q), packed
//           (num_heads_q, total_q). Optional.
// Strides   1 in the last dimension of all but bias, else any. Elements of an output must not overlap.
// Dtypes    q, k, v, out alike: f32, bf16, f16. bias, alibi_slopes, sinks: f32 or q's dtype, each for
//           itself. lse f32. cu_seqlens, seqused_k int32. On "reference" f64 throughout.
// Aliasing  out and lse overlap nothing.
// Sees nothing  a row that sees no key has out 0 and lse -inf (with sinks: the sink).
// NaN       A NaN in a key, a value or a bias that a query does not see, or beyond a sequence's length, never reaches
//           its output. A key with a bias of -inf is seen: its weight is 0, and a NaN in its value reaches out. In what
//           a query sees, a NaN in q, k or bias, or a score of +inf, makes the row's out and lse NaN; a NaN in v makes
//           its column of out NaN.
// Numerics  fp32 accumulation. With u = 2^-24, n keys, and u_P = 2^-8 for bf16, 2^-11 for f16 (their weights may be
//           rounded for the second product), 0 for f32, the errors, plus rounding to dtype, are
//             score  ds = (2 sqrt(head_dim) + 8) u softmax_scale sum_c |q_c k_c| + 4 u (its terms' magnitudes)
//             out    (4 ds + (48 + 4 sqrt(n)) u + u_P) sum_j p_ij |v_j|, ds as a mean over the weights
//             lse    2 ds + (8 + 2 sqrt(n)) u (1 + |lse|)
//           On the CPU weights below 2^-126 of the row's largest may count as 0, and give NaN with an infinite value.
//           "amx_bf16" and "avx512_bf16" count subnormal elements and partial sums as 0. In f32 a score of -1e9 has no
//           digits of q k left: if a bias masks in this way all keys that a row sees, they get equal weights, and out
//           is the mean of their values. Bitwise repeatable, for any number of threads. Under TSR_BATCH_INVARIANT other
//           sequences, heads and queries do not change a row's bits, except in "few", "flash1" and "flash2" where the
//           caller names one of these.
// CUDA      f32, bf16, f16, at most 2^29 queries and keys; the same bounds and guarantees, on one kind of card, except
//           that under TSR_BATCH_INVARIANT a row's bits may depend on the other queries of its sequence and on the
//           alignment of tensors. Only the device reads cu_seqlens and seqused_k. If sequences overlap, which falling
//           offsets can cause, the rows that they share hold the result of one of them. In bf16 without a bias, a row
//           whose scaled products of q and k exceed 2^29 may be NaN.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Dao et al.: FlashAttention, arXiv:2205.14135 (flash1); Dao: FlashAttention-2,
//           arXiv:2307.08691 (flash2). Shah et al.: FlashAttention-3, arXiv:2407.08608 (cuda-flash3).
//           Dao et al.: Flash-Decoding, 2023 (few). Salmon et al.: Parallel random numbers, 2011 (Philox).
typedef struct tsr_attention_forward_args {
    TSR_CALL_FIELDS;
    tsr_tensor q;            // in  (batch, seqlen_q, num_heads_q, head_dim)
    tsr_tensor k;            // in  (batch, seqlen_k, num_heads_kv, head_dim)
    tsr_tensor v;            // in  (batch, seqlen_k, num_heads_kv, head_dim_v)
    tsr_tensor bias;         // in  (batch|1, num_heads_q|1, seqlen_q|1, seqlen_k|1), optional
    tsr_tensor alibi_slopes; // in  ([batch,] num_heads_q), optional
    tsr_tensor sinks;        // in  (num_heads_q), optional
    tsr_tensor cu_seqlens_q; // in  (batch + 1), optional
    tsr_tensor cu_seqlens_k; // in  (batch + 1), optional
    tsr_tensor seqused_k;    // in  (batch), optional
    tsr_tensor out;          // out (batch, seqlen_q, num_heads_q, head_dim_v)
    tsr_tensor lse;          // out (batch, num_heads_q, seqlen_q), optional
    TSR_ATTENTION_FIELDS;
} tsr_attention_forward_args;

#define TSR_ATTENTION_FORWARD_ARGS(...)                                                            \
    ((tsr_attention_forward_args){.size = sizeof(tsr_attention_forward_args), __VA_ARGS__})

TSR_API tsr_status tsr_attention_forward(tsr_context *ctx, const tsr_attention_forward_args *args);
TSR_API tsr_status tsr_attention_forward_prepare(tsr_context *ctx,
                                                 const tsr_attention_forward_args *args,
                                                 size_t *workspace_bytes);

// Gradients of attention, from the inputs and outputs of forward. With s the scores, ds = d loss / d s,
// P the weights exp(s - lse), P' those after dropout, delta_i = sum_c dout_ic out_ic:
//
//   dv = P'^T dout,  ds = P (dout v^T [kept, scaled] - delta),  dbias = ds summed over the dimensions
//   that bias repeats,  dq = softmax_scale (1 - tanh^2) ds k,  dk = softmax_scale (1 - tanh^2) ds^T q,
//   dsinks = -sum over batch and i of exp(sink - lse_i) delta_i
//
// Shapes    dout as out; dq, dk, dv, dbias, dsinks as q, k, v, bias, sinks. With grouped heads dk and dv sum
//           over the group.
// Optional  dq, dk, dv, dbias, dsinks: an absent one is not computed. Every element of one that is
//           present is written; rows that nobody sees get 0.
// lse       what forward gave, or the lse over more keys than this call has (for a part of a sequence). An f32 cannot
//           hold the digits of a large lse, so from |lse| = 128 on (1024 for bf16 and f16; on CUDA only with a bias) the
//           row's scores are summed again, so that its weights sum to 1. An lse that differs from that sum by more than
//           2^-19 |lse| is used as given.
// Dtypes    dout, dq, dk, dv as q. dbias: bias's dtype, but summed in fp32. dsinks: sinks's dtype.
// Aliasing  outputs overlap nothing.
// Numerics  fp32 accumulation. The error is forward's carried through the formulas, relative to the sums of magnitudes;
//           weights and gradients of scores may be rounded by u_P for the products that follow. On the CPU weights
//           below 2^-126 may count as 0. "amx_bf16" and "avx512_bf16" count subnormal elements and partial sums as 0.
//           Bitwise repeatable, for any number of threads. Under TSR_BATCH_INVARIANT dq is batch-invariant, and dk and
//           dv depend only on their own sequence and group of heads; in bf16 a row of q or dout that is not finite may
//           change the bits of other rows of its head.
// CUDA      as forward. A row of dout that is not finite makes the rows of dv that it reaches NaN in every column, not
//           only in its own. "cuda-flash3", "cuda-small" and "cuda-flash2" multiply gradients of scores as operands of
//           q's dtype: in f16 those beyond 65504 become infinite. "cuda-flash3" with heads up to 128 sums dq in the
//           workspace: 4 bytes for each element of q, padded to 64 or 128 columns.
// Otherwise as forward.
typedef struct tsr_attention_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor q;            // in  (batch, seqlen_q, num_heads_q, head_dim)
    tsr_tensor k;            // in  (batch, seqlen_k, num_heads_kv, head_dim)
    tsr_tensor v;            // in  (batch, seqlen_k, num_heads_kv, head_dim_v)
    tsr_tensor bias;         // in  (batch|1, num_heads_q|1, seqlen_q|1, seqlen_k|1), optional
    tsr_tensor alibi_slopes; // in  ([batch,] num_heads_q), optional
    tsr_tensor sinks;        // in  (num_heads_q), optional
    tsr_tensor cu_seqlens_q; // in  (batch + 1), optional
    tsr_tensor cu_seqlens_k; // in  (batch + 1), optional
    tsr_tensor seqused_k;    // in  (batch), optional
    tsr_tensor out;          // in  (batch, seqlen_q, num_heads_q, head_dim_v), what forward gave
    tsr_tensor lse;          // in  (batch, num_heads_q, seqlen_q), what forward gave
    tsr_tensor dout;         // in  (batch, seqlen_q, num_heads_q, head_dim_v)
    tsr_tensor dq;           // out as q, optional
    tsr_tensor dk;           // out as k, optional
    tsr_tensor dv;           // out as v, optional
    tsr_tensor dbias;        // out as bias, optional
    tsr_tensor dsinks;       // out as sinks, optional
    TSR_ATTENTION_FIELDS;
} tsr_attention_backward_args;

#define TSR_ATTENTION_BACKWARD_ARGS(...)                                                           \
    ((tsr_attention_backward_args){.size = sizeof(tsr_attention_backward_args), __VA_ARGS__})

TSR_API tsr_status tsr_attention_backward(tsr_context *ctx,
                                          const tsr_attention_backward_args *args);
TSR_API tsr_status tsr_attention_backward_prepare(tsr_context *ctx,
                                                  const tsr_attention_backward_args *args,
                                                  size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
