// SPDX-License-Identifier: Apache-2.0
// Problems and a card for the tests of attention's cuda-flash3. One test program includes this file.
#ifndef ATTENTION_FLASH3_CASE_H
#define ATTENTION_FLASH3_CASE_H

#include "ops/attention/cuda/attention_cuda.h"

enum { SHARED_BYTES = 232448 };
static _Alignas(16) uint16_t memory[1024];

static const struct tsri_limits hopper = {.device = {TSR_CUDA, 0},
                                          .cuda_arch = 90,
                                          .num_sms = 132,
                                          .l2_bytes = 50 << 20,
                                          .shared_bytes_per_block = SHARED_BYTES};

static inline struct attention_view view_of(int64_t seqlen, int64_t heads, int64_t dim) {
    return (struct attention_view){(char *)memory, TSR_BF16, seqlen * heads * dim, heads * dim,
                                   dim};
}

// 4 sequences of 1000 tokens, 8 query heads of 128, 2 key heads.
static inline struct attention_problem problem(void) {
    return (struct attention_problem){.q = view_of(1000, 8, 128),
                                      .k = view_of(1000, 2, 128),
                                      .v = view_of(1000, 2, 128),
                                      .out = view_of(1000, 8, 128),
                                      .dtype = TSR_BF16,
                                      .num_batches = 4,
                                      .seqlen_q = 1000,
                                      .seqlen_k = 1000,
                                      .total_q = 1000,
                                      .total_k = 1000,
                                      .num_heads_q = 8,
                                      .num_heads_kv = 2,
                                      .head_dim = 128,
                                      .head_dim_v = 128,
                                      .softmax_scale = 0.1};
}

// A bias with all dimensions of the problem, or with one row if `rows` is 1.
static inline struct attention_bias bias_of(const struct attention_problem *p, tsr_dtype dtype,
                                            int64_t rows) {
    return (struct attention_bias){.data = (char *)memory,
                                   .dtype = dtype,
                                   .shape = {p->num_batches, p->num_heads_q, rows, p->seqlen_k},
                                   .stride = {p->num_heads_q * rows * p->seqlen_k,
                                              rows * p->seqlen_k, rows > 1 ? p->seqlen_k : 0, 1}};
}

#endif
