// SPDX-License-Identifier: Apache-2.0
// Attention: entries and variants. See tessera/attention.h for the contract.
#include <tessera/attention.h>

#include <string.h>

#include "context/plan_memo.h"
#include "ops/attention/attention_check.h"

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here, its supports, plan and run. Verify, bench and the tests then find it.

static const struct tsri_variant forward_variants[] = {
    {"tuned", "flash2 over packed keys and values, in tall and long blocks", TSR_VARIANT_ISA,
     attention_has_kernels, attention_plan_tuned, attention_tuned_run},
    {"amx_bf16", "tuned, with bf16 products on the tiles of AMX",
     TSR_VARIANT_ISA | TSR_VARIANT_BF16_TILES, attention_has_amx_bf16, attention_plan_amx_bf16,
     attention_amx_bf16_run},
    {"avx512_bf16", "tuned, with bf16 products by vdpbf16ps",
     TSR_VARIANT_ISA | TSR_VARIANT_BF16_DOT, attention_has_avx512_bf16, attention_plan_avx512_bf16,
     attention_avx512_bf16_run},
    {"few", "few queries by decode's splits: keys read where they lie, by all threads",
     TSR_VARIANT_ISA, attention_has_few, attention_plan_few, attention_few_run},
    {"flash2", "queries outside, keys inside, one division at the end", TSR_VARIANT_ISA,
     attention_has_kernels, attention_plan_flash2, attention_flash2_run},
    {"flash1", "keys outside, queries inside, a division at every step", TSR_VARIANT_ISA,
     attention_has_kernels, attention_plan_flash1, attention_flash1_run},
    {"naive", "a matrix of all scores, in three passes", TSR_VARIANT_ISA | TSR_VARIANT_BASELINE,
     attention_has_naive, attention_plan_naive, attention_naive_run},
    {"cuda-flash3", "by Hopper's asynchronous products, one tile's beside the next's softmax",
     TSR_VARIANT_CUDA, attention_cuda_has_flash3, attention_cuda_plan_flash3,
     attention_cuda_flash3_run, attention_cuda_flash3_prepare},
    {"cuda-small", "by the tensor cores, all keys and values at once", TSR_VARIANT_CUDA,
     attention_cuda_has_small, attention_cuda_plan_small, attention_cuda_small_run,
     attention_cuda_small_prepare},
    {"cuda-few", "flash3 of few queries: heads that share keys in one tile, keys cut into runs",
     TSR_VARIANT_CUDA, attention_cuda_has_few, attention_cuda_plan_few, attention_cuda_few_run,
     attention_cuda_few_prepare},
    {"cuda-flash2", "by the tensor cores, weights in registers", TSR_VARIANT_CUDA,
     attention_cuda_has_flash2, attention_cuda_plan_flash2, attention_cuda_flash2_run,
     attention_cuda_flash2_prepare},
    {"cuda-flash1", "in fp32 arithmetic, any dtype, head and alignment", TSR_VARIANT_CUDA,
     attention_cuda_has_flash1, attention_cuda_plan_flash1, attention_cuda_flash1_run,
     attention_cuda_flash1_prepare},
    {"cuda-naive", "a matrix of all scores, in three passes",
     TSR_VARIANT_CUDA | TSR_VARIANT_BASELINE, attention_cuda_has_naive, attention_cuda_plan_naive,
     attention_cuda_naive_run, attention_cuda_naive_prepare},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, attention_reference_run},
};

static const struct tsri_variant backward_variants[] = {
    {"cuda-flash3", "by Hopper's asynchronous products; keys own dk and dv, dq adds up in turns",
     TSR_VARIANT_CUDA, attention_cuda_has_flash3_backward, attention_cuda_plan_flash3_backward,
     attention_cuda_flash3_backward_run, attention_cuda_flash3_backward_prepare},
    {"cuda-small", "by the tensor cores, a head's blocks together, in one launch", TSR_VARIANT_CUDA,
     attention_cuda_has_small_backward, attention_cuda_plan_small_backward,
     attention_cuda_small_backward_run, attention_cuda_small_backward_prepare},
    {"cuda-flash2", "tensor cores; keys own dk and dv, queries own dq", TSR_VARIANT_CUDA,
     attention_cuda_has_flash2_backward, attention_cuda_plan_flash2_backward,
     attention_cuda_flash2_backward_run, attention_cuda_flash2_backward_prepare},
    {"cuda-flash1", "the same loops in fp32, for every dtype", TSR_VARIANT_CUDA,
     attention_cuda_has_flash1_backward, attention_cuda_plan_flash1_backward,
     attention_cuda_flash1_backward_run, attention_cuda_flash1_backward_prepare},
    {"cuda-naive", "weights and their gradients in memory, in three passes",
     TSR_VARIANT_CUDA | TSR_VARIANT_BASELINE, attention_cuda_has_naive_backward,
     attention_cuda_plan_naive_backward, attention_cuda_naive_backward_run,
     attention_cuda_naive_backward_prepare},
    {"tuned", "keys outside, in long blocks; dq of a few runs of keys added in order",
     TSR_VARIANT_ISA, attention_has_kernels, attention_plan_tuned_backward, attention_backward_run},
    {"amx_bf16", "tuned, with bf16 products on the tiles of AMX",
     TSR_VARIANT_ISA | TSR_VARIANT_BF16_TILES, attention_has_amx_bf16,
     attention_plan_amx_bf16_backward, attention_amx_bf16_backward_run},
    {"avx512_bf16", "tuned, with bf16 products by vdpbf16ps",
     TSR_VARIANT_ISA | TSR_VARIANT_BF16_DOT, attention_has_avx512_bf16,
     attention_plan_avx512_bf16_backward, attention_avx512_bf16_backward_run},
    {"flash2", "twice: keys outside for dk and dv, queries outside for dq", TSR_VARIANT_ISA,
     attention_has_kernels, attention_plan_flash2_backward, attention_backward_run},
    {"flash1", "keys outside, queries inside", TSR_VARIANT_ISA, attention_has_kernels,
     attention_plan_flash1_backward, attention_backward_run},
    {"naive", "matrices of all weights and of all their gradients, in three passes",
     TSR_VARIANT_ISA | TSR_VARIANT_BASELINE, attention_has_naive, attention_plan_naive_backward,
     attention_naive_backward_run},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     attention_plan_reference_backward, attention_reference_backward_run},
};

