// SPDX-License-Identifier: Apache-2.0
// Matmul on Hopper with k split over the blocks of a cluster: which products it serves, its tiles and splits, and the
// launch. Everything but what it serves is in terms of matmul_split_problem.
#include <math.h>

#include "cuda/cuda_tensor_map.h"
#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/cuda/matmul_wgmma_params.h"
#include "ops/matmul/cuda/split/matmul_split_layout.h"

static const char op_name[] = "matmul_forward";

enum {
    UNIT = MATMUL_SPLIT_COLS,
    LEAST_ROWS = 16, // of a tile
    LEAST_K = 128,   // columns of k from which a separate split pays
    MAX_K = 1 << 28,
    MAX_SIZE = 1 << 30, // of m and n, because coordinates are 32-bit
    MAX_BLOCKS = 1 << 30,
    FEW_ROWS = 256,
};

// ---- Tiles and splits ---------------------------------------------------------------------------

static const int all_rows[] = {16, 32, 48, 64, 72, 80, 96, 112, 128, 144}; // of a tile
static const int all_clusters[] = {1, 2, 3, 4, MATMUL_SPLIT_MOST_SPLITS, 210, 120, 220, 240, 420};
enum { ONE_UNIT, TWO_UNITS, EVEN, NUM_WIDTHS }; // columns of a tile: 64, 128, or an even share

// Shares of an operand begin at multiples of eight lines, or are whole boxes.
static bool may_share(const struct matmul_problem *p, struct matmul_split_ways ways, int rows,
                      int cols, int cluster) {
    const int below = cluster / MATMUL_SPLIT_BELOW % 10, beside = cluster / MATMUL_SPLIT_BESIDE;
    if (rows == 144 || p->b_up.data != NULL || p->m <= rows * (below - 1) ||
        p->n <= cols * (beside - 1))
        return false;
    if (beside > 1 && (ways.a_is_mn || rows % (8 * beside) != 0)) return false;
    return below == 1 || (ways.b_is_mn ? below * UNIT == cols : cols % (8 * below) == 0);
}

// The index-th combination of rows, columns and splits; false after the last. *ns is INFINITY if it is not possible.
static bool choice_of(const struct matmul_problem *p, const struct tsri_limits *limits,
                      struct matmul_split_ways ways, int index, struct matmul_split_layout *l,
                      double *ns) {
    const bool is_gated = p->b_up.data != NULL;
    const int num_sms = limits->num_sms > 0 ? limits->num_sms : 1;
    const bool may_split = (limits->flags & TSR_BATCH_INVARIANT) == 0;
    const int cluster = all_clusters[index % TSRI_COUNT(all_clusters)];
    const bool is_sharing = cluster >= MATMUL_SPLIT_BELOW;
    const int splits = is_sharing ? 1 : cluster;
    const int width = index / TSRI_COUNT(all_clusters) % NUM_WIDTHS;
    const int nth = index / (TSRI_COUNT(all_clusters) * NUM_WIDTHS);
    if (nth >= TSRI_COUNT(all_rows)) return false;
    const int rows = all_rows[nth];
    *ns = INFINITY;
    if (ways.a_is_mn && rows % UNIT != 0) return true; // a comes in whole units of lines along m
    if ((rows >= 2 * p->m + LEAST_ROWS && !(ways.a_is_mn && rows == UNIT)) ||
        (is_gated && width == TWO_UNITS))
        return true;
    if (splits > 1 && (!may_split || p->k / LEAST_K < splits)) return true;
    const int cols = width == EVEN       ? matmul_split_even_cols(p, rows, splits, num_sms)
                     : width == ONE_UNIT ? UNIT
                                         : 2 * UNIT;
    if (width == EVEN && (cols % UNIT == 0 || !matmul_split_is_streamed(p, ways.b_is_mn)))
        return true;
    if (is_sharing && !may_share(p, ways, rows, cols, cluster)) return true;
    *l = matmul_split_lay_out(p, ways, rows, cols, cluster, num_sms);
    if (is_sharing && l->num_blocks > num_sms) return true; // blocks that share must run at once
    // Under TSR_BATCH_INVARIANT, every number of rows adds in the same way.
    const bool adds_parts = p->c.dtype == TSR_F32 || !may_split;
    if (ways.sums == MATMUL_SPLIT_16_BITS && !matmul_split_has_parts(rows) &&
        matmul_split_k_of_part(l) >
            (adds_parts ? MATMUL_SPLIT_PROMOTE : matmul_cuda_most_of_sum(p->c.dtype)))
        return true;
    if (l->shared_bytes <= MATMUL_SPLIT_MOST_BYTES)
        *ns = matmul_split_account(p, l, ways.b_is_mn, num_sms);
    return true;
}

