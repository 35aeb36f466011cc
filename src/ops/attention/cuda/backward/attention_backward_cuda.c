// SPDX-License-Identifier: Apache-2.0
// The part of attention's backward on CUDA that all variants share: statistics of the rows first, dsinks and dbias last, and their
// kernels.
#include "ops/attention/cuda/backward/attention_backward_cuda.h"
#include "ops/attention/cuda/backward/attention_backward_fma_cuda.h"

enum {
    ROWS_THREADS = 256,
    SINKS_THREADS = 512,
    BIAS_BLOCK = 32, // rows; half where a block has less shared memory
    LSE_BLOCK = 32,
};
static const char op[] = "attention_backward";

// ---- Programs ---------------------------------------------------------------------------------

#define SOURCE(name) "ops/attention/cuda/backward/attention_backward_" name ".cu"
enum kernel { ROWS, LSE, SINKS, BIAS };
static const struct {
    const char *source, *entry;
} any_dtype[] = {
    [ROWS] = {SOURCE("rows"), "attention_backward_rows"},
    [LSE] = {SOURCE("lse"), "attention_backward_lse"},
    [SINKS] = {SOURCE("sinks"), "attention_backward_sinks"},
    [BIAS] = {SOURCE("bias"), "attention_backward_bias"},
};

static struct tsri_cuda_program any_program(enum kernel kernel) {
    return (struct tsri_cuda_program){.source = any_dtype[kernel].source,
                                      .entry = any_dtype[kernel].entry};
}

static struct tsri_cuda_program bias_program(int64_t block) {
    struct tsri_cuda_program program = any_program(BIAS);
    attention_cuda_define(&program, "BLOCK", block);
    return program;
}

bool attention_backward_shared_kernel(int *index, int cuda_arch,
                                      struct tsri_cuda_program *program) {
    const int num_blocks = attention_backward_has_whole_tiles(cuda_arch) ? 1 : 2;
    for (int kernel = 0; kernel < TSRI_COUNT(any_dtype); kernel++)
        for (int i = 0; i < (kernel == BIAS ? num_blocks : 1); i++) {
            if ((*index)-- > 0) continue;
            *program =
                kernel == BIAS ? bias_program(BIAS_BLOCK >> i) : any_program((enum kernel)kernel);
            return true;
        }
    return false;
}

// ---- Plans ------------------------------------------------------------------------------------

int64_t attention_backward_tile_dims(const struct attention_problem *p) {
    const int64_t dims = attention_backward_deepest(p);
    return dims <= 64 ? 64 : dims <= 128 ? 128 : 256;
}

bool attention_backward_has_features(const struct attention_problem *p) {
    return p->softcap != 0 || p->bias.data != NULL || p->slopes.data != NULL ||
           p->dropout_threshold != 0;
}

// Rows of the statistics of one head. Packed: of all sequences, each of which starts a group of rows later.
static int64_t statistic_rows(const struct attention_problem *p) {
    const int64_t unit = ATTENTION_STATISTIC_ROWS;
    if (p->is_packed) return (p->total_q / unit + p->num_batches + 1) * unit;
    return tsri_ceil_div(p->seqlen_q, unit) * unit;
}

int64_t attention_backward_statistics(const struct attention_problem *p) {
    return (p->is_packed ? 1 : p->num_batches) * p->num_heads_q * statistic_rows(p);
}

// lse and delta. With a bias also lse_low, and a flag whether any lse_low is not 0, in a cache line of its own.
int64_t attention_backward_statistics_floats(const struct attention_problem *p) {
    const int64_t rows = attention_backward_statistics(p);
    return p->bias.data != NULL ? 3 * rows + 32 : 2 * rows;
}

bool attention_backward_is_aligned(const struct attention_problem *p) {
    const struct attention_view *of_queries[] = {&p->q, &p->dout, &p->dq};
    const struct attention_view *of_keys[] = {&p->k, &p->v, &p->dk, &p->dv};
    for (int i = 0; i < TSRI_COUNT(of_queries); i++)
        if (of_queries[i]->data != NULL && !attention_cuda_is_aligned(p, of_queries[i], false))
            return false;
    for (int i = 0; i < TSRI_COUNT(of_keys); i++)
        if (of_keys[i]->data != NULL && !attention_cuda_is_aligned(p, of_keys[i], true))
            return false;
    return true;
}

// Shared memory of queries and keys only.
static int64_t lse_shared_bytes(const struct attention_problem *p) {
    return 2 * LSE_BLOCK * attention_backward_fma_stride(p->head_dim) * (int64_t)sizeof(float);
}

static int64_t bias_block(const struct attention_problem *p, const struct tsri_limits *limits) {
    return attention_backward_fma_rows(p, BIAS_BLOCK, 1, limits);
}

bool attention_backward_has_room_for_dbias(const struct attention_problem *p,
                                           const struct tsri_limits *limits) {
    return p->dbias.data == NULL || attention_backward_fma_bytes(p, bias_block(p, limits), 1) <=
                                        limits->shared_bytes_per_block;
}

// ---- Steps that all variants share ------------------------------------------------------------

