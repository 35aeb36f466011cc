// SPDX-License-Identifier: Apache-2.0
// Matmul backward on CUDA: the steps of matmul_backward_steps.c as launches on the context's stream, in order, except that the
// products of da and db may run side by side. If batches share b and their matrices do not form one matrix, they are copied into
// one, so that db is one product.
#include <math.h>

#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/matmul_backward.h"

static const char op_name[] = "matmul_backward";

enum { THREADS = 256, COLS = 8, STRIP = 32, VECTOR_STRIP = 128, BLOCKS_PER_SM = 16 };

bool matmul_backward_cuda_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_backward_problem *p = problem;
    (void)limits;
    return p->dc.dtype != TSR_F64;
}

static struct tsri_cuda_program gradient_program(void) {
    return tsri_cuda_dtype_program("ops/matmul/cuda/matmul_gradient.cu", "matmul_gradient",
                                   TSR_F32);
}

static struct tsri_cuda_program sums_program(void) {
    return tsri_cuda_dtype_program("ops/matmul/cuda/matmul_sums.cu", "matmul_sums", TSR_F32);
}

bool matmul_backward_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch; // forward lists the products' kernels
    *program = index == 0 ? sums_program() : gradient_program();
    return index < 2;
}

// ---- The parts ----------------------------------------------------------------------------------

static struct matmul_operand operand_of(const struct matmul_matrix *t) {
    return (struct matmul_operand){t->data, t->row, {t->batch[0], t->batch[1], t->batch[2]}};
}

static void set_batch(long long to[MATMUL_MAX_BATCH_DIMS], const struct matmul_problem *p) {
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++) to[i] = p->batch[i];
}

static bool is_aligned(const struct matmul_problem *p, const struct matmul_matrix *t) {
    int64_t bytes = (int64_t)tsr_dtype_bytes(t->dtype);
    int64_t bits = (int64_t)(uintptr_t)t->data | t->row * bytes;
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++)
        if (p->batch[i] > 1) bits |= t->batch[i] * bytes;
    return bits % 16 == 0;
}

static tsr_status launch(tsr_context *ctx, const struct tsri_cuda_program *program,
                         int64_t num_blocks, bool is_early, const void *params) {
    int64_t most = (int64_t)tsri_context_limits(ctx)->num_sms * BLOCKS_PER_SM;
    const struct tsri_cuda_launch launch = {.num_blocks = tsri_min(num_blocks, tsri_max(most, 1)),
                                            .num_threads = THREADS,
                                            .is_early = is_early,
                                            .params = params};
    return num_blocks == 0 ? TSR_OK
                           : tsri_cuda_launch(op_name, tsri_context_queue(ctx), program, &launch);
}

static tsr_status run_gradient(tsr_context *ctx, const struct matmul_backward_problem *p,
                               const struct matmul_backward_steps *s) {
    const struct matmul_problem *product = &p->product;
    const struct tsri_cuda_program program = gradient_program();
    struct matmul_gradient_params params = {
        .dc = operand_of(&p->dc),
        .preact = operand_of(&p->preact),
        .g = s->g.data,
        .num_rows = product->num_batches * product->m,
        .rows_of_batch = product->m,
        .n = product->n,
        .activation = (int)product->activation,
        .dtype = (int)p->dc.dtype,
        .is_vector = is_aligned(product, &p->dc) && is_aligned(product, &p->preact) &&
                     is_aligned(product, &s->g),
    };
    set_batch(params.batch, product);
    int64_t items = params.num_rows * tsri_ceil_div(params.n, COLS);
    return launch(ctx, &program, tsri_ceil_div(items, THREADS), false, &params);
}

