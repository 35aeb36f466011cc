// SPDX-License-Identifier: Apache-2.0
// Matmul: forward entry, checks, variants. The contract is in tessera/matmul.h.
#include "ops/matmul/matmul_problem.h"

#include <string.h>

#include "context/plan_memo.h"
#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/matmul_check.h"

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

static const struct tsri_variant forward_variants[] = {
    {"packed", "B packed once to panels that all threads share", TSR_VARIANT_ISA,
     matmul_has_kernels, matmul_plan_packed, matmul_packed_run},
    {"blocked", "A packed to panels, beyond 512 columns once for all threads; B by the task",
     TSR_VARIANT_ISA, matmul_has_kernels, matmul_plan_blocked, matmul_blocked_run},
    {"local", "every task packs the part of B that it needs: few rows, many batches",
     TSR_VARIANT_ISA, matmul_has_kernels, matmul_plan_local, matmul_local_run},
    {"direct", "B used where it is: small products of f32", TSR_VARIANT_ISA,
     matmul_can_use_b_in_place, matmul_plan_direct, matmul_direct_run},
    {"streamed", "few rows: B passes by once, where it is", TSR_VARIANT_ISA, matmul_can_be_streamed,
     matmul_plan_streamed, matmul_streamed_run},
    {"skinny", "up to 16 rows, or a few long columns; B streamed once in its own dtype",
     TSR_VARIANT_ISA, matmul_is_skinny, matmul_plan_skinny, matmul_skinny_run},
    {"skinny_bf16", "the same by vdpbf16ps", TSR_VARIANT_ISA | TSR_VARIANT_BF16_DOT,
     matmul_has_skinny_bf16, matmul_plan_skinny_bf16, matmul_skinny_bf16_run},
    {"amx_bf16", "bf16 on AMX tiles", TSR_VARIANT_ISA | TSR_VARIANT_BF16_TILES, matmul_has_amx_bf16,
     matmul_plan_tiles, matmul_amx_bf16_run},
    {"avx512_bf16", "bf16 by vdpbf16ps", TSR_VARIANT_ISA | TSR_VARIANT_BF16_DOT,
     matmul_has_avx512_bf16, matmul_plan_mixed, matmul_avx512_bf16_run},
    {"naive", "row after row, all of B for each", TSR_VARIANT_ISA | TSR_VARIANT_BASELINE,
     matmul_has_kernels, matmul_plan_naive, matmul_naive_run},
    {"cuda-mma", "16-bit tiles on tensor cores by mma.sync", TSR_VARIANT_CUDA,
     matmul_cuda_mma_serves, matmul_cuda_plan_mma, matmul_cuda_mma_run, matmul_cuda_mma_prepare},
    {"cuda-wgmma", "16-bit tiles by the copy engine and wgmma, on Hopper", TSR_VARIANT_CUDA,
     matmul_cuda_wgmma_serves, matmul_cuda_plan_wgmma, matmul_cuda_wgmma_run,
     matmul_cuda_wgmma_prepare},
    {"cuda-split", "few tiles of 16 bits or e4m3, k split over the blocks of a cluster, on Hopper",
     TSR_VARIANT_CUDA, matmul_cuda_split_serves, matmul_cuda_plan_split, matmul_cuda_split_run,
     matmul_cuda_split_prepare},
    {"cuda-fp8", "fp8 tiles by the copy engine and wgmma, on Hopper", TSR_VARIANT_CUDA,
     matmul_cuda_fp8_serves, matmul_cuda_plan_fp8, matmul_cuda_fp8_run, matmul_cuda_fp8_prepare},
    {"cuda-tf32", "fp32 rounded to tf32, by the copy engine and wgmma, on Hopper", TSR_VARIANT_CUDA,
     matmul_cuda_tf32_serves, matmul_cuda_plan_tf32, matmul_cuda_tf32_run,
     matmul_cuda_tf32_prepare},
    {"cuda-bf16x6", "fp32 as six products of bf16, by the copy engine and wgmma, on Hopper",
     TSR_VARIANT_CUDA, matmul_cuda_bf16x6_serves, matmul_cuda_plan_bf16x6, matmul_cuda_bf16x6_run,
     matmul_cuda_bf16x6_prepare},
    {"cuda-gemv", "up to 4 rows, b streamed once", TSR_VARIANT_CUDA, matmul_cuda_gemv_serves,
     matmul_cuda_plan_gemv, matmul_cuda_gemv_run, matmul_cuda_gemv_prepare},
    {"cuda-fma", "tiles by fp32 multiply-adds, any dtype and layout", TSR_VARIANT_CUDA,
     matmul_cuda_fma_serves, matmul_cuda_plan_fma, matmul_cuda_fma_run, matmul_cuda_fma_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, matmul_reference_run},
};