static void tuning_key(const void *problem, struct tsri_tuning_key *key) {
    const struct attention_problem *p = problem;
    int64_t group = p->num_heads_kv == 0 ? 0 : p->num_heads_q / p->num_heads_kv;
    *key = (struct tsri_tuning_key){
        p->dtype,
        {p->num_batches * p->num_heads_kv, group * p->seqlen_q, p->seqlen_k, p->head_dim}};
}
static const struct tsri_op_tuning tuning = {.num_sizes = 4, .key = tuning_key};

// The seed and offset of dropout change from call to call and do not affect the choice.
static void plan_key(const void *problem, void *key) {
    struct attention_problem *p = key;
    memcpy(p, problem, sizeof *p);
    struct attention_view *const views[] = {&p->q,    &p->k,  &p->v,  &p->out,
                                            &p->dout, &p->dq, &p->dk, &p->dv};
    struct attention_per_head *const values[] = {&p->slopes, &p->sinks, &p->dsinks};
    for (int i = 0; i < TSRI_COUNT(views); i++) views[i]->data = tsri_place_of(views[i]->data);
    for (int i = 0; i < TSRI_COUNT(values); i++) values[i]->data = tsri_place_of(values[i]->data);
    p->bias.data = tsri_place_of(p->bias.data);
    p->dbias.data = tsri_place_of(p->dbias.data);
    p->lse = tsri_place_of(p->lse);
    p->cu_seqlens_q = tsri_place_of(p->cu_seqlens_q);
    p->cu_seqlens_k = tsri_place_of(p->cu_seqlens_k);
    p->seqused_k = tsri_place_of(p->seqused_k);
    p->seed = p->offset = 0;
}
_Static_assert(sizeof(struct attention_problem) <= TSRI_TUNING_PROBLEM_BYTES, "it is kept whole");

const struct tsri_op tsri_attention_forward_op = {"attention_forward",
                                                  forward_variants,
                                                  TSRI_COUNT(forward_variants),
                                                  attention_prefer_forward,
                                                  attention_cuda_forward_kernel,
                                                  &tuning,
                                                  plan_key,
                                                  sizeof(struct attention_problem)};
const struct tsri_op tsri_attention_backward_op = {"attention_backward",
                                                   backward_variants,
                                                   TSRI_COUNT(backward_variants),
                                                   attention_prefer_backward,
                                                   attention_cuda_backward_kernel,
                                                   &tuning,
                                                   plan_key,
                                                   sizeof(struct attention_problem)};

// ---- Forward ----------------------------------------------------------------------------------

static tsr_status check_forward(const tsr_context *ctx, const tsr_attention_forward_args *given,
                                tsr_attention_forward_args *args, struct attention_problem *p) {
    static const char op[] = "attention_forward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    return attention_check(&(struct attention_fields){.op = op, ATTENTION_SHARED_FIELDS(*args)}, p);
}

static tsr_status enter_forward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_attention_forward_args args;
    struct attention_problem p = {0};
    TSRI_TRY(check_forward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_attention_forward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_attention_forward, enter_forward)

// ---- Backward ---------------------------------------------------------------------------------

static tsr_status check_backward(const tsr_context *ctx, const tsr_attention_backward_args *given,
                                 tsr_attention_backward_args *args, struct attention_problem *p) {
    static const char op[] = "attention_backward";
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    return attention_check(&(struct attention_fields){.op = op,
                                                      .is_backward = true,
                                                      ATTENTION_SHARED_FIELDS(*args),
                                                      .dout = &args->dout,
                                                      .dq = &args->dq,
                                                      .dk = &args->dk,
                                                      .dv = &args->dv,
                                                      .dbias = &args->dbias,
                                                      .dsinks = &args->dsinks},
                           p);
}

static tsr_status enter_backward(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_attention_backward_args args;
    struct attention_problem p = {0};
    TSRI_TRY(check_backward(ctx, given, &args, &p));
    return tsri_op_serve(ctx, &tsri_attention_backward_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_attention_backward, enter_backward)
