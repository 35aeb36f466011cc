// SPDX-License-Identifier: Apache-2.0
// cuda-flash3 of attention's backward: one kernel for dk, dv and the sums of dq, one that rounds these sums into rows of dq. See
// attention_backward_flash3_sm90.cu.
#include <math.h>

#include "cuda/cuda_tensor_map.h"
#include "ops/attention/cuda/backward/attention_backward_cuda.h"
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_bias_cuda.h"

#define LOG2_E 1.4426950408889634

enum {
    DQ_THREADS = 256,
    SLAB = 64,
    FOR_ALIGNMENT = 1024,
    WIDE = 192, // columns of the wide kernel's tiles; DEEP: of the deep kernel's
    DEEP = 256,
    MOST_SOFTCAP = 1000, // tanh has an error of 1e-7 of it
};
static const double MOST_TO_SOFTCAP = 1e10; // larger ones could overflow in products
enum terms { NO_TERMS, ALIBI_OR_DROPOUT, SOFTCAP, BIAS, F32_BIAS, NUM_TERMS };
static const char op[] = "attention_backward";

static enum terms terms_of(const struct attention_problem *p) {
    if (p->bias.data != NULL) return p->bias.dtype == TSR_F32 ? F32_BIAS : BIAS;
    if (p->slopes.data != NULL || p->dropout_threshold != 0) return ALIBI_OR_DROPOUT;
    return p->softcap != 0 ? SOFTCAP : NO_TERMS;
}

static struct tsri_cuda_program keys_program(tsr_dtype dtype, int64_t head_dim, enum terms terms,
                                             bool is_ahead) {
    struct tsri_cuda_program program = attention_cuda_program(
        "ops/attention/cuda/backward/flash3/attention_backward_flash3_sm90.cu",
        "attention_backward_flash3", dtype);
    attention_cuda_define(&program, "HEAD_DIM", head_dim);
    attention_cuda_define(&program, "TERMS", terms);
    attention_cuda_define(&program, "AHEAD", is_ahead);
    return program;
}

// Heads above 128: heads of 192 with values of 128, either all gradients in one kernel or each in its own blocks; or heads of 256.
static bool is_of_192(const struct attention_problem *p) {
    return p->head_dim <= WIDE && p->head_dim_v <= FLASH3_WIDE_VALUES;
}
static struct tsri_cuda_program wide_program(tsr_dtype dtype) {
    return attention_cuda_program(
        "ops/attention/cuda/backward/flash3/attention_backward_wide_sm90.cu",
        "attention_backward_wide", dtype);
}
static struct tsri_cuda_program deep_program(tsr_dtype dtype, bool is_of_192) {
    struct tsri_cuda_program program =
        attention_cuda_program("ops/attention/cuda/backward/flash3/attention_backward_deep_sm90.cu",
                               "attention_backward_deep", dtype);
    attention_cuda_define(&program, "HEAD_DIM", is_of_192 ? WIDE : DEEP);
    attention_cuda_define(&program, "HEAD_DIM_V", is_of_192 ? FLASH3_WIDE_VALUES : DEEP);
    return program;
}

// The program that computes all gradients in one kernel.
static struct tsri_cuda_program at_once_program(const struct attention_problem *p, int64_t dims,
                                                bool is_ahead) {
    return dims == WIDE ? wide_program(p->dtype)
                        : keys_program(p->dtype, dims, terms_of(p), is_ahead);
}

static struct tsri_cuda_program dq_program(void) {
    return (struct tsri_cuda_program){
        .source = "ops/attention/cuda/backward/flash3/attention_backward_flash3_dq.cu",
        .entry = "attention_backward_flash3_dq"};
}