static void tuning_key(const void *problem, struct tsri_tuning_key *key) {
    const struct matmul_problem *p = problem;
    *key = (struct tsri_tuning_key){p->a.dtype, {p->m, p->n, p->k, p->num_batches}};
}

// Variants that add the products of an element in the same order for any cut of c.
static bool adds_in_order(const struct tsri_variant *v) {
    return v->run == matmul_blocked_run || v->run == matmul_packed_run ||
           v->run == matmul_local_run || v->run == matmul_direct_run ||
           v->run == matmul_streamed_run;
}

// On the CPU, above 16 rows, a row's bits do not depend on m, even without a flag. On CUDA, splits of k are part of a
// row, so calls with flags keep theirs. Rows do not say for which f32 math they were measured, so calls that allow more
// than the default keep their variant.
static bool may_replace(const void *problem, const struct tsri_limits *limits,
                        const struct tsri_variant *from, const struct tsri_variant *to) {
    const struct matmul_problem *p = problem;
    if (limits->device.type == TSR_CUDA)
        return limits->flags == 0 &&
               (from == to || p->a.dtype != TSR_F32 || p->math == TSR_MATMUL_MATH_DEFAULT);
    bool is_free =
        limits->flags == 0 && p->m <= MATMUL_SKINNY_M && matmul_is_skinny(problem, limits);
    return is_free || (adds_in_order(from) && adds_in_order(to));
}

_Static_assert(sizeof(struct matmul_problem) <= TSRI_TUNING_PROBLEM_BYTES, "it is kept whole");
static const struct tsri_op_tuning tuning = {.num_sizes = 4,
                                             .key = tuning_key,
                                             .may_replace = may_replace,
                                             .is_exact_on_cuda = true,
                                             .choice = matmul_cuda_choice,
                                             .problem_bytes = sizeof(struct matmul_problem)};

static void plan_key(const void *problem, void *key) {
    struct matmul_problem *p = key;
    memcpy(p, problem, sizeof *p);
    struct matmul_matrix *const matrices[] = {&p->a, &p->b,       &p->b_up,    &p->residual,
                                              &p->c, &p->a_scale, &p->b_scale, &p->b_up_scale};
    for (int i = 0; i < TSRI_COUNT(matrices); i++)
        matrices[i]->data = tsri_place_of(matrices[i]->data);
    p->bias = tsri_place_of(p->bias);
    p->bias_up = tsri_place_of(p->bias_up);
    p->groups.starts.data = tsri_place_of(p->groups.starts.data);
}

const struct tsri_op tsri_matmul_forward_op = {"matmul_forward",
                                               forward_variants,
                                               TSRI_COUNT(forward_variants),
                                               matmul_prefer,
                                               matmul_cuda_kernel,
                                               &tuning,
                                               plan_key,
                                               sizeof(struct matmul_problem)};

// ---- Entry ------------------------------------------------------------------------------------

static tsr_status check_side_dtype(const char *op, const char *field, const tsr_tensor *t,
                                   const tsr_matmul_forward_args *args) {
    return matmul_check_side(op, field, t, &args->a, &args->c, &args->bias, &args->bias_up);
}

static tsr_status check_scales(const char *op, tsr_matmul_forward_args *args,
                               struct matmul_problem *p) {
    int64_t of_k = tsri_ceil_div(p->k, MATMUL_SCALE_BLOCK),
            of_n = tsri_ceil_div(p->n, MATMUL_SCALE_BLOCK);
    tsr_tensor *const scales[] = {&args->a_scale, &args->b_scale, &args->b_up_scale};
    static const char *const fields[] = {"a_scale", "b_scale", "b_up_scale"};
    TSRI_TRY(matmul_check_scale(op, fields[0], scales[0], "a", &args->a, p, p->m, of_k,
                                args->transpose_a != 0, &p->a_scale));
    TSRI_TRY(matmul_check_scale(op, fields[1], scales[1], "b", &args->b, p, of_k, of_n,
                                args->transpose_b != 0, &p->b_scale));
    TSRI_TRY(matmul_check_scale(op, fields[2], scales[2], "b_up", &args->b_up, p, of_k, of_n,
                                args->transpose_b != 0, &p->b_up_scale));
    int num = tsri_is_present(&args->b_up) ? 3 : 2;
    for (int i = 0; i < num; i++) p->is_block_scaled |= matmul_is_of_blocks(scales[i]);
    for (int i = 0; i < num; i++)
        if (p->is_block_scaled && !matmul_is_of_blocks(scales[i]) && args->a.dtype != TSR_F64)
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: %s is %s beside scales of blocks, expected scales of blocks too",
                             op, fields[i],
                             tsri_is_present(scales[i]) ? "one for the tensor" : "absent");
    for (int i = 0; i < num; i++)
        TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, fields[i], scales[i], false));
    return TSR_OK;
}

