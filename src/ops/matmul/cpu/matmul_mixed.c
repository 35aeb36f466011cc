// SPDX-License-Identifier: Apache-2.0
// Matmul of bf16 operands by the units that multiply bf16, on CPU threads. Works like the tiled variants of
// matmul_cpu.c, except that a task's sums are always in its own scratch: whole tiles are written, and strides of c are
// often powers of two. Panels of B are shared if several tasks read them. Blocks of k are the same for any number of
// threads and, above skinny's rows, for any m, so the results are too.
//
// For small m with contiguous columns of b, the transposed matrices are multiplied, and the sums are transposed back
// before the epilogue. For a few long columns, blocks of k are summed separately, as tasks of their own if there are
// too few others, and added in order.
#include <string.h>

#include "cpu/gemm.h"
#include "cpu/gemm_bf16.h"
#include "ops/matmul/matmul_groups.h"

struct work {
    const struct matmul_problem *p;
    const struct tsri_plan *plan;
    const struct gemm_bf16_kernels *gemm;
    const struct gemm_kernels *fp32;
    const struct matmul_kernels *kernels;
    struct matmul_mixed_layout layout;
    float *shared;  // panels of b, then of b_up: [batch][panel][k / 2][64][2]
    float *threads; // thread_floats per thread
    float *sums;    // of the blocks of k, for each block of c: [block][part]
    int64_t first_batch, num_batches, first_col, num_cols; // the current stripe
    int64_t pack_depth; // steps of k of a shared panel per packing task
    bool is_a_in_place; // whole strips of it, and halves
    bool is_turned;     // p holds the transposed matrices, except c
};

static uint16_t *pairs(float *x) { return (uint16_t *)(void *)x; }

static const uint16_t *elements(const struct matmul_matrix *t, int64_t i, int64_t j) {
    return (const uint16_t *)(const void *)matmul_at(t, i, j);
}

static int64_t round_depth(int64_t k) { return (int64_t)tsri_round_up((size_t)k, GEMM_BF16_DEPTH); }

// ---- Packing B --------------------------------------------------------------------------------

// Packs n <= 64 columns from (step, col) on.
static void pack_panel(const struct work *w, const struct matmul_matrix *b, int64_t step,
                       int64_t depth, int64_t col, int64_t n, float *panel) {
    int64_t width = (int64_t)tsri_round_up((size_t)n, GEMM_BF16_PART);
    if (b->col == 1)
        w->gemm->pack_rows(elements(b, step, col), b->row, depth, n, width, pairs(panel), NULL);
    else
        w->gemm->pack_cols(elements(b, step, col), b->col, depth, n, width, pairs(panel));
}

static float *shared_panel(const struct work *w, int64_t batch, int64_t col, bool is_up) {
    int64_t panels = (batch - w->first_batch) * (w->layout.stripe_cols / GEMM_BF16_NR) +
                     (col - w->first_col) / GEMM_BF16_NR;
    return w->shared + (is_up ? w->layout.stripe_floats : 0) + panels * w->layout.panel_floats;
}

// A task packs pack_depth steps of one panel of 64 columns.
static void pack_task(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct work *w = arg;
    const struct matmul_problem *p = w->p;
    int64_t panels = tsri_ceil_div(w->num_cols, GEMM_BF16_NR);
    int64_t parts = tsri_ceil_div(p->k, w->pack_depth), step = index % parts * w->pack_depth;
    index /= parts;
    bool is_up = index >= panels * w->num_batches;
    if (is_up) index -= panels * w->num_batches;
    int64_t batch = w->first_batch + index / panels;
    int64_t col = w->first_col + index % panels * GEMM_BF16_NR;
    struct matmul_matrix b = matmul_batch(p, is_up ? &p->b_up : &p->b, batch);
    pack_panel(w, &b, step, tsri_min(w->pack_depth, p->k - step), col,
               tsri_min(GEMM_BF16_NR, w->first_col + w->num_cols - col),
               shared_panel(w, batch, col, is_up) + step * GEMM_BF16_NR / 2);
}