static enum matmul_split_sums sums_of(const struct matmul_problem *p) {
    if (!matmul_is_fp8(p->a.dtype)) return MATMUL_SPLIT_16_BITS;
    return p->may_sum_fast ? MATMUL_SPLIT_FAST : MATMUL_SPLIT_PROMOTED;
}

// Of a product as matmul_split_problem returns it.
static struct matmul_split_ways ways_of(const struct matmul_problem *p,
                                        enum matmul_split_sums sums) {
    const struct matmul_cuda_layout o = matmul_cuda_layout(p, MATMUL_WGMMA, 0, 1);
    return (struct matmul_split_ways){.a_is_mn = o.a.is_mn, .b_is_mn = o.b.is_mn, .sums = sums};
}

// Counts the columns of b and b_up.
static int cols_of_block(const struct matmul_problem *p) { return p->b_up.data != NULL ? 2 : 1; }

static int cluster_of(const struct matmul_split_layout *l) {
    const int shared = MATMUL_SPLIT_BELOW * l->share_m + MATMUL_SPLIT_BESIDE * l->share_n;
    return l->share_m * l->share_n > 1 ? shared : l->num_splits;
}

static void blocks_of(const struct matmul_problem *p, const struct matmul_split_layout *l,
                      int64_t block[3]) {
    block[0] = l->rows;
    block[1] = l->tile.cols * cols_of_block(p);
    block[2] = cluster_of(l);
}

bool matmul_cuda_split_choice(const struct matmul_problem *problem,
                              const struct tsri_limits *limits, int index,
                              struct matmul_cuda_choice *choice) {
    const struct matmul_problem p = matmul_split_problem(problem);
    struct matmul_split_layout l;
    *choice = (struct matmul_cuda_choice){.ns = INFINITY};
    if (!choice_of(&p, limits, ways_of(&p, sums_of(problem)), index, &l, &choice->ns)) return false;
    if (isfinite(choice->ns)) blocks_of(&p, &l, choice->block);
    return true;
}

// The kernels of e4m3 that are not rare: of these, each serves many products, and others would gain less.
static bool has_fp8_kernel(int rows, int slabs, bool shares, enum matmul_split_sums sums) {
    const bool is_fast = sums == MATMUL_SPLIT_FAST;
    if (shares) return is_fast && (rows == 96 || rows == 112);
    return rows > 32 || slabs == 2 || (is_fast && rows == 32);
}

// Among tiles that share copies, prefers those of two blocks that were faster in some measurement, with a large b and more rows
// those of up to eight; and none with a tile beyond c's last column. The kernels of the others are rare, and so are those of f16
// with half stages and few rows.
static bool may_prefer(const struct matmul_problem *p, const struct matmul_split_layout *l) {
    const int shared = l->share_m * l->share_n;
    const bool has_others = p->b_up.data == NULL; // a gate's stages are twice as large
    const bool is_large = matmul_split_bytes_of_b(p) > MATMUL_SPLIT_LARGE_BYTES;
    const bool is_new = l->rows == 80 || l->rows == 112; // not measured with a smaller b
    if (is_new && !is_large) return false;
    if (l->sums != MATMUL_SPLIT_16_BITS &&
        !has_fp8_kernel(l->rows, l->tile.slabs, shared > 1, l->sums))
        return false;
    if (p->a.dtype == TSR_F16 && l->rows <= 32 && l->tile.slabs == 1 && has_others) return false;
    if (shared == 1) return true;
    const bool may_be_many = is_large && p->m > MATMUL_SPLIT_SOME_ROWS;
    return (shared == 2 || may_be_many) &&
           matmul_split_may_prefer_shared(l->rows, l->tile.cols % UNIT != 0) && p->n % 8 == 0 &&
           (l->tiles_n - 1) * l->tile.cols < p->n;
}

