// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_ATTENTION_DECODE_H
#define TESSERA_ATTENTION_DECODE_H

#include <tessera/attention.h>
#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// One step of generation: the call appends new keys and values to the cache, and the new queries attend to all keys in
// it. Sequences with one new token (decode) and with many (prefill) may share a call.
//
// For sequence b, with new_b rows of k_new (0 without k_new):
//
//   seqlen_k = min(cache_seqlens[b] + new_b, capacity)
//   cache key cache_seqlens[b] + t = rope(norm(k_new_t)), its value v_new_t, for t < new_b
//   out_i = attention of rope(norm(q_i)) to cache keys 0 to seqlen_k - 1, as tessera/attention.h defines it
//
// With leftpad_k the first leftpad_k[b] rows of a sequence's cache are padding, which no query sees: key j lies in row
// leftpad_k[b] + j, cache_seqlens[b] and the capacity count the padding, and everything else counts from the first key. So
//
//   seqlen_k = min(cache_seqlens[b] + new_b, capacity) - leftpad_k[b]
//   new key t is key cache_seqlens[b] - leftpad_k[b] + t
//
// and positions, diagonals and results are those of the same keys without padding.
//
// Query i has its diagonal at d = i + seqlen_k - seqlen_q; windows, ALiBi and the causal mask (bottom-right) count from
// there, so the last query sees the last key. Without k_new the cache already holds the keys of these queries, and
// cache_seqlens counts them. The call does not change cache_seqlens: add new_b afterwards.
//
// Shapes    q (batch, seqlen_q, num_heads_q, head_dim), k_new (batch, seqlen_q, num_heads_kv, head_dim),
//           v_new (batch, seqlen_q, num_heads_kv, head_dim_v), out (batch, seqlen_q, num_heads_q,
//           head_dim_v), lse (batch, num_heads_q, seqlen_q). head_dim and head_dim_v 1 to 256.
//           num_heads_q is a multiple of num_heads_kv; query head h reads key head
//           h / (num_heads_q / num_heads_kv).
// Packed    with cu_seqlens_q: q, k_new, v_new, out (total_q, ...), lse (num_heads_q, total_q); sequence b
//           has rows cu_seqlens_q[b] to cu_seqlens_q[b + 1]. Rows that belong to no sequence get out 0 and lse -inf.
// Cache     contiguous: k_cache (batch, capacity, num_heads_kv, head_dim), v_cache likewise with
//           head_dim_v. Paged, with page_table (batch, max_pages): k_cache (num_pages, page_size,
//           num_heads_kv, head_dim); key j of sequence b lies on page page_table[b][j / page_size], in
//           row j mod page_size; capacity is max_pages page_size. Sequences may share pages to which the call
//           appends nothing. In slots, with cache_batch_idx (batch) instead of page_table: k_cache (num_slots, capacity,
//           num_heads_kv, head_dim), v_cache likewise; sequence b has slot cache_batch_idx[b]. Sequences may share a
//           slot to which the call appends nothing.
// Norm      q_norm, k_norm, each for itself: before the rotation each head x of q or of k_new becomes
//           x / sqrt(mean(x^2) + norm_eps) weight, in fp32. norm_eps: 1e-6 unless has_norm_eps; 0 or more. With
//           zero_centered_weight the factor is 1 + weight. Keys in the cache are normalised already.
// e4m3      k_cache and v_cache may both be of e4m3 beside q of f32, bf16 or f16, with k_scale and v_scale: (), (num_heads_kv)
//           or (batch, num_heads_kv). A key is what the cache holds times k_scale, a value that times v_scale. A new key,
//           normalised and rotated, is divided by its scale in fp32 and rounded to e4m3 once, to nearest even; beyond 448
//           it becomes 448. So is a new value. Scales are normal numbers above 0; others never lead out of bounds.
// RoPE      cos, sin (num_positions, rotary_dim / 2), both or none: in q and k_new the first rotary_dim elements of
//           each head are rotated in pairs (i, i + rotary_dim / 2), or (2i, 2i + 1) where interleaved is set. Query i
//           has position d, key j position j. The normalised and rotated key is rounded once, to the cache's
//           dtype, before queries attend to it; the normalised and rotated query is not rounded.
// alibi_slopes (num_heads_q) or (batch, num_heads_q). sinks (num_heads_q): a further logit in every denominator,
//           without a value; as tessera/attention.h where they are not finite.
// mask      TSR_MASK_NONE or TSR_MASK_CAUSAL. softmax_scale, softcap, windows: as tessera/attention.h.
// tree_mask drafts of speculative decoding: ([batch,] seqlen_q, seqlen_q), u8. Query i sees the t-th of the newest seqlen_q
//           keys only where tree_mask[b][i][t] is not 0, and only where mask and windows let it; older keys as without
//           it. Not with cu_seqlens_q. Positions and diagonals remain those of rows: branches of a tree whose positions
//           are their depths are rotated before the call.
// max_seqlen_q  packed: the longest sequence; 0: total_q. The workspace depends on it, and longer sequences are truncated
//           to it. max_seqlen_k: likewise for seqlen_k; 0: capacity.
// Strides   1 in the last dimension of floating-point tensors, else any. Elements of an output or a cache must not
//           overlap. A cache whose heads lie side by side in a row is read fastest.
// Dtypes    q, k_new, v_new, k_cache, v_cache, out alike: f32, bf16, f16; or caches of e4m3. cos, sin, lse, scales f32.
//           alibi_slopes, sinks, q_norm, k_norm: f32 or q's dtype, each for itself. cu_seqlens_q, cache_seqlens, page_table,
//           cache_batch_idx, leftpad_k int32. On "reference" f64 throughout; with scales, new rows of its caches are
//           rounded to e4m3.
// Aliasing  k_cache and v_cache (in and out), out and lse overlap nothing. Only rows of the cache that the call appends
//           are written.
// Metadata  Offsets lie in [0, total_q] and do not fall. cache_seqlens[b] is not negative and leaves room for new_b in the
//           capacity. leftpad_k[b] is in [0, cache_seqlens[b]]. Every new key that is rotated, and every rotated query
//           that sees a key, has a position in the tables. Every page or slot that is appended to or whose keys are seen is
//           in [0, num_pages) or [0, num_slots); other entries of page_table and cache_batch_idx may hold anything. On the
//           CPU a breach is INVALID_ARGUMENT, before anything is written, with place and value in the sentence. On CUDA the
//           host does not look: num_errors, int32 on the device, receives the number of sequences with a breach (on the CPU
//           always 0), and no access is out of bounds: offsets are clamped to [0, total_q], lengths to [0, capacity],
//           padding to [0, length] and positions to the tables; a key that does not fit, or whose page or slot does not
//           exist, is not appended; for a seen page or slot that does not exist, the nearest one that exists is read.
// Sees nothing  a row that sees no key has out 0 and lse -inf (with sinks: the sink).
// NaN       A NaN in a key or value that a query does not see, beyond a sequence's length or on unused pages,
//           never reaches its output.
// Numerics  as tessera/attention.h. Rotation adds to the error of a score 16 u softmax_scale |q||k|, each norm
//           (12 + 2 sqrt(head_dim)) u softmax_scale |q||k|, both with the cache's unit roundoff for keys that this call
//           changes. Squares that fp32 does not hold are summed in double. Scales of e4m3 are factors of scores and of
//           outputs, which adds 4 u softmax_scale |q||k| to a score and 4 u |out|; a new element of e4m3 that no norm or
//           rotation changes has the bits of that rounding everywhere. On CUDA, with caches of e4m3 and q of 16 bits, an
//           element of q counts as 0 below 2^-38 of the largest of its head. The capacity, or max_seqlen_k where that is
//           less, determines how keys are split: results are bitwise repeatable for any number of threads, and a
//           sequence's result does not depend on the others of the call. On CUDA the split also depends on the card and on
//           the number of sequences and heads of the call, and is the same in every run; under TSR_BATCH_INVARIANT it
//           depends on neither number.
// CUDA      f32, bf16, f16, up to 2^29 keys of a sequence, 2^24 sequences times key heads, 2^30 rows times heads of q;
//           the same bounds and guarantees, on one kind of card.
// Errors    INVALID_ARGUMENT, before anything is written, on the CPU also for bad metadata (_prepare does not check it);
//           UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Dao et al.: Flash-Decoding, 2023 (split keys); Kwon et al.: PagedAttention, arXiv:2309.06180.
typedef struct tsr_attention_decode_args {
    TSR_CALL_FIELDS;
    tsr_tensor q;             // in  (batch, seqlen_q, num_heads_q, head_dim)
    tsr_tensor k_new;         // in  (batch, seqlen_q, num_heads_kv, head_dim), optional
    tsr_tensor v_new;         // in  (batch, seqlen_q, num_heads_kv, head_dim_v), beside k_new
    tsr_tensor k_cache;       // io  (batch, capacity, num_heads_kv, head_dim)
    tsr_tensor v_cache;       // io  (batch, capacity, num_heads_kv, head_dim_v)
    tsr_tensor cache_seqlens; // in  (batch), keys in the cache before this call
    tsr_tensor page_table;    // in  (batch, max_pages), optional
    tsr_tensor cu_seqlens_q;  // in  (batch + 1), optional
    tsr_tensor cos;           // in  (num_positions, rotary_dim / 2), optional
    tsr_tensor sin;           // in  (num_positions, rotary_dim / 2), beside cos
    tsr_tensor alibi_slopes;  // in  ([batch,] num_heads_q), optional
    tsr_tensor sinks;         // in  (num_heads_q), optional
    tsr_tensor out;           // out (batch, seqlen_q, num_heads_q, head_dim_v)
    tsr_tensor lse;           // out (batch, num_heads_q, seqlen_q), optional
    tsr_mask mask;
    float softmax_scale;
    float softcap;
    int32_t interleaved;
    int32_t has_window_left;
    int32_t has_window_right;
    int64_t window_left;
    int64_t window_right;
    int64_t max_seqlen_q;
    int64_t max_seqlen_k;
    tsr_tensor num_errors;      // out () or (1), int32, optional
    tsr_tensor cache_batch_idx; // in  (batch), slots of the cache, optional
    tsr_tensor leftpad_k;       // in  (batch), rows of the cache before the first key, optional
    tsr_tensor q_norm;          // in  (head_dim), optional
    tsr_tensor k_norm;          // in  (head_dim), optional
    float norm_eps;
    int32_t has_norm_eps;
    int32_t zero_centered_weight;
    tsr_tensor k_scale;   // in  (), (num_heads_kv) or (batch, num_heads_kv), optional: with e4m3
    tsr_tensor v_scale;   // in  (), (num_heads_kv) or (batch, num_heads_kv), optional: with e4m3
    tsr_tensor tree_mask; // in  ([batch,] seqlen_q, seqlen_q), u8, optional
} tsr_attention_decode_args;

