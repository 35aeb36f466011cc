// SPDX-License-Identifier: Apache-2.0
// The norms' variants, one table per pass, shared by layernorm and rmsnorm.
#include "ops/norm/norm_problem.h"

// To add one: a row here with its supports, plan and run, and NORM_NUM_...; verify, bench and the tests find it.

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct norm_problem, dtype)

static bool is_of_one_dtype(const void *problem, const struct tsri_limits *limits) {
    const struct norm_problem *p = problem;
    return is_float32_or_less(p, limits) && !p->is_mixed;
}

const struct tsri_variant norm_forward_variants[NORM_NUM_FORWARD] = {
    {"fused", "one read and one write of each row: residual, statistics, scale and shift",
     TSR_VARIANT_ISA, is_of_one_dtype, norm_plan_fused_forward, norm_fused_forward_run},
    {"unfused",
     "passes over the whole tensor: residual, mean, centred variance, normalise, scale and shift",
     TSR_VARIANT_ISA | TSR_VARIANT_BASELINE, is_of_one_dtype, norm_plan_unfused_forward,
     norm_unfused_forward_run},
    {"mixed", "tensors of several dtypes and rows of two strides, by blocks in fp32",
     TSR_VARIANT_ISA, is_float32_or_less, norm_plan_mixed_forward, norm_mixed_forward_run},
    {"cuda-rows", "rows in registers: one read, one write", TSR_VARIANT_CUDA,
     norm_cuda_forward_fits, norm_cuda_plan_forward, norm_cuda_forward_run,
     norm_cuda_forward_prepare},
    {"cuda-clusters", "rows in registers of a cluster's blocks: one read, one write",
     TSR_VARIANT_CUDA, norm_cuda_forward_clusters_fit, norm_cuda_plan_forward_clusters,
     norm_cuda_forward_run, norm_cuda_forward_prepare},
    {"cuda-staged", "rows of any width, at any address, in shared memory", TSR_VARIANT_CUDA,
     norm_cuda_fits, norm_cuda_plan_forward_stages, norm_cuda_forward_run,
     norm_cuda_forward_prepare},
    {"cuda-mixed", "tensors of several dtypes, rows of two strides, of any width", TSR_VARIANT_CUDA,
     norm_cuda_mixed_fits, norm_cuda_plan_mixed_forward, norm_cuda_mixed_forward,
     norm_cuda_mixed_prepare_forward},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, norm_reference_forward_run},
};

const struct tsri_variant norm_backward_variants[NORM_NUM_BACKWARD] = {
    {"fused", "one read of x and dy, one write of dx; dweight and dbias summed on the way",
     TSR_VARIANT_ISA, is_of_one_dtype, norm_plan_fused_backward, norm_fused_backward_run},
    {"unfused", "passes over the whole tensor: products, row sums, column sums, combine",
     TSR_VARIANT_ISA | TSR_VARIANT_BASELINE, is_of_one_dtype, norm_plan_unfused_backward,
     norm_unfused_backward_run},
    {"mixed", "tensors of several dtypes and rows of two strides, by blocks in fp32",
     TSR_VARIANT_ISA, is_float32_or_less, norm_plan_mixed_backward, norm_mixed_backward_run},
    {"cuda-rows", "rows in registers: one read, one write; dweight and dbias summed on the way",
     TSR_VARIANT_CUDA, norm_cuda_backward_fits, norm_cuda_plan_backward, norm_cuda_backward_run,
     norm_cuda_backward_prepare},
    {"cuda-staged", "rows at any address in shared memory, of a cluster's blocks if they are wide",
     TSR_VARIANT_CUDA, norm_cuda_backward_stages_fit, norm_cuda_plan_backward_stages,
     norm_cuda_backward_run, norm_cuda_backward_prepare},
    {"cuda-mixed", "tensors of several dtypes, rows of two strides, of any width", TSR_VARIANT_CUDA,
     norm_cuda_mixed_fits, norm_cuda_plan_mixed_backward, norm_cuda_mixed_backward,
     norm_cuda_mixed_prepare_backward},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, norm_reference_backward_run},
};