// Copies all batches of t into `copy`, as rows of one matrix.
static tsr_status run_copy(tsr_context *ctx, const struct matmul_problem *product,
                           const struct matmul_matrix *t, int64_t cols,
                           const struct matmul_matrix *copy) {
    bool is_rows = t->col == 1;
    const struct matmul_cuda_copy c = {
        .source = t->data,
        .line = is_rows ? t->row : t->col,
        .step = is_rows ? t->col : t->row,
        .batch = {t->batch[0], t->batch[1], t->batch[2]},
        .destination = copy->data,
        .destination_line = is_rows ? copy->row : copy->col,
        .destination_batch = product->m * (is_rows ? copy->row : 1),
        .lines = is_rows ? product->m : cols,
        .width = is_rows ? cols : product->m,
        .filled = is_rows ? cols : product->m,
        .shape = product->batch,
    };
    return matmul_cuda_copy(ctx, op_name, t->dtype, &c);
}

static int64_t strips_of(const struct matmul_sums_params *params) {
    return tsri_ceil_div(params->n, params->is_vector ? VECTOR_STRIP : STRIP);
}

// First sums groups of rows, then the groups' sums.
static tsr_status run_bias(tsr_context *ctx, const struct matmul_backward_problem *p,
                           const struct matmul_backward_steps *s, float *sums) {
    const struct matmul_problem *product = &p->product;
    const struct tsri_cuda_program program = sums_program();
    struct matmul_sums_params params = {
        .in = operand_of(&s->g),
        .out = sums,
        .num_rows = product->num_batches * product->m,
        .rows_of_batch = product->m,
        .n = product->n,
        .rows_of_group = s->rows_per_group,
        .num_groups = s->num_groups,
        .in_dtype = (int)p->dc.dtype,
        .out_dtype = TSR_F32,
    };
    set_batch(params.batch, product);
    if (matmul_collapses(product, &s->g)) {
        params.rows_of_batch = params.num_rows;
        params.is_vector = product->n % 4 == 0 && is_aligned(product, &s->g);
    }
    TSRI_TRY(launch(ctx, &program, strips_of(&params) * s->num_groups, true, &params));
    params = (struct matmul_sums_params){
        .in = {sums, product->n, {0}},
        .out = p->dbias,
        .num_rows = s->num_groups,
        .rows_of_batch = s->num_groups,
        .n = product->n,
        .batch = {1, 1, 1},
        .rows_of_group = s->num_groups,
        .num_groups = 1,
        .in_dtype = TSR_F32,
        .out_dtype = (int)p->dbias_dtype,
        .is_vector = product->n % 4 == 0,
    };
    return launch(ctx, &program, strips_of(&params), true, &params);
}

// ---- The whole ----------------------------------------------------------------------------------

static tsr_status plan_product(tsr_context *ctx, const struct matmul_problem *p, uint32_t flags,
                               struct tsri_plan *plan) {
    const struct tsri_call call = {.size = sizeof call, .flags = flags};
    return tsri_op_plan(&tsri_matmul_forward_op, p, tsri_context_limits(ctx), &call, plan);
}

// Whether a product is one launch of a kernel that knows the order of two.
static bool has_order(const struct tsri_plan *plan) {
    return plan->workspace_bytes == 0 && (plan->variant->run == matmul_cuda_wgmma_run ||
                                          plan->variant->run == matmul_cuda_split_run);
}

// The products of da and of db, or one of them.
struct products {
    bool has_da, has_db;
    struct matmul_problem da, db;
    struct tsri_plan plan_da, plan_db;
};

// Both gradients read a, dc and b, and write da and db.
static double memory_ns(const struct matmul_problem *p) {
    const double m = (double)(p->m * p->num_batches), n = (double)p->n, k = (double)p->k;
    return (double)tsr_dtype_bytes(p->a.dtype) * 2 * (m * n + m * k + n * k) /
           MATMUL_CUDA_MEMORY_BYTES_PER_NS;
}