// The fastest choice among those that a tuning row allows, if one of them is possible; else among the preferred ones; else, up to
// `last`, among all.
enum { ASKED, PREFERRED, ANY };
static double choose(const struct matmul_problem *p, const struct tsri_limits *limits,
                     struct matmul_split_ways ways, int last, struct matmul_split_layout *best) {
    double best_ns = INFINITY, best_rank = INFINITY, ns;
    struct matmul_split_layout l;
    int64_t block[3];
    for (int among = limits->block[0] == 0 ? PREFERRED : ASKED; among <= last && isinf(best_ns);
         among++)
        for (int i = 0; choice_of(p, limits, ways, i, &l, &ns); i++) {
            if (isinf(ns)) continue;
            // With more rows, it is meant for tiles that all run at once.
            const bool is_late = p->m > FEW_ROWS && l.num_blocks > limits->num_sms;
            const double rank = is_late ? 1e6 * ns : ns;
            if (!(rank < best_rank)) continue;
            blocks_of(p, &l, block);
            if (among == PREFERRED && !may_prefer(p, &l)) continue;
            if (among == ASKED && !matmul_cuda_is_asked(limits, block)) continue;
            best_ns = ns;
            best_rank = rank;
            *best = l;
        }
    return best_ns;
}

// If b comes from memory, which the cost models of the other variants ignore, no variant takes less time than reading
// it.
bool matmul_cuda_split_is_best(const struct matmul_problem *problem,
                               const struct tsri_limits *limits, double other) {
    const struct matmul_problem p = matmul_split_problem(problem);
    const struct matmul_split_ways ways = ways_of(&p, sums_of(problem));
    struct matmul_split_layout l = {0};
    const double b = matmul_split_bytes_of_b(&p), plain = choose(&p, limits, ways, PREFERRED, &l);
    const double ns = isfinite(plain) ? plain + matmul_split_account_end(&p, &l) : plain;
    if (matmul_split_is_streamed(&p, ways.b_is_mn) && isfinite(ns) && matmul_split_reads_b_once(&l))
        return true;
    if (p.m > FEW_ROWS) return l.num_blocks <= limits->num_sms && ns < other;
    return ns < other ||
           (b > MATMUL_SPLIT_CACHE_BYTES &&
            ns < 2 * MATMUL_SPLIT_LAUNCH_NS + 1.1 * b / MATMUL_SPLIT_MEMORY_BYTES_PER_NS);
}

void matmul_cuda_plan_split(const void *problem, const struct tsri_limits *limits,
                            struct tsri_plan *plan) {
    const struct matmul_problem p = matmul_split_problem(problem);
    const struct tsri_limits own = matmul_cuda_limits(&p, limits);
    struct matmul_split_layout l;
    plan->expected_ns = choose(&p, &own, ways_of(&p, sums_of(problem)), ANY, &l);
    plan->block_m = l.rows;
    plan->grain = cluster_of(&l);
    plan->block_n = l.tile.cols * cols_of_block(&p);
    plan->block_k = UNIT * l.tile.slabs;
    plan->num_tasks = l.num_blocks;
    plan->workspace_bytes = 0;
}

// ---- What it serves -----------------------------------------------------------------------------

// The map of an operand in boxes of box_lines lines of 64 elements; false if there is none.
static bool map_operand(const struct matmul_problem *p, const struct matmul_matrix *t,
                        const struct matmul_cuda_operand *o, int box_lines,
                        struct tsri_tensor_map_args *args, int is_batched[MATMUL_MAX_BATCH_DIMS]) {
    *args = (struct tsri_tensor_map_args){
        .data = t->data, .dtype = t->dtype, .box = {UNIT, box_lines, 1, 1, 1}};
    return !o->is_copied &&
           matmul_cuda_map_lines(p, t->batch, o->width, o->lines, o->line, args, is_batched);
}

// Of fp8: e4m3 with lines along k in place, of whole pairs, and scales of tensors.
static bool has_pairs(const struct matmul_problem *p) {
    if (p->a.dtype != TSR_E4M3 || p->b.dtype != TSR_E4M3 || p->is_block_scaled || p->k % 2 != 0)
        return false;
    const struct matmul_cuda_layout l = matmul_cuda_layout(p, MATMUL_FP8, 0, 1);
    return !l.a.is_copied && !l.b.is_copied && !l.b_up.is_copied;
}

