// SPDX-License-Identifier: Apache-2.0
// Matmul on Hopper with k split over the blocks of a cluster: which products it serves, its tiles and splits, the launch.
#include <math.h>

#include "cuda/cuda_tensor_map.h"
#include "ops/matmul/matmul_cuda.h"
#include "ops/matmul/matmul_split_params.h"
#include "ops/matmul/matmul_wgmma_params.h"

static const char op_name[] = "matmul_forward";

enum {
    UNIT = 64,
    LEAST_ROWS = 16, // of a tile
    LEAST_K = 128,   // columns of k that are worth a split of their own
    MOST_SPLITS = 8, // blocks of a cluster
    MIN_STAGES = 5,  // that keep copies on their way where blocks share a multiprocessor
    MOST_GROUPS = 2, // as in matmul_split_sm90.cu
    MAX_K = 1 << 28,
    MOST_OF_SUM = 16384, // columns of k that tensor cores add for c of 16 bits, as cuda-wgmma's do
    MAX_SIZE = 1 << 30,  // of m and n: coordinates are 32-bit
    MAX_BLOCKS = 1 << 30,
    SM_BYTES = 233472, // shared memory of a multiprocessor
    RESERVED = 1024,   // of each block
};

// ---- Tiles and splits ---------------------------------------------------------------------------

static const int all_rows[] = {16, 32, 48, 64, 72, 96, 128, 144}; // of a tile
static const int all_splits[] = {1, 2, 3, 4, MOST_SPLITS};

struct layout {
    int rows, groups, num_splits, stages, shared_bytes;
    int blocks_of_sm; // that a multiprocessor has room for
    int64_t tiles_m, tiles_n, num_blocks;
    int64_t num_held;    // blocks beside them, without a tile
    int64_t blocks_of_k; // at most, of a part
};

static int64_t all_blocks_of_k(const struct matmul_problem *p, int rows) {
    return tsri_ceil_div(p->k, UNIT * matmul_split_slabs(rows));
}

// For which a multiprocessor of so many blocks has room.
static int stages_of(const struct layout *l, int blocks) {
    const int received = matmul_split_received_bytes(l->rows, l->groups, l->num_splits);
    return (SM_BYTES / blocks - RESERVED - received - 8) /
           (matmul_split_stage(l->rows, l->groups) + 2 * 8);
}

// Two launches' blocks have a multiprocessor each, and some are over.
static bool are_apart(int64_t num_blocks, int num_sms) { return 9 * num_blocks <= 4 * num_sms; }

// Almost one block for each multiprocessor, or more.
static bool is_full(int64_t num_blocks, int num_sms) { return 16 * num_blocks >= 15 * num_sms; }

// Blocks that share a multiprocessor: of this launch, or of this and the next, which is set up then. But blocks of the next one
// come in where there is room: with half to all of the multiprocessors at work some would get two, and take twice
// the time, so that one block has to have all of it.
static int blocks_of_sm(const struct layout *l, int num_sms) {
    const bool is_few = l->rows <= 32, is_some = l->rows <= 96;
    const bool is_held = l->num_splits == 2 && 2 * l->num_blocks > num_sms;
    if (is_few && l->num_blocks > 2 * num_sms) return 3;
    if (l->num_splits > 2) return is_few && are_apart(l->num_blocks, num_sms) ? 2 : 1;
    if (is_full(l->num_blocks, num_sms))
        return is_some || (l->num_splits == 2 && l->groups == 1) ? 2 : 1;
    if (is_held && (is_some || l->groups == 1)) return 2;
    const bool is_48 = l->rows == 48 && l->groups == 1;
    // 88 blocks of 48 x 64 on 132 multiprocessors (512^3) stay apart, too; 72 do not.
    if (is_48 && 8 * l->num_blocks >= 5 * num_sms && 3 * l->num_blocks <= 2 * num_sms) return 2;
    return (is_few || is_48) && are_apart(l->num_blocks, num_sms) ? 2 : 1;
}