bool attention_backward_flash3_kernel(int *index, struct tsri_cuda_program *program) {
    static const tsr_dtype dtypes[] = {TSR_BF16, TSR_F16};
    if ((*index)-- == 0) {
        *program = dq_program();
        return true;
    }
    for (int d = 0; d < TSRI_COUNT(dtypes); d++) {
        for (int i = 0; i < 3; i++) {
            if ((*index)-- > 0) continue;
            *program = i == 2 ? wide_program(dtypes[d]) : deep_program(dtypes[d], i == 1);
            program->is_rare = dtypes[d] == TSR_F16;
            return true;
        }
        for (int head_dim = 64; head_dim <= 128; head_dim += head_dim)
            for (int terms = -1; terms < NUM_TERMS; terms++) { // -1: no terms, AHEAD
                if ((terms == F32_BIAS && head_dim == 64) || (terms < 0 && dtypes[d] != TSR_BF16) ||
                    (*index)-- > 0)
                    continue;
                *program = keys_program(dtypes[d], head_dim,
                                        terms < 0 ? NO_TERMS : (enum terms)terms, terms < 0);
                program->is_rare = terms >= BIAS || (terms > NO_TERMS && dtypes[d] == TSR_F16);
                return true;
            }
    }
    return attention_backward_dbias_kernel(index, program);
}

static int64_t key_tiles(const struct attention_problem *p) {
    return tsri_ceil_div(p->seqlen_k, FLASH3_OWNED);
}

static int64_t num_tasks(const struct attention_problem *p) {
    return p->num_batches * p->num_heads_kv * key_tiles(p);
}

static int64_t num_query_tasks(const struct attention_problem *p) {
    return p->num_batches * p->num_heads_q * tsri_ceil_div(p->seqlen_q, FLASH3_OWNED);
}

// All gradients in one kernel take five products instead of eight. But a block for each gradient gives three times as many blocks,
// which fill the multiprocessors more evenly if there are few, and a gradient that is not wanted costs nothing. The choice depends
// on other heads of the call, so it is fixed under TSR_BATCH_INVARIANT.
static bool is_at_once(const struct attention_problem *p, const struct tsri_limits *limits) {
    const int64_t rounds = tsri_ceil_div(num_tasks(p), tsri_max(limits->num_sms, 1));
    const bool is_long = p->seqlen_q * (p->num_heads_q / tsri_max(p->num_heads_kv, 1)) >= 1024;
    if (p->dq.data == NULL || p->dk.data == NULL) return false;
    return (limits->flags & TSR_BATCH_INVARIANT) != 0 ||
           (rounds > 1 && num_tasks(p) * 20 >= rounds * limits->num_sms * (is_long ? 14 : 17));
}

// Columns of a tile. A bias in fp32 fits only with the few queries of a tile of 128 columns.
static int64_t tile_dims(const struct attention_problem *p, const struct tsri_limits *limits) {
    const int64_t dims = attention_backward_tile_dims(p);
    if (dims == DEEP) return is_of_192(p) && is_at_once(p, limits) ? WIDE : DEEP;
    return terms_of(p) == F32_BIAS ? tsri_max(dims, 128) : dims;
}

// ---- What is served ---------------------------------------------------------------------------

// Columns, rows, heads and batches. Strides of dimensions of one element do not matter.
static struct tsri_tensor_map_args map_of(const struct attention_problem *p,
                                          const struct attention_view *view, int64_t dims,
                                          bool is_of_keys, int rows) {
    const int64_t seqlen = is_of_keys ? p->seqlen_k : p->seqlen_q;
    const int64_t total = is_of_keys ? p->total_k : p->total_q;
    struct tsri_tensor_map_args args = {
        .data = view->data,
        .dtype = p->dtype,
        .size = {dims, p->is_packed ? total : seqlen, is_of_keys ? p->num_heads_kv : p->num_heads_q,
                 p->is_packed ? 1 : p->num_batches, 1},
        .stride = {1, view->seq, view->head, view->batch, SLAB},
        .box = {SLAB, rows, 1, 1, 1},
        .is_swizzled = true,
    };
    for (int i = 1; i < TSRI_TENSOR_MAP_RANK; i++)
        if (args.size[i] == 1) args.stride[i] = SLAB;
    return args;
}

