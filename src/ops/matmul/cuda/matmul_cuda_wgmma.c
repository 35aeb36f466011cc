// SPDX-License-Identifier: Apache-2.0
// Matmul on Hopper by wgmma: which products it serves, its kernels, and the launch.
#include "cuda/cuda_tensor_map.h"
#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/cuda/matmul_wgmma_params.h"

static const char op_name[] = "matmul_forward";

enum {
    UNIT = 64,          // lines and columns per box of a and b
    GROUP_ROWS = 2048,  // rows of c that are processed together, column by column
    MAX_SIZE = 1 << 30, // of m and n, because coordinates are 32-bit
    MAX_K = 1 << 28,    // MATMUL_MAX_SPLIT_K: k is not split
    MAX_TILES = 1 << 30,
};

// ---- What it serves --------------------------------------------------------------------------

// An operand or its copy, which may not exist yet.
static bool map_operand(const struct matmul_problem *p, const struct matmul_matrix *t,
                        const struct matmul_cuda_operand *o, const void *copy, int box_lines,
                        struct tsri_tensor_map_args *args, int is_batched[MATMUL_MAX_BATCH_DIMS]) {
    *args = (struct tsri_tensor_map_args){.data = o->is_copied ? copy : t->data,
                                          .dtype = t->dtype,
                                          .box = {UNIT, box_lines, 1, 1, 1}};
    return matmul_cuda_map_lines(p, o->is_copied ? o->batch : t->batch, o->width, o->lines, o->line,
                                 args, is_batched);
}

bool matmul_cuda_wgmma_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    struct tsri_tensor_map_args map;
    int is_batched[MATMUL_MAX_BATCH_DIMS];
    if (limits->cuda_arch != 90 || limits->shared_bytes_per_block < MATMUL_WGMMA_SHARED_BYTES)
        return false;
    if (p->a.dtype != TSR_BF16 && p->a.dtype != TSR_F16) return false;
    if (p->groups.starts.data != NULL) return false;
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->num_batches < 1) return false;
    if (p->m > MAX_SIZE || p->n > MAX_SIZE || p->k > MAX_K) return false;
    const struct matmul_cuda_layout l = matmul_cuda_layout(p, MATMUL_WGMMA, 0, 1);
    if (tsri_ceil_div(p->m, 2 * UNIT) * tsri_ceil_div(p->n, UNIT) > MAX_TILES / p->num_batches)
        return false;
    const void *copy = (const void *)(uintptr_t)256; // aligned like the workspace
    return map_operand(p, &p->a, &l.a, copy, UNIT, &map, is_batched) &&
           map_operand(p, &p->b, &l.b, copy, UNIT, &map, is_batched) &&
           (p->b_up.data == NULL ||
            map_operand(p, &p->b_up, &l.b_up, copy, UNIT, &map, is_batched));
}

// ---- Kernels ----------------------------------------------------------------------------------

struct tsri_cuda_program matmul_cuda_swapped_program(const struct matmul_cuda_tile *tile,
                                                     tsr_dtype dtype, bool b_is_mn) {
    return (struct tsri_cuda_program){.source = "ops/matmul/cuda/matmul_swapped_sm90.cu",
                                      .entry = "matmul_swapped",
                                      .num_defines = 5,
                                      .defines = {{"DTYPE", (int)dtype},
                                                  {"BLOCK_M", tile->block_n},
                                                  {"BLOCK_N", tile->block_m},
                                                  {"STAGES", tile->stages},
                                                  {"A_IS_MN", b_is_mn}}};
}

static struct tsri_cuda_program program_of(const struct matmul_cuda_tile *tile, tsr_dtype dtype,
                                           bool a_is_mn, bool b_is_mn) {
    if (tile->is_swapped) return matmul_cuda_swapped_program(tile, dtype, b_is_mn);
    return (struct tsri_cuda_program){.source = "ops/matmul/cuda/matmul_wgmma_sm90.cu",
                                      .entry = "matmul_wgmma",
                                      .num_defines = 7,
                                      .defines = {{"DTYPE", (int)dtype},
                                                  {"BLOCK_M", tile->block_m},
                                                  {"BLOCK_N", tile->block_n},
                                                  {"STAGES", tile->stages},
                                                  {"IN_TURNS", tile->in_turns},
                                                  {"A_IS_MN", a_is_mn},
                                                  {"B_IS_MN", b_is_mn}}};
}