static struct layout lay_out(const struct matmul_problem *p, int rows, int groups, int num_splits,
                             int num_sms) {
    const bool is_gated = p->b_up.data != NULL;
    struct layout l = {.rows = rows, .groups = groups, .num_splits = num_splits};
    l.tiles_m = tsri_ceil_div(p->m, rows);
    l.tiles_n = tsri_ceil_div(p->n, UNIT * (is_gated ? 1 : groups));
    l.num_blocks = l.tiles_m * l.tiles_n * p->num_batches * num_splits;
    l.blocks_of_k = tsri_ceil_div(all_blocks_of_k(p, rows), num_splits);
    l.blocks_of_sm = blocks_of_sm(&l, num_sms);
    l.stages = stages_of(&l, l.blocks_of_sm);
    if (rows > 32 && l.stages < tsri_min(l.blocks_of_k, num_splits > 1 ? 4 : MIN_STAGES)) {
        l.blocks_of_sm = 1; // fewer stages would not keep copies on their way
        l.stages = stages_of(&l, 1);
    }
    l.stages = (int)tsri_max(tsri_min(l.stages, l.blocks_of_k), 2);
    l.shared_bytes = matmul_split_bytes(rows, l.groups, l.stages, num_splits);
    // Where that helps, every multiprocessor has one block of each launch, if need be one without a tile, and no third.
    if (l.blocks_of_sm == 2 && l.num_blocks <= num_sms &&
        (num_splits == 2 ? 2 * l.num_blocks > num_sms
                         : num_splits == 1 && is_full(l.num_blocks, num_sms))) {
        l.num_held = num_sms / num_splits * num_splits - l.num_blocks;
        l.shared_bytes = (int)tsri_max(l.shared_bytes, SM_BYTES / 3);
    }
    return l;
}

static int64_t k_of_part(const struct layout *l) {
    return l->blocks_of_k * UNIT * matmul_split_slabs(l->rows);
}

static double bytes_of_b(const struct matmul_problem *p) {
    const bool is_shared = p->b.batch[0] == 0 && p->b.batch[1] == 0 && p->b.batch[2] == 0;
    return 2.0 * (double)(is_shared ? 1 : p->num_batches) * (double)p->n * (double)p->k *
           (p->b_up.data != NULL ? 2 : 1);
}

enum {
    LAUNCH_NS = 1600,
    ALONE_NS = 500,           // more where the next block cannot be set up beside this one,
    ALONE_IN_PARTS_NS = 1000, // whose cluster cannot
    APART_NS = 250,           // less where it is on another multiprocessor
    CACHE_BYTES = 40 << 20,
    LARGE_BYTES = 8 << 20,
    SUM_BYTES_PER_NS = 25,
};
static const double memory_bytes_per_ns = 4200;

// What a launch takes beside its tiles.
static double account_launch(const struct layout *l, int num_sms) {
    static const int cluster_ns[MOST_SPLITS + 1] = {0, 0, 880, 900, 900, 0, 0, 0, 900};
    const bool is_alone = l->blocks_of_sm == 1;
    // Of one part, and fewer than the multiprocessors, two share one only where they stay apart.
    const bool is_apart = !is_alone && l->num_splits == 1 && !is_full(l->num_blocks, num_sms);
    return LAUNCH_NS + cluster_ns[l->num_splits] - (is_apart ? APART_NS : 0) +
           (!is_alone           ? 0
            : l->num_splits > 1 ? ALONE_IN_PARTS_NS
                                : ALONE_NS);
}

