// SPDX-License-Identifier: Apache-2.0
// Grouped matmul on CUDA with few rows a group: the plan and launch of a kernel that reads b once, in the place where it lies.
#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/matmul_groups.h"

enum {
    WARPS = 8, // as in matmul_grouped_skinny.cu, like the next three
    BLOCK_M = 16,
    BLOCK_N = 16, // lines of b and b_up
    GROUP = 8,    // elements of a load
    GROUP_M = 4,  // rows of tiles whose tiles of the same lines follow each other
    MAX_SIZE = 1 << 28,
    MAX_TILES = 1 << 30,
};

static int64_t tiles_n(const struct matmul_problem *p) {
    return tsri_ceil_div(p->n, p->b_up.data != NULL ? BLOCK_N / 2 : BLOCK_N);
}

// Rows of tiles of a matrix, or at most of all groups with rows in one matrix.
static int64_t tiles_m(const struct matmul_problem *p) {
    if (!matmul_has_packed_rows(p)) return tsri_ceil_div(p->m, BLOCK_M);
    return p->m / BLOCK_M + tsri_min(p->m, p->num_batches);
}

static int64_t stacks(const struct matmul_problem *p) {
    return matmul_has_packed_rows(p) ? 1 : p->num_batches;
}

// Whether lines run along k and can be loaded in pieces of 16 bytes.
static bool is_loaded(const struct matmul_problem *p, const struct matmul_matrix *t, int64_t step,
                      int64_t line, int64_t lines) {
    int64_t bits = lines > 1 ? line : 0;
    if (p->num_batches > 1) bits |= t->batch[MATMUL_MAX_BATCH_DIMS - 1];
    return step == 1 && bits % GROUP == 0 && (uintptr_t)t->data % 16 == 0;
}

bool matmul_grouped_skinny_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    if (limits->cuda_arch < 80 || p->groups.are_depths) return false;
    if (p->a.dtype != TSR_BF16 && p->a.dtype != TSR_F16) return false;
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->num_batches < 1) return false;
    if (p->m > MAX_SIZE || p->k > MAX_SIZE || p->num_batches > MAX_SIZE) return false;
    if (p->groups.of_a.num_lines > MAX_SIZE || p->k % GROUP != 0) return false;
    if ((double)tiles_m(p) * (double)tiles_n(p) * (double)stacks(p) > MAX_TILES) return false;
    const int64_t rows = matmul_is_listed(&p->groups.of_a) ? p->groups.of_a.num_lines : p->m;
    return is_loaded(p, &p->a, p->a.col, p->a.row, rows) &&
           is_loaded(p, &p->b, p->b.row, p->b.col, p->n) &&
           (p->b_up.data == NULL || is_loaded(p, &p->b_up, p->b_up.row, p->b_up.col, p->n));
}

static struct tsri_cuda_program program_of(tsr_dtype dtype) {
    return tsri_cuda_dtype_program("ops/matmul/cuda/grouped/matmul_grouped_skinny.cu",
                                   "matmul_grouped_skinny", dtype);
}

bool matmul_grouped_skinny_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    if (cuda_arch < 80 || index >= MATMUL_SKINNY_KERNELS) return false;
    *program = program_of(index == 0 ? TSR_BF16 : TSR_F16);
    return true;
}

void matmul_grouped_plan_skinny(const void *problem, const struct tsri_limits *limits,
                                struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    (void)limits;
    plan->block_m = BLOCK_M;
    plan->block_n = BLOCK_N;
    plan->num_tasks = tiles_m(p) * tiles_n(p) * stacks(p);
}

tsr_status matmul_grouped_skinny_prepare(tsr_context *ctx, const void *problem,
                                         const struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    const struct tsri_cuda_program program = program_of(p->a.dtype);
    (void)plan;
    return tsri_cuda_prepare(matmul_cuda_op_of(p), tsri_context_queue(ctx), &program);
}

static struct matmul_operand operand(const struct matmul_matrix *t, int64_t line) {
    struct matmul_operand o = {.data = t->data, .line = line};
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++) o.batch[i] = t->batch[i];
    return o;
}

tsr_status matmul_grouped_skinny_run(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan, void *workspace) {
    const struct matmul_problem *p = problem;
    (void)workspace;
    struct matmul_params params = {
        .a = operand(&p->a, p->a.row),
        .b = operand(&p->b, p->b.col),
        .b_up = operand(&p->b_up, p->b_up.col),
        .tiles_m = tiles_m(p),
        .tiles_n = tiles_n(p),
        .k_of_split = p->k,
        .num_splits = 1,
        .group_m = GROUP_M,
    };
    matmul_cuda_set_output(p, &params);
    const struct tsri_cuda_program program = program_of(p->a.dtype);
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = WARPS * 32,
        .is_early = true,
        .params = &params,
    };
    return tsri_cuda_launch(matmul_cuda_op_of(p), tsri_context_queue(ctx), &program, &launch);
}
