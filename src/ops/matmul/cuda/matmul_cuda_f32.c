// SPDX-License-Identifier: Apache-2.0
// Matmul of fp32 on Hopper's tensor cores, if the caller allows it: cuda-tf32 rounds operands to 11 bits; cuda-bf16x6
// splits each operand into three numbers of 8 bits and makes six products of them. Both use kernels of
// matmul_wgmma_sm90.cu.
#include "cuda/cuda_tensor_map.h"
#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/cuda/matmul_lines_params.h"
#include "ops/matmul/cuda/matmul_wgmma_params.h"

static const char op_name[] = "matmul_forward";

enum {
    UNIT = 64,            // lines per box of a and b
    UNIT_BYTES = 128,     // per line of a box
    THREADS = 256,        // of a copying kernel
    BLOCKS_PER_SM = 16,   // maximum for a copying kernel
    LINES_TILE = 64,      // as in matmul_lines32.cu
    PLANES_OF_WARP = 256, // elements of a line, as in matmul_planes.cu
    MAX_SIZE = 1 << 30,   // of m and n, because coordinates are 32-bit
    MAX_K = 1 << 28,      // the same, for six pairs of planes
    MAX_TILES = 1 << 30,  // tiles are counted in 32 bits
};

// ---- Operands ---------------------------------------------------------------------------------

// data: address of the operand or of its copy.
static bool map_operand(const struct matmul_problem *p, const struct matmul_cuda_operand *o,
                        enum matmul_cuda_kind kind, const void *data,
                        struct tsri_tensor_map_args *args, int is_batched[MATMUL_MAX_BATCH_DIMS]) {
    const bool is_tf32 = kind == MATMUL_TF32;
    *args = (struct tsri_tensor_map_args){.data = data,
                                          .dtype = is_tf32 ? TSR_F32 : TSR_BF16,
                                          .is_tf32 = is_tf32,
                                          .box = {UNIT_BYTES / (is_tf32 ? 4 : 2), UNIT, 1, 1, 1}};
    return matmul_cuda_map_lines(p, o->batch, o->width, o->lines, o->line, args, is_batched);
}

// An operand as the kernels see it; columns of b and b_up correspond to rows of a.
struct operand {
    const struct matmul_matrix *matrix;
    int64_t step_mn, step_k;
    const struct matmul_cuda_operand *taken;
    size_t copy_at;
};

enum { NUM_OPERANDS = 3 };
static void list_operands(const struct matmul_problem *p, const struct matmul_cuda_layout *l,
                          struct operand operands[NUM_OPERANDS]) {
    operands[0] = (struct operand){&p->a, p->a.row, p->a.col, &l->a, l->a_at};
    operands[1] = (struct operand){&p->b, p->b.col, p->b.row, &l->b, l->b_at};
    operands[2] = (struct operand){&p->b_up, p->b_up.col, p->b_up.row, &l->b_up, l->b_up_at};
}

static bool serves(const struct matmul_problem *p, const struct tsri_limits *limits,
                   enum matmul_cuda_kind kind) {
    static const _Alignas(16) char somewhere[16];
    if (limits->cuda_arch != 90 || limits->shared_bytes_per_block < MATMUL_WGMMA_SHARED_BYTES)
        return false;
    if (p->a.dtype != TSR_F32 || p->groups.starts.data != NULL) return false;
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->num_batches < 1) return false;
    if (matmul_has_narrow_b(p)) return false;
    if (p->m > MAX_SIZE || p->n > MAX_SIZE || p->k > MAX_K) return false;
    if (tsri_ceil_div(p->m, 2 * UNIT) * tsri_ceil_div(p->n, UNIT) > MAX_TILES / p->num_batches)
        return false;
    const struct matmul_cuda_layout l = matmul_cuda_layout(p, kind, 0, 1);
    struct operand operands[NUM_OPERANDS];
    struct tsri_tensor_map_args map;
    int is_batched[MATMUL_MAX_BATCH_DIMS];
    list_operands(p, &l, operands);
    for (int i = 0; i < NUM_OPERANDS; i++) {
        const struct operand *o = &operands[i];
        if (o->matrix->data != NULL &&
            !map_operand(p, o->taken, kind, o->taken->is_copied ? somewhere : o->matrix->data, &map,
                         is_batched))
            return false;
    }
    return true;
}

bool matmul_cuda_tf32_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    return p->math >= TSR_MATMUL_MATH_TF32 && serves(p, limits, MATMUL_TF32);
}

bool matmul_cuda_bf16x6_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    return p->math >= TSR_MATMUL_MATH_SPLIT && serves(p, limits, MATMUL_BF16X6);
}

// ---- Kernels ----------------------------------------------------------------------------------