// ---- A block of c -----------------------------------------------------------------------------

struct block {
    int64_t batch, row, col, m, n;
    struct matmul_problem p; // with the matrices of one batch
    float *panels, *a_rows, *acc, *up;
    float *part; // NULL, or where each block of k after the first is summed before it is added
};

// The block's panels for steps [step, step + depth). In a transposed product they come from a: b_up runs first and
// leaves its panels to b.
static const float *panels_of(const struct work *w, const struct block *t, bool is_up, int64_t step,
                              int64_t depth) {
    bool is_of_up = is_up && !w->is_turned, is_packed = w->is_turned && t->up != NULL && !is_up;
    if (w->layout.stripe_floats > 0)
        return shared_panel(w, t->batch, t->col, is_of_up) + step * GEMM_BF16_NR / 2;
    if (is_packed) return t->panels;
    for (int64_t j = 0; j < t->n; j += GEMM_BF16_NR) {
        float *panel = t->panels + j / GEMM_BF16_NR * w->layout.panel_floats;
        int64_t n = tsri_min(GEMM_BF16_NR, t->n - j);
        if (matmul_is_listed(&t->p.groups.of_b))
            matmul_pack_listed_panel(w->gemm, &t->p, step, depth, t->col + j, n,
                                     (int64_t)tsri_round_up((size_t)n, GEMM_BF16_PART),
                                     pairs(panel));
        else
            pack_panel(w, is_of_up ? &t->p.b_up : &t->p.b, step, depth, t->col + j, n, panel);
    }
    return t->panels;
}

static void pack_strip(const struct work *w, const struct block *t, const struct matmul_matrix *a,
                       int64_t row, int64_t m, int64_t step, int64_t depth) {
    enum { ROWS = 32 };
    int64_t stride = w->layout.a_stride;
    bool is_transposed = a->col != 1;
    for (int64_t i = 0; i < m; i += ROWS) {
        int64_t first = t->row + row + i, rows = tsri_min(ROWS, m - i);
        uint16_t *to = pairs(t->a_rows) + i * stride;
        if (matmul_is_listed(&t->p.groups.of_a))
            matmul_pack_listed_strip(w->gemm, &t->p, first, rows, step, depth, to, stride);
        else
            w->gemm->pack_a(elements(a, first, step), is_transposed ? a->col : a->row,
                            is_transposed, rows, depth, to, stride);
    }
}

// Applies the epilogue to m rows of sums from the block's row `row` on; in a transposed product, to columns.
static void finish_rows(const struct work *w, const struct block *t, int64_t row, int64_t m) {
    enum { COLS = 32 };
    int64_t stride = w->layout.tile_stride;
    const float *acc = t->acc + row * stride, *up = t->up != NULL ? t->up + row * stride : NULL;
    if (!w->is_turned) {
        w->kernels->finish(&t->p, t->row + row, t->col, m, t->n, acc, up, stride);
        return;
    }
    for (int64_t i = 0; i < m; i += COLS) {
        float tile[MATMUL_TURNED_M * COLS], up_tile[MATMUL_TURNED_M * COLS];
        int64_t cols = tsri_min(COLS, m - i);
        w->fp32->widen_cols(TSR_F32, acc + i * stride, stride, t->n, cols, tile, COLS);
        if (up != NULL)
            w->fp32->widen_cols(TSR_F32, up + i * stride, stride, t->n, cols, up_tile, COLS);
        w->kernels->finish(&t->p, t->col, t->row + row + i, t->n, cols, tile,
                           up != NULL ? up_tile : NULL, COLS);
    }
}

// Adds the m x n sums in `from` to `to`.
static void add_sums(const struct work *w, int64_t m, int64_t n, const float *from, float *to) {
    int64_t stride = w->layout.tile_stride;
    for (int64_t i = 0; i < m; i++)
        w->kernels->add_row(TSR_F32, from + i * stride, to + i * stride, n);
}