static tsr_status check_bias(const char *op, const char *field, tsr_tensor *bias,
                             const tsr_matmul_forward_args *args, int64_t n, const void **data,
                             tsr_dtype *dtype) {
    if (!tsri_is_present(bias)) return TSR_OK;
    TSRI_TRY(tsri_check_vector(op, field, bias, TSRI_IN, n));
    TSRI_TRY(check_side_dtype(op, field, bias, args));
    *data = bias->data;
    *dtype = bias->dtype;
    return TSR_OK;
}

static tsr_status check_epilogue(const char *op, tsr_matmul_forward_args *args,
                                 struct matmul_problem *p) {
    TSRI_TRY(matmul_check_activation(op, args->activation, &args->b_up));
    if ((unsigned)args->math >= TSR_MATMUL_MATH_COUNT)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: math is %d, expected a tsr_matmul_math below %d", op, (int)args->math,
                         (int)TSR_MATMUL_MATH_COUNT);
    TSRI_TRY(matmul_check_accumulate(op, "c", &args->c, args->accumulate));
    p->activation = args->activation;
    p->is_accumulating = args->accumulate != 0;
    TSRI_TRY(TSRI_CHECK_FLAG(op, args, alpha));
    p->alpha = args->has_alpha ? args->alpha : 1.0f;
    p->may_sum_fast = args->fast_accumulate != 0;
    p->math = args->math;
    TSRI_TRY(matmul_check_bias_up(op, &args->bias_up, &args->b_up));
    TSRI_TRY(check_bias(op, "bias", &args->bias, args, p->n, &p->bias, &p->bias_dtype));
    return check_bias(op, "bias_up", &args->bias_up, args, p->n, &p->bias_up, &p->bias_up_dtype);
}

static tsr_status check_forward(const tsr_context *ctx, const tsr_matmul_forward_args *given,
                                tsr_matmul_forward_args *args, struct matmul_problem *p) {
    static const char op[] = "matmul_forward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    bool has_residual = tsri_is_present(&args->residual), has_up = tsri_is_present(&args->b_up);
    TSRI_TRY(matmul_check_product(op, &args->a, &args->b, args->transpose_a, args->transpose_b, p));
    TSRI_TRY(matmul_check_matrix(op, "c", &args->c, TSRI_OUT, p, p->m, p->n, false, &p->c));
    TSRI_TRY(check_side_dtype(op, "c", &args->c, args));
    if (has_up) {
        TSRI_TRY(matmul_check_matrix(op, "b_up", &args->b_up, TSRI_IN, p, p->k, p->n,
                                     args->transpose_b, &p->b_up));
        TSRI_TRY(tsri_check_same_dtype(op, "b_up", &args->b_up, "b", &args->b));
    }
    if (has_residual) {
        TSRI_TRY(matmul_check_matrix(op, "residual", &args->residual, TSRI_IN, p, p->m, p->n, false,
                                     &p->residual));
        TSRI_TRY(check_side_dtype(op, "residual", &args->residual, args));
    }
    TSRI_TRY(matmul_check_rows_contiguous(op, "c", &p->c, p->n));
    TSRI_TRY(matmul_check_rows_contiguous(op, "residual", &p->residual, p->n));
    TSRI_TRY(check_epilogue(op, args, p));
    TSRI_TRY(check_scales(op, args, p));
    TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, "a", &args->a, false));
    TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, "b", &args->b, false));
    TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, "b_up", &args->b_up, false));
    TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, "bias", &args->bias, false));
    TSRI_TRY(tsri_check_disjoint(op, "c", &args->c, "bias_up", &args->bias_up, false));
    return tsri_check_disjoint(op, "c", &args->c, "residual", &args->residual, true);
}

static tsr_status enter_forward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_matmul_forward_args args;
    struct matmul_problem p = {0};
    TSRI_TRY(check_forward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_matmul_forward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_matmul_forward, enter_forward)
