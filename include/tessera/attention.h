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

// What forward and backward share. For query i and key j of one sequence, with the diagonal at
// d = i + seqlen_k - seqlen_q (TOP_LEFT: d = i):
//
//   s = softmax_scale q_i . k_j
//   s = softcap tanh(s / softcap)         softcap above 0
//   s = s + bias[batch, head, i, j]       bias given
//   s = s - slope[head] |j - d|           alibi_slopes given
//   s = -inf                              j masked, left of d - window_left or right of d + window_right
//
// softmax_scale  0 is 1 / sqrt(head_dim); else of at most 2^100 in size.
// softcap        0 is none; else from 2^-100 to 2^100.
// window_left    keys kept before the diagonal one, 0 keeps it alone; unlimited without has_window_left.
// window_right   likewise after it.
// dropout_p      in [0, 1). Weight (i, j) is kept when word j mod 4 of Philox4x32-10 with key seed and
//                counter (j / 4 + offset, i, head, batch) is at least dropout_p 2^32, and then scaled by
//                1 / (1 - dropout_p). The denominator and lse are those without dropout.
// max_seqlen_q   packed: the longest sequence, on which the workspace depends; longer ones are cut there.
// max_seqlen_k   likewise. 0: the total. Ignored where not packed.
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
//           Offsets outside [0, total] and falling ones are clamped. Rows of no sequence get out 0 and
//           lse -inf.
// bias      each dimension of (batch, num_heads_q, seqlen_q, seqlen_k) or 1; packed: seqlen_q and
//           seqlen_k are max_seqlen_q and max_seqlen_k, but no more than the totals.
// alibi_slopes (num_heads_q) or (batch, num_heads_q). sinks (num_heads_q): one more logit in every
//           denominator, of no value. One below -2^80 is none; one from 2^80 on counts as NaN, which makes lse of every row of a
//           sequence NaN, and out of those in which a key has weight. seqused_k (batch): keys of each sequence that count, clamped.
// lse       log sum exp of each row, natural; (batch, num_heads_q, seqlen_q), packed
//           (num_heads_q, total_q). Optional.
// Strides   any, but 1 in the last dimension of all but bias. Outputs keep their elements apart.
// Dtypes    q, k, v, out alike: f32, bf16, f16. bias, alibi_slopes, sinks: f32 or that one, each for
//           itself. lse f32. cu_seqlens, seqused_k int32. On "reference" f64 throughout.
// Aliasing  out and lse overlap nothing.
// Sees nothing  a row that sees no key gives 0 and lse -inf (the sink where there is one).
// NaN       in a key, a value or a bias that a query does not see, or beyond a sequence's length,
//           never reaches its output. A bias of -inf is a weight of 0, which NaN in v survives. In what a query
//           does see: NaN in q, k or bias, or a score of +inf, makes out and lse of the row NaN, NaN in v the column of out.
// Numerics  fp32 accumulation; u = 2^-24, and u_P = 2^-8 for bf16, 2^-11 for f16, whose weights may be
//           rounded for the second product, else 0. A score is off by ds, (2 sqrt(head_dim) + 8) u
//           softmax_scale sum_c |q_c k_c| + 4 u of the magnitudes that it is summed from; out by
//           (4 ds + (48 + 4 sqrt(n)) u + u_P) sum_j p_ij |v_j| of n keys, ds as the weights weigh it; lse
//           by 2 ds + (8 + 2 sqrt(n)) u (1 + |lse|); plus rounding to dtype. On the CPU weights below 2^-126 of a row's
//           largest may count as 0, beside which a value that is infinite gives NaN. "amx_bf16" and
//           "avx512_bf16" count subnormal elements and partial sums as 0. A score of -1e9 in f32 has no digits of q k left: where
//           a bias masks all that a row sees so, its keys weigh alike, and out is the mean of their values. Bitwise
//           repeatable, for any number of threads; batch-invariant under TSR_BATCH_INVARIANT: no sequence, head or query beside
//           a row changes its bits, but by "few", "flash1" and "flash2" where these are asked for.
// CUDA      f32, bf16, f16, of at most 2^29 queries and keys; the same bounds and guarantees, on one kind of card, but that
//           under TSR_BATCH_INVARIANT a row's bits may follow the other queries of its sequence and how tensors are aligned.
//           cu_seqlens and seqused_k are read on the device alone. Sequences that overlap, as falling offsets
//           can make them, leave the result of one of them in the rows that they share. In bf16 a row whose products of q and k,
//           scaled, exceed 2^29 may be NaN where there is no bias.
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

// Gradients of attention, from what forward was given and gave. With s = d loss / d scores,
// P the weights exp(s - lse), P' those after dropout, delta_i = sum_c dout_ic out_ic:
//
//   dv = P'^T dout,  ds = P (dout v^T [kept, scaled] - delta),  dbias = ds summed over the dimensions
//   that bias repeats,  dq = softmax_scale (1 - tanh^2) ds k,  dk = softmax_scale (1 - tanh^2) ds^T q,
//   dsinks = -sum over batch and i of exp(sink - lse_i) delta_i
//
// Shapes    dout as out; dq, dk, dv, dbias, dsinks as q, k, v, bias, sinks. With grouped heads dk and dv sum
//           over the group.
// Optional  dq, dk, dv, dbias, dsinks: what is absent is not computed. Every element of one that is
//           present is written; rows that nobody sees get 0.
// lse       what forward gave, or the lse over more keys than this call has (a part of a sequence). One f32 cannot hold the
//           digits of a large lse, so from |lse| 128 on (1024 for bf16 and f16; on CUDA where there is a bias) the row's
//           scores are summed again, and its weights sum to 1. An lse farther from that sum than 2^-19 |lse| is taken as given.
// Dtypes    dout, dq, dk, dv as q. dbias: bias's, summed in fp32 whatever it is. dsinks: sinks's.
// Aliasing  outputs overlap nothing.
// Numerics  fp32 accumulation, error as that of forward carried through the formulas, relative to the
//           sums of magnitudes; weights and gradients of scores may be rounded by u_P for the products that follow.
//           On the CPU weights below 2^-126 may count as 0.
//           "amx_bf16" and "avx512_bf16" count subnormal elements and partial sums as 0. Bitwise repeatable,
//           for any number of threads. Under TSR_BATCH_INVARIANT dq is batch-invariant, and dk and dv depend on no sequence
//           or group of heads but their own; in bf16 a row of q or dout that is not finite may change the bits of
//           its head's others.
// CUDA      as forward. A row of dout that is not finite makes every column of the rows of dv that it
//           reaches NaN, not only its own. "cuda-flash3", "cuda-small" and "cuda-flash2" have gradients of scores as
//           operands of their products: in f16 those beyond 65504 are infinite. "cuda-flash3" sums dq in the
//           workspace, 4 bytes for each element of q padded to 64 or 128 columns; not with heads above 128.
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