// Whether the form for short sequences serves, in which the kernel of all gradients finishes dq. It needs every query to see a
// key, and the copy engine to store tiles of dq, which packed sequences do not have to themselves. Its steps take up to a tenth
// longer, which matters more with long sequences. Both forms give the same bits.
static bool is_ahead(const struct attention_problem *p) {
    const int64_t dims = attention_backward_tile_dims(p);
    const int64_t most = (dims == 64 ? 1024 : 512) * (p->mask == TSR_MASK_NONE ? 1 : 4);
    const bool is_narrow = // tasks are short for any length
        p->mask != TSR_MASK_NONE && p->has_window_left && p->window_left <= 512;
    const bool has_right = p->mask != TSR_MASK_NONE || p->has_window_right;
    const bool sees_some = p->mask == TSR_MASK_CAUSAL_TOP_LEFT ? !p->has_window_left
                           : has_right || p->has_window_left   ? p->seqlen_k >= p->seqlen_q
                                                               : true;
    if (dims > 128 || p->dtype != TSR_BF16 || p->dq.data == NULL || terms_of(p) != NO_TERMS ||
        p->is_packed || p->seqused_k != NULL || !sees_some ||
        (tsri_max(p->seqlen_q, p->seqlen_k) > most && !is_narrow))
        return false;
    const struct tsri_tensor_map_args args =
        map_of(p, &p->dq, p->head_dim, false, FLASH3_PASSING(dims));
    return tsri_tensor_map_fits(&args) && p->head_dim % 8 == 0;
}

static int64_t shared_bytes(const struct attention_problem *p, int64_t dims) {
    if (dims == DEEP) return FLASH3_DEEP_SHARED_BYTES;
    if (dims == WIDE) return FLASH3_WIDE_SHARED_BYTES;
    if (p->bias.data != NULL) return FLASH3_BIAS_SHARED_BYTES;
    return FLASH3_SHARED_BYTES(dims, FLASH3_KEY_STAGES(is_ahead(p)));
}

// Maps of q, k, v and dout, with boxes of `queries` and `keys` rows.
static void list_maps(const struct attention_problem *p, int queries, int keys,
                      struct tsri_tensor_map_args maps[4]) {
    maps[0] = map_of(p, &p->q, p->head_dim, false, queries);
    maps[1] = map_of(p, &p->k, p->head_dim, true, keys);
    maps[2] = map_of(p, &p->v, p->head_dim_v, true, keys);
    maps[3] = map_of(p, &p->dout, p->head_dim_v, false, queries);
}

static tsr_status set_maps(tsr_context *ctx, const struct attention_problem *p, int queries,
                           int keys, struct attention_backward_maps *to) {
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    struct tsri_tensor_map_args maps[4];
    list_maps(p, queries, keys, maps);
    TSRI_TRY(tsri_cuda_queue_map(op, queue, &maps[0], &to->q));
    TSRI_TRY(tsri_cuda_queue_map(op, queue, &maps[1], &to->k));
    TSRI_TRY(tsri_cuda_queue_map(op, queue, &maps[2], &to->v));
    return tsri_cuda_queue_map(op, queue, &maps[3], &to->dout);
}

bool attention_cuda_has_flash3_backward(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    const int64_t dims = tile_dims(p, limits);
    struct tsri_tensor_map_args maps[4];
    if (limits->cuda_arch != 90 || !attention_cuda_serves(p, limits)) return false;
    if (p->dtype != TSR_BF16 && p->dtype != TSR_F16) return false;
    if (dims > 128 && attention_backward_has_features(p)) return false;
    if (p->bias.data != NULL &&
        (p->softcap != 0 || p->slopes.data != NULL || p->dropout_threshold != 0 ||
         !attention_backward_has_bias_map(p) || !attention_backward_has_room_for_dbias(p, limits)))
        return false;
    if (p->softcap > 0 && (terms_of(p) != SOFTCAP || p->softcap > MOST_SOFTCAP ||
                           fabs(p->softmax_scale) / p->softcap > MOST_TO_SOFTCAP))
        return false;
    if (p->num_batches < 1 || p->num_heads_q < 1 || p->num_heads_kv < 1 || p->seqlen_q < 1 ||
        p->seqlen_k < 1 || 2 * num_tasks(p) + num_query_tasks(p) > INT32_MAX)
        return false;
    list_maps(p, FLASH3_DEEP_PASSING, FLASH3_OWNED, maps);
    for (int i = 0; i < 4; i++)
        if (!tsri_tensor_map_fits(&maps[i])) return false;
    // Shared memory must start at a multiple of 1024, up to FOR_ALIGNMENT bytes behind its given start. Kernels without other
    // shared memory start there at once.
    const bool is_at_start = p->bias.data != NULL || dims == WIDE || (dims == 128 && is_ahead(p));
    return attention_backward_is_aligned(p) &&
           shared_bytes(p, dims) + (is_at_start ? 0 : FOR_ALIGNMENT) <=
               limits->shared_bytes_per_block;
}