// Nanoseconds, as measured on an H200: what b takes out of the second-level cache or out of memory, or what a multiprocessor
// copies and multiplies; then the sums. Clusters lie within groups of multiprocessors, which leave some of those over.
static double account(const struct matmul_problem *p, const struct layout *l, int num_sms) {
    static const double cache_bytes_per_ns = 6500, sm_bytes_per_ns = 110, clocks_per_ns = 1.4;
    enum { SLAB_NS = 25 };
    const int splits = l->num_splits, slabs = matmul_split_slabs(l->rows);
    const int clusters = (splits > 2 ? num_sms * 10 / 11 : num_sms) / splits;
    const int at_once = (clusters > 0 ? clusters : 1) * splits;
    const double waves = (double)tsri_ceil_div(l->num_blocks, at_once);
    const double stage = matmul_split_stage(l->rows, l->groups);
    const double copies = SLAB_NS * slabs + stage / sm_bytes_per_ns;
    const double products = slabs * l->groups * (l->rows + 16) * 2 / clocks_per_ns;
    const double of_sm = waves * (double)l->blocks_of_k * (products > copies ? products : copies);
    // Multiprocessors have equal shares of the memory's rate: where some have a block more than others, those wait.
    const double uneven = waves > 1 ? waves * at_once / (double)l->num_blocks : 1;
    const double b = bytes_of_b(p), twice = 2 * cache_bytes_per_ns;
    const double cached = b * (double)l->tiles_m / (b > LARGE_BYTES ? cache_bytes_per_ns : twice);
    const double from_memory = b > CACHE_BYTES ? b * uneven / memory_bytes_per_ns : 0;
    const double of_b = from_memory > cached ? from_memory : cached;
    const double larger = of_sm > of_b ? of_sm : of_b, smaller = of_sm > of_b ? of_b : of_sm;
    const double sums =
        splits > 1 ? waves * matmul_split_received_bytes(l->rows, l->groups, splits) : 0;
    return account_launch(l, num_sms) + larger + (l->tiles_m > 1 ? 0 : smaller / 8) +
           sums / SUM_BYTES_PER_NS;
}

// The index-th of rows, groups and splits; false after the last. *ns: INFINITY where it may not be had.
static bool choice_of(const struct matmul_problem *p, const struct tsri_limits *limits,
                      bool a_is_mn, int index, struct layout *l, double *ns) {
    const int num_sms = limits->num_sms > 0 ? limits->num_sms : 1;
    const bool may_split = (limits->flags & TSR_BATCH_INVARIANT) == 0;
    const int splits = all_splits[index % TSRI_COUNT(all_splits)];
    const int groups = 1 + index / TSRI_COUNT(all_splits) % MOST_GROUPS;
    const int nth = index / (TSRI_COUNT(all_splits) * MOST_GROUPS);
    if (nth >= TSRI_COUNT(all_rows)) return false;
    const int rows = all_rows[nth];
    *ns = INFINITY;
    if (a_is_mn && rows % UNIT != 0) return true; // it comes in whole units of lines along m
    if ((rows >= 2 * p->m + LEAST_ROWS && !(a_is_mn && rows == UNIT)) ||
        (p->b_up.data != NULL && groups < MOST_GROUPS))
        return true;
    if (splits > 1 && (!may_split || p->k / LEAST_K < splits)) return true;
    *l = lay_out(p, rows, groups, splits, num_sms);
    // Under TSR_BATCH_INVARIANT all numbers of rows add alike.
    const bool adds_parts = p->c.dtype == TSR_F32 || !may_split;
    if (!matmul_split_has_parts(rows) &&
        k_of_part(l) > (adds_parts ? MATMUL_SPLIT_PROMOTE : MOST_OF_SUM))
        return true;
    if (l->shared_bytes <= SM_BYTES - RESERVED) *ns = account(p, l, num_sms);
    return true;
}

static bool a_is_mn(const struct matmul_problem *p) {
    return matmul_cuda_layout(p, MATMUL_WGMMA, 0, 1).a.is_mn;
}

static void blocks_of(const struct layout *l, int64_t block[3]) {
    block[0] = l->rows;
    block[1] = UNIT * l->groups;
    block[2] = l->num_splits;
}

bool matmul_cuda_split_choice(const struct matmul_problem *p, const struct tsri_limits *limits,
                              int index, struct matmul_cuda_choice *choice) {
    struct layout l;
    *choice = (struct matmul_cuda_choice){.ns = INFINITY};
    if (!choice_of(p, limits, a_is_mn(p), index, &l, &choice->ns)) return false;
    if (isfinite(choice->ns)) blocks_of(&l, choice->block);
    return true;
}