#define TSR_ATTENTION_DECODE_ARGS(...)                                                             \
    ((tsr_attention_decode_args){.size = sizeof(tsr_attention_decode_args), __VA_ARGS__})

TSR_API tsr_status tsr_attention_decode(tsr_context *ctx, const tsr_attention_decode_args *args);
TSR_API tsr_status tsr_attention_decode_prepare(tsr_context *ctx,
                                                const tsr_attention_decode_args *args,
                                                size_t *workspace_bytes);

// Merges the results of attention to parts of the keys into the result of attention to all keys:
//
//   lse = log sum_i exp(lse_i),  out = sum_i exp(lse_i - lse) out_i
//
// Shapes    outs (num_parts, ..., head_dim_v), lses (num_parts, ...), out (..., head_dim_v), lse (...). The dots are
//           up to three dimensions, the same in all four.
// Strides   1 in the last dimension of outs and out, else any. Elements of an output must not overlap. So lses stored
//           as (num_parts, num_heads, total_q) can be passed as (num_parts, total_q, num_heads) by its strides.
// Dtypes    outs and out alike: f32, bf16, f16; or outs f32 and out any of them. lses and lse f32. On
//           "reference" f64 throughout.
// Aliasing  out and lse overlap nothing.
// Empty     a part with lse_i = -inf adds nothing, whatever its out_i holds. If all parts are empty (or
//           num_parts is 0) out is 0 and lse -inf. An lse_i of NaN or +inf makes its row NaN.
// Numerics  fp32, parts in order: error of out (num_parts + 16) 2^-23 times the largest |out_i| among the
//           parts that count, of lse (num_parts + 16) 2^-24 + 2^-23 |lse|, plus rounding to dtype. Bitwise
//           repeatable, for any number of threads.
// CUDA      f32, bf16, f16, up to 2^31 - 1 rows; the same bounds and guarantees, on one kind of card.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Milakov, Gimelshein: Online normalizer calculation for softmax, arXiv:1805.02867.
typedef struct tsr_attention_merge_args {
    TSR_CALL_FIELDS;
    tsr_tensor outs; // in  (num_parts, ..., head_dim_v)
    tsr_tensor lses; // in  (num_parts, ...)
    tsr_tensor out;  // out (..., head_dim_v)
    tsr_tensor lse;  // out (...), optional
} tsr_attention_merge_args;

#define TSR_ATTENTION_MERGE_ARGS(...)                                                              \
    ((tsr_attention_merge_args){.size = sizeof(tsr_attention_merge_args), __VA_ARGS__})

TSR_API tsr_status tsr_attention_merge(tsr_context *ctx, const tsr_attention_merge_args *args);
TSR_API tsr_status tsr_attention_merge_prepare(tsr_context *ctx,
                                               const tsr_attention_merge_args *args,
                                               size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
