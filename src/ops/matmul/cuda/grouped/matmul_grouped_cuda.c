// SPDX-License-Identifier: Apache-2.0
// Grouped matmul on CUDA: the choice of the variant, and the launch of wgmma on Hopper, which
// finds its tiles from the groups' offsets on the device; the host never reads them.
#include "cuda/cuda_tensor_map.h"
#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/matmul_grouped_params.h"
#include "ops/matmul/matmul_groups.h"

enum {
    BLOCK_M = 128, // as in matmul_grouped_sm90.cu, like the next four
    BLOCK_N = 256,
    BLOCK_K = 64,
    THREADS = 384,
    SHARED_BYTES = (BLOCK_M + BLOCK_N) * BLOCK_K * 2 * 4 + 8 * 4096 + 8 * 2 * 4 + 16 * 4,
    UNIT = 64,           // lines and columns per box of a and b
    STEP_K = 16,         // lines per box where a group ends
    C_LINES = 16,        // per box of c
    GROUP_M = 16,        // rows of tiles that are processed together, column by column
    MAX_SIZE = 1 << 28,  // because offsets within a group are 32-bit
    MAX_TILES = 1 << 30, //
    MOST_SKINNY_ROWS = 8,
    FEW_ROWS = 32,
    LEAST_WORK = 1 << 22, // multiplications, below which cuda-mma's small tiles spread better
};

// ---- Which variant ------------------------------------------------------------------------------

static bool is_grouped_size(const struct matmul_problem *p) {
    return p->m <= MAX_SIZE && p->k <= MAX_SIZE && p->num_batches <= MAX_SIZE &&
           p->groups.of_a.num_lines <= MAX_SIZE && p->groups.of_b.num_lines <= MAX_SIZE;
}

bool matmul_grouped_fma_serves(const void *problem, const struct tsri_limits *limits) {
    return matmul_cuda_fma_serves(problem, limits) && is_grouped_size(problem);
}

bool matmul_grouped_mma_serves(const void *problem, const struct tsri_limits *limits) {
    return matmul_cuda_mma_serves(problem, limits) && is_grouped_size(problem);
}

// The map of boxes of 128 bytes of some lines of `width` elements, `line` apart, in the groups' matrices or in one
// matrix for all. False if there is no such map.
static bool map_lines(const struct matmul_problem *p, const struct matmul_matrix *t,
                      bool has_groups, int64_t width, int64_t lines, int64_t line, int box_lines,
                      struct tsri_tensor_map_args *args) {
    if (lines <= 1) line = (int64_t)tsri_round_up((size_t)width, UNIT);
    bool is_stack = has_groups && p->num_batches > 1;
    *args = (struct tsri_tensor_map_args){
        .data = t->data,
        .dtype = t->dtype,
        .size = {width, lines, is_stack ? p->num_batches : 1, 1, 1},
        .stride = {1, line, is_stack ? t->batch[2] : line, line, line},
        .box = {128 / (int)tsr_dtype_bytes(t->dtype), box_lines, 1, 1, 1},
        .is_swizzled = true,
    };
    return line >= width && tsri_tensor_map_fits(args);
}

static bool map_operand(const struct matmul_problem *p, const struct matmul_matrix *t,
                        const struct matmul_cuda_operand *o, bool is_b, int box_lines,
                        struct tsri_tensor_map_args *args) {
    bool has_groups = p->groups.are_counts || (is_b && !p->groups.are_depths);
    return !o->is_copied &&
           map_lines(p, t, has_groups, o->width, o->lines, o->line, box_lines, args);
}

// From row to row of an operand whose rows come by a list: along m, or along k if groups cut k.
static int64_t listed_line(const struct matmul_problem *p, const struct matmul_matrix *t,
                           bool is_b) {
    return p->groups.are_depths && !is_b ? t->col : t->row;
}

// Whether the kernel can load an operand: by the copy engine, or rows by a list, in pieces of 16 bytes.
static bool loads_operand(const struct matmul_problem *p, const struct matmul_matrix *t,
                          const struct matmul_cuda_operand *o, const struct matmul_list *list,
                          bool is_b, struct tsri_tensor_map_args *map) {
    if (!matmul_is_listed(list)) return map_operand(p, t, o, is_b, UNIT, map);
    bool is_aligned = list->num_lines <= 1 || listed_line(p, t, is_b) % 8 == 0;
    return !o->is_copied && o->is_mn == p->groups.are_depths && is_aligned &&
           (uintptr_t)t->data % 16 == 0 && list->num_lines <= MAX_SIZE;
}

