// SPDX-License-Identifier: Apache-2.0
// Bias, activation and stores of kernels in which columns of c are the rows of wgmma: a thread's products are in two columns
// of c, eight apart, and in two rows of every eight.
#ifndef TSRI_MATMUL_COLUMNS_CUH
#define TSRI_MATMUL_COLUMNS_CUH

#include "cuda/device/activation.cuh"
#include "ops/matmul/cuda/matmul_epilogue.cuh"

// Stores four 8 x 8 matrices of 16-bit elements like store_matrices, but transposed; or two, with the addresses of lanes 0 to
// 15.
DEVICE void store_matrices_transposed(unsigned to, const unsigned x[4]) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
        "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
        : "memory");
}
DEVICE void store_two_matrices_transposed(unsigned to, const unsigned x[2]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 [%0], {%1, %2};" ::"r"(to),
                 "r"(x[0]), "r"(x[1])
                 : "memory");
}

// Products times alpha with bias and activation, if there are any. kind is a constant; NONE and RELU share one kind,
// cut off below `least`.
DEVICE void activate_columns(const struct matmul_params *p, const float bias[2], float (*acc)[4],
                             float alpha, int eights, int count, const int kind) {
    const float least = p->activation == ACTIVATION_RELU ? 0 : -INFINITE;
#pragma unroll
    for (int i = 0; i < eights; i++) {
        if (i < count)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float x = fmaf(acc[i][j], alpha, bias[j / 2]);
                acc[i][j] =
                    kind == ACTIVATION_NONE ? max_or_nan(x, least) : activate_rounded(kind, x);
            }
    }
}

// Starts loading the bias of a thread's two columns, before the products. first: of the bias of a group; col: the warp's first.
DEVICE void fetch_columns(unsigned fetched[2], const struct matmul_params *p, long long first,
                          int col, int lane) {
    col += lane / 4;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        fetched[j] = 0;
        if (p->bias != 0 && col + j * 8 < p->n)
            fetched[j] = fetch_either(p->bias, first + col + j * 8, p->bias_is_f32);
    }
}

// The first `count` of so many eights, a constant. One copy of the code per kind, without branches between numbers, so that
// their latencies overlap.
DEVICE void finish_columns(const struct matmul_params *p, const unsigned fetched[2],
                           float (*acc)[4], float alpha, const int eights, int count) {
    const float bias[2] = {fetched_either(fetched[0], p->bias_is_f32),
                           fetched_either(fetched[1], p->bias_is_f32)};
#define ACTIVATE_COLUMNS(kind)                                                                     \
    case kind: activate_columns(p, bias, acc, alpha, eights, count, kind); break
    switch (p->activation) {
        ACTIVATE_COLUMNS(ACTIVATION_GELU);
        ACTIVATE_COLUMNS(ACTIVATION_GELU_TANH);
        ACTIVATE_COLUMNS(ACTIVATION_SILU);
    default: activate_columns(p, bias, acc, alpha, eights, count, ACTIVATION_NONE);
    }
#undef ACTIVATE_COLUMNS
}

#endif
