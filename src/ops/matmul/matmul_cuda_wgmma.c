// SPDX-License-Identifier: Apache-2.0
// Matmul on Hopper by wgmma: what the copy engine can take as it lies, and the launch.
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_tensor_map.h"
#include "ops/matmul/matmul_cuda.h"
#include "ops/matmul/matmul_wgmma_params.h"

static const char op_name[] = "matmul_forward";

enum {
    UNIT = 64,          // lines and columns of a box of a and b, columns of one of c
    C_LINES = 16,       // of a box of c
    GROUP_ROWS = 2048,  // rows of c that are gone over together, column by column
    MAX_SIZE = 1 << 30, // of m and n: coordinates are 32-bit
    MAX_K = 1 << 28,    // as in matmul_cuda_plan.c: k is not split
    MAX_TILES = 1 << 30,
};

// ---- Maps -------------------------------------------------------------------------------------

// Lines of `width` elements, `line` apart, in a stack of matrices: whether it has a map. is_batched: 1 for the dimensions of the
// batch along which matrices differ.
static bool map_lines(const struct matmul_problem *p, const struct matmul_matrix *t, int64_t width,
                      int64_t lines, int64_t line, int box_lines, struct tsri_tensor_map_args *args,
                      int is_batched[MATMUL_MAX_BATCH_DIMS]) {
    if (lines <= 1) line = (int64_t)tsri_round_up((size_t)width, UNIT);
    *args = (struct tsri_tensor_map_args){.data = t->data,
                                          .dtype = t->dtype,
                                          .size = {width, lines},
                                          .stride = {1, line},
                                          .box = {UNIT, box_lines, 1, 1, 1},
                                          .is_swizzled = true};
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++) {
        int dim = TSRI_TENSOR_MAP_RANK - 1 - i;
        is_batched[i] = p->batch[i] > 1 && t->batch[i] != 0;
        args->size[dim] = is_batched[i] ? p->batch[i] : 1;
        args->stride[dim] = is_batched[i] ? t->batch[i] : line;
    }
    return line >= width && tsri_tensor_map_fits(args);
}

static bool map_operand(const struct matmul_problem *p, const struct matmul_matrix *t,
                        const struct matmul_cuda_operand *o, struct tsri_tensor_map_args *args,
                        int is_batched[MATMUL_MAX_BATCH_DIMS]) {
    return !o->is_copied && map_lines(p, t, o->width, o->lines, o->line, UNIT, args, is_batched);
}

// c by the copy engine: products times alpha, and a bias.
static bool map_c(const struct matmul_problem *p, struct tsri_tensor_map_args *args) {
    int is_batched[MATMUL_MAX_BATCH_DIMS];
    return p->c.dtype == p->a.dtype && p->activation == TSR_ACTIVATION_NONE &&
           p->b_up.data == NULL && p->residual.data == NULL && !p->is_accumulating &&
           map_lines(p, &p->c, p->n, p->m, p->c.row, C_LINES, args, is_batched);
}

bool matmul_cuda_wgmma_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    struct tsri_tensor_map_args map;
    int is_batched[MATMUL_MAX_BATCH_DIMS];
    if (limits->cuda_arch != 90 || limits->shared_bytes_per_block < MATMUL_WGMMA_SHARED_BYTES)
        return false;
    if (p->a.dtype != TSR_BF16 && p->a.dtype != TSR_F16) return false;
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->num_batches < 1) return false;
    if (p->m > MAX_SIZE || p->n > MAX_SIZE || p->k > MAX_K) return false;
    const struct matmul_cuda_layout l = matmul_cuda_layout(p, MATMUL_WGMMA, 0, 1);
    if (tsri_ceil_div(p->m, 2 * UNIT) * tsri_ceil_div(p->n, UNIT) > MAX_TILES / p->num_batches)
        return false;
    return map_operand(p, &p->a, &l.a, &map, is_batched) &&
           map_operand(p, &p->b, &l.b, &map, is_batched) &&
           (p->b_up.data == NULL || map_operand(p, &p->b_up, &l.b_up, &map, is_batched));
}

// Until it has been verified on a card it is there only for those who ask for it.
static bool is_asked_for(void) {
    const char *name = getenv("TSR_UNPROVED");
    return name != NULL && strcmp(name, "cuda-wgmma") == 0;
}

