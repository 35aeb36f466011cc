// SPDX-License-Identifier: Apache-2.0
// The embedding on CUDA. Forward copies rows. Backward sorts the tokens by id, stably, in passes of a few bits each,
// then sums every row in a fixed order without atomic additions.
#include "context/cuda_elements.h"
#include "ops/embedding/embedding_params.h"
#include "ops/embedding/embedding_problem.h"

static const char forward_name[] = "embedding_forward", backward_name[] = "embedding_backward";

static const struct tsri_cuda_program
    gather_program = {.source = "ops/embedding/embedding_gather.cu", .entry = "embedding_gather"},
    count_program = {.source = "ops/embedding/embedding_sort_count.cu",
                     .entry = "embedding_sort_count"},
    scatter_program = {.source = "ops/embedding/embedding_sort_scatter.cu",
                       .entry = "embedding_sort_scatter"},
    starts_program = {.source = "ops/embedding/embedding_starts.cu", .entry = "embedding_starts"},
    join_program = {.source = "ops/embedding/embedding_join.cu",
                    .entry = "embedding_join",
                    .defines = {{"DTYPE", TSR_F32}},
                    .num_defines = 1};

static struct tsri_cuda_program sum_program(tsr_dtype dtype) {
    return tsri_cuda_dtype_program("ops/embedding/embedding_sum.cu", "embedding_sum", dtype);
}

// The kernels use 32-bit numbers of tokens and rows.
bool embedding_cuda_fits(const void *problem, const struct tsri_limits *limits) {
    enum { MOST = 1 << 30 };
    const struct embedding_problem *p = problem;
    (void)limits;
    return p->rows.dtype != TSR_F64 && p->ids.count <= MOST && p->table.rows <= MOST &&
           p->table.cols <= MOST;
}

// ---- Forward ----------------------------------------------------------------------------------

tsr_status embedding_cuda_gather_prepare(tsr_context *ctx, const void *problem,
                                         const struct tsri_plan *plan) {
    (void)problem, (void)plan;
    return tsri_cuda_prepare(forward_name, tsri_context_queue(ctx), &gather_program);
}

// The widest access of which all addresses, strides and row lengths are multiples.
static int access_bytes(const struct embedding_problem *p) {
    uint64_t bytes = tsr_dtype_bytes(p->rows.dtype);
    uint64_t all = (uintptr_t)p->rows.data | (uintptr_t)p->table.data |
                   (uint64_t)p->rows.stride * bytes | (uint64_t)p->table.stride * bytes |
                   (uint64_t)p->rows.cols * bytes | 16;
    return (int)(all & -all);
}

static struct tsri_rows in_accesses(const struct tsri_rows *t, int access) {
    int64_t bytes = (int64_t)tsr_dtype_bytes(t->dtype);
    return (struct tsri_rows){t->data, TSR_E4M3, t->rows, t->cols * bytes / access,
                              t->stride * bytes / access};
}

tsr_status embedding_cuda_gather_run(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan, void *workspace) {
    const struct embedding_problem *p = problem;
    int access = access_bytes(p);
    const struct tsri_rows y = in_accesses(&p->rows, access), *const views[] = {&y},
                           weight = in_accesses(&p->table, access);
    struct embedding_gather_params params = {
        .y = tsri_elements_view(&y),
        .weight = tsri_elements_view(&weight),
        .ids = p->ids.data,
        .ids_stride = p->ids.stride,
        .vocab = p->table.rows,
        .bytes = access,
    };
    (void)plan, (void)workspace;
    tsri_cuda_elements_grid(&params.grid, views, 1, 1, EMBEDDING_GATHER_AT_ONCE);
    return tsri_cuda_elements_launch(ctx, forward_name, &gather_program, &params.grid, &params);
}

bool embedding_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    *program = gather_program;
    return index == 0;
}

// ---- Backward: sizes ----------------------------------------------------------------------------

