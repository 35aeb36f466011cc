// SPDX-License-Identifier: Apache-2.0
// Blocks, grids and workspace of matmul's variants, and which one serves which shape. Pure.
//
// A task is block_m rows by block_n columns of c over all of k, in steps of block_k: a panel of B of that
// depth (nr columns) and the rows of A fit the second-level cache together. Sizes after docs/kernels/matmul.md.
#include "ops/matmul/matmul_problem.h"

#include "cpu/gemm.h"
#include "ops/matmul/matmul_cuda.h"

enum {
    BLOCK_M = 96,
    LOCAL_BLOCK_M = 256,    // a task that packs for itself wants many rows to use it on
    BLOCK_N = 128,          // narrow: two threads seldom read the same panel of B at once
    BLOCKED_M = 1024,       // of blocked, to which each panel of B that it packs serves
    BLOCKED_ALONE_M = 2048, // and of one thread, which needs no tasks to share
    BLOCKED_LOW_M = 512,    // and where sums need a place of their own
    BLOCKED_LEAST_M = 256,
    BLOCKED_PASSING_N = 512, // up to so many columns a task packs its rows of A itself
    BLOCKED_N = 256,         // its B lies in the second-level cache
    BLOCKED_WHOLE_N = 512,   // one thread takes so many at once: its rows of A are packed but once
    BLOCKED_LEAST_N = 384,   // fewer columns do not pay for packing A
    // Of B, for few rows: past the caches its long runs of a row count.
    BLOCKED_LEAST_FLOATS = 2 << 20,
    BLOCK_K = 512,
    SHALLOW_K = 64, // where a task of the usual size has little to do,
    SHALLOW_N = 512,
    LEAST_PACKED_K = 16, // and where packing for others costs more than each for itself
    SKINNY_M = 16,
    SKINNY_N = 4096,              // columns of a skinny task at most: long rows stream best
    STREAM_ELEMENTS = 4 << 20,    // of b, past the caches
    SKINNY_STEP = 128,            // and these at least
    STRIPE_FLOATS = 16 << 20,     // shared panels of B: 64 MiB at most, but for very deep products
    DIRECT_FLOATS = 128 << 10,    // B of this size is used in place at any m
    DIRECT_M = 12,                // so few rows never pay for packing B, as long as B is below
    DIRECT_ROWS_FLOATS = 8 << 20, // this: past it, panels of B miss the translation caches
    TALL_FLOATS = 512 << 10,      // of B of so few columns: past the second-level cache
    TALL_N = 512,
    SMALL_WORK = 128 << 10,        // multiplications that cost less than waking a worker
    ELEMENTS_OF_NAIVE_TASK = 4096, // multiplications
};

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct matmul_problem, a.dtype)

bool matmul_has_kernels(const void *problem, const struct tsri_limits *limits) {
    return is_float32_or_less(problem, limits);
}

bool matmul_can_use_b_in_place(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    (void)limits;
    return p->b.dtype == TSR_F32 && p->b.col == 1 && (p->b_up.data == NULL || p->b_up.col == 1);
}

bool matmul_is_skinny(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    return p->m <= SKINNY_M && !matmul_is_fp8(p->a.dtype) && matmul_has_kernels(problem, limits);
}

// Whether skinny serves up to 16 rows best. With registers of 16 floats, of the two that take b as it is, direct has the
// smaller cost per element, skinny the smaller one per call: for a few rows of next to no depth, or one that is a few whole
// vectors; and for a row or two against a tall b past the second-level cache, where whole rows of b are long runs of memory,
// which direct's panels, 4 to 16 times narrower than b, are not. Against packing b, which skinny spares, stand dot products
// over short columns where b is transposed (docs/kernels/matmul.md).
static bool suits_skinny_wide_cols(const struct matmul_problem *p) {
    if (p->m == 1) return true;
    if (p->n <= 4) return p->k >= 8 || p->m <= 8;
    if (p->n <= 16) return p->m <= 6 || p->k >= 64;
    return p->k >= (p->m <= 2 ? 16 : p->m <= 6 ? 64 : p->m <= 10 ? 256 : 1024);
}
static bool suits_skinny_wide(const struct matmul_problem *p, bool is_in_place) {
    if (p->b.col != 1) return suits_skinny_wide_cols(p);
    if (!is_in_place) return p->m <= 8 || p->m * p->n <= 768;
    bool is_tiny = (p->m <= 4 && p->m * p->k <= 16) ||
                   (p->m == 1 && (p->n <= 16 || (p->n % 16 == 0 && p->k * p->n <= 1024)));
    return is_tiny || (p->m <= 2 && p->n <= TALL_N && p->k * p->n >= TALL_FLOATS);
}