static struct tsri_cuda_program program_of(enum matmul_cuda_kind kind,
                                           const struct matmul_cuda_tile *tile, bool a_is_mn,
                                           bool b_is_mn) {
    const bool is_tf32 = kind == MATMUL_TF32;
    return (struct tsri_cuda_program){.source = "ops/matmul/cuda/matmul_wgmma_sm90.cu",
                                      .entry = "matmul_wgmma",
                                      .num_defines = is_tf32 ? 7 : 8,
                                      .defines = {{"DTYPE", is_tf32 ? TSR_F32 : TSR_BF16},
                                                  {"BLOCK_M", tile->block_m},
                                                  {"BLOCK_N", tile->block_n},
                                                  {"STAGES", tile->stages},
                                                  {"IN_TURNS", tile->in_turns},
                                                  {"A_IS_MN", a_is_mn},
                                                  {"B_IS_MN", b_is_mn},
                                                  {"PLANES", 1}}};
}

static struct tsri_cuda_program copy_program(enum matmul_cuda_kind kind) {
    if (kind == MATMUL_TF32)
        return (struct tsri_cuda_program){.source = "ops/matmul/cuda/matmul_lines32.cu",
                                          .entry = "matmul_lines32"};
    return (struct tsri_cuda_program){.source = "ops/matmul/cuda/matmul_planes.cu",
                                      .entry = "matmul_planes"};
}

// The i-th kernel of a kind: its copies, and for each tile without clusters one kernel per layout.
static bool kernel_of(enum matmul_cuda_kind kind, int *index, struct tsri_cuda_program *program) {
    const int num_layouts = kind == MATMUL_TF32 ? 1 : 4;
    int num_tiles;
    const struct matmul_cuda_tile *tiles = matmul_cuda_tiles(kind, &num_tiles);
    *program = copy_program(kind);
    if ((*index)-- == 0) return true;
    for (int i = 0; i < num_tiles * num_layouts; i++) {
        const struct matmul_cuda_tile *tile = &tiles[i / num_layouts];
        const int layout = i % num_layouts;
        if (tile->cluster > 1 || (*index)-- > 0) continue;
        *program = program_of(kind, tile, layout & 1, layout & 2);
        return true;
    }
    return false;
}

bool matmul_cuda_f32_kernel(int *index, struct tsri_cuda_program *program) {
    const bool has =
        kernel_of(MATMUL_TF32, index, program) || kernel_of(MATMUL_BF16X6, index, program);
    program->is_rare = has; // used only if the caller allows it
    return has;
}

static tsr_status prepare(tsr_context *ctx, const struct matmul_problem *p,
                          const struct tsri_plan *plan, enum matmul_cuda_kind kind) {
    const struct matmul_cuda_layout l =
        matmul_cuda_layout(p, kind, (int)plan->block_k, plan->grain);
    const struct tsri_cuda_program program = program_of(kind, l.tile, l.a.is_mn, l.b.is_mn),
                                   copy = copy_program(kind),
                                   reduce = matmul_cuda_reduce_program(TSR_F32);
    if (l.a.is_copied || l.b.is_copied || l.b_up.is_copied)
        TSRI_TRY(tsri_cuda_prepare(op_name, tsri_context_queue(ctx), &copy));
    if (l.num_splits > 1) TSRI_TRY(tsri_cuda_prepare(op_name, tsri_context_queue(ctx), &reduce));
    return tsri_cuda_prepare(op_name, tsri_context_queue(ctx), &program);
}

// ---- Launches ---------------------------------------------------------------------------------

static struct matmul_lines lines_of(const struct matmul_problem *p, const struct operand *o,
                                    enum matmul_cuda_kind kind, char *workspace) {
    static const int64_t one[MATMUL_MAX_BATCH_DIMS] = {1, 1, 1};
    const struct matmul_cuda_operand *taken = o->taken;
    const int64_t *shape = taken->num_matrices == 1 ? one : p->batch;
    const bool is_mn = taken->is_mn;
    const int64_t num_planes = kind == MATMUL_BF16X6 ? MATMUL_PLANES : 1;
    struct matmul_lines lines = {
        .copy = {.source = o->matrix->data,
                 .destination = workspace + o->copy_at,
                 .source_line = is_mn ? o->step_k : o->step_mn,
                 .source_step = is_mn ? o->step_mn : o->step_k,
                 .destination_line = taken->line,
                 .destination_batch = taken->lines * taken->line,
                 .lines = is_mn ? p->k : taken->lines,
                 .width = is_mn ? taken->width : p->k,
                 .filled = is_mn ? taken->line : taken->line / num_planes,
                 .num_batches = taken->num_matrices},
        .filled_lines = is_mn ? taken->lines / num_planes : taken->lines,
        .plane = is_mn ? taken->lines / num_planes * taken->line : taken->line / num_planes,
        .is_vector = taken->is_vector,
    };
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++) {
        lines.copy.batch[i] = shape[i];
        lines.copy.source_batch[i] = o->matrix->batch[i];
    }
    return lines;
}

