// SPDX-License-Identifier: Apache-2.0
// Matmul of fp8 on Hopper: operands with lines along k (in place or copied), their tensor maps, and the launch.
#include "cuda/cuda_tensor_map.h"
#include "ops/matmul/cuda/fp8/matmul_fp8_params.h"
#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/cuda/matmul_wgmma_params.h"

static const char op_name[] = "matmul_forward";

enum {
    UNIT = 64,           // lines per box of a and b, columns per box of c
    UNIT_BYTES = 128,    // per line of a box
    C_LINES = 16,        // per box of c
    GROUP_ROWS = 2048,   // rows of c that are processed together, column by column
    MAX_SIZE = 1 << 30,  // of m and n, because coordinates are 32-bit
    MAX_K = 1 << 28,     //
    MAX_TILES = 1 << 30, //
};

// ---- Maps -------------------------------------------------------------------------------------

// data: address of the operand or of its future copy; any aligned address serves to test whether it has a map.
static bool map_operand(const struct matmul_problem *p, const struct matmul_cuda_operand *o,
                        tsr_dtype dtype, const void *data, int box_lines,
                        struct tsri_tensor_map_args *args, int is_batched[MATMUL_MAX_BATCH_DIMS]) {
    *args = (struct tsri_tensor_map_args){
        .data = data, .dtype = dtype, .box = {UNIT_BYTES, box_lines, 1, 1, 1}};
    return matmul_cuda_map_lines(p, o->batch, o->width, o->lines, o->line, args, is_batched);
}

// Whether the copy engine can store c: products times factors, and a bias, in 16 bits. It stores 16 bytes at a time,
// for any line width.
static bool map_c(const struct matmul_problem *p, struct tsri_tensor_map_args *args) {
    int is_batched[MATMUL_MAX_BATCH_DIMS];
    *args = (struct tsri_tensor_map_args){
        .data = p->c.data, .dtype = p->c.dtype, .box = {UNIT, C_LINES, 1, 1, 1}};
    return p->c.dtype != TSR_F32 && p->n % 8 == 0 && p->activation == TSR_ACTIVATION_NONE &&
           p->b_up.data == NULL && p->residual.data == NULL && !p->is_accumulating &&
           matmul_cuda_map_lines(p, p->c.batch, p->n, p->m, p->c.row, args, is_batched);
}

bool matmul_cuda_fp8_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    static const _Alignas(16) char somewhere[16];
    if (limits->cuda_arch != 90 || limits->shared_bytes_per_block < MATMUL_WGMMA_SHARED_BYTES)
        return false;
    if (!matmul_is_fp8(p->a.dtype)) return false;
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->num_batches < 1) return false;
    if (p->m > MAX_SIZE || p->n > MAX_SIZE || p->k > MAX_K) return false;
    if (tsri_ceil_div(p->m, 2 * UNIT) * tsri_ceil_div(p->n, 2 * UNIT) > MAX_TILES / p->num_batches)
        return false;
    const struct matmul_cuda_layout l = matmul_cuda_layout(p, MATMUL_FP8, 0, 1);
    const struct matmul_cuda_operand *const operands[] = {&l.a, &l.b, &l.b_up};
    struct tsri_tensor_map_args map;
    int is_batched[MATMUL_MAX_BATCH_DIMS];
    for (int i = 0; i < (p->b_up.data != NULL ? 3 : 2); i++)
        if (!map_operand(p, operands[i], p->a.dtype, somewhere, UNIT, &map, is_batched))
            return false;
    return true;
}

// ---- Kernels ----------------------------------------------------------------------------------

static struct tsri_cuda_program program_of(tsr_dtype dtype, tsr_dtype a, tsr_dtype b,
                                           bool is_fast) {
    return (struct tsri_cuda_program){.source = "ops/matmul/cuda/fp8/matmul_fp8_sm90.cu",
                                      .entry = "matmul_fp8",
                                      .num_defines = 4,
                                      .defines = {{"DTYPE", (int)dtype},
                                                  {"A_FORMAT", (int)a},
                                                  {"B_FORMAT", (int)b},
                                                  {"IS_FAST", is_fast}}};
}

static struct tsri_cuda_program swapped_program_of(const struct matmul_cuda_tile *tile,
                                                   tsr_dtype dtype, bool is_fast) {
    struct tsri_cuda_program program = matmul_cuda_swapped_program(tile, dtype, false);
    program.defines[program.num_defines++] = (struct tsri_cuda_define){"FP8", 1};
    program.defines[program.num_defines++] = (struct tsri_cuda_define){"IS_FAST", is_fast};
    return program;
}

// The index-th kernel of swapped tiles.
static bool swapped_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program) {
    int num_tiles;
    const struct matmul_cuda_tile *tiles = matmul_cuda_tiles(MATMUL_FP8, &num_tiles);
    for (int i = 0; i < 2 * num_tiles; i++) {
        const struct matmul_cuda_tile *tile = &tiles[i / 2];
        const bool is_fast = i % 2 == 1;
        if (!tile->is_swapped || tile->cluster > 1) continue; // clusters have the same kernel
        if ((!is_fast && !matmul_cuda_swapped_has_parts(tile)) || (*index)-- > 0) continue;
        *program = swapped_program_of(tile, dtype, is_fast);
        program->is_rare = dtype == TSR_F16;
        return true;
    }
    return false;
}

bool matmul_cuda_fp8_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program) {
    static const tsr_dtype formats[] = {TSR_E4M3, TSR_E5M2};
    enum { KERNELS = 8 };
    if (*index >= KERNELS) {
        *index -= KERNELS;
        return swapped_kernel(index, dtype, program);
    }
    *program = program_of(dtype, formats[*index & 1], formats[*index >> 1 & 1], *index >> 2 & 1);
    program->is_rare = dtype == TSR_F16 || (*index & 3) == 3; // gradients are e5m2, times e4m3
    return true;
}

