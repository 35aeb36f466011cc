// SPDX-License-Identifier: Apache-2.0
// Matmul on CUDA: chooses the variant by estimated time, and lists all ways in which plans may serve a product;
// `tessera tune` measures the most promising ones. Pure.
#include <math.h>
#include <string.h>

#include "ops/matmul/cuda/matmul_cuda.h"

// ---- Which variant ------------------------------------------------------------------------------

bool matmul_cuda_fma_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    (void)limits;
    return p->a.dtype != TSR_F64 && (!matmul_is_fp8(p->a.dtype) || p->k <= MATMUL_MAX_SPLIT_K);
}

bool matmul_cuda_mma_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    return limits->cuda_arch >= 80 && (p->a.dtype == TSR_BF16 || p->a.dtype == TSR_F16);
}

bool matmul_cuda_gemv_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    if (p->m > MATMUL_GEMV_ROWS || p->a.dtype == TSR_F64 || matmul_is_fp8(p->a.dtype)) return false;
    if (limits->flags & TSR_BATCH_INVARIANT) return false; // its splits depend on the batch
    if (p->groups.starts.data != NULL) return false;
    const struct matmul_cuda_layout l = matmul_cuda_layout(p, MATMUL_GEMV, 0, 1);
    bool is_gated = p->b_up.data != NULL;
    return l.b.is_vector && !l.b.is_copied && !l.a.is_copied && !l.b_up.is_copied &&
           (!is_gated || (l.b_up.is_vector && !l.b.is_mn));
}

// The fastest variant that the caller allows; under the flag, the choice must not depend on the number of rows.
static const char *prefer_f32(const struct matmul_problem *p, const struct tsri_limits *limits,
                              bool is_invariant) {
    const char *best = "cuda-fma";
    if (p->math == TSR_MATMUL_MATH_DEFAULT) return best;
    double ns = matmul_cuda_ns(p, MATMUL_FMA, limits);
    if (matmul_cuda_bf16x6_serves(p, limits)) {
        const double by_planes = matmul_cuda_ns(p, MATMUL_BF16X6, limits);
        if (is_invariant || by_planes < ns) best = "cuda-bf16x6", ns = by_planes;
    }
    if (matmul_cuda_tf32_serves(p, limits) &&
        (is_invariant || matmul_cuda_ns(p, MATMUL_TF32, limits) < ns))
        best = "cuda-tf32";
    return best;
}

const char *matmul_cuda_prefer(const struct matmul_problem *p, const struct tsri_limits *of_card) {
    const struct tsri_limits own = matmul_cuda_limits(p, of_card), *limits = &own;
    bool is_invariant = (limits->flags & TSR_BATCH_INVARIANT) != 0;
    bool has_mma = matmul_cuda_mma_serves(p, limits);
    if (matmul_cuda_fp8_serves(p, limits)) {
        const bool is_split =
            !is_invariant && matmul_cuda_split_serves(p, limits) &&
            matmul_cuda_split_is_best(p, limits, matmul_cuda_ns(p, MATMUL_FP8, limits));
        return is_split ? "cuda-split" : "cuda-fp8";
    }
    // 4 x 4096 x 4096 in bf16 takes 18 us with gemv and 12 us on tensor cores.
    if (!is_invariant && !has_mma && matmul_cuda_gemv_serves(p, limits)) return "cuda-gemv";
    if (!has_mma) return prefer_f32(p, limits, is_invariant);
    const bool has_wgmma = matmul_cuda_wgmma_serves(p, limits);
    const double by_mma = matmul_cuda_ns(p, MATMUL_MMA, limits);
    const double by_wgmma = has_wgmma ? matmul_cuda_ns(p, MATMUL_WGMMA, limits) : by_mma;
    if (!is_invariant && matmul_cuda_split_serves(p, limits) &&
        matmul_cuda_split_is_best(p, limits, fmin(by_mma, by_wgmma)))
        return "cuda-split";
    enum { EARLY_NS = 500 }; // launch time that wgmma hides behind the previous kernel
    if (has_wgmma && (is_invariant || by_wgmma <= by_mma + EARLY_NS)) return "cuda-wgmma";
    if (is_invariant) return "cuda-mma";
    return by_mma <= matmul_cuda_ns(p, MATMUL_FMA, limits) ? "cuda-mma" : "cuda-fma";
}

// ---- All choices --------------------------------------------------------------------------------

// gemv has one choice: the tile depends on b's layout, the splits on the multiprocessors.
static bool gemv_choice(const struct matmul_problem *p, const struct tsri_limits *limits, int index,
                        struct matmul_cuda_choice *choice) {
    *choice = (struct matmul_cuda_choice){.ns = matmul_cuda_ns(p, MATMUL_GEMV, limits)};
    return index == 0;
}

static const struct {
    const char *variant;
    bool (*serves)(const void *problem, const struct tsri_limits *limits);
    enum matmul_cuda_kind kind;
    // The variant's index-th choice; false after the last. NULL: the plan's choices for the kind.
    bool (*list)(const struct matmul_problem *p, const struct tsri_limits *limits, int index,
                 struct matmul_cuda_choice *choice);
} variants[] = {
    {"cuda-mma", matmul_cuda_mma_serves, MATMUL_MMA, NULL},
    {"cuda-wgmma", matmul_cuda_wgmma_serves, MATMUL_WGMMA, NULL},
    {"cuda-split", matmul_cuda_split_serves, MATMUL_WGMMA, matmul_cuda_split_choice},
    {"cuda-fp8", matmul_cuda_fp8_serves, MATMUL_FP8, NULL},
    {"cuda-tf32", matmul_cuda_tf32_serves, MATMUL_TF32, NULL},
    {"cuda-bf16x6", matmul_cuda_bf16x6_serves, MATMUL_BF16X6, NULL},
    {"cuda-gemv", matmul_cuda_gemv_serves, MATMUL_GEMV, gemv_choice},
    {"cuda-fma", matmul_cuda_fma_serves, MATMUL_FMA, NULL},
};

static bool choice_of(int variant, const struct matmul_problem *p, const struct tsri_limits *limits,
                      int index, struct matmul_cuda_choice *choice) {
    if (variants[variant].list != NULL) return variants[variant].list(p, limits, index, choice);
    return matmul_cuda_choice_of(p, variants[variant].kind, limits, index, choice);
}

bool matmul_cuda_choice(const void *problem, const struct tsri_limits *limits, int index,
                        struct tsri_tuning_choice *choice) {
    struct matmul_cuda_choice one;
    for (int v = 0; v < TSRI_COUNT(variants); v++) {
        if (!variants[v].serves(problem, limits)) continue;
        for (int i = 0; choice_of(v, problem, limits, i, &one); i++) {
            if (index-- > 0) continue;
            *choice = (struct tsri_tuning_choice){.variant = variants[v].variant, .ns = one.ns};
            memcpy(choice->block, one.block, sizeof choice->block);
            return true;
        }
    }
    return false;
}
