// SPDX-License-Identifier: Apache-2.0
// The next token of each row of logits.
#ifndef TESSERA_SAMPLE_H
#define TESSERA_SAMPLE_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// The distribution of which logprobs are.
typedef enum tsr_sample_logprobs {
    TSR_SAMPLE_LOGPROBS_RAW = 0,   // softmax of the logits as they are given (vLLM: raw_logprobs)
    TSR_SAMPLE_LOGPROBS_PROCESSED, // what the token was drawn from (vLLM: processed_logprobs)
    TSR_SAMPLE_LOGPROBS_COUNT
} tsr_sample_logprobs;

// Draws ids[r], a token of the distribution that row r of logits gives, after penalties, temperature and filters.
//
//   tsr_sample(ctx, &TSR_SAMPLE_ARGS(.logits = logits, .ids = ids, .temperature = 0.8f, .top_k = 50, .top_p = 0.95f,
//                                    .has_top_p = 1, .seed = 7, .offset = step));
//
// With x[v] the logits of row r as fp32, and every operation on them rounded to fp32:
//   1. Penalties, for a token v that history[r, :] holds n > 0 times:
//          x = x > 0 ? x / repetition_penalty : x repetition_penalty;  x = (x - n frequency_penalty) - presence_penalty
//      Then z[v] = x + logit_bias[r, v], and at most the largest finite number, so that +inf is a number.
//   2. temperature 0: ids[r] is the token of the largest z. No number is drawn, no filter changes this.
//   3. The weight of v is w[v] = 2^40 e^((z[v] - max z) / temperature), rounded to an integer.
//   4. top_k: the k tokens of the largest z remain.
//   5. top_p: of these, in falling order of z, those remain before which the weights sum to less than top_p of the sum of
//      all; the first always does. So they are the fewest of the most probable tokens whose probabilities sum to top_p.
//   6. min_p: of these, those with w[v] >= min_p 2^40 remain: their probability is at least min_p times the largest one.
//   7. ids[r] is the first token, by index, for which the sum of the remaining weights up to it exceeds floor(u S), with S
//      the sum of all of them.
// Equal z go to the lower index, in steps 2, 4 and 5. A token with z = -inf never remains, so that logit_bias can hold the
// mask of a grammar.
//
// Numbers   u = (word 0 + 2^32 word 1) / 2^64 of Philox4x32-10 with key seed and counter (offset + row_offset[r], row_seed[r]),
//           each as 64 bits, the low word first. Without row_seed, r takes its place; with it, a row's token depends neither on
//           its place nor on the other rows. Each step of a generation needs another offset.
// Shapes    logits: (rows, vocab), 1 <= vocab <= 2^22; history: (rows, history_len); logit_bias: (vocab), or (rows, vocab);
//           all others: (rows). No rows and no history are legal.
// Strides   last dimension of logits, history and logit_bias contiguous, row stride any; the others contiguous.
// Dtypes    logits f32, bf16, f16; ids, history, row_top_k, row_seed, row_offset, kept and num_nan_rows int32; the others f32.
//           On "reference" also f64 logits, which are rounded to fp32, with f64 instead of f32.
// Options   A row_ tensor has each row's value and takes the scalar's place; row_offset is added to offset. Values:
//             temperature         finite, >= 0; a struct of zeros decides greedily
//             top_k               <= 0 or >= vocab: off
//             top_p               0 to 1; 1 unless has_top_p: off. 0 leaves one token
//             min_p               0 to 1; 0: off
//             repetition_penalty  finite, > 0; 0 means 1: none
//             presence_penalty, frequency_penalty   finite; 0: none
//           Numbers of history that are not in [0, vocab) are padding. row_seed and row_offset count as unsigned.
// Optional  logprobs[r]   the logarithm of the token's probability: raw, that in the softmax of logits, or processed, the one it
//                         was drawn with, 0 at temperature 0
//           kept[r]       tokens that remained; 1 at temperature 0
//           num_nan_rows  rows that are NaN by the rule below; nothing waits for it
// NaN       a row with a NaN among its z gets id 0, logprob NaN and kept 0. A row in which every z is -inf gets id 0, logprob
//           -inf and kept 0. Ids are always in [0, vocab).
// Aliasing  none: no output overlaps an input or another output.
// Choice    is defined exactly: w is computed by a fixed sequence of fp32 operations (src/ops/sample/sample_weight_params.h), with
//           a relative error of at most 2^-24 (8 + 4 |z - max z| / temperature) before it is rounded to an integer, and sums of
//           integers have no order. So every variant, thread count and device gives the same ids and kept, bit by bit.
// Numerics  logprobs: fp32 differences, a logarithm in double. The error is 2^-24 (16 + 5 log vocab + 4 |logprob|) + 2^-41 vocab,
//           plus the rounding to f32. Bitwise repeatable for any number of threads, on one kind of device.
// CUDA      the same. Nothing waits for the host. The host reads no tensor in device memory: a row with an option out of range
//           is there one with a NaN.
// Errors    INVALID_ARGUMENT (on the CPU also an option out of range in a row_ tensor, before anything is written; the sentence
//           names row and value), UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Fan, Lewis, Dauphin: Hierarchical neural story generation, arXiv:1805.04833 (top-k); Holtzman et al.: The curious
//           case of neural text degeneration, arXiv:1904.09751 (top-p); Nguyen et al.: Turning up the heat, arXiv:2407.01082
//           (min-p); Keskar et al.: CTRL, arXiv:1909.05858 (repetition penalty); Salmon et al.: Parallel random numbers: as easy
//           as 1, 2, 3, 2011 (Philox).
typedef struct tsr_sample_args {
    TSR_CALL_FIELDS;
    tsr_tensor logits;                 // in  (rows, vocab)
    tsr_tensor history;                // in  (rows, history_len), int32, optional
    tsr_tensor logit_bias;             // in  (vocab) or (rows, vocab), f32, optional
    tsr_tensor row_temperature;        // in  (rows), f32, optional
    tsr_tensor row_top_k;              // in  (rows), int32, optional
    tsr_tensor row_top_p;              // in  (rows), f32, optional
    tsr_tensor row_min_p;              // in  (rows), f32, optional
    tsr_tensor row_repetition_penalty; // in  (rows), f32, optional
    tsr_tensor row_presence_penalty;   // in  (rows), f32, optional
    tsr_tensor row_frequency_penalty;  // in  (rows), f32, optional
    tsr_tensor row_seed;               // in  (rows), int32, optional
    tsr_tensor row_offset;             // in  (rows), int32, optional
    tsr_tensor ids;                    // out (rows), int32
    tsr_tensor logprobs;               // out (rows), f32, optional
    tsr_tensor kept;                   // out (rows), int32, optional
    tsr_tensor num_nan_rows;           // out (1), int32, optional
    float temperature;                 // 0: greedy
    int32_t top_k;                     // 0: off
    float top_p;                       // 1 unless has_top_p
    int32_t has_top_p;
    float min_p;              // 0: off
    float repetition_penalty; // 0: 1, none
    float presence_penalty;
    float frequency_penalty;
    tsr_sample_logprobs logprobs_of;
    uint64_t seed;
    uint64_t offset;
} tsr_sample_args;

#define TSR_SAMPLE_ARGS(...) ((tsr_sample_args){.size = sizeof(tsr_sample_args), __VA_ARGS__})

TSR_API tsr_status tsr_sample(tsr_context *ctx, const tsr_sample_args *args);
TSR_API tsr_status tsr_sample_prepare(tsr_context *ctx, const tsr_sample_args *args,
                                      size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
