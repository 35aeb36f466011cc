// SPDX-License-Identifier: Apache-2.0
// The norms on CPU threads where the tensors have several dtypes or rows of two strides. Some rows at a time are widened to
// fp32, stay in the caches, go through the fused kernels of fp32, and leave in the dtype of the output. If all tensors have one
// dtype, the kernels of that dtype serve. Rows that have the kernels' dtype and lie at one stride are used where they are.
// Floor: that of norm_forward_simd.c and norm_backward_simd.c.
// Limit: arithmetic, of the conversions too.
// Figures: docs/kernels/norm.md (mixed).
#include <string.h>

#include "ops/norm/norm_problem.h"

// The most rows of a block. Backward sums them as one group: norm_least_group_rows.
static int64_t forward_block_rows(const struct norm_problem *p) {
    enum { BYTES = 64 << 10, MOST = 64 };
    const int64_t row_bytes = tsri_max(p->cols, 1) * (int64_t)sizeof(float);
    return tsri_max(tsri_min(BYTES / row_bytes, MOST), 1);
}

// The dtype of the kernels. Sums with a residual are made in fp32.
static tsr_dtype kernel_dtype(const struct norm_problem *p) {
    const struct tsri_rows *const others[] = {&p->y, &p->dy, &p->dresidual_out, &p->dx};
    if (p->residual.data != NULL) return TSR_F32;
    for (int i = 0; i < TSRI_COUNT(others); i++)
        if (others[i]->dtype != TSR_DTYPE_NONE && others[i]->dtype != p->x.dtype) return TSR_F32;
    return p->x.dtype;
}

// The problem that the kernels see, but for its large tensors and its rows.
static struct norm_problem kernel_problem(const struct norm_problem *p) {
    struct norm_problem of_block = *p;
    of_block.dtype = kernel_dtype(p);
    of_block.is_mixed = false;
    of_block.residual.data = of_block.residual_out.data = NULL;
    return of_block;
}

// ---- Plans ------------------------------------------------------------------------------------

static size_t block_bytes(const struct norm_problem *p, int64_t rows) {
    return tsri_round_up((size_t)(rows * p->cols) * sizeof(float), 64);
}

static size_t sums_bytes(const struct norm_problem *p) {
    return 2 * (size_t)norm_padded_cols(p) * sizeof(float);
}

// Per thread: forward one block, which becomes y where it lies; backward three blocks and the sums of one.
static struct norm_layout layout_of(const struct norm_problem *p, bool is_backward,
                                    int num_threads) {
    const struct norm_problem of_block = kernel_problem(p);
    struct norm_layout layout = is_backward ? norm_backward_layout(&of_block, true)
                                            : norm_forward_layout(&of_block, true, false, 0);
    layout.scratch = layout.total;
    layout.scratch_per_thread = is_backward
                                    ? 3 * block_bytes(p, norm_least_group_rows(p)) + sums_bytes(p)
                                    : block_bytes(p, forward_block_rows(p));
    layout.total += layout.scratch_per_thread * (size_t)num_threads;
    return layout;
}

static int64_t bytes_per_row(const struct norm_problem *p) {
    const struct tsri_rows *const all[] = {
        &p->x, &p->residual, &p->residual_out, &p->y, &p->dy, &p->dresidual_out, &p->dx};
    int64_t bytes = 0;
    for (int i = 0; i < TSRI_COUNT(all); i++)
        if (all[i]->data != NULL) bytes += p->cols * (int64_t)tsr_dtype_bytes(all[i]->dtype);
    return bytes;
}

static void plan(const struct norm_problem *p, const struct tsri_limits *limits, bool is_backward,
                 const struct tsri_rows *out, struct tsri_plan *plan) {
    const int64_t bytes = bytes_per_row(p);
    tsri_plan_rows(plan, limits, p->rows, bytes);
    plan->is_streaming = !p->is_in_place && tsri_should_stream_rows(limits, p->rows * bytes, out);
    plan->workspace_bytes = layout_of(p, is_backward, limits->num_threads).total;
}

void norm_plan_mixed_forward(const void *problem, const struct tsri_limits *limits,
                             struct tsri_plan *of_call) {
    const struct norm_problem *p = problem;
    plan(p, limits, false, &p->y, of_call);
}

void norm_plan_mixed_backward(const void *problem, const struct tsri_limits *limits,
                              struct tsri_plan *of_call) {
    const struct norm_problem *p = problem;
    plan(p, limits, true, &p->dx, of_call);
    if (!norm_wants_sums(p) || p->rows == 0) return;
    of_call->grain = norm_group_rows(p);
    of_call->num_tasks = tsri_ceil_div(p->rows, of_call->grain);
}

