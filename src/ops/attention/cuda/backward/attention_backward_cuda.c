// SPDX-License-Identifier: Apache-2.0
// Attention's backward on CUDA: plans and launches. Every variant starts with the statistics of the rows, and shares
// the kernels of dsinks and dbias; dk and dv, and dq, come of one kernel each.
#include "ops/attention/cuda/backward/attention_backward_cuda.h"

enum {
    ROWS_THREADS = 256,
    SINKS_THREADS = 512,
    FMA_THREADS = 256,
    FMA_LOW_DIM = 128, // columns up to which tiles are FMA_BLOCK high
    FMA_BLOCK = 64,
    FMA_DEEP_BLOCK = 32, // half of either where a block has less shared memory
    BIAS_BLOCK = 32,     // the same
    LSE_BLOCK = 32,
    NAIVE_THREADS = 128,
};
static const char op[] = "attention_backward";

// ---- Programs ---------------------------------------------------------------------------------

#define SOURCE(name) "ops/attention/cuda/backward/attention_backward_" name ".cu"
enum kernel { ROWS, LSE, SINKS, BIAS, NAIVE_SCORES, NAIVE_PRODUCTS, FLASH1_KEYS, FLASH1_QUERIES };
static const struct {
    const char *source, *entry;
    bool is_flash1; // with DEPTH, 128 or 256
} any_dtype[] = {
    [ROWS] = {SOURCE("rows"), "attention_backward_rows", false},
    [LSE] = {SOURCE("lse"), "attention_backward_lse", false},
    [SINKS] = {SOURCE("sinks"), "attention_backward_sinks", false},
    [BIAS] = {SOURCE("bias"), "attention_backward_bias", false},
    [NAIVE_SCORES] = {SOURCE("naive_scores"), "attention_backward_naive_scores", false},
    [NAIVE_PRODUCTS] = {SOURCE("naive_products"), "attention_backward_naive_products", false},
    [FLASH1_KEYS] = {SOURCE("flash1_keys"), "attention_backward_flash1_keys", true},
    [FLASH1_QUERIES] = {SOURCE("flash1_queries"), "attention_backward_flash1_queries", true},
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

static struct tsri_cuda_program flash1_program(enum kernel kernel, int64_t depth, int64_t block) {
    struct tsri_cuda_program program = any_program(kernel);
    attention_cuda_define(&program, "BLOCK", block);
    attention_cuda_define(&program, "DEPTH", depth);
    return program;
}

static int64_t most_rows(int64_t depth) { return depth > FMA_LOW_DIM ? FMA_DEEP_BLOCK : FMA_BLOCK; }

// Whether all plans have room for tiles of the most rows.
static bool has_whole_tiles(int cuda_arch) {
    return tsri_cuda_arch_shared_bytes(cuda_arch) >= tsri_cuda_arch_shared_bytes(90);
}

bool attention_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    const int num_blocks = has_whole_tiles(cuda_arch) ? 1 : 2;
    for (int kernel = 0; kernel < TSRI_COUNT(any_dtype); kernel++) {
        const bool is_flash1 = any_dtype[kernel].is_flash1, is_bias = kernel == BIAS;
        for (int i = 0; i < (is_flash1 ? 2 : 1) * (is_flash1 || is_bias ? num_blocks : 1); i++) {
            const int64_t depth = is_flash1 && i / num_blocks == 1 ? 256 : FMA_LOW_DIM;
            if (index-- > 0) continue;
            *program = is_bias     ? bias_program(BIAS_BLOCK >> i)
                       : is_flash1 ? flash1_program((enum kernel)kernel, depth,
                                                    most_rows(depth) >> i % num_blocks)
                                   : any_program((enum kernel)kernel);
            program->is_rare = kernel == NAIVE_SCORES || kernel == NAIVE_PRODUCTS ||
                               (is_flash1 && (depth > FMA_LOW_DIM || cuda_arch == 90));
            return true;
        }
    }
    if (attention_backward_flash2_kernel(&index, cuda_arch, program)) return true;
    return cuda_arch == 90 && (attention_backward_flash3_kernel(&index, program) ||
                               attention_backward_small_kernel(&index, program));
}