// Whether the copy engine can store c. A store writes all 16 bytes of a piece whose first byte is inside.
static bool map_c(const struct matmul_problem *p, struct tsri_tensor_map_args *args) {
    bool has_groups = p->groups.are_counts || p->groups.are_depths;
    return p->n * (int64_t)tsr_dtype_bytes(p->c.dtype) % 16 == 0 &&
           map_lines(p, &p->c, has_groups, p->n, p->m, p->c.row, C_LINES, args);
}

bool matmul_grouped_wgmma_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    struct tsri_tensor_map_args map;
    if (limits->cuda_arch != 90 || limits->shared_bytes_per_block < SHARED_BYTES) return false;
    if (p->a.dtype != TSR_BF16 && p->a.dtype != TSR_F16) return false;
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->num_batches < 1 || !is_grouped_size(p)) return false;
    bool is_one = matmul_has_packed_rows(p);
    int64_t rows = tsri_ceil_div(p->m, BLOCK_M), stacks = p->num_batches;
    double tiles = (double)(is_one ? rows + stacks : rows * stacks) * (double)p->n / UNIT;
    if (p->n > MAX_TILES || tiles > MAX_TILES) return false;
    if (!matmul_grouped_is_aligned(p, limits)) return false;
    const struct matmul_cuda_layout l = matmul_cuda_layout(p, MATMUL_WGMMA, 0, 1);
    return loads_operand(p, &p->a, &l.a, &p->groups.of_a, false, &map) &&
           loads_operand(p, &p->b, &l.b, &p->groups.of_b, true, &map) &&
           (p->b_up.data == NULL || map_operand(p, &p->b_up, &l.b_up, true, UNIT, &map));
}

// With few rows of c and a large b, reading b decides: up to 8 rows a group of equal size cuda-skinny is the fastest (as predicted,
// not yet measured), up to 32 cuda-mma with its small tiles. The variants cut sums at different places, so under batch invariance
// the size does not decide.
const char *matmul_grouped_cuda_prefer(const struct matmul_problem *p,
                                       const struct tsri_limits *limits) {
    double work = (double)p->m * (double)p->n * (double)p->k;
    int64_t rows = p->m;
    if (p->groups.are_counts) work *= (double)p->num_batches;
    if (matmul_has_packed_rows(p)) rows /= tsri_max(p->num_batches, 1);
    bool is_invariant = (limits->flags & TSR_BATCH_INVARIANT) != 0;
    if (matmul_grouped_fp8_serves(p, limits)) return "cuda-fp8";
    if (!is_invariant && rows <= MOST_SKINNY_ROWS && matmul_grouped_skinny_serves(p, limits))
        return "cuda-skinny";
    if ((is_invariant || (work >= LEAST_WORK && rows > FEW_ROWS)) &&
        matmul_grouped_wgmma_serves(p, limits))
        return "cuda-wgmma";
    return matmul_grouped_mma_serves(p, limits) ? "cuda-mma" : "cuda-fma";
}

// ---- Kernels ----------------------------------------------------------------------------------

static struct tsri_cuda_program program_of(tsr_dtype dtype, bool a_is_mn, bool b_is_mn) {
    return (struct tsri_cuda_program){
        .source = "ops/matmul/cuda/grouped/matmul_grouped_sm90.cu",
        .entry = "matmul_grouped",
        .num_defines = 3,
        .defines = {{"DTYPE", (int)dtype}, {"A_IS_MN", a_is_mn}, {"B_IS_MN", b_is_mn}}};
}

bool matmul_grouped_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    if (matmul_grouped_skinny_kernel(index, cuda_arch, program)) return true;
    index -= MATMUL_SKINNY_KERNELS;
    if (cuda_arch != 90) return false;
    if (index >= 4) return matmul_grouped_fp8_kernel(index - 4, program);
    *program = program_of(index & 1 ? TSR_F16 : TSR_BF16, false, index & 2);
    return true;
}

bool matmul_grouped_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    if (cuda_arch == 90 && index < 2) {
        *program = program_of(index & 1 ? TSR_F16 : TSR_BF16, true, true);
        program->is_rare = index & 1;
        return true;
    }
    return matmul_cuda_listed_kernel(index - (cuda_arch == 90 ? 2 : 0), cuda_arch, program);
}

// ---- Plan and launch ----------------------------------------------------------------------------

// One block per multiprocessor; each processes tile after tile.
void matmul_grouped_plan_wgmma(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    int64_t rows = tsri_ceil_div(p->m, BLOCK_M);
    rows = matmul_has_packed_rows(p) ? rows + p->num_batches : rows * p->num_batches;
    plan->block_m = BLOCK_M;
    plan->block_n = BLOCK_N;
    plan->block_k = BLOCK_K;
    plan->num_tasks = tsri_min(rows * tsri_ceil_div(p->n, BLOCK_N / (p->b_up.data != NULL ? 2 : 1)),
                               tsri_max(limits->num_sms, 1));
    if (p->k > matmul_cuda_most_of_sum(p->c.dtype))
        plan->workspace_bytes = (size_t)(plan->num_tasks * BLOCK_M * BLOCK_N) * sizeof(float);
}