bool matmul_cuda_split_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem p = matmul_split_problem(problem);
    struct tsri_tensor_map_args map;
    int is_batched[MATMUL_MAX_BATCH_DIMS];
    if (limits->cuda_arch != 90 || limits->shared_bytes_per_block < MATMUL_WGMMA_SHARED_BYTES)
        return false;
    if (p.a.dtype != TSR_BF16 && p.a.dtype != TSR_F16) return false;
    if (p.m < 1 || p.n < 1 || p.k < 1 || p.num_batches < 1) return false;
    if (p.m > MAX_SIZE || p.n > MAX_SIZE || p.k > MAX_K) return false;
    if (tsri_ceil_div(p.m, LEAST_ROWS) * tsri_ceil_div(p.n, UNIT) >
        MAX_BLOCKS / MATMUL_SPLIT_MOST_SPLITS / p.num_batches)
        return false;
    if (sums_of(problem) != MATMUL_SPLIT_16_BITS && !has_pairs(problem)) return false;
    const struct matmul_cuda_layout l = matmul_cuda_layout(&p, MATMUL_WGMMA, 0, 1);
    return map_operand(&p, &p.a, &l.a, UNIT, &map, is_batched) &&
           map_operand(&p, &p.b, &l.b, UNIT, &map, is_batched) &&
           (p.b_up.data == NULL || map_operand(&p, &p.b_up, &l.b_up, UNIT, &map, is_batched));
}

// ---- Launches -----------------------------------------------------------------------------------

static struct tsri_cuda_program program_of(int rows, int slabs, bool shares, tsr_dtype dtype,
                                           enum matmul_split_sums sums) {
    struct tsri_cuda_program program = {
        .source = "ops/matmul/cuda/split/matmul_split_sm90.cu",
        .entry = "matmul_split",
        .num_defines = 4,
        .defines = {{"DTYPE", (int)dtype}, {"ROWS", rows}, {"SLABS", slabs}, {"SHARES", shares}}};
    if (sums != MATMUL_SPLIT_16_BITS) {
        program.defines[program.num_defines++] = (struct tsri_cuda_define){"FP8", 1};
        program.defines[program.num_defines++] =
            (struct tsri_cuda_define){"IS_FAST", sums == MATMUL_SPLIT_FAST};
    }
    return program;
}

// Rare: f16 with half stages of few rows, and the widest tile; and shared tiles that the cost model never prefers.
static bool is_rare(int rows, int slabs, bool shares, tsr_dtype dtype,
                    enum matmul_split_sums sums) {
    if (sums != MATMUL_SPLIT_16_BITS)
        return dtype == TSR_F16 || !has_fp8_kernel(rows, slabs, shares, sums);
    if (shares)
        return dtype == TSR_F16 || !(matmul_split_may_prefer_shared(rows, true) ||
                                     matmul_split_may_prefer_shared(rows, false));
    return rows == 144 || (dtype == TSR_F16 && rows <= 32 && slabs == 1);
}

bool matmul_cuda_split_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program) {
    static const enum matmul_split_sums all_sums[] = {MATMUL_SPLIT_16_BITS, MATMUL_SPLIT_FAST,
                                                      MATMUL_SPLIT_PROMOTED};
    enum { FEW = 2, OF_KIND = TSRI_COUNT(all_rows) + FEW }; // numbers of rows with both kinds
    enum { OF_SUMS = 2 * OF_KIND - 1, NUM_KERNELS = OF_SUMS * TSRI_COUNT(all_sums) };
    if (*index >= NUM_KERNELS) {
        *index -= NUM_KERNELS;
        return false;
    }
    const enum matmul_split_sums sums = all_sums[*index / OF_SUMS];
    const int of_sums = *index % OF_SUMS, i = of_sums % OF_KIND;
    const bool shares = of_sums >= OF_KIND; // all but the widest tile
    const int rows = all_rows[i < FEW ? i : i - FEW], slabs = i < FEW ? 2 : 1;
    *program = program_of(rows, slabs, shares, dtype, sums);
    program->is_rare = is_rare(rows, slabs, shares, dtype, sums);
    return true;
}

tsr_status matmul_cuda_split_prepare(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan) {
    const struct tsri_cuda_program program =
        program_of((int)plan->block_m, (int)plan->block_k / UNIT, plan->grain >= MATMUL_SPLIT_BELOW,
                   matmul_cuda_dtype(problem), sums_of(problem));
    return tsri_cuda_prepare(op_name, tsri_context_queue(ctx), &program);
}