// Multiplies m rows from the block's row `row` on. Rows in place use whole steps of depth; the rest of k is copied and
// padded with zeros.
static void multiply_strip(const struct work *w, const struct block *t,
                           const struct matmul_matrix *a, int64_t row, int64_t m, int64_t step,
                           int64_t depth, bool is_in_place, struct gemm_bf16_product *product) {
    int64_t whole = is_in_place ? depth / GEMM_BF16_DEPTH * GEMM_BF16_DEPTH : 0;
    product->m = m;
    if (whole > 0) {
        product->k = whole;
        product->a = elements(a, t->row + row, step);
        product->a_stride = a->row;
        w->gemm->multiply(product);
    }
    if (whole == depth) return;
    pack_strip(w, t, a, row, m, step + whole, depth - whole);
    product->k = round_depth(depth - whole);
    product->a = pairs(t->a_rows);
    product->a_stride = w->layout.a_stride;
    product->b += whole * GEMM_BF16_NR;
    product->is_accumulating |= whole > 0;
    w->gemm->multiply(product);
}

// Multiplies by one matrix B over one block of k. After the last block (is_last), rows go through the epilogue while
// they are in the cache.
static void multiply_step(const struct work *w, const struct block *t, bool is_up, int64_t step,
                          int64_t depth, bool is_last) {
    const float *panels = panels_of(w, t, is_up, step, depth);
    const struct matmul_matrix *a = w->is_turned && is_up ? &t->p.b_up : &t->p.a;
    int64_t stride = w->layout.tile_stride, strip = w->gemm->mr;
    bool is_apart = w->layout.part_floats > 0, is_added = t->part != NULL && step > 0;
    for (int64_t i = 0, m; i < t->m; i += m) {
        float *c = (is_up ? t->up : t->acc) + i * stride;
        struct gemm_bf16_product product = {.n = t->n,
                                            .b = (const uint16_t *)(const void *)panels,
                                            .b_stride = 2 * w->layout.panel_floats,
                                            .c = is_added ? t->part : c,
                                            .c_stride = stride,
                                            .is_accumulating = step > 0 && !is_apart,
                                            .is_b_streamed = true};
        m = tsri_min(strip, t->m - i);
        // Half a strip also stays in place, if only few columns go through the remaining rows again.
        if (w->is_a_in_place && m < strip && m > strip / 2 && t->n <= GEMM_BF16_NR) m = strip / 2;
        bool is_in_place = w->is_a_in_place && m % (strip / 2) == 0;
        multiply_strip(w, t, a, i, m, step, depth, is_in_place, &product);
        if (is_added) add_sums(w, m, t->n, t->part, c);
        if (is_last) finish_rows(w, t, i, m);
    }
}

// Sets the block's pointers into the thread's scratch.
static void set_scratch(const struct work *w, struct block *t, int thread) {
    const struct matmul_mixed_layout *l = &w->layout;
    t->panels = w->threads + thread * l->thread_floats;
    t->a_rows = t->panels + l->private_floats;
    t->acc = t->a_rows + l->a_floats;
    t->up = t->p.b_up.data != NULL ? t->acc + l->tile_floats : NULL;
    t->part = l->part_floats > 0 ? t->acc + l->tile_floats : NULL; // used only without b_up
}

// Multiplies a block completely. t says which block of which product; its size is cut to that of c.
static void multiply_block(const struct work *w, struct block *t, int thread) {
    const struct matmul_problem *p = &t->p;
    const struct matmul_mixed_layout *l = &w->layout;
    bool has_up = p->b_up.data != NULL;
    set_scratch(w, t, thread);
    if (p->k == 0) {
        for (int64_t i = 0; i < t->m; i++) {
            memset(t->acc + i * l->tile_stride, 0, (size_t)t->n * sizeof *t->acc);
            if (has_up) memset(t->up + i * l->tile_stride, 0, (size_t)t->n * sizeof *t->up);
        }
        finish_rows(w, t, 0, t->m);
        return;
    }
    w->gemm->open();
    for (int64_t step = 0; step < p->k; step += w->plan->block_k) {
        int64_t depth = tsri_min(w->plan->block_k, p->k - step);
        bool is_last = step + depth == p->k;
        if (has_up) multiply_step(w, t, true, step, depth, false);
        multiply_step(w, t, false, step, depth, is_last);
    }
    w->gemm->close();
}