// How the sort is divided, and where its arrays are in the workspace.
struct layout {
    int passes, bits, chunk, blocks, tiles;
    size_t keys[2], tokens[2], counts, starts, partial, bytes;
};

static struct layout layout_of(const struct embedding_problem *p) {
    enum { MIN_CHUNK = 1024, MAX_BLOCKS = 128, WARPS = EMBEDDING_THREADS / 32, MAX_BITS = 9 };
    _Static_assert(1 << MAX_BITS == EMBEDDING_MAX_DIGITS, "digits of a pass");
    int64_t tokens = p->ids.count, vocab = p->table.rows;
    struct layout l = {.bytes = 0};
    int key_bits = 1; // includes vocab, which is a key too
    while (vocab >> key_bits != 0) key_bits++;
    l.passes = (key_bits + MAX_BITS - 1) / MAX_BITS;
    l.bits = (key_bits + l.passes - 1) / l.passes;
    int64_t chunk = tsri_max(tsri_ceil_div(tokens, MAX_BLOCKS), MIN_CHUNK);
    l.chunk = (int)tsri_round_up((size_t)chunk, WARPS * 32);
    l.blocks = (int)tsri_ceil_div(tokens, l.chunk);
    l.tiles = (int)tsri_ceil_div(tokens, EMBEDDING_SEGMENT);
    size_t *const places[] = {&l.keys[0], &l.keys[1], &l.tokens[0], &l.tokens[1],
                              &l.counts,  &l.starts,  &l.partial};
    const int64_t counts[] = {tokens,
                              tokens,
                              tokens,
                              tokens,
                              (int64_t)l.blocks << l.bits,
                              vocab + 1,
                              2 * (int64_t)l.tiles * p->table.cols};
    for (int i = 0; i < TSRI_COUNT(places); i++) {
        *places[i] = l.bytes;
        l.bytes += tsri_round_up((size_t)counts[i] * 4, 64);
    }
    return l;
}

void embedding_cuda_plan(const void *problem, const struct tsri_limits *limits,
                         struct tsri_plan *plan) {
    const struct embedding_problem *p = problem;
    (void)limits;
    if (p->table.rows == 0 || p->table.cols == 0) return;
    plan->num_tasks = 1;
    plan->workspace_bytes = layout_of(p).bytes;
}

tsr_status embedding_cuda_prepare(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan) {
    const struct embedding_problem *p = problem;
    const struct tsri_cuda_program sum = sum_program(p->rows.dtype);
    const struct tsri_cuda_program *const programs[] = {&count_program, &scatter_program,
                                                        &starts_program, &sum, &join_program};
    (void)plan;
    for (int i = 0; i < TSRI_COUNT(programs); i++)
        TSRI_TRY(tsri_cuda_prepare(backward_name, tsri_context_queue(ctx), programs[i]));
    return TSR_OK;
}

// ---- Backward: launches -------------------------------------------------------------------------

static tsr_status launch(tsr_context *ctx, const struct tsri_cuda_program *program,
                         int64_t num_blocks, const void *params) {
    const struct tsri_cuda_launch launch = {
        .num_blocks = tsri_min(num_blocks, INT32_MAX),
        .num_threads = EMBEDDING_THREADS,
        .params = params,
    };
    if (num_blocks == 0) return TSR_OK;
    return tsri_cuda_launch(backward_name, tsri_context_queue(ctx), program, &launch);
}