bool matmul_cuda_wgmma_supports(const void *problem, const struct tsri_limits *limits) {
    return is_asked_for() && matmul_cuda_wgmma_serves(problem, limits);
}

// ---- Kernels ----------------------------------------------------------------------------------

static struct tsri_cuda_program program_of(const struct matmul_cuda_tile *tile, tsr_dtype dtype,
                                           bool a_is_mn, bool b_is_mn) {
    return (struct tsri_cuda_program){
        .source = "ops/matmul/matmul_wgmma_sm90.cu",
        .entry = "matmul_wgmma",
        .num_defines = 7,
        .defines = {{"DTYPE", (int)dtype},
                    {"BLOCK_M", tile->block_m},
                    {"BLOCK_N", tile->block_n},
                    {"STAGES", tile->stages},
                    {"CLUSTER", tile->cluster > 1 ? tile->cluster : 1},
                    {"A_IS_MN", a_is_mn},
                    {"B_IS_MN", b_is_mn}}};
}

bool matmul_cuda_wgmma_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program) {
    enum { LAYOUTS = 4 };
    if (!is_asked_for()) return false;
    int num_tiles;
    const struct matmul_cuda_tile *tiles = matmul_cuda_tiles(MATMUL_WGMMA, &num_tiles);
    if (*index >= num_tiles * LAYOUTS) {
        *index -= num_tiles * LAYOUTS;
        return false;
    }
    *program = program_of(&tiles[*index / LAYOUTS], dtype, *index & 1, *index & 2);
    return true;
}

tsr_status matmul_cuda_wgmma_prepare(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    const struct matmul_cuda_layout l =
        matmul_cuda_layout(p, MATMUL_WGMMA, (int)plan->block_k, plan->grain);
    const struct tsri_cuda_program program = program_of(l.tile, p->a.dtype, l.a.is_mn, l.b.is_mn);
    return tsri_cuda_prepare(op_name, tsri_context_queue(ctx), &program);
}

tsr_status matmul_cuda_wgmma_run(tsr_context *ctx, const void *problem,
                                 const struct tsri_plan *plan, void *workspace) {
    const struct matmul_problem *p = problem;
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    const struct tsri_cuda_driver *driver = queue->device.driver;
    const struct matmul_cuda_layout l =
        matmul_cuda_layout(p, MATMUL_WGMMA, (int)plan->block_k, plan->grain);
    const int64_t rows = l.tile->block_m * tsri_max(l.tile->cluster, 1);
    struct tsri_tensor_map_args map;
    struct matmul_wgmma_params params = {
        .matmul = {.tiles_m = l.tiles_m,
                   .tiles_n = l.tiles_n,
                   .num_splits = 1,
                   .group_m = (int)(GROUP_ROWS / rows)},
        .sums = l.has_sums ? workspace : NULL,
        .num_tiles = (unsigned)l.num_tiles,
        .blocks_of_part = l.tile->promote / l.tile->block_k,
    };
    matmul_cuda_set_output(p, &params.matmul);
    (void)map_operand(p, &p->a, &l.a, &map, params.a_batch);
    TSRI_TRY(tsri_cuda_tensor_map(op_name, driver, &map, &params.a));
    (void)map_operand(p, &p->b, &l.b, &map, params.b_batch);
    TSRI_TRY(tsri_cuda_tensor_map(op_name, driver, &map, &params.b));
    if (p->b_up.data != NULL) {
        params.matmul.b_up.data = p->b_up.data;
        (void)map_operand(p, &p->b_up, &l.b_up, &map, params.b_up_batch);
        TSRI_TRY(tsri_cuda_tensor_map(op_name, driver, &map, &params.b_up));
    }
    params.has_c_map = map_c(p, &map);
    if (params.has_c_map) TSRI_TRY(tsri_cuda_tensor_map(op_name, driver, &map, &params.c));
    const struct tsri_cuda_program program = program_of(l.tile, p->a.dtype, l.a.is_mn, l.b.is_mn);
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = l.tile->num_threads,
        .shared_bytes = l.shared_bytes,
        .cluster_blocks = l.tile->cluster,
        .params = &params,
    };
    return tsri_cuda_launch(op_name, queue, &program, &launch);
}