// The same with registers of 8 floats and tiles of 16 columns, where measured (docs/kernels/matmul.md): f32 rows of b, rows of
// 16 bits, which packing widens too, and columns of b.
static bool suits_skinny_rows(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_past_l2 = p->k * p->n * (int64_t)sizeof(float) >= limits->l2_bytes;
    if (p->n <= TALL_N && is_past_l2) return p->m <= 4;
    switch (p->m) {
    case 1: return p->k <= 32 || (p->n <= TALL_N && (p->n >= 8 || p->k <= 64));
    case 2: return p->k <= 16;
    case 3: return p->k <= 8;
    default: return p->m == 4 && p->k <= 8 && p->n <= 16;
    }
}
static bool suits_skinny_rows_16_bits(const struct matmul_problem *p) {
    if (p->n < 8) return p->m <= 2 || p->m * p->k <= 192;
    return p->m <= 8 || p->m * p->n <= 768;
}
static bool suits_skinny_cols(const struct matmul_problem *p) {
    bool is_wide = p->b.dtype == TSR_F32;
    if (p->m <= 2 || (p->n <= 8 && p->m <= 8) || (p->n <= 4 && p->k >= 16)) return true;
    if (p->m <= 4) return !is_wide || p->n <= 40 || p->k >= (p->m == 3 ? 16 : 64);
    if (is_wide) return p->m <= 8 && p->k >= 128;
    if (p->m <= 6) return p->k == 1 || p->k >= 16 || p->n <= 40;
    return p->n <= 8 || p->k >= (p->m <= 8 ? 64 : p->m <= 12 ? 256 : 1024);
}

static bool suits_skinny(const struct matmul_problem *p, const struct tsri_limits *limits,
                         bool is_in_place) {
    if (p->m > MATMUL_ROWS_OF_PASS && p->b.col == 1 && p->k * p->n > STREAM_ELEMENTS)
        return false; // b would be read twice
    if (limits->isa != TSR_ISA_AVX2) return suits_skinny_wide(p, is_in_place);
    if (p->b.col != 1) return suits_skinny_cols(p);
    return is_in_place ? suits_skinny_rows(p, limits) : suits_skinny_rows_16_bits(p);
}

// A few rows more than the registers take, and long columns of b, whose one pass through memory decides.
static bool streams_columns(const struct matmul_problem *p) {
    return p->m > MATMUL_ROWS_OF_PASS && p->m <= SKINNY_M && p->b.col != 1 &&
           p->n * p->k >= STREAM_ELEMENTS;
}

const char *matmul_prefer(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    if (limits->device.type == TSR_CUDA) return matmul_cuda_prefer(p, limits);
    // The others add in one order, whatever m is: under batch invariance one of them serves every m.
    bool may_be_skinny =
        (limits->flags & TSR_BATCH_INVARIANT) == 0 && matmul_is_skinny(problem, limits);
    if (may_be_skinny && streams_columns(p)) return "skinny";
    const char *mixed = matmul_prefer_mixed(p, limits);
    if (mixed != NULL) return mixed;
    bool is_in_place = matmul_can_use_b_in_place(problem, limits);
    if (may_be_skinny && suits_skinny(p, limits, is_in_place)) return "skinny";
    int64_t floats = p->k * p->n;
    if (is_in_place &&
        (floats <= DIRECT_FLOATS || (p->m <= DIRECT_M && floats <= DIRECT_ROWS_FLOATS)))
        return "direct";
    if (may_be_skinny && is_in_place && p->m <= MATMUL_ROWS_OF_PASS) return "skinny";
    if (p->m <= BLOCK_M || p->k <= LEAST_PACKED_K)
        return p->b.col == 1 && p->n >= BLOCKED_LEAST_N && floats >= BLOCKED_LEAST_FLOATS
                   ? "blocked"
                   : "local";
    return p->n < BLOCKED_LEAST_N ? "packed" : "blocked";
}

// In double: products of sizes that each fit may not.
bool matmul_is_small(const struct matmul_problem *p, bool packs) {
    double rows =
        (double)p->m + (packs ? 8 : 0); // to pack an element of b costs as much as 8 rows of it
    return (double)p->num_batches * rows * (double)p->n * (double)p->k < SMALL_WORK;
}

// size cut into equal parts of at most `most`, each a multiple of `unit`.
static int64_t even_block(int64_t size, int64_t most, int64_t unit) {
    int64_t parts = tsri_max(tsri_ceil_div(size, most), 1);
    return (int64_t)tsri_round_up((size_t)tsri_max(tsri_ceil_div(size, parts), 1), (size_t)unit);
}