static struct block block_at(const struct work *w, int64_t index) {
    const struct matmul_problem *p = w->p;
    int64_t cols = tsri_ceil_div(w->num_cols, w->plan->block_n);
    int64_t rows = tsri_ceil_div(p->m, w->plan->block_m);
    // Column blocks outside, rows inside: panels stay in the cache from one task to the next.
    struct block t = {.batch = w->first_batch + index / (rows * cols),
                      .row = index % rows * w->plan->block_m,
                      .col = w->first_col + index / rows % cols * w->plan->block_n};
    t.m = tsri_min(w->plan->block_m, p->m - t.row);
    t.n = tsri_min(w->plan->block_n, w->first_col + w->num_cols - t.col);
    t.p = matmul_of_batch(p, t.batch);
    return t;
}

static void block_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    struct block t = block_at(w, index);
    multiply_block(w, &t, thread);
}

static void spread(tsr_context *ctx, struct work *w, int64_t num_tasks,
                   void (*task)(void *arg, int64_t index, int thread)) {
    int threads = matmul_mixed_threads(w->p, tsri_context_limits(ctx));
    tsri_parallel_on(ctx, threads, num_tasks, task, w);
}

// ---- Blocks of k as separate tasks, added in order ----------------------------------------------

static float *sums_of(const struct work *w, int64_t block, int64_t part) {
    return w->sums + (block * w->layout.num_parts + part) * w->layout.sums_floats;
}

static void part_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    int64_t block = index / w->layout.num_parts, part = index % w->layout.num_parts;
    int64_t step = part * w->plan->block_k;
    struct block t = block_at(w, block);
    set_scratch(w, &t, thread);
    t.acc = sums_of(w, block, part);
    t.part = NULL;
    w->gemm->open();
    multiply_step(w, &t, false, step, tsri_min(w->plan->block_k, w->p->k - step), false);
    w->gemm->close();
}

static void add_task(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct work *w = arg;
    struct block t = block_at(w, index);
    t.acc = sums_of(w, index, 0);
    t.up = NULL;
    for (int64_t part = 1; part < w->layout.num_parts; part++)
        add_sums(w, t.m, t.n, sums_of(w, index, part), t.acc);
    finish_rows(w, &t, 0, t.m);
}

static void run_parts(tsr_context *ctx, struct work *w) {
    enum { ADDED = 32 << 10 }; // sums that are worth a further thread
    int64_t blocks = w->plan->num_tasks / w->layout.num_parts;
    w->num_batches = w->p->num_batches;
    w->num_cols = w->p->n;
    // One thread per part even if the work is worth fewer: a thread with two parts would decide the time.
    int worth = matmul_mixed_threads(w->p, tsri_context_limits(ctx));
    int threads = (int)tsri_max(worth, w->layout.num_parts);
    tsri_parallel_on(ctx, threads, w->plan->num_tasks, part_task, w);
    bool is_little = w->p->m * w->p->n * w->layout.num_parts <= ADDED;
    tsri_parallel_on(ctx, is_little ? 1 : (int)blocks, blocks, add_task, w);
}

