// SPDX-License-Identifier: Apache-2.0
// Grouped matmul of fp8 on Hopper: which problems it serves, its plan and its launch. Operands are read in place.
#include "cuda/cuda_tensor_map.h"
#include "ops/matmul/cuda/fp8/matmul_fp8_params.h"
#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/matmul_groups.h"

static const char op_name[] = "matmul_grouped_forward";

enum {
    UNIT = 64,           // lines per box of a and b, columns per box of c
    UNIT_BYTES = 128,    // per line of a box
    C_LINES = 16,        // per box of c
    GROUP_M = 16,        // rows of tiles that are processed together, column by column
    MAX_SIZE = 1 << 28,  // of m, k and groups, because offsets within a group are 32-bit
    MAX_N = 1 << 30,     //
    MAX_TILES = 1 << 30, //
    ALONE = 1,           // the tile without a cluster, in matmul_cuda_layout.c
};

static struct matmul_cuda_layout layout_of(const struct matmul_problem *p) {
    return matmul_cuda_layout(p, MATMUL_FP8, ALONE, 1);
}

static bool map_operand(const struct matmul_problem *p, const struct matmul_matrix *t,
                        const struct matmul_cuda_operand *o, struct tsri_tensor_map_args *args,
                        int is_batched[MATMUL_MAX_BATCH_DIMS]) {
    *args = (struct tsri_tensor_map_args){
        .data = t->data, .dtype = t->dtype, .box = {UNIT_BYTES, UNIT, 1, 1, 1}};
    return !o->is_copied &&
           matmul_cuda_map_lines(p, o->batch, o->width, o->lines, o->line, args, is_batched);
}

// Whether the copy engine can store c: products times factors, and a bias, in 16 bits.
static bool map_c(const struct matmul_problem *p, struct tsri_tensor_map_args *args) {
    int is_batched[MATMUL_MAX_BATCH_DIMS];
    *args = (struct tsri_tensor_map_args){
        .data = p->c.data, .dtype = p->c.dtype, .box = {UNIT, C_LINES, 1, 1, 1}};
    return p->c.dtype != TSR_F32 && p->n % 8 == 0 && p->activation == TSR_ACTIVATION_NONE &&
           p->b_up.data == NULL && !p->is_accumulating &&
           matmul_cuda_map_lines(p, p->c.batch, p->n, p->m, p->c.row, args, is_batched);
}

static int64_t rows_of_tiles(const struct matmul_problem *p, const struct matmul_cuda_layout *l) {
    const int64_t rows = tsri_ceil_div(p->m, l->tile->block_m);
    return matmul_has_packed_rows(p) ? rows + p->num_batches : rows * p->num_batches;
}

bool matmul_grouped_fp8_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    struct tsri_tensor_map_args map;
    int is_batched[MATMUL_MAX_BATCH_DIMS];
    if (limits->cuda_arch != 90 || limits->shared_bytes_per_block < MATMUL_WGMMA_SHARED_BYTES)
        return false;
    if (p->a.dtype != TSR_E4M3 || p->b.dtype != TSR_E4M3) return false;
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->num_batches < 1) return false;
    if (p->m > MAX_SIZE || p->n > MAX_N || p->k > MAX_SIZE || p->num_batches > MAX_SIZE)
        return false;
    if (!matmul_grouped_is_aligned(p, limits)) return false;
    const struct matmul_cuda_layout l = layout_of(p);
    if ((double)rows_of_tiles(p, &l) * (double)l.tiles_n > MAX_TILES) return false;
    return map_operand(p, &p->a, &l.a, &map, is_batched) &&
           map_operand(p, &p->b, &l.b, &map, is_batched) &&
           (p->b_up.data == NULL || map_operand(p, &p->b_up, &l.b_up, &map, is_batched));
}

static struct tsri_cuda_program program_of(tsr_dtype dtype) {
    return (struct tsri_cuda_program){.source = "ops/matmul/cuda/fp8/matmul_fp8_sm90.cu",
                                      .entry = "matmul_fp8",
                                      .num_defines = 5,
                                      .defines = {{"DTYPE", (int)dtype},
                                                  {"A_FORMAT", (int)TSR_E4M3},
                                                  {"B_FORMAT", (int)TSR_E4M3},
                                                  {"IS_FAST", 0},
                                                  {"GROUPED", 1}}};
}

bool matmul_grouped_fp8_kernel(int index, struct tsri_cuda_program *program) {
    if (index >= 2) return false;
    *program = program_of(index == 0 ? TSR_BF16 : TSR_F16);
    program->is_rare = index == 1;
    return true;
}

// One block per multiprocessor; each processes tile after tile.
void matmul_grouped_plan_fp8(const void *problem, const struct tsri_limits *limits,
                             struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    const struct matmul_cuda_layout l = layout_of(p);
    plan->block_m = l.tile->block_m;
    plan->block_n = l.tile->block_n;
    plan->block_k = l.tile->block_k;
    plan->num_tasks = tsri_min(rows_of_tiles(p, &l) * l.tiles_n, tsri_max(limits->num_sms, 1));
}

tsr_status matmul_grouped_fp8_prepare(tsr_context *ctx, const void *problem,
                                      const struct tsri_plan *plan) {
    const struct tsri_cuda_program program = program_of(matmul_cuda_dtype(problem));
    (void)plan;
    return tsri_cuda_prepare(op_name, tsri_context_queue(ctx), &program);
}

// Makes the map of an operand, which serves has tested.
static tsr_status set_map(const struct tsri_cuda_queue *queue, const struct matmul_problem *p,
                          const struct matmul_matrix *t, const struct matmul_cuda_operand *o,
                          struct tensor_map *map, int is_batched[MATMUL_MAX_BATCH_DIMS]) {
    struct tsri_tensor_map_args args;
    (void)map_operand(p, t, o, &args, is_batched);
    return tsri_cuda_queue_map(op_name, queue, &args, map);
}

tsr_status matmul_grouped_fp8_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    const struct matmul_problem *p = problem;
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    const struct matmul_cuda_layout l = layout_of(p);
    const struct tsri_cuda_program program = program_of(matmul_cuda_dtype(p));
    struct tsri_tensor_map_args map;
    struct matmul_fp8_params params = {
        .matmul = {.tiles_n = l.tiles_n, .num_splits = 1, .group_m = GROUP_M}};
    (void)workspace;
    matmul_cuda_set_output(p, &params.matmul);
    TSRI_TRY(set_map(queue, p, &p->a, &l.a, &params.a, params.a_batch));
    TSRI_TRY(set_map(queue, p, &p->b, &l.b, &params.b, params.b_batch));
    if (p->b_up.data != NULL) {
        params.matmul.b_up.data = p->b_up.data;
        TSRI_TRY(set_map(queue, p, &p->b_up, &l.b_up, &params.b_up, params.b_up_batch));
    }
    params.has_c_map = map_c(p, &map);
    if (params.has_c_map) TSRI_TRY(tsri_cuda_queue_map(op_name, queue, &map, &params.c));
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = l.tile->num_threads,
        .shared_bytes = l.shared_bytes,
        .is_early = true,
        .params = &params,
    };
    return tsri_cuda_launch(op_name, queue, &program, &launch);
}