// ---- Plans ------------------------------------------------------------------------------------

static int64_t turns(const struct attention_problem *p) {
    return FLASH3_TURNS_AT + attention_backward_statistics(p) / FLASH3_TURN_ROWS;
}

// The number of heads whose tiles alternate. A block that adds to dq after another should begin so much later that it need not
// wait: that matters more than keeping the sums in the second-level cache. If a mask makes tasks differ, the long tasks of many
// heads come first.
static int64_t section_of(const struct attention_problem *p, const struct tsri_limits *limits) {
    const int64_t group = p->num_heads_q / p->num_heads_kv, least = 32;
    const int64_t steps = tsri_ceil_div(p->seqlen_q, FLASH3_PASSING(tile_dims(p, limits))) * group;
    const int64_t wanted = 2 * tsri_ceil_div(limits->num_sms, steps);
    return tsri_min(tsri_max(wanted, least), p->num_batches * p->num_heads_kv);
}

void attention_cuda_plan_flash3_backward(const void *problem, const struct tsri_limits *limits,
                                         struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    plan->block_k = tile_dims(p, limits);
    plan->block_m = FLASH3_PASSING(plan->block_k);
    plan->block_n = FLASH3_OWNED;
    plan->grain = section_of(p, limits);
    plan->num_tasks = tsri_min(num_tasks(p), tsri_max(limits->num_sms, 1));
    plan->workspace_bytes = (size_t)attention_backward_statistics_floats(p) * sizeof(float);
    if (plan->block_k != DEEP)
        plan->workspace_bytes += (size_t)(attention_backward_statistics(p) * plan->block_k +
                                          turns(p) + attention_backward_dbias_sums(p)) *
                                 sizeof(float);
}

// ---- Launches ---------------------------------------------------------------------------------

// The problem for the shared kernels, without what flash3 writes itself.
static struct attention_problem without_dbias(const struct attention_problem *p) {
    struct attention_problem rest = *p;
    if (attention_backward_flash3_has_dbias(p)) rest.dbias.data = NULL;
    return rest;
}

tsr_status attention_cuda_flash3_backward_prepare(tsr_context *ctx, const void *problem,
                                                  const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    struct tsri_cuda_program programs[ATTENTION_BACKWARD_PROGRAMS];
    const struct attention_problem rest = without_dbias(p);
    int count = attention_backward_shared_programs(ctx, &rest, false, programs);
    if (plan->block_k == DEEP) {
        programs[count++] = deep_program(p->dtype, is_of_192(p));
    } else {
        programs[count++] = at_once_program(p, plan->block_k, is_ahead(p));
        if (p->dq.data != NULL && !is_ahead(p)) programs[count++] = dq_program();
        count += attention_backward_dbias_programs(p, plan->block_k, programs + count);
    }
    return attention_backward_prepare(ctx, p, programs, count);
}

// The kernel starts before the previous one has ended, and waits for its end where needed.
static tsr_status launch(tsr_context *ctx, const struct tsri_cuda_program *program,
                         int64_t num_blocks, int num_threads, int64_t bytes, const void *params) {
    const struct tsri_cuda_launch launch = {.num_blocks = num_blocks,
                                            .num_threads = num_threads,
                                            .shared_bytes = (int)bytes,
                                            .is_early = true,
                                            .params = params};
    return tsri_cuda_launch(op, tsri_context_queue(ctx), program, &launch);
}

static float scale_log2(const struct attention_problem *p) {
    return (float)(p->softmax_scale * LOG2_E);
}

