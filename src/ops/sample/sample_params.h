// SPDX-License-Identifier: Apache-2.0
// The parameters of sample's CUDA kernels, passed by value. Both compilers read this file: no library headers. The includer has
// sample_weight_params.h.
#ifndef TSRI_SAMPLE_PARAMS_H
#define TSRI_SAMPLE_PARAMS_H

// A block has a slice of a row: consecutive groups of 16 bytes for each lane of a warp.
enum { SAMPLE_THREADS = 256, SAMPLE_DRAW_THREADS = 1024, SAMPLE_MAX_SLICES = 32 };

// Of a row, between kernels. Tokens with keys above `key` remain, and the first `equal` of those that have it.
struct sample_state {
    unsigned long long needed; // the rest of a selection's sum
    unsigned key, equal;
    unsigned prefix; // the digits that the selection has found
    int is_short;    // it found that all sum to less: it changes nothing
    unsigned turns;  // blocks that have added their sums
};

// Rows of numbers and what is known of them, [row][group] and [row][slice].
struct sample_numbers {
    const void *x;
    long long stride;
    unsigned *group_key; // of the largest
    unsigned *slice_key,
        *slice_index; // of the largest, the first of equal ones; NaN has the largest key
    unsigned long long *slice_sum;       // of the weights of keys above
    unsigned *slice_equal, *slice_above; // numbers of tokens with the state's key, and above
};

struct sample_params {
    struct sample_numbers z, raw; // raw: the logits as they are given, for logprobs of them
    struct sample_state *states;
    unsigned long long *sums; // [row][digit], of a selection's pass; 0 between passes
    int *counts;              // [row][token], of history
    float *changed;           // z where it is not the logits
    const int *history;
    const float *bias;
    long long history_stride, bias_stride, changed_stride, rows;
    struct sample_options given;
    const float *temperature, *top_p, *min_p; // of rows, as are the next; NULL: the given ones
    const float *repetition_penalty, *presence_penalty, *frequency_penalty;
    const int *top_k, *row_seed, *row_offset;
    unsigned long long seed, offset;
    int *ids, *kept, *num_nan_rows; // the last two may be NULL
    float *logprobs;                // may be NULL
    int raw_dtype;                  // a value of tsr_dtype
    int vocab, history_len, num_groups, num_slices;
    int is_logprob_raw;
    int shift;     // of a selection's pass: of the digit
    int is_last;   // its last pass
    int is_top_p;  // otherwise top_k
    int is_raw;    // weights of raw, without options
    int has_min_p; // sums are those of what remains in the end
    int is_apply;  // of history: otherwise it is counted
};

#endif