// ---- Blocks -----------------------------------------------------------------------------------

struct pass {
    const struct norm_problem *problem;
    const struct tsri_plan *plan;
    const struct norm_call *call; // of kernel_problem
    const struct norm_kernels *kernels;
    norm_kernel *kernel;
    char *scratch;
    size_t scratch_per_thread;
};

static bool is_direct(const struct pass *pass, const struct tsri_rows *t, int64_t first,
                      int64_t num) {
    return t->dtype == pass->call->problem->dtype &&
           (t->group == 0 || first / t->group == (first + num - 1) / t->group);
}

// Rows from `first` on, at most so many, that end with a group of a tensor that need not be copied then. Groups of few rows
// are copied: the kernels take many short rows at once.
static int64_t rows_of_block(const struct pass *pass, const struct tsri_rows *const *all, int count,
                             int64_t first, int64_t most) {
    enum { FEW = 4 };
    int64_t rows = most;
    for (int i = 0; i < count; i++) {
        const struct tsri_rows *t = all[i];
        if (t->group == 0 || t->dtype != pass->call->problem->dtype) continue;
        const int64_t left = t->group - first % t->group;
        if (t->group >= FEW && left < rows) rows = left;
    }
    return rows;
}

static struct tsri_rows rows_in(char *block, const struct pass *pass, int64_t num) {
    const int64_t cols = pass->problem->cols;
    return (struct tsri_rows){block, pass->call->problem->dtype, num, cols, cols, 0, 0};
}

// Rows [first, first + num) of an output: the tensor's own, or `block`, from which write_rows fills them.
static struct tsri_rows output_rows(const struct pass *pass, const struct tsri_rows *t, char *block,
                                    int64_t first, int64_t num) {
    if (!is_direct(pass, t, first, num)) return rows_in(block, pass, num);
    struct tsri_rows rows = *t;
    rows.data = t->cols > 0 ? tsri_row(t, first) : t->data;
    rows.rows = num;
    rows.group = 0;
    return rows;
}

// The same of an input, converted into the block. Without a tensor: no rows.
static struct tsri_rows input_rows(const struct pass *pass, const struct tsri_rows *t, char *block,
                                   int64_t first, int64_t num) {
    if (t->data == NULL) return *t;
    const struct tsri_rows rows = output_rows(pass, t, block, first, num);
    const size_t row_bytes = (size_t)t->cols * tsr_dtype_bytes(t->dtype);
    for (int64_t r = 0; r < num && rows.data == block && t->cols > 0; r++)
        if (rows.dtype == t->dtype)
            memcpy(tsri_row(&rows, r), tsri_row(t, first + r), row_bytes);
        else
            pass->kernels->widen(t->dtype, tsri_row(t, first + r), tsri_row(&rows, r), t->cols);
    return rows;
}

static void write_rows(const struct pass *pass, const struct tsri_rows *t,
                       const struct tsri_rows *rows, const char *block, int64_t first) {
    const size_t row_bytes = (size_t)t->cols * tsr_dtype_bytes(t->dtype);
    for (int64_t r = 0; r < rows->rows && rows->data == block && t->cols > 0; r++)
        if (rows->dtype == t->dtype)
            memcpy(tsri_row(t, first + r), tsri_row(rows, r), row_bytes);
        else
            pass->kernels->narrow(t->dtype, tsri_row(rows, r), tsri_row(t, first + r), t->cols,
                                  pass->plan->is_streaming);
}

// x + residual, rounded to the dtype of residual_out, which is written too.
static void sum_rows(const struct pass *pass, char *block, int64_t first, int64_t num) {
    const struct norm_problem *p = pass->problem;
    const struct tsri_rows *x = &p->x, *residual = &p->residual, *out = &p->residual_out;
    float more[NORM_ADD_COLS];
    for (int64_t r = 0; r < num; r++)
        for (int64_t c = 0; c < p->cols; c += NORM_ADD_COLS) {
            const int64_t n = tsri_min(p->cols - c, NORM_ADD_COLS);
            float *sum = (float *)(void *)block + r * p->cols + c;
            const float *second = tsri_element(residual, first + r, c);
            if (residual->dtype != TSR_F32) {
                pass->kernels->widen(residual->dtype, second, more, n);
                second = more;
            }
            pass->kernels->add(x->dtype, out->dtype, tsri_element(x, first + r, c), second, sum,
                               tsri_element(out, first + r, c), n, pass->plan->is_streaming);
        }
}

// The vector's part that belongs to the rows from `first` on.
static struct norm_vector rest_of(struct norm_vector v, int64_t first) {
    if (v.data != NULL) v.data = (float *)v.data + first;
    return v;
}