bool matmul_cuda_wgmma_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program) {
    enum { LAYOUTS = 4 };
    int num_tiles;
    const struct matmul_cuda_tile *tiles = matmul_cuda_tiles(MATMUL_WGMMA, &num_tiles);
    for (int i = 0; i < num_tiles * LAYOUTS; i++) {
        if (tiles[i / LAYOUTS].cluster > 1) continue;           // same kernel as without clusters
        if (tiles[i / LAYOUTS].is_swapped && (i & 1)) continue; // its a runs along k
        if ((*index)-- > 0) continue;
        *program = program_of(&tiles[i / LAYOUTS], dtype, i & 1, i & 2);
        // Rare: both transposed, which neither a layer nor its gradients use; f16 with few tiles; and cases that
        // cuda-split usually serves.
        const int block_n = tiles[i / LAYOUTS].block_n;
        program->is_rare = i % LAYOUTS == 1 || (block_n % 128 != 0 && dtype == TSR_F16) ||
                           (block_n == 192 && i % 2 == 0);
        return true;
    }
    return false;
}

tsr_status matmul_cuda_wgmma_prepare(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    const struct matmul_cuda_layout l =
        matmul_cuda_layout(p, MATMUL_WGMMA, (int)plan->block_k, plan->grain);
    const struct tsri_cuda_program program = program_of(l.tile, p->a.dtype, l.a.is_mn, l.b.is_mn),
                                   copy = matmul_cuda_copy_program(p->a.dtype);
    if (l.a.is_copied || l.b.is_copied || l.b_up.is_copied)
        TSRI_TRY(tsri_cuda_prepare(op_name, tsri_context_queue(ctx), &copy));
    return tsri_cuda_prepare(op_name, tsri_context_queue(ctx), &program);
}

tsr_status matmul_cuda_map_last(tsr_context *ctx, const struct matmul_problem *p,
                                const struct matmul_cuda_layout *l,
                                const struct tsri_tensor_map_args *of_a, struct tensor_map *a_last,
                                int *last_rows) {
    struct tsri_tensor_map_args map = *of_a;
    const int last = (int)(p->m % l->tile->block_m), eights = (last + 7) / 8;
    if (last == 0 || l->a.is_mn) return TSR_OK;
    *last_rows = last;
    map.box[1] = !l->tile->is_swapped   ? last % UNIT
                 : l->tile->cluster > 1 ? MATMUL_SWAPPED_HALF(eights * 8)
                                        : last;
    if (map.box[1] == 0) return TSR_OK; // whole units
    return tsri_cuda_queue_map(op_name, tsri_context_queue(ctx), &map, a_last);
}

