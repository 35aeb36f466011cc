// SPDX-License-Identifier: Apache-2.0
// AdamW: entry, checks, variants, threads. The contract is in tessera/adamw.h.
#include <float.h>
#include <math.h>

#include "ops/adamw/adamw_problem.h"

// ---- Threads: a task is a piece of the element grid, a pass is a parallel loop ------------------

struct pass {
    const struct adamw_problem *problem;
    const struct tsri_plan *plan;
    adamw_kernel *kernel;
    float *scratch;
};

static void run_task(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct pass *pass = arg;
    const struct tsri_rows *m = &pass->problem->m;
    struct tsri_piece piece = tsri_piece_of(pass->plan, m->rows, m->cols, index);
    pass->kernel(pass->problem, &piece, pass->scratch, pass->plan->is_streaming);
}

static void run_pass(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                     adamw_kernel *kernel, void *scratch) {
    struct pass pass = {problem, plan, kernel, scratch};
    tsri_parallel(ctx, plan->num_tasks, run_task, &pass);
}

static tsr_status adamw_fused_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    run_pass(ctx, problem, plan, adamw_kernels(tsr_context_isa(ctx))->step, workspace);
    return TSR_OK;
}

// The baseline works like a chain of element-wise operators: each sweeps over the whole tensor.
static tsr_status adamw_unfused_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct adamw_kernels *kernels = adamw_kernels(tsr_context_isa(ctx));
    run_pass(ctx, problem, plan, kernels->scale_pass, workspace);
    run_pass(ctx, problem, plan, kernels->m_pass, workspace);
    run_pass(ctx, problem, plan, kernels->v_pass, workspace);
    run_pass(ctx, problem, plan, kernels->root_pass, workspace);
    run_pass(ctx, problem, plan, kernels->quotient_pass, workspace);
    run_pass(ctx, problem, plan, kernels->update_pass, workspace);
    return TSR_OK;
}

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct adamw_problem, param.dtype)

// A tensor that is read before it is written is in the cache anyway. Only a param with a master is not read.
static void plan_fused(const void *problem, const struct tsri_limits *limits,
                       struct tsri_plan *plan) {
    const struct adamw_problem *p = problem;
    int64_t param_bytes = (int64_t)tsr_dtype_bytes(p->param.dtype);
    int64_t grad_bytes = (int64_t)tsr_dtype_bytes(p->grad.dtype);
    int64_t bytes = grad_bytes + 16 + (p->has_master ? 8 + param_bytes : 2 * param_bytes);
    // Streams if the tensors are much larger than the caches (lines are then prefetched far ahead), or, with a master,
    // if param is large (then with non-temporal stores).
    int64_t elements = p->m.rows * p->m.cols;
    plan->is_streaming =
        tsri_should_stream(limits, p->has_master ? elements * param_bytes : elements * bytes / 4);
    tsri_plan_elements(plan, limits, p->m.rows, p->m.cols, bytes);
}

static void plan_unfused(const void *problem, const struct tsri_limits *limits,
                         struct tsri_plan *plan) {
    const struct adamw_problem *p = problem;
    plan_fused(problem, limits, plan);
    plan->workspace_bytes = tsri_round_up((size_t)(2 * p->m.rows * p->m.cols) * sizeof(float), 64);
}

static const struct tsri_variant variants[] = {
    {"fused", "moments, quotient, decay and rounding in one pass", TSR_VARIANT_ISA,
     is_float32_or_less, plan_fused, adamw_fused_run},
    {"unfused", "one pass for each operator, through fp32 scratch",
     TSR_VARIANT_ISA | TSR_VARIANT_BASELINE, is_float32_or_less, plan_unfused, adamw_unfused_run},
    {"cuda", "moments, quotient, decay and rounding in one pass", TSR_VARIANT_CUDA,
     is_float32_or_less, tsri_plan_serial, adamw_cuda_run, adamw_cuda_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, adamw_reference_run},
};

const struct tsri_op tsri_adamw_step_op = {"adamw_step", variants, TSRI_COUNT(variants), NULL,
                                           adamw_cuda_kernel};

// ---- Entry ------------------------------------------------------------------------------------

static const char op[] = "adamw_step";

// The step is computed in fp32. A scalar that overflows there, or becomes 0 or a subnormal number with few digits,
// would be a different number. 0 itself is allowed.
static tsr_status check_range(const char *field, double value, bool is_f64) {
    double size = fabs(value);
    if (!isfinite(value))
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is %g, expected a finite number", op, field,
                         value);
    if (is_f64 || size == 0 || (size >= (double)FLT_MIN && size <= (double)FLT_MAX)) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "%s: %s is %g, expected 0 or what f32 can hold, from %.3g to %.3g", op, field,
                     value, (double)FLT_MIN, (double)FLT_MAX);
}

static tsr_status check_beta(const char *field, double beta) {
    if (beta >= 0 && beta < 1) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is %g, expected 0 or more and less than 1", op,
                     field, beta);
}