struct attention_backward_params attention_backward_params_of(const struct attention_problem *p,
                                                              void *workspace) {
    struct attention_backward_params b = {
        .p = attention_cuda_params(p),
        .lse = workspace,
        .statistic_rows = statistic_rows(p),
        .num_statistics = attention_backward_statistics(p),
        .dtype = (int)p->dtype,
        .bias_dtype = (int)p->bias.dtype,
        .slopes_dtype = (int)p->slopes.dtype,
        .sinks_dtype = (int)p->sinks.dtype,
    };
    b.delta = b.lse + attention_backward_statistics(p);
    if (p->bias.data != NULL) b.lse_low = b.delta + attention_backward_statistics(p);
    if (p->num_heads_q == 0) b.p.group = 0; // keys that no head reads
    return b;
}

// For kernels of any dtype: bias, slopes and sinks have dtypes of their own.
static void set_beside(struct attention_backward_params *b) {
    b->p.bias.is_f32 = b->bias_dtype;
    b->p.slopes.is_f32 = b->slopes_dtype;
    b->p.sinks.is_f32 = b->sinks_dtype;
}

static tsr_status launch(tsr_context *ctx, const struct tsri_cuda_program *program, int num_threads,
                         int64_t shared_bytes, const struct attention_backward_params *b) {
    return attention_cuda_launch(ctx, op, program, b->num_tasks, num_threads, shared_bytes, b);
}

void attention_backward_set_any_dtype(const struct attention_problem *p,
                                      struct attention_backward_params *b) {
    set_beside(b);
    b->is_vector = attention_backward_is_aligned(p);
}

// Clears rows of no sequence and computes the statistics.
tsr_status attention_backward_start(tsr_context *ctx, const struct attention_problem *p,
                                    struct attention_backward_params b, bool sums_rows) {
    const struct tsri_cuda_program program = any_program(ROWS);
    TSRI_TRY(attention_cuda_clear(ctx, op, p, &p->dq, p->head_dim, false, false));
    TSRI_TRY(attention_cuda_clear(ctx, op, p, &p->dk, p->head_dim, true, false));
    TSRI_TRY(attention_cuda_clear(ctx, op, p, &p->dv, p->head_dim_v, true, false));
    b.num_tiles = (int)(tsri_ceil_div(p->seqlen_q, ATTENTION_STATISTIC_ROWS) *
                        (ATTENTION_STATISTIC_ROWS / ATTENTION_STATISTIC_BLOCK));
    b.num_tasks = p->num_heads_q > 0 ? p->num_batches * b.num_tiles : 0;
    b.is_vector = attention_cuda_is_aligned(p, &p->out, false) &&
                  attention_cuda_is_aligned(p, &p->dout, false) &&
                  p->head_dim_v * (int64_t)tsr_dtype_bytes(p->dtype) % 16 == 0;
    TSRI_TRY(launch(ctx, &program, ROWS_THREADS, 0, &b));
    if (p->bias.data == NULL || sums_rows) return TSR_OK;
    const struct tsri_cuda_program lse = any_program(LSE);
    attention_backward_set_any_dtype(p, &b);
    b.num_tiles = (int)tsri_ceil_div(p->seqlen_q, ATTENTION_STATISTIC_ROWS);
    b.num_tasks = p->num_batches * p->num_heads_q * b.num_tiles;
    const struct tsri_cuda_launch early = {.num_blocks = tsri_min(b.num_tasks, INT32_MAX),
                                           .num_threads = BACKWARD_FMA_THREADS,
                                           .shared_bytes = (int)lse_shared_bytes(p),
                                           .is_early = true,
                                           .params = &b};
    if (b.num_tasks == 0) return TSR_OK;
    return tsri_cuda_launch(op, tsri_context_queue(ctx), &lse, &early);
}

// dsinks and dbias.
tsr_status attention_backward_finish(tsr_context *ctx, const struct attention_problem *p,
                                     struct attention_backward_params b) {
    set_beside(&b);
    if (p->dsinks.data != NULL) {
        const struct tsri_cuda_program program = any_program(SINKS);
        b.num_tasks = p->num_heads_q;
        TSRI_TRY(launch(ctx, &program, SINKS_THREADS, 0, &b));
    }
    if (p->dbias.data == NULL) return TSR_OK;
    const int64_t block = bias_block(p, tsri_context_limits(ctx));
    const struct tsri_cuda_program program = bias_program(block);
    const int64_t *shape = p->dbias.shape;
    b.is_vector = attention_backward_is_aligned(p);
    b.num_tasks =
        shape[0] * shape[1] * tsri_ceil_div(shape[2], block) * tsri_ceil_div(shape[3], block);
    return launch(ctx, &program, BACKWARD_FMA_THREADS, attention_backward_fma_bytes(p, block, 1),
                  &b);
}

int attention_backward_shared_programs(tsr_context *ctx, const struct attention_problem *p,
                                       bool sums_rows, struct tsri_cuda_program *programs) {
    int count = 0;
    programs[count++] = any_program(ROWS);
    if (p->bias.data != NULL && !sums_rows) programs[count++] = any_program(LSE);
    if (p->dsinks.data != NULL) programs[count++] = any_program(SINKS);
    if (p->dbias.data != NULL)
        programs[count++] = bias_program(bias_block(p, tsri_context_limits(ctx)));
    return count;
}

tsr_status attention_backward_prepare(tsr_context *ctx, const struct attention_problem *p,
                                      const struct tsri_cuda_program *programs, int count) {
    for (int i = 0; i < count; i++)
        TSRI_TRY(tsri_cuda_prepare(op, tsri_context_queue(ctx), &programs[i]));
    return attention_cuda_prepare_clear(ctx, op, p);
}