static tsr_status run_mixed(tsr_context *ctx, const struct matmul_problem *p,
                            const struct tsri_plan *plan, void *workspace, bool is_tiles) {
    struct matmul_problem turned;
    int num_threads = tsr_context_num_threads(ctx);
    bool is_turned = is_tiles && matmul_is_turned(p, plan->flags, num_threads);
    if (is_turned) {
        turned = matmul_turned(p);
        p = &turned;
    }
    bool is_a_in_place = is_turned || matmul_has_a_in_place(p, num_threads);
    struct work w = {.p = p,
                     .plan = plan,
                     .gemm = gemm_bf16_kernels(is_tiles),
                     .fp32 = gemm_kernels(tsr_context_isa(ctx)),
                     .kernels = matmul_kernels(tsr_context_isa(ctx)),
                     .layout = matmul_mixed_layout(p, plan),
                     .shared = workspace,
                     .is_a_in_place = is_tiles && is_a_in_place,
                     .is_turned = is_turned};
    int64_t num_b = p->b_up.data != NULL && !is_turned ? 2 : 1;
    w.threads = w.shared + w.layout.stripe_floats * num_b;
    if (p->m == 0 || p->n == 0) return TSR_OK;
    if (w.layout.num_parts > 1) {
        w.sums = w.threads + w.layout.thread_floats * num_threads;
        run_parts(ctx, &w);
        return TSR_OK;
    }
    int64_t blocks_m = tsri_ceil_div(p->m, plan->block_m);
    for (w.first_batch = 0; w.first_batch < p->num_batches; w.first_batch += w.num_batches)
        for (w.first_col = 0; w.first_col < p->n; w.first_col += w.num_cols) {
            w.num_batches = tsri_min(w.layout.stripe_batches, p->num_batches - w.first_batch);
            w.num_cols = tsri_min(w.layout.stripe_cols, p->n - w.first_col);
            if (w.layout.stripe_floats > 0 && p->k > 0) {
                int64_t panels = num_b * w.num_batches * tsri_ceil_div(w.num_cols, GEMM_BF16_NR);
                w.pack_depth = matmul_pack_depth(p->k, panels, num_threads);
                spread(ctx, &w, panels * tsri_ceil_div(p->k, w.pack_depth), pack_task);
            }
            spread(ctx, &w, w.num_batches * blocks_m * tsri_ceil_div(w.num_cols, plan->block_n),
                   block_task);
        }
    return TSR_OK;
}

tsr_status matmul_amx_bf16_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    return run_mixed(ctx, problem, plan, workspace, true);
}

tsr_status matmul_avx512_bf16_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    return run_mixed(ctx, problem, plan, workspace, false);
}

// ---- Groups -----------------------------------------------------------------------------------

struct group_work {
    struct work work;
    const struct matmul_problem *p; // with its groups
    struct matmul_group_blocks blocks;
};

static void group_task(void *arg, int64_t index, int thread) {
    const struct group_work *w = arg;
    struct matmul_group_block at = matmul_group_block(&w->blocks, index);
    struct block t = {.row = at.row, .col = at.col, .p = matmul_of_group(w->p, at.group)};
    if (matmul_group_is_done_as_few(&w->blocks, &t.p, at, true, thread)) return;
    t.m = tsri_min(w->work.plan->block_m, t.p.m - t.row);
    t.n = tsri_min(w->work.plan->block_n, t.p.n - t.col);
    multiply_block(&w->work, &t, thread);
}

static tsr_status run_groups(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                             void *workspace, bool is_tiles) {
    const struct matmul_problem equal = matmul_equal_groups(problem);
    struct tsri_limits with_flags = *tsri_context_limits(ctx), *limits = &with_flags;
    limits->flags = plan->flags;
    struct group_work w = {.work = {.p = &equal,
                                    .plan = plan,
                                    .gemm = gemm_bf16_kernels(is_tiles),
                                    .kernels = matmul_kernels(tsr_context_isa(ctx)),
                                    .layout = matmul_mixed_layout(&equal, plan)},
                           .p = problem};
    if (equal.n == 0) return TSR_OK;
    w.blocks = matmul_group_blocks(problem, plan, limits, workspace, &w.work.threads);
    tsri_parallel_on(ctx, matmul_mixed_threads(&equal, limits), w.blocks.num_blocks, group_task,
                     &w);
    return TSR_OK;
}

tsr_status matmul_grouped_amx_bf16_run(tsr_context *ctx, const void *problem,
                                       const struct tsri_plan *plan, void *workspace) {
    return run_groups(ctx, problem, plan, workspace, true);
}

tsr_status matmul_grouped_avx512_bf16_run(tsr_context *ctx, const void *problem,
                                          const struct tsri_plan *plan, void *workspace) {
    return run_groups(ctx, problem, plan, workspace, false);
}