// ---- Plans ------------------------------------------------------------------------------------

static int64_t deepest(const struct attention_problem *p) {
    return tsri_max(p->head_dim, p->head_dim_v);
}

int64_t attention_backward_tile_dims(const struct attention_problem *p) {
    return deepest(p) <= 64 ? 64 : deepest(p) <= 128 ? 128 : 256;
}

bool attention_backward_has_features(const struct attention_problem *p) {
    return p->softcap != 0 || p->bias.data != NULL || p->slopes.data != NULL ||
           p->dropout_threshold != 0;
}

// Of a head; packed: of all sequences, each of which starts a group of rows later.
static int64_t statistic_rows(const struct attention_problem *p) {
    const int64_t unit = ATTENTION_STATISTIC_ROWS;
    if (p->is_packed) return (p->total_q / unit + p->num_batches + 1) * unit;
    return tsri_ceil_div(p->seqlen_q, unit) * unit;
}

int64_t attention_backward_statistics(const struct attention_problem *p) {
    return (p->is_packed ? 1 : p->num_batches) * p->num_heads_q * statistic_rows(p);
}

// lse and delta; beside a bias lse_low, too, and whether any of it is not 0: rounded to a line of the cache.
int64_t attention_backward_statistics_floats(const struct attention_problem *p) {
    const int64_t rows = attention_backward_statistics(p);
    return p->bias.data != NULL ? 3 * rows + 32 : 2 * rows;
}