// *sorted: which of the two arrays holds the result.
static tsr_status sort(tsr_context *ctx, const struct embedding_problem *p, const struct layout *l,
                       char *workspace, int *sorted) {
    *sorted = 0;
    for (int pass = 0; pass < l->passes; pass++) {
        int from = *sorted, to = 1 - from;
        const struct embedding_sort_params params = {
            .ids = pass == 0 ? p->ids.data : NULL,
            .ids_stride = p->ids.stride,
            .keys_in = (int *)(void *)(workspace + l->keys[from]),
            .tokens_in = (int *)(void *)(workspace + l->tokens[from]),
            .keys_out = (int *)(void *)(workspace + l->keys[to]),
            .tokens_out = (int *)(void *)(workspace + l->tokens[to]),
            .counts = (int *)(void *)(workspace + l->counts),
            .tokens = (int)p->ids.count,
            .vocab = (int)p->table.rows,
            .padding_id = (int)p->padding_id,
            .chunk = l->chunk,
            .blocks = l->blocks,
            .digits = 1 << l->bits,
            .shift = pass * l->bits,
        };
        TSRI_TRY(launch(ctx, &count_program, l->blocks, &params));
        TSRI_TRY(launch(ctx, &scatter_program, l->blocks, &params));
        *sorted = to;
    }
    return TSR_OK;
}

static bool are_aligned(const struct embedding_problem *p) {
    int64_t group = 16 / (int64_t)tsr_dtype_bytes(p->rows.dtype);
    return (uintptr_t)p->rows.data % 16 == 0 && (uintptr_t)p->table.data % 16 == 0 &&
           p->rows.stride % group == 0 && p->table.stride % group == 0 &&
           p->table.cols % group == 0;
}

tsr_status embedding_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                              void *workspace) {
    enum { WARPS = EMBEDDING_THREADS / 32 };
    const struct embedding_problem *p = problem;
    const struct tsri_cuda_program sum = sum_program(p->rows.dtype);
    if (plan->num_tasks == 0) return TSR_OK;
    const struct layout l = layout_of(p);
    char *at = workspace;
    int sorted;
    TSRI_TRY(sort(ctx, p, &l, at, &sorted));
    int64_t warp_cols = 32 * EMBEDDING_GROUPS * 16 / (int64_t)tsr_dtype_bytes(p->rows.dtype);
    struct embedding_sum_params params = {
        .keys = (int *)(void *)(at + l.keys[sorted]),
        .tokens = (int *)(void *)(at + l.tokens[sorted]),
        .starts = (int *)(void *)(at + l.starts),
        .partial = (float *)(void *)(at + l.partial),
        .dy = p->rows.data,
        .dweight = p->table.data,
        .dy_stride = p->rows.stride,
        .dweight_stride = p->table.stride,
        .num_tokens = (int)p->ids.count,
        .vocab = (int)p->table.rows,
        .hidden = (int)p->table.cols,
        .tiles = l.tiles,
        .chunks = (int)tsri_ceil_div(p->table.cols, warp_cols),
        .is_accumulating = p->is_accumulating,
        .dweight_dtype = (int)p->table.dtype,
        .dweight_is_f32 = p->table.dtype == TSR_F32,
        .is_aligned = are_aligned(p),
    };
    params.num_warps =
        (l.tiles + tsri_ceil_div(p->table.rows, EMBEDDING_ROWS)) * (int64_t)params.chunks;
    TSRI_TRY(
        launch(ctx, &starts_program, tsri_ceil_div(p->table.rows + 1, EMBEDDING_THREADS), &params));
    TSRI_TRY(launch(ctx, &sum, tsri_ceil_div(params.num_warps, WARPS), &params));
    if (p->ids.count <= EMBEDDING_SEGMENT) return TSR_OK; // no row has more than one segment
    return launch(ctx, &join_program,
                  tsri_ceil_div(l.tiles, WARPS) * tsri_ceil_div(p->table.cols, EMBEDDING_JOIN_COLS),
                  &params);
}

bool embedding_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    const struct tsri_cuda_program *const once[] = {&count_program, &scatter_program,
                                                    &starts_program, &join_program};
    enum { NUM_ONCE = TSRI_COUNT(once) };
    (void)cuda_arch;
    if (index >= NUM_ONCE + TSRI_NUM_CUDA_DTYPES) return false;
    *program = index < NUM_ONCE ? *once[index] : sum_program(tsri_cuda_dtypes[index - NUM_ONCE]);
    return true;
}