// Three stages where a tile's epilogue takes long beside its products, and memory decides: products of few rows a group, which
// read b, and their gradients, which write db. More stages hide the latency of long sums, and of rows by a list.
static int stages_of(const struct matmul_problem *p) {
    enum { STAGES = 4, FEW = 256 };
    const int64_t groups = tsri_max(p->num_batches, 1);
    const int64_t rows = p->groups.are_depths        ? p->k / groups
                         : matmul_has_packed_rows(p) ? p->m / groups
                                                     : p->m;
    bool has_lists = matmul_is_listed(&p->groups.of_a) || matmul_is_listed(&p->groups.of_b);
    return rows <= FEW && !has_lists ? STAGES - 1 : STAGES;
}

static const char *op_of(const struct matmul_problem *p) {
    return p->groups.are_depths ? "matmul_grouped_backward" : "matmul_grouped_forward";
}

tsr_status matmul_grouped_wgmma_prepare(tsr_context *ctx, const void *problem,
                                        const struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    (void)plan;
    const struct matmul_cuda_layout l = matmul_cuda_layout(p, MATMUL_WGMMA, 0, 1);
    const struct tsri_cuda_program program = program_of(p->a.dtype, l.a.is_mn, l.b.is_mn);
    return tsri_cuda_prepare(op_of(p), tsri_context_queue(ctx), &program);
}

// Fills an operand's maps or, if its rows come by a list, where they are.
static tsr_status set_operand(const struct tsri_cuda_queue *queue, const struct matmul_problem *p,
                              bool is_b, const struct matmul_cuda_operand *o,
                              struct tensor_map *map, struct tensor_map *cut_map,
                              struct matmul_operand *of) {
    const struct matmul_matrix *t = is_b ? &p->b : &p->a;
    const struct matmul_list *list = is_b ? &p->groups.of_b : &p->groups.of_a;
    struct tsri_tensor_map_args args;
    if (!matmul_is_listed(list)) {
        (void)map_operand(p, t, o, is_b, UNIT, &args);
        TSRI_TRY(tsri_cuda_queue_map(op_of(p), queue, &args, map));
        if (!p->groups.are_depths) return TSR_OK;
        (void)map_operand(p, t, o, is_b, STEP_K, &args);
        return tsri_cuda_queue_map(op_of(p), queue, &args, cut_map);
    }
    of->data = t->data;
    of->line = listed_line(p, t, is_b);
    return TSR_OK;
}

tsr_status matmul_grouped_wgmma_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct matmul_problem *p = problem;
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    const struct matmul_cuda_layout l = matmul_cuda_layout(p, MATMUL_WGMMA, 0, 1);
    struct tsri_tensor_map_args map;
    bool is_gated = p->b_up.data != NULL;
    struct matmul_grouped_params params = {
        .matmul = {.tiles_m = tsri_ceil_div(p->m, BLOCK_M),
                   .tiles_n = tsri_ceil_div(p->n, is_gated ? BLOCK_N / 2 : BLOCK_N),
                   .num_splits = 1,
                   .group_m = GROUP_M},
        .sums = workspace,
        .stages = stages_of(p),
        .blocks_of_part = (int)(matmul_cuda_most_of_sum(p->c.dtype) / BLOCK_K),
    };
    matmul_cuda_set_output(p, &params.matmul);
    TSRI_TRY(set_operand(queue, p, false, &l.a, &params.a, &params.cut_a, &params.matmul.a));
    TSRI_TRY(set_operand(queue, p, true, &l.b, &params.b, &params.cut_b, &params.matmul.b));
    if (is_gated) {
        params.matmul.b_up.data = p->b_up.data;
        (void)map_operand(p, &p->b_up, &l.b_up, true, UNIT, &map);
        TSRI_TRY(tsri_cuda_queue_map(op_of(p), queue, &map, &params.b_up));
    }
    params.has_c_map = map_c(p, &map);
    params.is_plain = p->c.dtype == p->a.dtype && p->activation == TSR_ACTIVATION_NONE &&
                      p->bias == NULL && !is_gated;
    if (params.has_c_map) TSRI_TRY(tsri_cuda_queue_map(op_of(p), queue, &map, &params.c));
    const struct tsri_cuda_program program = program_of(p->a.dtype, l.a.is_mn, l.b.is_mn);
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = THREADS,
        .shared_bytes = SHARED_BYTES,
        .is_early = true,
        .params = &params,
    };
    return tsri_cuda_launch(op_of(p), queue, &program, &launch);
}