// The least of those that a row asks for, where one does and they may be had; else of all.
static double choose(const struct matmul_problem *p, const struct tsri_limits *limits,
                     struct layout *best) {
    const bool is_mn = a_is_mn(p);
    double best_ns = INFINITY, ns;
    struct layout l;
    int64_t block[3];
    for (int is_free = limits->block[0] == 0; is_free < 2 && isinf(best_ns); is_free++)
        for (int i = 0; choice_of(p, limits, is_mn, i, &l, &ns); i++) {
            if (!(ns < best_ns)) continue;
            blocks_of(&l, block);
            if (!is_free && !matmul_cuda_is_asked(limits, block)) continue;
            best_ns = ns;
            *best = l;
        }
    return best_ns;
}

// Where b comes out of memory, of which the others' accounts know nothing, none takes less than that. Beyond few rows it is for
// tiles that are all at work at once.
bool matmul_cuda_split_is_best(const struct matmul_problem *p, const struct tsri_limits *limits,
                               double other) {
    enum { FEW_ROWS = 256 };
    struct layout l;
    const double b = bytes_of_b(p), ns = choose(p, limits, &l);
    if (p->m > FEW_ROWS) return l.num_blocks <= limits->num_sms && ns < other;
    return ns < other || (b > CACHE_BYTES && ns < 2 * LAUNCH_NS + 1.1 * b / memory_bytes_per_ns);
}

void matmul_cuda_plan_split(const void *problem, const struct tsri_limits *limits,
                            struct tsri_plan *plan) {
    struct layout l;
    (void)choose(problem, limits, &l);
    plan->block_m = l.rows;
    plan->grain = l.num_splits;
    plan->block_n = UNIT * l.groups;
    plan->block_k = UNIT * matmul_split_slabs(l.rows);
    plan->num_tasks = l.num_blocks;
    plan->workspace_bytes = 0;
}

// ---- What it serves -----------------------------------------------------------------------------

// The map of an operand in boxes of box_lines lines of 64 elements: false where it has none.
static bool map_operand(const struct matmul_problem *p, const struct matmul_matrix *t,
                        const struct matmul_cuda_operand *o, int box_lines,
                        struct tsri_tensor_map_args *args, int is_batched[MATMUL_MAX_BATCH_DIMS]) {
    *args = (struct tsri_tensor_map_args){
        .data = t->data, .dtype = t->dtype, .box = {UNIT, box_lines, 1, 1, 1}};
    return !o->is_copied &&
           matmul_cuda_map_lines(p, t->batch, o->width, o->lines, o->line, args, is_batched);
}

bool matmul_cuda_split_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    struct tsri_tensor_map_args map;
    int is_batched[MATMUL_MAX_BATCH_DIMS];
    if (limits->cuda_arch != 90 || limits->shared_bytes_per_block < MATMUL_WGMMA_SHARED_BYTES)
        return false;
    if (p->a.dtype != TSR_BF16 && p->a.dtype != TSR_F16) return false;
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->num_batches < 1) return false;
    if (p->m > MAX_SIZE || p->n > MAX_SIZE || p->k > MAX_K) return false;
    if (tsri_ceil_div(p->m, LEAST_ROWS) * tsri_ceil_div(p->n, UNIT) >
        MAX_BLOCKS / MOST_SPLITS / p->num_batches)
        return false;
    const struct matmul_cuda_layout l = matmul_cuda_layout(p, MATMUL_WGMMA, 0, 1);
    return map_operand(p, &p->a, &l.a, UNIT, &map, is_batched) &&
           map_operand(p, &p->b, &l.b, UNIT, &map, is_batched) &&
           (p->b_up.data == NULL || map_operand(p, &p->b_up, &l.b_up, UNIT, &map, is_batched));
}

// ---- Launches -----------------------------------------------------------------------------------

static struct tsri_cuda_program program_of(int rows, tsr_dtype dtype) {
    return (struct tsri_cuda_program){.source = "ops/matmul/matmul_split_sm90.cu",
                                      .entry = "matmul_split",
                                      .num_defines = 2,
                                      .defines = {{"DTYPE", (int)dtype}, {"ROWS", rows}}};
}