static int64_t num_scores(const struct attention_problem *p) {
    return attention_round16(p->num_batches * p->num_heads_q * p->seqlen_q * p->seqlen_k);
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

static int64_t round32(int64_t n) { return (int64_t)tsri_round_up((size_t)n, 32); }

// Tiles of keys, values, queries and dout, and num_scores matrices of scores, of `block` rows each.
static int64_t fma_shared_bytes(const struct attention_problem *p, int64_t block, int num_scores) {
    int64_t stride = round32(p->head_dim) + 4, stride_v = round32(p->head_dim_v) + 4;
    return block * (2 * (stride + stride_v) + num_scores * (block + 4)) * (int64_t)sizeof(float);
}

// Queries and keys alone.
static int64_t lse_shared_bytes(const struct attention_problem *p) {
    return 2 * LSE_BLOCK * (round32(p->head_dim) + 4) * (int64_t)sizeof(float);
}

// Beside a mark for each row, of the most.
static bool has_fma_room(const struct attention_problem *p, int64_t block, int num_scores,
                         const struct tsri_limits *limits) {
    enum { MARKS = FMA_BLOCK * sizeof(float) };
    return fma_shared_bytes(p, block, num_scores) + MARKS <= limits->shared_bytes_per_block;
}

// Rows of a tile: the most, or half of them where there is less room.
static int64_t rows_that_fit(const struct attention_problem *p, int64_t most, int num_scores,
                             const struct tsri_limits *limits) {
    return has_fma_room(p, most, num_scores, limits) ? most : most / 2;
}

static int64_t bias_block(const struct attention_problem *p, const struct tsri_limits *limits) {
    return rows_that_fit(p, BIAS_BLOCK, 1, limits);
}

bool attention_backward_has_room_for_dbias(const struct attention_problem *p,
                                           const struct tsri_limits *limits) {
    return p->dbias.data == NULL ||
           fma_shared_bytes(p, bias_block(p, limits), 1) <= limits->shared_bytes_per_block;
}

// Of a few queries and keys a tile of flash1's, and of flash3's, is mostly empty, and what it costs to start one counts;
// flash3's where there are more heads than run side by side. Not with a bias, which costs flash2 more than that, and not in f16 on
// Hopper, where flash2's kernels are rare ones. Other heads of a call decide, so not under TSR_BATCH_INVARIANT.
const char *attention_cuda_prefer_backward(const void *problem, const struct tsri_limits *limits) {
    enum { FEW = 16, FEW_DEEP = 32, FEW_SHALLOW = 96, MANY_HEADS = 64 };
    const struct attention_problem *p = problem;
    const int64_t longest = tsri_max(p->seqlen_q, p->seqlen_k);
    if (attention_backward_prefers_small(p, limits)) return "cuda-small";
    if (limits->flags & TSR_BATCH_INVARIANT) return NULL;
    if (p->dtype == TSR_F32) return longest <= FEW && deepest(p) > 128 ? "cuda-naive" : NULL;
    if (p->dtype == TSR_F16 && limits->cuda_arch == 90) return NULL;
    const bool is_short = longest <= (deepest(p) <= 64 ? FEW_SHALLOW : FEW_DEEP);
    return is_short && deepest(p) <= 128 && p->bias.data == NULL &&
                   p->num_batches * p->num_heads_q >= MANY_HEADS
               ? "cuda-flash2"
               : NULL;
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

// For kernels of any dtype, in which what lies beside has its own.
static void set_beside(struct attention_backward_params *b) {
    b->p.bias.is_f32 = b->bias_dtype;
    b->p.slopes.is_f32 = b->slopes_dtype;
    b->p.sinks.is_f32 = b->sinks_dtype;
}

static tsr_status launch(tsr_context *ctx, const struct tsri_cuda_program *program, int num_threads,
                         int64_t shared_bytes, const struct attention_backward_params *b) {
    return attention_cuda_launch(ctx, op, program, b->num_tasks, num_threads, shared_bytes, b);
}

// Kernels in fp32 read pieces of four elements where all rows start at multiples of 16 bytes.
static void set_any_dtype(const struct attention_problem *p, struct attention_backward_params *b) {
    set_beside(b);
    b->is_vector = attention_backward_is_aligned(p);
}

// Clears what belongs to no sequence and computes the statistics.
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
    set_any_dtype(p, &b);
    b.num_tiles = (int)tsri_ceil_div(p->seqlen_q, ATTENTION_STATISTIC_ROWS);
    b.num_tasks = p->num_batches * p->num_heads_q * b.num_tiles;
    const struct tsri_cuda_launch early = {.num_blocks = tsri_min(b.num_tasks, INT32_MAX),
                                           .num_threads = FMA_THREADS,
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
    return launch(ctx, &program, FMA_THREADS, fma_shared_bytes(p, block, 1), &b);
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

// ---- flash1 -----------------------------------------------------------------------------------

static int64_t flash1_depth(const struct attention_problem *p) {
    return deepest(p) <= FMA_LOW_DIM ? FMA_LOW_DIM : 256;
}

static int64_t flash1_block(const struct attention_problem *p, const struct tsri_limits *limits) {
    return rows_that_fit(p, most_rows(deepest(p)), 2, limits);
}

bool attention_cuda_has_flash1_backward(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    return attention_cuda_serves(p, limits) && attention_backward_has_room_for_dbias(p, limits) &&
           has_fma_room(p, flash1_block(p, limits), 2, limits);
}

void attention_cuda_plan_flash1_backward(const void *problem, const struct tsri_limits *limits,
                                         struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    plan->block_m = plan->block_n = flash1_block(p, limits);
    plan->block_k = flash1_depth(p);
    plan->workspace_bytes = (size_t)attention_backward_statistics_floats(p) * sizeof(float);
}

tsr_status attention_cuda_flash1_backward_prepare(tsr_context *ctx, const void *problem,
                                                  const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    struct tsri_cuda_program programs[ATTENTION_BACKWARD_PROGRAMS];
    int count = attention_backward_shared_programs(ctx, p, false, programs);
    programs[count++] = flash1_program(FLASH1_KEYS, plan->block_k, plan->block_n);
    programs[count++] = flash1_program(FLASH1_QUERIES, plan->block_k, plan->block_m);
    return attention_backward_prepare(ctx, p, programs, count);
}

tsr_status attention_cuda_flash1_backward_run(tsr_context *ctx, const void *problem,
                                              const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    struct attention_backward_params b = attention_backward_params_of(p, workspace);
    const struct tsri_cuda_program keys = flash1_program(FLASH1_KEYS, plan->block_k, plan->block_n);
    const struct tsri_cuda_program queries =
        flash1_program(FLASH1_QUERIES, plan->block_k, plan->block_m);
    TSRI_TRY(attention_backward_start(ctx, p, b, false));
    set_any_dtype(p, &b);
    b.num_tiles = (int)tsri_ceil_div(p->seqlen_k, plan->block_n);
    b.num_tasks = p->num_batches * p->num_heads_kv * b.num_tiles;
    if (p->dk.data != NULL || p->dv.data != NULL)
        TSRI_TRY(launch(ctx, &keys, FMA_THREADS, fma_shared_bytes(p, plan->block_n, 2), &b));
    b.num_tiles = (int)tsri_ceil_div(p->seqlen_q, plan->block_m);
    b.num_tasks = p->num_batches * p->num_heads_q * b.num_tiles;
    if (p->dq.data != NULL)
        TSRI_TRY(launch(ctx, &queries, FMA_THREADS, fma_shared_bytes(p, plan->block_m, 1), &b));
    return attention_backward_finish(ctx, p, b);
}

// ---- naive ------------------------------------------------------------------------------------

bool attention_cuda_has_naive_backward(const void *problem, const struct tsri_limits *limits) {
    return attention_cuda_serves(problem, limits) &&
           attention_backward_has_room_for_dbias(problem, limits);
}

void attention_cuda_plan_naive_backward(const void *problem, const struct tsri_limits *limits,
                                        struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    (void)limits;
    plan->workspace_bytes =
        (size_t)(attention_backward_statistics_floats(p) + 2 * num_scores(p)) * sizeof(float);
}

tsr_status attention_cuda_naive_backward_prepare(tsr_context *ctx, const void *problem,
                                                 const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    struct tsri_cuda_program programs[ATTENTION_BACKWARD_PROGRAMS];
    int count = attention_backward_shared_programs(ctx, p, false, programs);
    (void)plan;
    programs[count++] = any_program(NAIVE_SCORES);
    programs[count++] = any_program(NAIVE_PRODUCTS);
    return attention_backward_prepare(ctx, p, programs, count);
}

tsr_status attention_cuda_naive_backward_run(tsr_context *ctx, const void *problem,
                                             const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    struct attention_backward_params b = attention_backward_params_of(p, workspace);
    const struct tsri_cuda_program scores = any_program(NAIVE_SCORES);
    const struct tsri_cuda_program products = any_program(NAIVE_PRODUCTS);
    (void)plan;
    TSRI_TRY(attention_backward_start(ctx, p, b, false));
    set_any_dtype(p, &b);
    b.weights = b.lse + attention_backward_statistics_floats(p);
    b.grads = b.weights + num_scores(p);
    b.num_tasks = p->num_batches * p->num_heads_q * p->seqlen_q;
    TSRI_TRY(launch(ctx, &scores, NAIVE_THREADS, 0, &b));
    if (p->dq.data != NULL) TSRI_TRY(launch(ctx, &products, NAIVE_THREADS, 0, &b));
    b.is_of_keys = true;
    b.num_tasks = p->num_batches * p->num_heads_kv * p->seqlen_k;
    if (p->dk.data != NULL || p->dv.data != NULL)
        TSRI_TRY(launch(ctx, &products, NAIVE_THREADS, 0, &b));
    return attention_backward_finish(ctx, p, b);
}
