// SPDX-License-Identifier: Apache-2.0
// The parameters of attention's CUDA kernels, passed by value: struct attention_problem in plain types, forward and backward.
// Read by both compilers: no headers, no typedefs.
#ifndef TSRI_ATTENTION_PARAMS_H
#define TSRI_ATTENTION_PARAMS_H

// 2^80: a sink from there on counts as NaN, one of -2^80 or less as no sink. So no sink becomes infinite in a kernel's units.
#define ATTENTION_ENDLESS 1.208925819614629e24f

// The longest sequence of the kernels, and a window that never limits at such lengths. Sums of these fit in an int.
#define ATTENTION_CUDA_MAX_SEQLEN (1 << 29)
#define ATTENTION_NO_WINDOW (1 << 30)
#define ATTENTION_TASK_BYTES 128 // of shared memory, for one task of forward's kernels

// Element (batch, row, head, c) is at batch * batch + row * seq + head * head + c; packed: batch is 0.
struct attention_tensor {
    void *data; // 0: absent
    long long batch, seq, head;
};

struct attention_bias_tensor {
    void *data; // 0: absent
    long long stride[4];
    int is_f32;   // with any DTYPE
    int shape[4]; // 1: repeated, with a stride of 0
};

struct attention_head_values {
    void *data; // 0: absent
    long long batch, head;
    int is_f32;
};

struct attention_params {
    struct attention_tensor q, k, v, out, dout, dq, dk, dv;
    struct attention_bias_tensor bias, dbias;
    struct attention_head_values slopes, sinks, dsinks;
    float *lse; // 0: absent
    long long lse_batch, lse_head;

    const int *cu_seqlens_q, *cu_seqlens_k, *seqused_k; // 0: absent
    long long cu_stride_q, cu_stride_k, seqused_stride;
    long long total_q, total_k; // rows of q and k in one batch stride
    int is_packed, num_batches;
    int seqlen_q, seqlen_k;               // packed: the longest
    int num_heads_q, num_heads_kv, group; // group: query heads of a key head, at least 1
    int head_dim, head_dim_v;

    // A causal mask is a right window of 0; top-left moves the diagonal.
    int window_left, window_right, is_top_left;
    float softmax_scale, softcap; // softcap 0: none
    float keep_scale;             // 1 / (1 - dropout_p)
    unsigned long long dropout_threshold, seed,
        offset;    // a 32-bit word keeps from there on; 0: no dropout
    int has_terms; // softcap, bias, slopes
};

// Forward. A task is (query tile, head, batch). Heads come in sections: a section's keys and values stay in the second-level cache
// until all of its tiles are done. Tiles that see most keys come first.
struct attention_forward_params {
    struct attention_params p;
    long long num_tasks, num_heads; // num_heads: of all batches
    int num_tiles, section;         // section: heads
    int is_reversed;                // the last tile first
    int is_aligned;                 // q, k, v, out move in pieces of 16 bytes
    float scale_log2;               // softmax_scale x log2 e
    float *scores, *sums;           // naive only
    int phase;
};

// Sets the rows of one tensor that belong to no sequence to 0, and their lse to -inf.
struct attention_clear_params {
    struct attention_params p;
    struct attention_tensor tensor;
    int row_bytes, element_bytes, num_heads;
    int is_of_keys; // as k, not as q
    int has_lse;
};

#endif