static struct norm_problem block_of(const struct pass *pass, int64_t first, int64_t num) {
    struct norm_problem of_block = *pass->call->problem;
    of_block.rows = num;
    of_block.mean = rest_of(of_block.mean, first);
    of_block.rstd = rest_of(of_block.rstd, first);
    return of_block;
}

static void forward_task(void *arg, int64_t index, int thread) {
    const struct pass *pass = arg;
    const struct norm_problem *p = pass->problem;
    const int64_t at = index * pass->plan->grain, end = tsri_min(at + pass->plan->grain, p->rows);
    const int64_t most = forward_block_rows(p);
    char *block = pass->scratch + (size_t)thread * pass->scratch_per_thread;
    const struct tsri_rows *const large[] = {&p->x, &p->y};
    for (int64_t first = at, num; first < end; first += num) {
        num = rows_of_block(pass, large, TSRI_COUNT(large), first, tsri_min(most, end - first));
        struct norm_problem of_block = block_of(pass, first, num);
        struct norm_call call = *pass->call;
        call.problem = &of_block;
        if (p->residual.data != NULL) {
            sum_rows(pass, block, first, num);
            of_block.x = rows_in(block, pass, num);
        } else {
            of_block.x = input_rows(pass, &p->x, block, first, num);
        }
        of_block.y = output_rows(pass, &p->y, block, first, num);
        pass->kernel(&call, 0, num, thread);
        write_rows(pass, &p->y, &of_block.y, block, first);
    }
    if (pass->plan->is_streaming) pass->kernels->fence();
}

static void backward_task(void *arg, int64_t index, int thread) {
    const struct pass *pass = arg;
    const struct norm_problem *p = pass->problem;
    const int64_t at = index * pass->plan->grain, end = tsri_min(at + pass->plan->grain, p->rows);
    const int64_t most = norm_least_group_rows(p), padded = norm_padded_cols(p);
    char *const scratch = pass->scratch + (size_t)thread * pass->scratch_per_thread;
    char *const blocks = scratch + sums_bytes(p);
    float *sums = pass->call->partial + 2 * padded * index;
    float *sums_of_block = (float *)(void *)scratch;
    char *const block[3] = {blocks, blocks + block_bytes(p, most),
                            blocks + 2 * block_bytes(p, most)};
    const struct tsri_rows *const large[] = {&p->x, &p->dy, &p->dresidual_out, &p->dx};
    for (int64_t first = at, num; first < end; first += num) {
        num = rows_of_block(pass, large, TSRI_COUNT(large), first, tsri_min(most, end - first));
        struct norm_problem of_block = block_of(pass, first, num);
        struct norm_call call = *pass->call;
        call.problem = &of_block;
        call.partial = first == at ? sums : sums_of_block;
        of_block.x = input_rows(pass, &p->x, block[0], first, num);
        of_block.dy = input_rows(pass, &p->dy, block[1], first, num);
        of_block.dresidual_out = input_rows(pass, &p->dresidual_out, block[2], first, num);
        of_block.dx = output_rows(pass, &p->dx, block[1], first, num);
        pass->kernel(&call, 0, num, thread);
        write_rows(pass, &p->dx, &of_block.dx, block[1], first);
        if (!norm_wants_sums(p) || first == at) continue;
        for (int64_t i = 0; i < (p->is_rmsnorm ? padded : 2 * padded); i++)
            sums[i] += sums_of_block[i];
    }
    if (pass->plan->is_streaming) pass->kernels->fence();
}

static void run(tsr_context *ctx, const struct norm_problem *p, const struct tsri_plan *plan,
                bool is_backward, void *workspace) {
    const struct norm_problem of_call = kernel_problem(p);
    const struct norm_layout layout =
        layout_of(p, is_backward, tsri_context_limits(ctx)->num_threads);
    const tsr_isa isa = tsr_context_isa(ctx);
    const struct norm_call call = norm_make_call(ctx, &of_call, true, false, &layout, workspace);
    struct pass pass = {
        .problem = p,
        .plan = plan,
        .call = &call,
        .kernels = norm_kernels(isa),
        .kernel = is_backward ? norm_backward_kernels(isa)->run : norm_forward_kernels(isa)->run,
        .scratch = (char *)workspace + layout.scratch,
        .scratch_per_thread = layout.scratch_per_thread,
    };
    tsri_parallel(ctx, plan->num_tasks, is_backward ? backward_task : forward_task, &pass);
    if (is_backward) norm_reduce_columns(ctx, &call);
}

tsr_status norm_mixed_forward_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    run(ctx, problem, plan, false, workspace);
    return TSR_OK;
}

tsr_status norm_mixed_backward_run(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan, void *workspace) {
    run(ctx, problem, plan, true, workspace);
    return TSR_OK;
}