static void plan_blocks(const struct matmul_problem *p, const struct tsri_limits *limits,
                        int64_t most_rows, int64_t block_n, bool packs, struct tsri_plan *plan) {
    const struct gemm_kernels *gemm = gemm_kernels(limits->isa);
    // A tuning row may have others; block_k is the order of the sums, which nothing changes.
    if (limits->block[0] > 0) most_rows = limits->block[0];
    if (limits->block[1] > 0)
        block_n = (int64_t)tsri_round_up((size_t)limits->block[1], (size_t)gemm->nr);
    plan->block_m = even_block(p->m, most_rows, gemm->mr);
    plan->block_n =
        tsri_min(block_n, (int64_t)tsri_round_up((size_t)tsri_max(p->n, 1), (size_t)gemm->nr));
    plan->block_k = even_block(p->k, BLOCK_K, 8);
    // Few tasks: smaller and equal ones, so that every thread has some. One for each is better than two, which pack more.
    // Tall ones are cut first, for the panels of A are shared.
    int64_t rows = p->num_batches * tsri_ceil_div(p->m, plan->block_m),
            threads = limits->num_threads;
    int64_t cols = tsri_max(tsri_ceil_div(p->n, plan->block_n), 1);
    if (matmul_is_small(p, packs) || threads == 1 || rows * cols >= 2 * threads) cols = 0;
    while (cols > 0) {
        plan->block_n = even_block(p->n, tsri_ceil_div(p->n, cols), gemm->nr);
        int64_t tasks = rows * tsri_ceil_div(p->n, plan->block_n),
                idle = cols * plan->block_n - p->n;
        if (plan->block_n <= gemm->nr || tasks >= 2 * threads) break;
        if (tasks % threads == 0 && idle * 8 <= p->n) break;
        if (plan->block_m > BLOCKED_LEAST_M) {
            plan->block_m = even_block(p->m, plan->block_m / 2, gemm->mr);
            rows = p->num_batches * tsri_ceil_div(p->m, plan->block_m);
        } else {
            cols++;
        }
    }
    plan->num_tasks =
        p->num_batches * tsri_ceil_div(p->m, plan->block_m) * tsri_ceil_div(p->n, plan->block_n);
}

struct matmul_layout matmul_layout(const struct matmul_problem *p, const struct tsri_plan *plan,
                                   bool has_shared_panels, bool has_private_panels,
                                   bool is_blocked) {
    enum { PANEL_ROWS = 8 }; // at least those of a panel of A
    bool is_a_shared = is_blocked && p->n > BLOCKED_PASSING_N;
    struct matmul_layout l = {.is_a_shared = is_a_shared,
                              .is_a_passing = is_blocked && !is_a_shared};
    int64_t num_b = p->b_up.data != NULL ? 2 : 1, depth = tsri_max(p->k, 1);
    l.is_a_packed = is_blocked || p->a.dtype != TSR_F32 || p->a.col != 1;
    l.stripe_rows = (int64_t)tsri_round_up((size_t)p->m, (size_t)plan->block_m);
    l.stripe_cols = (int64_t)tsri_round_up((size_t)p->n, (size_t)plan->block_n);
    l.stripe_batches = p->num_batches;
    if (has_shared_panels || is_a_shared) {
        int64_t *lines = is_a_shared ? &l.stripe_rows : &l.stripe_cols;
        int64_t unit = is_a_shared ? plan->block_m : plan->block_n;
        *lines = tsri_min(*lines, tsri_max(STRIPE_FLOATS / depth / unit, 1) * unit);
        int64_t batches = STRIPE_FLOATS / depth / tsri_max(*lines, 1);
        l.stripe_batches = tsri_max(tsri_min(batches, p->num_batches), 1);
        l.stripe_floats = l.stripe_batches * *lines * p->k;
    }
    if (has_private_panels) l.panels_floats = plan->block_n * plan->block_k;
    if (l.is_a_packed && !is_a_shared)
        l.a_floats = (l.is_a_passing ? PANEL_ROWS : plan->block_m) * plan->block_k;
    if (!matmul_is_plain(p)) l.tile_floats = plan->block_m * plan->block_n;
    int64_t thread = l.panels_floats + l.a_floats + l.tile_floats * num_b;
    l.thread_floats = (int64_t)tsri_round_up((size_t)thread, 16);
    return l;
}