// Copies all operands that need it, in one launch.
static tsr_status copy_operands(tsr_context *ctx, const struct matmul_problem *p,
                                const struct operand operands[NUM_OPERANDS],
                                enum matmul_cuda_kind kind, char *workspace) {
    const bool is_planes = kind == MATMUL_BF16X6;
    struct matmul_lines_params params = {0};
    int64_t num_items = 0;
    for (int i = 0; i < NUM_OPERANDS; i++) {
        if (operands[i].taken->is_copied) {
            params.operands[i] = lines_of(p, &operands[i], kind, workspace);
            const struct matmul_copy_params *copy = &params.operands[i].copy;
            const int64_t across =
                tsri_ceil_div(copy->filled, is_planes ? PLANES_OF_WARP : LINES_TILE);
            num_items += across * copy->num_batches *
                         (is_planes ? (int64_t)params.operands[i].filled_lines
                                    : tsri_ceil_div(copy->lines, LINES_TILE));
        }
        params.end[i] = (unsigned)num_items;
    }
    if (num_items == 0) return TSR_OK;
    const int64_t most = (int64_t)tsri_context_limits(ctx)->num_sms * BLOCKS_PER_SM;
    const struct tsri_cuda_launch launch = {
        .num_blocks =
            tsri_min(is_planes ? tsri_ceil_div(num_items, THREADS / 32) : num_items, most),
        .num_threads = THREADS,
        .is_early = true,
        .params = &params,
    };
    const struct tsri_cuda_program program = copy_program(kind);
    return tsri_cuda_launch(op_name, tsri_context_queue(ctx), &program, &launch);
}

// Multiplies l's problem, or the stack of splits that replaces it.
static tsr_status multiply(tsr_context *ctx, const struct matmul_problem *p,
                           const struct matmul_cuda_layout *l, const struct tsri_plan *plan,
                           void *workspace, enum matmul_cuda_kind kind) {
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    struct matmul_wgmma_params params = matmul_cuda_wgmma_params(p, l, workspace);
    struct tensor_map *const maps[NUM_OPERANDS] = {&params.a, &params.b, &params.b_up};
    int *const batches[NUM_OPERANDS] = {params.a_batch, params.b_batch, params.b_up_batch};
    struct operand operands[NUM_OPERANDS];
    struct tsri_tensor_map_args map;
    list_operands(p, l, operands);
    TSRI_TRY(copy_operands(ctx, p, operands, kind, workspace));
    for (int i = 0; i < NUM_OPERANDS; i++) {
        const struct operand *o = &operands[i];
        const void *data =
            o->taken->is_copied ? (const char *)workspace + o->copy_at : o->matrix->data;
        if (data == NULL) continue;
        (void)map_operand(p, o->taken, kind, data, &map, batches[i]);
        TSRI_TRY(tsri_cuda_queue_map(op_name, queue, &map, maps[i]));
    }
    params.matmul.b_up.data = p->b_up.data; // tells whether there is a gate
    params.has_c_map = matmul_cuda_map_rows(p, &p->c, &map);
    if (params.has_c_map) TSRI_TRY(tsri_cuda_queue_map(op_name, queue, &map, &params.c));
    const struct tsri_cuda_program program = program_of(kind, l->tile, l->a.is_mn, l->b.is_mn);
    return matmul_cuda_wgmma_launch(ctx, &program, plan, l, &params);
}

static tsr_status run(tsr_context *ctx, const struct matmul_problem *p,
                      const struct tsri_plan *plan, void *workspace, enum matmul_cuda_kind kind) {
    const struct matmul_cuda_layout l =
        matmul_cuda_layout(p, kind, (int)plan->block_k, plan->grain);
    if (l.num_splits == 1) return multiply(ctx, p, &l, plan, workspace, kind);
    const struct matmul_problem stack =
        matmul_cuda_stack_of(p, l.num_splits, (char *)workspace + l.partial_at);
    TSRI_TRY(multiply(ctx, &stack, &l, plan, workspace, kind));
    return matmul_cuda_reduce(ctx, p, &l, workspace);
}

tsr_status matmul_cuda_tf32_prepare(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan) {
    return prepare(ctx, problem, plan, MATMUL_TF32);
}

tsr_status matmul_cuda_bf16x6_prepare(tsr_context *ctx, const void *problem,
                                      const struct tsri_plan *plan) {
    return prepare(ctx, problem, plan, MATMUL_BF16X6);
}

tsr_status matmul_cuda_tf32_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                                void *workspace) {
    return run(ctx, problem, plan, workspace, MATMUL_TF32);
}

tsr_status matmul_cuda_bf16x6_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    return run(ctx, problem, plan, workspace, MATMUL_BF16X6);
}