static tsr_status check_scalars(const tsr_adamw_step_args *args) {
    bool is_f64 = args->param.dtype == TSR_F64;
    TSRI_TRY(check_range("lr", args->lr, is_f64));
    TSRI_TRY(check_range("weight_decay", args->weight_decay, is_f64));
    TSRI_TRY(check_range("eps", args->eps, is_f64));
    TSRI_TRY(TSRI_CHECK_FLAG(op, args, grad_scale));
    if (args->has_grad_scale) TSRI_TRY(check_range("grad_scale", args->grad_scale, is_f64));
    TSRI_TRY(check_beta("beta1", args->beta1));
    TSRI_TRY(check_beta("beta2", args->beta2));
    TSRI_TRY(check_range("beta1", args->beta1, is_f64));
    TSRI_TRY(check_range("beta2", args->beta2, is_f64));
    if (args->eps < 0)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: eps is %g, expected 0 or more", op, args->eps);
    if (args->step < 1)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: step is %lld, expected 1 or more", op,
                         (long long)args->step);
    return TSR_OK;
}

// m, v or master: the shape of param, f32 (f64 for the oracle).
static tsr_status check_state(const char *field, tsr_tensor *t, const tsr_tensor *param,
                              struct tsri_rows *view) {
    TSRI_TRY(tsri_check_rows(op, field, t, TSRI_OUT, view));
    TSRI_TRY(tsri_check_dtype(op, field, t, param->dtype == TSR_F64 ? TSR_F64 : TSR_F32));
    return tsri_check_same_shape(op, field, t, "param", param);
}

static tsr_status check_tensors(tsr_adamw_step_args *args, struct adamw_problem *p) {
    TSRI_TRY(tsri_check_rows(op, "param", &args->param, TSRI_OUT, &p->param));
    TSRI_TRY(tsri_check_float(op, "param", &args->param));
    TSRI_TRY(tsri_check_rows(op, "grad", &args->grad, TSRI_IN, &p->grad));
    TSRI_TRY(tsri_check_same_shape(op, "grad", &args->grad, "param", &args->param));
    if (args->grad.dtype != args->param.dtype &&
        (args->grad.dtype != TSR_F32 || args->param.dtype == TSR_F64))
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: grad.dtype is %s, expected %s as param%s", op,
                         tsr_dtype_name(args->grad.dtype), tsr_dtype_name(args->param.dtype),
                         args->param.dtype == TSR_F64 ? "" : " or f32");
    TSRI_TRY(check_state("m", &args->m, &args->param, &p->m));
    TSRI_TRY(check_state("v", &args->v, &args->param, &p->v));
    p->has_master = tsri_is_present(&args->master);
    if (p->has_master) TSRI_TRY(check_state("master", &args->master, &args->param, &p->master));
    const tsr_tensor *all[] = {&args->grad, &args->param, &args->m, &args->v, &args->master};
    static const char *const names[] = {"grad", "param", "m", "v", "master"};
    for (int i = 1; i < TSRI_COUNT(all); i++)
        for (int j = 0; j < i; j++)
            TSRI_TRY(tsri_check_disjoint(op, names[i], all[i], names[j], all[j], false));
    return TSR_OK;
}

// Checks the combined scalars. A decay too small for f32 changes no parameter.
static tsr_status check_derived(const tsr_adamw_step_args *args, const struct adamw_problem *p) {
    double largest = args->param.dtype == TSR_F64 ? DBL_MAX : (double)FLT_MAX;
    if (!(fabs(p->rate) <= largest))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: lr / (1 - beta1^step) is %g, expected what %s can hold", op, p->rate,
                         args->param.dtype == TSR_F64 ? "f64" : "f32");
    if (!(fabs(p->decay) <= largest))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: lr weight_decay is %g, expected what %s can hold", op, p->decay,
                         args->param.dtype == TSR_F64 ? "f64" : "f32");
    return TSR_OK;
}

// 1 - beta^step without cancellation; 1 for beta = 0.
static double correction(double beta, int64_t step) { return -expm1((double)step * log(beta)); }

static tsr_status check(const tsr_context *ctx, const tsr_adamw_step_args *given,
                        tsr_adamw_step_args *args, struct adamw_problem *p) {
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(check_tensors(args, p));
    TSRI_TRY(check_scalars(args));
    p->grad_scale = args->has_grad_scale ? args->grad_scale : 1.0;
    p->beta1 = args->beta1;
    p->rest1 = 1 - args->beta1;
    p->beta2 = args->beta2;
    p->rest2 = 1 - args->beta2;
    p->rate = args->lr / correction(args->beta1, args->step);
    p->root_factor = 1 / sqrt(correction(args->beta2, args->step));
    p->eps = args->eps;
    p->decay = args->lr * args->weight_decay;
    TSRI_TRY(check_derived(args, p));
    tsri_merge_rows((struct tsri_rows *const[]){&p->param, &p->grad, &p->m, &p->v, &p->master}, 5);
    return TSR_OK;
}

static tsr_status enter(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_adamw_step_args args;
    struct adamw_problem p = {0};
    TSRI_TRY(check(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_adamw_step_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_adamw_step, enter)