// Copies operands if necessary and makes the maps, except that of the last rows; of_a: a's, of which that one is made.
static tsr_status map_all(tsr_context *ctx, const struct matmul_problem *p,
                          const struct matmul_cuda_layout *l, char *workspace,
                          struct matmul_wgmma_params *params, struct tsri_tensor_map_args *of_a) {
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    char *b = workspace + l->b_at, *b_up = workspace + l->b_up_at;
    struct tsri_tensor_map_args map;
    struct matmul_operand unused;
    TSRI_TRY(matmul_cuda_place(ctx, p, &p->a, p->a.row, p->a.col, &l->a, workspace, &unused));
    TSRI_TRY(matmul_cuda_place(ctx, p, &p->b, p->b.col, p->b.row, &l->b, b, &unused));
    TSRI_TRY(matmul_cuda_place(ctx, p, &p->b_up, p->b_up.col, p->b_up.row, &l->b_up, b_up,
                               &params->matmul.b_up));
    const int lines = l->tile->is_swapped ? matmul_cuda_swapped_lines(l->tile) : UNIT;
    (void)map_operand(p, &p->a, &l->a, workspace, lines, of_a, params->a_batch);
    TSRI_TRY(tsri_cuda_queue_map(op_name, queue, of_a, &params->a));
    (void)map_operand(p, &p->b, &l->b, b, UNIT, &map, params->b_batch);
    TSRI_TRY(tsri_cuda_queue_map(op_name, queue, &map, &params->b));
    if (p->b_up.data != NULL) {
        (void)map_operand(p, &p->b_up, &l->b_up, b_up, UNIT, &map, params->b_up_batch);
        TSRI_TRY(tsri_cuda_queue_map(op_name, queue, &map, &params->b_up));
    }
    params->has_c_map = matmul_cuda_map_rows(p, &p->c, &map);
    if (!params->has_c_map) return TSR_OK;
    params->end = matmul_cuda_wgmma_end(p);
    if (l->tile->is_swapped) map.box[1] = MATMUL_SWAPPED_CHUNK(l->tile->block_m);
    TSRI_TRY(tsri_cuda_queue_map(op_name, queue, &map, &params->c));
    params->has_residual_map = p->residual.data != NULL && p->residual.dtype == p->a.dtype &&
                               p->c.dtype == p->a.dtype &&
                               matmul_cuda_map_rows(p, &p->residual, &map);
    return params->has_residual_map ? tsri_cuda_queue_map(op_name, queue, &map, &params->residual)
                                    : TSR_OK;
}

struct matmul_wgmma_params matmul_cuda_wgmma_params(const struct matmul_problem *p,
                                                    const struct matmul_cuda_layout *l,
                                                    char *workspace) {
    const int cluster = (int)tsri_max(l->tile->cluster, 1);
    struct matmul_wgmma_params params = {
        .matmul = {.tiles_m = l->tiles_m,
                   .tiles_n = l->tiles_n,
                   .num_splits = 1,
                   .group_m =
                       GROUP_ROWS / (l->tile->block_m * (l->tile->is_swapped ? 1 : cluster))},
        .sums = l->has_sums ? (float *)(void *)(workspace + l->workspace_bytes) : NULL,
        .num_tiles = (unsigned)l->num_tiles,
        .blocks_of_part = l->blocks_of_part,
        .cluster = cluster,
    };
    matmul_cuda_set_output(p, &params.matmul);
    return params;
}

tsr_status matmul_cuda_wgmma_launch(tsr_context *ctx, const struct tsri_cuda_program *program,
                                    const struct tsri_plan *plan,
                                    const struct matmul_cuda_layout *l,
                                    const struct matmul_wgmma_params *params) {
    const struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = l->tile->num_threads,
        .shared_bytes = l->shared_bytes,
        .cluster_blocks = l->tile->cluster,
        .is_early = true,
        .params = params,
    };
    return tsri_cuda_launch(op_name, tsri_context_queue(ctx), program, &launch);
}

tsr_status matmul_cuda_wgmma_run(tsr_context *ctx, const void *problem,
                                 const struct tsri_plan *plan, void *workspace) {
    const struct matmul_problem *p = problem;
    const struct matmul_cuda_layout l =
        matmul_cuda_layout(p, MATMUL_WGMMA, (int)plan->block_k, plan->grain);
    struct matmul_wgmma_params params = matmul_cuda_wgmma_params(p, &l, workspace);
    if (p->c.dtype != TSR_F32)
        params.matmul.alpha *= 1 + matmul_wgmma_drift(l.blocks_of_part * l.tile->block_k) / 2;
    struct tsri_tensor_map_args of_a;
    TSRI_TRY(map_all(ctx, p, &l, workspace, &params, &of_a));
    TSRI_TRY(matmul_cuda_map_last(ctx, p, &l, &of_a, &params.a_last, &params.last_rows));
    const struct tsri_cuda_program program = program_of(l.tile, p->a.dtype, l.a.is_mn, l.b.is_mn);
    return matmul_cuda_wgmma_launch(ctx, &program, plan, &l, &params);
}