static size_t layout_bytes(const struct matmul_problem *p, const struct matmul_layout *l,
                           const struct tsri_limits *limits) {
    int64_t num_b = p->b_up.data != NULL && !l->is_a_shared ? 2 : 1;
    size_t shared = tsri_round_up((size_t)(l->stripe_floats * num_b), 16);
    return (shared + (size_t)(l->thread_floats * limits->num_threads)) * sizeof(float);
}

void matmul_plan_packed(const void *problem, const struct tsri_limits *limits,
                        struct tsri_plan *plan) {
    plan_blocks(problem, limits, BLOCK_M, BLOCK_N, true, plan);
    struct matmul_layout l = matmul_layout(problem, plan, true, false, false);
    plan->workspace_bytes = layout_bytes(problem, &l, limits);
}

void matmul_plan_local(const void *problem, const struct tsri_limits *limits,
                       struct tsri_plan *plan) {
    bool is_shallow = ((const struct matmul_problem *)problem)->k <= SHALLOW_K;
    plan_blocks(problem, limits, LOCAL_BLOCK_M, is_shallow ? SHALLOW_N : BLOCK_N, true, plan);
    struct matmul_layout l = matmul_layout(problem, plan, false, true, false);
    plan->workspace_bytes = layout_bytes(problem, &l, limits);
}

void matmul_plan_blocked(const void *problem, const struct tsri_limits *limits,
                         struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    // What is not plain has a tile of sums as tall as its task, which is to stay in the second-level cache.
    int64_t rows = !matmul_is_plain(p)        ? BLOCKED_LOW_M
                   : limits->num_threads == 1 ? BLOCKED_ALONE_M
                                              : BLOCKED_M;
    bool is_whole = limits->num_threads == 1 && p->n <= BLOCKED_WHOLE_N;
    plan_blocks(problem, limits, rows, is_whole ? BLOCKED_WHOLE_N : BLOCKED_N, true, plan);
    struct matmul_layout l = matmul_layout(problem, plan, false, true, true);
    plan->workspace_bytes = layout_bytes(problem, &l, limits);
}

void matmul_plan_direct(const void *problem, const struct tsri_limits *limits,
                        struct tsri_plan *plan) {
    bool is_shallow = ((const struct matmul_problem *)problem)->k <= SHALLOW_K;
    plan_blocks(problem, limits, is_shallow ? LOCAL_BLOCK_M : BLOCK_M, BLOCK_N, false, plan);
    struct matmul_layout l = matmul_layout(problem, plan, false, false, false);
    plan->workspace_bytes = layout_bytes(problem, &l, limits);
}

// A thread's rows of A in fp32, a tile of products, or two. Two tasks for each of several threads, so
// that one that comes late leaves work to the others.
void matmul_plan_skinny(const void *problem, const struct tsri_limits *limits,
                        struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    int64_t num_b = p->b_up.data != NULL ? 2 : 1;
    plan->block_m = p->m;
    bool is_shared = limits->num_threads > 1 && !matmul_is_small(p, false);
    int64_t tasks = is_shared ? 2 * (int64_t)limits->num_threads : 1;
    int64_t tasks_of_batch = tsri_ceil_div(tasks, tsri_max(p->num_batches, 1));
    int64_t share = tsri_ceil_div(tsri_max(p->n, 1), tasks_of_batch);
    plan->block_n = tsri_min((int64_t)tsri_round_up((size_t)share, SKINNY_STEP), SKINNY_N);
    plan->block_k = (int64_t)tsri_round_up((size_t)p->k, 16);
    plan->num_tasks = p->num_batches * tsri_ceil_div(p->n, plan->block_n);
    plan->grain = p->m * plan->block_k + num_b * p->m * plan->block_n; // floats of a thread
    plan->grain = (int64_t)tsri_round_up((size_t)plan->grain, 16);
    plan->workspace_bytes = (size_t)(plan->grain * limits->num_threads) * sizeof(float);
}

// A row of A in fp32 and a row of products for each thread, or two, and one of a block of k.
void matmul_plan_naive(const void *problem, const struct tsri_limits *limits,
                       struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    int64_t row_work = tsri_max(p->n * p->k, 1), rows = p->m * p->num_batches;
    plan->block_n = (int64_t)tsri_round_up((size_t)p->n, 16);
    plan->grain = tsri_max(ELEMENTS_OF_NAIVE_TASK / row_work, 1);
    plan->num_tasks = tsri_ceil_div(rows, plan->grain);
    plan->block_k = (int64_t)tsri_round_up((size_t)p->k, 16);
    plan->workspace_bytes =
        (size_t)((plan->block_k + 3 * plan->block_n) * limits->num_threads) * sizeof(float);
}