static struct tsri_cuda_program program_for(const struct matmul_problem *p,
                                            const struct matmul_cuda_layout *l) {
    if (l->tile->is_swapped)
        return swapped_program_of(l->tile, matmul_cuda_dtype(p), p->may_sum_fast);
    return program_of(matmul_cuda_dtype(p), p->a.dtype, p->b.dtype,
                      p->may_sum_fast && !p->is_block_scaled);
}

tsr_status matmul_cuda_fp8_prepare(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    const struct matmul_cuda_layout l =
        matmul_cuda_layout(p, MATMUL_FP8, (int)plan->block_k, plan->grain);
    const struct tsri_cuda_program program = program_for(p, &l),
                                   copy = matmul_cuda_lines8_program();
    if (l.a.is_copied || l.b.is_copied || l.b_up.is_copied)
        TSRI_TRY(tsri_cuda_prepare(op_name, tsri_context_queue(ctx), &copy));
    return tsri_cuda_prepare(op_name, tsri_context_queue(ctx), &program);
}

// Copies an operand if necessary, and makes its map.
static tsr_status map_placed(tsr_context *ctx, const struct matmul_problem *p,
                             const struct matmul_matrix *t, int64_t step_mn, int64_t step_k,
                             const struct matmul_cuda_operand *o, int box_lines, char *copy,
                             struct tensor_map *map, int is_batched[MATMUL_MAX_BATCH_DIMS],
                             struct tsri_tensor_map_args *args) {
    struct matmul_operand operand;
    TSRI_TRY(matmul_cuda_place(ctx, p, t, step_mn, step_k, o, copy, &operand));
    (void)map_operand(p, o, t->dtype, operand.data, box_lines, args, is_batched);
    return tsri_cuda_queue_map(op_name, tsri_context_queue(ctx), args, map);
}

static tsr_status run_swapped(tsr_context *ctx, const struct matmul_problem *p,
                              const struct tsri_plan *plan, const struct matmul_cuda_layout *l,
                              char *workspace) {
    const struct tsri_cuda_program program = program_for(p, l);
    struct matmul_wgmma_params params = matmul_cuda_wgmma_params(p, l, workspace);
    struct tsri_tensor_map_args map;
    TSRI_TRY(map_placed(ctx, p, &p->a, p->a.row, p->a.col, &l->a,
                        matmul_cuda_swapped_lines(l->tile), workspace + l->a_at, &params.a,
                        params.a_batch, &map));
    TSRI_TRY(matmul_cuda_map_last(ctx, p, l, &map, &params.a_last, &params.last_rows));
    TSRI_TRY(map_placed(ctx, p, &p->b, p->b.col, p->b.row, &l->b, UNIT, workspace + l->b_at,
                        &params.b, params.b_batch, &map));
    (void)matmul_cuda_map_rows(p, &p->c, &map);
    map.box[1] = MATMUL_SWAPPED_CHUNK(l->tile->block_m);
    params.end = matmul_cuda_wgmma_end(p);
    TSRI_TRY(tsri_cuda_queue_map(op_name, tsri_context_queue(ctx), &map, &params.c));
    return matmul_cuda_wgmma_launch(ctx, &program, plan, l, &params);
}

tsr_status matmul_cuda_fp8_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    const struct matmul_problem *p = problem;
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    const struct matmul_cuda_layout l =
        matmul_cuda_layout(p, MATMUL_FP8, (int)plan->block_k, plan->grain);
    const int64_t rows = l.tile->block_m * tsri_max(l.tile->cluster, 1);
    char *bytes = workspace;
    if (l.tile->is_swapped) return run_swapped(ctx, p, plan, &l, bytes);
    struct tsri_tensor_map_args map;
    struct matmul_fp8_params params = {
        .matmul = {.tiles_m = l.tiles_m,
                   .tiles_n = l.tiles_n,
                   .num_splits = 1,
                   .group_m = (int)(GROUP_ROWS / rows)},
        .num_tiles = (unsigned)l.num_tiles,
    };
    matmul_cuda_set_output(p, &params.matmul);
    TSRI_TRY(map_placed(ctx, p, &p->a, p->a.row, p->a.col, &l.a, UNIT, bytes + l.a_at, &params.a,
                        params.a_batch, &map));
    TSRI_TRY(matmul_cuda_map_last(ctx, p, &l, &map, &params.a_last, &params.last_rows));
    TSRI_TRY(map_placed(ctx, p, &p->b, p->b.col, p->b.row, &l.b, UNIT, bytes + l.b_at, &params.b,
                        params.b_batch, &map));
    if (p->b_up.data != NULL) {
        params.matmul.b_up.data = p->b_up.data;
        TSRI_TRY(map_placed(ctx, p, &p->b_up, p->b_up.col, p->b_up.row, &l.b_up, UNIT,
                            bytes + l.b_up_at, &params.b_up, params.b_up_batch, &map));
    }
    params.has_c_map = map_c(p, &map);
    if (params.has_c_map) TSRI_TRY(tsri_cuda_queue_map(op_name, queue, &map, &params.c));
    const struct tsri_cuda_program program = program_for(p, &l);
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = l.tile->num_threads,
        .shared_bytes = l.shared_bytes,
        .cluster_blocks = l.tile->cluster,
        .is_early = true,
        .params = &params,
    };
    return tsri_cuda_launch(op_name, queue, &program, &launch);
}