// db begins on the multiprocessors that da leaves idle, because it reads nothing that da writes. Both get half of the
// multiprocessors where the accounts say that this is faster than one after the other.
static tsr_status plan_products(tsr_context *ctx, const struct matmul_backward_problem *p,
                                const struct matmul_backward_steps *s, uint32_t flags,
                                struct products *of) {
    *of = (struct products){p->da.data != NULL, p->db.data != NULL, .da = s->da, .db = s->db};
    if (of->has_da) TSRI_TRY(plan_product(ctx, &of->da, flags, &of->plan_da));
    if (of->has_db) TSRI_TRY(plan_product(ctx, &of->db, flags, &of->plan_db));
    if (!of->has_da || !of->has_db || !has_order(&of->plan_da) || !has_order(&of->plan_db))
        return TSR_OK;
    struct products halves = *of;
    of->da.order = halves.da.order = MATMUL_FOLLOWED;
    of->db.order = halves.db.order = MATMUL_BESIDE;
    halves.da.has_half = halves.db.has_half = true;
    TSRI_TRY(plan_product(ctx, &halves.da, flags, &halves.plan_da));
    TSRI_TRY(plan_product(ctx, &halves.db, flags, &halves.plan_db));
    const double at_once =
        fmax(fmax(halves.plan_da.expected_ns, halves.plan_db.expected_ns), memory_ns(&p->product));
    if (has_order(&halves.plan_da) && has_order(&halves.plan_db) &&
        at_once < of->plan_da.expected_ns + of->plan_db.expected_ns)
        *of = halves;
    return TSR_OK;
}

static tsr_status run_products(tsr_context *ctx, const struct products *of, void *workspace) {
    if (of->has_da) TSRI_TRY(of->plan_da.variant->run(ctx, &of->da, &of->plan_da, workspace));
    return of->has_db ? of->plan_db.variant->run(ctx, &of->db, &of->plan_db, workspace) : TSR_OK;
}

static tsr_status prepare_products(tsr_context *ctx, const struct products *of) {
    if (of->has_da) TSRI_TRY(of->plan_da.variant->prepare(ctx, &of->da, &of->plan_da));
    return of->has_db ? of->plan_db.variant->prepare(ctx, &of->db, &of->plan_db) : TSR_OK;
}

static struct matmul_backward_steps steps_of(tsr_context *ctx,
                                             const struct matmul_backward_problem *p,
                                             const struct tsri_plan *plan, void *workspace) {
    struct tsri_limits limits = *tsri_context_limits(ctx);
    limits.flags = plan->flags;
    return matmul_backward_steps(p, &limits, workspace);
}

tsr_status matmul_backward_cuda_prepare(tsr_context *ctx, const void *problem,
                                        const struct tsri_plan *plan) {
    const struct matmul_backward_problem *p = problem;
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    const struct matmul_backward_steps s = steps_of(ctx, p, plan, (void *)(uintptr_t)64);
    const struct tsri_cuda_program gradient = gradient_program(), sums = sums_program(),
                                   copy = matmul_cuda_copy_program(p->dc.dtype);
    if (s.g_bytes > 0) TSRI_TRY(tsri_cuda_prepare(op_name, queue, &gradient));
    if (s.copy_bytes > 0) TSRI_TRY(tsri_cuda_prepare(op_name, queue, &copy));
    struct products products;
    TSRI_TRY(plan_products(ctx, p, &s, plan->flags, &products));
    TSRI_TRY(prepare_products(ctx, &products));
    return p->dbias != NULL ? tsri_cuda_prepare(op_name, queue, &sums) : TSR_OK;
}

tsr_status matmul_backward_cuda_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct matmul_backward_problem *p = problem;
    const struct matmul_problem *product = &p->product;
    const struct matmul_backward_steps s = steps_of(ctx, p, plan, workspace);
    char *sums = (char *)workspace + s.g_bytes + s.copy_bytes, *rest = sums + s.dbias_bytes;
    if (s.g_bytes > 0) TSRI_TRY(run_gradient(ctx, p, &s));
    if (s.is_a_copied) TSRI_TRY(run_copy(ctx, product, &product->a, product->k, &s.a_copy));
    if (s.is_g_copied) TSRI_TRY(run_copy(ctx, product, &s.g, product->n, &s.g_copy));
    struct products products;
    TSRI_TRY(plan_products(ctx, p, &s, plan->flags, &products));
    TSRI_TRY(run_products(ctx, &products, rest));
    if (p->dbias == NULL || product->n == 0) return TSR_OK;
    return run_bias(ctx, p, &s, (float *)(void *)sums);
}