// Only a bias and an activation, and c in the operands' dtype.
static bool is_short(const struct matmul_problem *p) {
    return p->c.dtype == p->a.dtype && p->b_up.data == NULL && p->residual.data == NULL &&
           !p->is_accumulating && matmul_cuda_has_short_end(p->activation);
}

tsr_status matmul_cuda_split_run(tsr_context *ctx, const void *problem,
                                 const struct tsri_plan *plan, void *workspace) {
    const struct matmul_problem pairs = matmul_split_problem(problem), *p = &pairs;
    const struct matmul_split_ways ways = ways_of(p, sums_of(problem));
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    const struct matmul_cuda_layout o = matmul_cuda_layout(p, MATMUL_WGMMA, 0, 1);
    const int cols = (int)plan->block_n / cols_of_block(p);
    const struct matmul_split_layout l = matmul_split_lay_out(
        p, ways, (int)plan->block_m, cols, (int)plan->grain,
        matmul_cuda_limits(p, tsri_context_limits(ctx)).num_sms); // as in the plan
    const bool is_one_box =
        p->b_up.data == NULL && !o.b.is_mn; // lines along k are adjacent in a tile
    const int of_box = o.b.is_mn ? UNIT : cols / l.share_m;
    const int of_a = o.a.is_mn ? UNIT : l.rows / l.share_n;
    const int of_cluster = matmul_split_blocks_of_cluster(&l);
    struct tsri_tensor_map_args map;
    struct matmul_split_params params = {
        .matmul = {.a_is_mn = o.a.is_mn, .b_is_mn = o.b.is_mn},
        .tiles_m = (int)l.tiles_m / l.share_m,
        .tiles_n = (int)l.tiles_n / l.share_n,
        .num_splits = l.num_splits,
        .share_m = l.share_m,
        .share_n = l.share_n,
        .k_least = (int)(matmul_split_blocks_of_k(p, &l.tile) / l.num_splits),
        .k_more = (int)(matmul_split_blocks_of_k(p, &l.tile) % l.num_splits),
        .tile = l.tile,
        .boxes = is_one_box ? 1 : l.groups,
        .stages = l.stages,
        .ahead = l.ahead,
        .num_tiles = (unsigned)(l.num_blocks / of_cluster),
    };
    (void)workspace;
    matmul_cuda_set_output(p, &params.matmul);
    if (l.sums == MATMUL_SPLIT_16_BITS && !matmul_split_has_parts(l.rows) &&
        matmul_split_k_of_part(&l) > MATMUL_SPLIT_PROMOTE)
        params.matmul.alpha *= 1 + matmul_wgmma_drift((int)matmul_split_k_of_part(&l)) / 2;
    params.is_short = is_short(p) && params.matmul.c_is_vector && p->n % 8 == 0;
    (void)map_operand(p, &p->a, &o.a, of_a, &map, params.a_batch);
    TSRI_TRY(tsri_cuda_queue_map(op_name, queue, &map, &params.a));
    (void)map_operand(p, &p->b, &o.b, of_box, &map, params.b_batch);
    TSRI_TRY(tsri_cuda_queue_map(op_name, queue, &map, &params.b));
    if (p->b_up.data != NULL) {
        params.matmul.b_up.data = p->b_up.data;
        (void)map_operand(p, &p->b_up, &o.b_up, of_box, &map, params.b_up_batch);
        TSRI_TRY(tsri_cuda_queue_map(op_name, queue, &map, &params.b_up));
    }
    if (l.ends_with_c && p->m % l.rows != 0) {
        params.last_rows = (int)(p->m % l.rows);
        (void)map_operand(p, &p->a, &o.a, params.last_rows, &map, params.a_batch);
        TSRI_TRY(tsri_cuda_queue_map(op_name, queue, &map, &params.a_last));
    }
    const struct tsri_cuda_program program =
        program_of(l.rows, l.tile.slabs, of_cluster > l.num_splits, p->a.dtype, l.sums);
    const struct tsri_cuda_launch launch = {
        .num_blocks = l.num_blocks + (p->order == MATMUL_ALONE ? l.num_held : 0),
        .num_threads = 128 * l.groups + 32,
        .shared_bytes = l.shared_bytes,
        .cluster_blocks = of_cluster,
        .is_early = true,
        .params = &params,
    };
    return tsri_cuda_launch(op_name, queue, &program, &launch);
}