// Blocks for dv, for dk and for dq.
static tsr_status run_deep(tsr_context *ctx, const struct attention_problem *p,
                           const struct tsri_plan *plan, struct attention_backward_params b) {
    const struct tsri_cuda_program program = deep_program(p->dtype, is_of_192(p));
    struct attention_backward_deep_params params = {
        .b = b,
        .scale_log2 = scale_log2(p),
        .section = (int)plan->grain,
        .num_query_tiles = (int)tsri_ceil_div(p->seqlen_q, FLASH3_OWNED),
        .num_blocks = {p->dv.data != NULL ? (unsigned)num_tasks(p) : 0,
                       p->dk.data != NULL ? (unsigned)num_tasks(p) : 0,
                       p->dq.data != NULL ? (unsigned)num_query_tasks(p) : 0},
    };
    const int64_t num_blocks =
        (int64_t)params.num_blocks[0] + params.num_blocks[1] + params.num_blocks[2];
    params.b.num_tiles = (int)key_tiles(p);
    if (num_blocks == 0) return TSR_OK;
    TSRI_TRY(set_maps(ctx, p, FLASH3_OWNED, FLASH3_OWNED, &params.owned));
    TSRI_TRY(set_maps(ctx, p, FLASH3_DEEP_PASSING, FLASH3_DEEP_PASSING, &params.passing));
    return launch(ctx, &program, num_blocks, FLASH3_THREADS, FLASH3_DEEP_SHARED_BYTES, &params);
}

// dv, dk and the sums of dq; then dq.
static tsr_status run_at_once(tsr_context *ctx, const struct attention_problem *p,
                              const struct tsri_plan *plan, struct attention_backward_params b) {
    const struct tsri_cuda_program keys = at_once_program(p, plan->block_k, is_ahead(p)),
                                   dq = dq_program();
    struct attention_backward_flash3_params params = {
        .b = b,
        .dq = b.lse + attention_backward_statistics_floats(p),
        .scale_log2 = scale_log2(p),
        .section = (int)plan->grain,
        .tile_dims = (int)plan->block_k,
    };
    if (p->softcap != 0) {
        params.softcap = (float)(p->softcap * LOG2_E);
        params.to_softcap = (float)(2 * LOG2_E * p->softmax_scale / p->softcap);
    }
    TSRI_TRY(set_maps(ctx, p, (int)plan->block_m, (int)plan->block_n, &params.maps));
    if (is_ahead(p)) {
        const struct tsri_tensor_map_args args =
            map_of(p, &p->dq, p->head_dim, false, (int)plan->block_m);
        TSRI_TRY(tsri_cuda_queue_map(op, tsri_context_queue(ctx), &args, &params.final_dq));
    }
    if (p->bias.data != NULL)
        TSRI_TRY(attention_backward_set_bias(ctx, p, (int)plan->block_m, &params.bias));
    if (attention_backward_dbias_sums(p) > 0)
        params.bias.sums = (float *)(void *)(b.turns + turns(p));
    params.b.num_tiles = (int)key_tiles(p);
    params.b.num_tasks = num_tasks(p);
    TSRI_TRY(launch(ctx, &keys, plan->num_tasks, FLASH3_THREADS, shared_bytes(p, plan->block_k),
                    &params));
    if (p->dq.data != NULL && !is_ahead(p)) {
        params.b.num_tiles = (int)tsri_ceil_div(p->seqlen_q, plan->block_m);
        params.b.num_tasks = p->num_batches * p->num_heads_q * params.b.num_tiles;
        TSRI_TRY(launch(ctx, &dq, tsri_min(params.b.num_tasks, INT32_MAX), DQ_THREADS, 0, &params));
    }
    if (p->bias.data == NULL) return TSR_OK;
    TSRI_TRY(set_maps(ctx, p, FLASH3_OWNED, FLASH3_OWNED, &params.maps));
    return attention_backward_finish_dbias(ctx, p, params);
}

tsr_status attention_cuda_flash3_backward_run(tsr_context *ctx, const void *problem,
                                              const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    struct attention_backward_params b = attention_backward_params_of(p, workspace);
    if (plan->block_k != DEEP)
        b.turns = (int *)(void *)(b.lse + attention_backward_statistics_floats(p) +
                                  attention_backward_statistics(p) * plan->block_k);
    TSRI_TRY(attention_backward_start(ctx, p, b, false));
    TSRI_TRY(plan->block_k == DEEP ? run_deep(ctx, p, plan, b) : run_at_once(ctx, p, plan, b));
    const struct attention_problem rest = without_dbias(p);
    return attention_backward_finish(ctx, &rest, b);
}
