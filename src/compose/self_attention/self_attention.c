// SPDX-License-Identifier: Apache-2.0
// The self-attention module: entries, variants, and the estimate of its memory. The contract is in
// tessera/self_attention.h.
#include "compose/self_attention/self_attention_problem.h"

// ---- Variants ---------------------------------------------------------------------------------
// All variants are the same composition; the name says which variant of attention it uses. To add one, add a row with
// the name of attention's variant to both tables.

static bool is_float32_or_less(const void *problem, const struct tsri_limits *limits) {
    (void)limits;
    return ((const struct self_attention_problem *)problem)->x.dtype != TSR_F64;
}

// As in attention itself: the scores must fit in memory.
static bool has_naive(const void *problem, const struct tsri_limits *limits) {
    const struct self_attention_problem *p = problem;
    int64_t rows = p->batch * p->num_heads * p->seqlen;
    return is_float32_or_less(p, limits) && (rows == 0 || p->seqlen <= TSRI_MAX_ELEMENTS / rows);
}

// After the checks no part refuses its arguments, because the variants named here support everything that the library's
// choice supports. On CUDA, where the parts prepare themselves, the driver and the compiler may still fail.
static void plan_parts(const void *problem, const struct tsri_limits *limits,
                       struct tsri_plan *plan) {
    plan->num_tasks = 1;
    plan->status = self_attention_workspace(problem, plan->variant->name, limits->flags,
                                            &plan->workspace_bytes);
}

// CUDA: the parts have prepared themselves during planning.
static tsr_status prepare_parts(tsr_context *ctx, const void *problem,
                                const struct tsri_plan *plan) {
    (void)ctx, (void)problem;
    return plan->status;
}

#define ROWS(run)                                                                                   \
    {"default",       "projections and the attention that the library chooses",                     \
     TSR_VARIANT_ISA, is_float32_or_less,                                                           \
     plan_parts,      run},                                                                         \
        {"flash2", "queries outside, keys inside", TSR_VARIANT_ISA, is_float32_or_less, plan_parts, \
         run},                                                                                      \
        {"flash1", "keys outside, queries inside", TSR_VARIANT_ISA, is_float32_or_less, plan_parts, \
         run},                                                                                      \
        {"naive",                                                                                   \
         "a matrix of all scores",                                                                  \
         TSR_VARIANT_ISA | TSR_VARIANT_BASELINE,                                                    \
         has_naive,                                                                                 \
         plan_parts,                                                                                \
         run},                                                                                      \
        {"cuda",           "the kernels that the library chooses for each part",                    \
         TSR_VARIANT_CUDA, is_float32_or_less,                                                      \
         plan_parts,       run,                                                                     \
         prepare_parts},                                                                            \
    {                                                                                               \
        "reference", "the oracle of each part", TSR_VARIANT_REFERENCE, tsri_supports_all,           \
            plan_parts, run                                                                         \
    }

static const struct tsri_variant forward_variants[] = {ROWS(self_attention_forward_run)};
static const struct tsri_variant backward_variants[] = {ROWS(self_attention_backward_run)};

const struct tsri_op tsri_self_attention_forward_op = {"self_attention_forward", forward_variants,
                                                       TSRI_COUNT(forward_variants), NULL};
const struct tsri_op tsri_self_attention_backward_op = {
    "self_attention_backward", backward_variants, TSRI_COUNT(backward_variants), NULL};

// ---- Entries ----------------------------------------------------------------------------------

#define OPTIONS_OF(a)                                                                              \
    {                                                                                              \
        .num_heads = (a)->num_heads, .num_kv_heads = (a)->num_kv_heads, .mask = (a)->mask,         \
        .softmax_scale = (a)->softmax_scale, .softcap = (a)->softcap,                              \
        .has_window_left = (a)->has_window_left, .has_window_right = (a)->has_window_right,        \
        .window_left = (a)->window_left, .window_right = (a)->window_right,                        \
        .dropout_p = (a)->dropout_p, .seed = (a)->seed, .offset = (a)->offset,                     \
        .interleaved = (a)->interleaved                                                            \
    }

static tsr_status check_forward(tsr_context *ctx, const tsr_self_attention_forward_args *given,
                                tsr_self_attention_forward_args *args,
                                struct self_attention_problem *p) {
    static const char op[] = "self_attention_forward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    *p = (struct self_attention_problem){.ctx = ctx,
                                         .op = op,
                                         .x = args->x,
                                         .w_qkv = args->w_qkv,
                                         .b_qkv = args->b_qkv,
                                         .w_out = args->w_out,
                                         .b_out = args->b_out,
                                         .cos = args->cos,
                                         .sin = args->sin,
                                         .y = args->y,
                                         .qkv = args->qkv,
                                         .attention = args->attention,
                                         .lse = args->lse,
                                         .options = OPTIONS_OF(args)};
    return self_attention_check(p);
}

static tsr_status enter_forward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_self_attention_forward_args args;
    struct self_attention_problem p;
    TSRI_TRY(check_forward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_self_attention_forward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_self_attention_forward, enter_forward)

static tsr_status check_backward(tsr_context *ctx, const tsr_self_attention_backward_args *given,
                                 tsr_self_attention_backward_args *args,
                                 struct self_attention_problem *p) {
    static const char op[] = "self_attention_backward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    *p = (struct self_attention_problem){.ctx = ctx,
                                         .op = op,
                                         .is_backward = true,
                                         .x = args->x,
                                         .w_qkv = args->w_qkv,
                                         .w_out = args->w_out,
                                         .cos = args->cos,
                                         .sin = args->sin,
                                         .qkv = args->qkv,
                                         .attention = args->attention,
                                         .lse = args->lse,
                                         .dy = args->dy,
                                         .dx = args->dx,
                                         .dw_qkv = args->dw_qkv,
                                         .db_qkv = args->db_qkv,
                                         .dw_out = args->dw_out,
                                         .db_out = args->db_out,
                                         .options = OPTIONS_OF(args)};
    return self_attention_check(p);
}

static tsr_status enter_backward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_self_attention_backward_args args;
    struct self_attention_problem p;
    TSRI_TRY(check_backward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_self_attention_backward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_self_attention_backward, enter_backward)