bool matmul_cuda_split_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program) {
    if (*index >= TSRI_COUNT(all_rows)) {
        *index -= TSRI_COUNT(all_rows);
        return false;
    }
    const int rows = all_rows[*index];
    *program = program_of(rows, dtype);
    // f16 where tiles are few, and the widest.
    program->is_rare = rows == 144 || (dtype == TSR_F16 && rows > 32 && rows != 64);
    return true;
}

tsr_status matmul_cuda_split_prepare(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    const struct tsri_cuda_program program = program_of((int)plan->block_m, p->a.dtype);
    return tsri_cuda_prepare(op_name, tsri_context_queue(ctx), &program);
}

// Products times alpha, in the operands' dtype.
static bool is_plain(const struct matmul_problem *p) {
    return p->c.dtype == p->a.dtype && p->bias == NULL && p->b_up.data == NULL &&
           p->residual.data == NULL && p->activation == TSR_ACTIVATION_NONE && !p->is_accumulating;
}

tsr_status matmul_cuda_split_run(tsr_context *ctx, const void *problem,
                                 const struct tsri_plan *plan, void *workspace) {
    const struct matmul_problem *p = problem;
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    const struct tsri_cuda_driver *driver = queue->device.driver;
    const struct matmul_cuda_layout o = matmul_cuda_layout(p, MATMUL_WGMMA, 0, 1);
    const struct layout l = lay_out(p, (int)plan->block_m, (int)(plan->block_n / UNIT),
                                    (int)plan->grain, tsri_context_limits(ctx)->num_sms);
    const bool is_one_box =
        p->b_up.data == NULL && !o.b.is_mn; // lines along k lie behind each other in a tile
    struct tsri_tensor_map_args map;
    struct matmul_split_params params = {
        .matmul = {.a_is_mn = o.a.is_mn, .b_is_mn = o.b.is_mn},
        .tiles_m = (int)l.tiles_m,
        .tiles_n = (int)l.tiles_n,
        .num_splits = l.num_splits,
        .k_least = (int)(all_blocks_of_k(p, l.rows) / l.num_splits),
        .k_more = (int)(all_blocks_of_k(p, l.rows) % l.num_splits),
        .groups = l.groups,
        .boxes = is_one_box ? 1 : l.groups,
        .stages = l.stages,
        .num_tiles = (unsigned)(l.num_blocks / l.num_splits),
    };
    (void)workspace;
    matmul_cuda_set_output(p, &params.matmul);
    if (!matmul_split_has_parts(l.rows) && k_of_part(&l) > MATMUL_SPLIT_PROMOTE)
        params.matmul.alpha *= 1 + matmul_wgmma_drift((int)k_of_part(&l)) / 2;
    params.is_plain = is_plain(p) && params.matmul.c_is_vector && p->n % 8 == 0;
    (void)map_operand(p, &p->a, &o.a, o.a.is_mn ? UNIT : l.rows, &map, params.a_batch);
    TSRI_TRY(tsri_cuda_tensor_map(op_name, driver, &map, &params.a));
    (void)map_operand(p, &p->b, &o.b, is_one_box ? UNIT * l.groups : UNIT, &map, params.b_batch);
    TSRI_TRY(tsri_cuda_tensor_map(op_name, driver, &map, &params.b));
    if (p->b_up.data != NULL) {
        params.matmul.b_up.data = p->b_up.data;
        (void)map_operand(p, &p->b_up, &o.b_up, UNIT, &map, params.b_up_batch);
        TSRI_TRY(tsri_cuda_tensor_map(op_name, driver, &map, &params.b_up));
    }
    const struct tsri_cuda_program program = program_of(l.rows, p->a.dtype);
    const struct tsri_cuda_launch launch = {
        .num_blocks = l.num_blocks + l.num_held,
        .num_threads = 128 * l.groups + 32,
        .shared_bytes = l.shared_bytes,
        .cluster_blocks = l.num_splits,
        .is_early = true,
        .params = &params,
    };
    return tsri_cuda_launch(op_name, queue, &program, &launch);
}
