// SPDX-License-Identifier: Apache-2.0
// Which variant serves a product on the CPU, of those that can: tables of what was measured, for registers of 16 floats and of 8
// (docs/kernels/matmul_cpu.md, `tessera compare`). Variants that may differ in the order of their sums (skinny, those in bf16) are
// chosen by the problem alone; among the others, whose results are the same bits, the number of threads counts too. Pure.
#include "ops/matmul/cpu/matmul_cpu_choice.h"

#include "ops/matmul/cuda/matmul_cuda.h"

enum {
    // Shared with the plans, which say what they are for.
    BLOCK_M = 96,
    LOCAL_M = 256,
    BLOCKED_LEAST_N = 384, // fewer columns do not pay for packing A
    // Of B, for few rows: past the caches its long runs of a row count.
    BLOCKED_LEAST_FLOATS = 2 << 20,
    LEAST_PACKED_K = 16, // below, packing for others costs more than each for itself
    // One thread shares panels with none: local up to so many columns,
    ALONE_LOCAL_N = 64,
    ALONE_SHALLOW_K = 2 * SHALLOW_K, // or ALONE_PACKED_N of little depth; on AVX2
    ALONE_PACKED_N = 512,            // local or packed up to here,
    WIDENED_N = 256, // and from here on, for 16 bits, blocked, which widens A but once
    // Two or three threads of AVX2: rows, and for 16 bits panels, from which tasks come out equal; floats have panels of a
    // task's own up to so many columns, or more where k is not cut.
    FEW_LEAST_M = 32,
    FEW_PANELS = 24,
    FEW_LOCAL_N = 640,
    FEW_FLAT_N = 1152,
    FEW_FLAT_K = 512,
    // With registers of 16 floats, of one thread to three: rows up to which floats have panels of a task's own rather than
    // shared ones (any where k is shallow), from so many floats of B where the thread is alone. And, where the second-level
    // cache is large, rows and columns up to which two or three threads have them rather than panels of A.
    OWN_M = 512,
    OWN_ALONE_FLOATS = 192 << 10,
    OWN_PASSING_M = 768, // beside narrow B that is packed once for all rows
    OWN_LARGE_M = 1024,
    OWN_LARGE_N = 1280,
    DIRECT_FLOATS = 128 << 10,       // B of this size is used in place at any m,
    DIRECT_LARGE_FLOATS = 256 << 10, // of this at most where the second-level cache is large,
    DIRECT_SIDE =
        768, // of a square: rows, and floats from row to row of B, with registers of 16 floats,
    DIRECT_FEW_SIDE = 896, // of two and three threads,
    // One thread of Intel's: rows from which on B is of at most so many floats; fewer of more rows where its own fall together.
    DIRECT_ALONE_M = 200,
    DIRECT_ALONE_K = 32,  // of up to SHALLOW_K steps: from which on panels are better,
    DIRECT_ALONE_N = 512, // and columns
    DIRECT_ALONE_FLOATS = 384 << 10,
    DIRECT_ALONE_TALL_M = 480,
    DIRECT_ALONE_TALL_FLOATS = 192 << 10,
    DIRECT_CROWD_FLOATS = 640 << 10,   // of this where threads are many,
    DIRECT_CROWD_LOW_FLOATS = 2 << 20, // of this, up to BLOCK_M rows,
    DIRECT_CROWD_LOW_M = BLOCK_M / 2,  // fewer rows than these beside so many columns,
    DIRECT_CROWD_LONG_N = 2048,
    DIRECT_SWARM = 16, // and so many threads take any rows of B
    // Rows of B that do not start where vectors do, whose loads take two lines each: panels, but for so few columns or steps.
    DIRECT_SPLIT_N = 64,
    DIRECT_SPLIT_K = 128,
    // Panels of 16 columns touch a page at each step: for so many rows, or B of this size,
    DIRECT_NARROW_M = 64,
    DIRECT_NARROW_FLOATS = 48 << 10,
    DIRECT_NARROW_N = 256, // but for many rows not wider than this and
    DIRECT_NARROW_K = 32,  // deeper than this
    DIRECT_FAR_M = 32,     // and for so few rows any size of so many columns
    DIRECT_FAR_N = 4096,
    LONE_ELEMENTS = 32 << 10,
};
// Up to 16 rows, sums are added in the order of the one variant or the other, and bits must not follow the number of threads.
_Static_assert((int)DIRECT_CROWD_LOW_FLOATS <= (int)DIRECT_ROWS_FLOATS &&
                   DIRECT_FEW_SIDE * DIRECT_FEW_SIDE <= (int)DIRECT_ROWS_FLOATS &&
                   (int)MATMUL_ROWS_OF_PASS <= DIRECT_M,
               "many threads take back what few rows have");

// By one thread of Intel's, beside many rows, the sooner where rows of B fall on the same lines of the first level.
static bool is_better_packed(const struct matmul_problem *p) {
    bool is_even = p->n % 16 == 0 || p->n <= DIRECT_SPLIT_N;
    bool is_falling = p->b.row % (STREAMED_PERIOD / 2) == 0 && p->m >= DIRECT_ALONE_TALL_M;
    if (p->m < DIRECT_ALONE_M) return false;
    if (p->k <= SHALLOW_K) return !is_even && p->k >= DIRECT_ALONE_K && p->n >= DIRECT_ALONE_N;
    return !is_even || p->b.row > DIRECT_SIDE ||
           p->k * p->n > (is_falling ? DIRECT_ALONE_TALL_FLOATS : DIRECT_ALONE_FLOATS);
}

// B in place.
static bool suits_direct(const struct matmul_problem *p, const struct tsri_limits *limits) {
    int64_t floats = p->k * p->n;
    bool is_narrow = limits->isa == TSR_ISA_AVX2;
    if (p->m <= DIRECT_M && floats <= DIRECT_ROWS_FLOATS) return true;
    if (is_narrow && p->m <= DIRECT_FAR_M && floats > DIRECT_FLOATS && p->n <= DIRECT_FAR_N)
        return true;
    // What few threads stream, many have in place: so few rows beside b of any size.
    bool is_wide = limits->isa == TSR_ISA_AVX512;
    int64_t tile = matmul_is_crowded(limits) ? (int)DIRECT_M : (int)MATMUL_ROWS_OF_PASS;
    if (is_wide && p->m <= tile && p->n >= STREAMED_WIDE_N) return true;
    bool is_even =
        p->n % 16 == 0 || p->n <= DIRECT_SPLIT_N || p->m <= BLOCK_M || p->k <= DIRECT_SPLIT_K;
    bool is_low = p->n < DIRECT_CROWD_LONG_N ? p->m <= BLOCK_M : p->m < DIRECT_CROWD_LOW_M;
    if (matmul_is_crowded(limits) && !is_narrow)
        return (is_even || limits->num_threads >= DIRECT_SWARM) &&
               floats <= (is_low ? DIRECT_CROWD_LOW_FLOATS : DIRECT_CROWD_FLOATS);
    if (is_wide && p->m <= STREAMED_WIDE_M && !matmul_is_past_l2(p, limits)) return true;
    if (matmul_suits_fetched(p, limits)) return true;
    if (matmul_is_alone_on_intel(limits) && is_better_packed(p)) return false;
    int64_t side = limits->num_threads > 1 ? DIRECT_FEW_SIDE : DIRECT_SIDE;
    bool is_square = p->m <= side && p->b.row <= side && floats <= side * side;
    if (is_wide && is_even && is_square) return true;
    // Half of the second-level cache, where that is large.
    int64_t most = tsri_max(tsri_min(limits->l2_bytes / 8, DIRECT_LARGE_FLOATS), DIRECT_FLOATS);
    if (floats > (is_narrow ? DIRECT_FLOATS : most)) return false;
    if (!is_narrow) return is_even;
    // Two or three threads pack for themselves what is long and shallow.
    bool is_few = limits->num_threads > 1 && !matmul_is_crowded(limits);
    if (is_few && p->m > FEW_LEAST_M && p->k <= SHALLOW_K && p->n >= ALONE_PACKED_N &&
        p->n % 16 == 0)
        return false;
    if (p->m <= DIRECT_NARROW_M) return true;
    bool is_broad = p->n >= DIRECT_NARROW_N && p->k > DIRECT_NARROW_K && p->m > BLOCK_M;
    return floats <= DIRECT_NARROW_FLOATS && !is_broad;
}

// Panels for two or three threads of AVX2, where they are not those of more; otherwise NULL. Floats have panels of a task's
// own where B is small or shallow; 16-bit A is widened once for all, few rows only where tasks of whole panels come out equal
// or are many.
static const char *suits_few_threads(const struct matmul_problem *p, int num_threads) {
    if (p->m <= FEW_LEAST_M || p->k <= LEAST_PACKED_K) return NULL;
    bool is_shallow = p->k <= SHALLOW_K, is_low = p->m <= LOCAL_M;
    if (p->a.dtype == TSR_F32) {
        bool is_small = p->n <= FEW_LOCAL_N && p->k * p->n < BLOCKED_LEAST_FLOATS;
        bool is_flat = p->n <= FEW_FLAT_N && p->k <= FEW_FLAT_K;
        return is_small || is_flat || (is_low && is_shallow) ? "local" : NULL;
    }
    if (!is_low) return p->n >= WIDENED_N && p->k <= ALONE_SHALLOW_K ? "local" : NULL;
    int64_t panels = tsri_ceil_div(p->n, 16);
    if (panels % num_threads != 0 && panels < FEW_PANELS) return NULL;
    if (p->n < WIDENED_N && p->m <= BLOCK_M) return NULL;
    return is_shallow ? "local" : "blocked";
}

// Registers of 16 floats, one thread to three: panels of a task's own, for which no thread waits and which no other thread's
// caches hold.
static bool suits_own_panels(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_in_place = matmul_is_rows_of_floats(&p->a);
    if (limits->isa != TSR_ISA_AVX512 || !is_in_place || p->k <= LEAST_PACKED_K) return false;
    bool is_narrow = p->n < BLOCKED_LEAST_N;
    if (limits->num_threads == 1) {
        if (matmul_is_passing(p, limits))
            return p->k <= SHALLOW_K ||
                   (p->n <= OWN_LARGE_N && p->m <= (is_narrow ? OWN_PASSING_M : OWN_M));
        return p->m <= OWN_M && is_narrow && p->k * p->n >= OWN_ALONE_FLOATS;
    }
    if (is_narrow) return p->m <= OWN_M || p->k <= ALONE_SHALLOW_K;
    return p->m <= OWN_LARGE_M && p->n <= OWN_LARGE_N && limits->l2_bytes >= MATMUL_LARGE_L2;
}

// Panels of B, and of A.
static const char *suits_tiles(const struct matmul_problem *p, const struct tsri_limits *limits) {
    int64_t packed_n = BLOCKED_LEAST_N - 1;
    if (matmul_is_crowded(limits) || suits_own_panels(p, limits)) return "local";
    bool is_avx2 = limits->isa == TSR_ISA_AVX2, is_widened = p->a.dtype != TSR_F32;
    if (is_avx2 && limits->num_threads > 1) {
        const char *few = suits_few_threads(p, limits->num_threads);
        if (few != NULL) return few;
    }
    if (limits->num_threads == 1) {
        if (is_avx2 && is_widened && p->n >= WIDENED_N && p->k > LEAST_PACKED_K) return "blocked";
        bool is_local = p->n <= ALONE_LOCAL_N ||
                        (p->n <= ALONE_PACKED_N && (is_avx2 || p->k <= ALONE_SHALLOW_K));
        bool is_passing = matmul_is_passing(p, limits) && (is_avx2 || p->n < BLOCKED_LEAST_N);
        if (is_local && (p->m <= LOCAL_M || is_passing)) return "local";
        if (is_avx2) packed_n = ALONE_PACKED_N;
    }
    bool is_long = p->b.col == 1 && p->n >= BLOCKED_LEAST_N && p->k * p->n >= BLOCKED_LEAST_FLOATS;
    if (p->m <= BLOCK_M || p->k <= LEAST_PACKED_K) return is_long ? "blocked" : "local";
    return p->n <= packed_n ? "packed" : "blocked";
}

// A lone row against a small b: naive is the same loop, without tasks. Dot products of bf16 gain by a unit of their own.
static const char *skinny_of(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_lone = p->m == 1 && p->num_batches == 1 && p->k > 0;
    if (matmul_has_columns(p) && matmul_has_skinny_bf16(p, limits)) return "skinny_bf16";
    return is_lone && p->k * p->n <= LONE_ELEMENTS ? "naive" : "skinny";
}

const char *matmul_prefer(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    if (limits->device.type == TSR_CUDA) return matmul_cuda_prefer(p, limits);
    // The others add in one order, whatever m is: under batch invariance one of them serves every m.
    bool may_be_skinny =
        (limits->flags & TSR_BATCH_INVARIANT) == 0 && matmul_is_skinny(problem, limits);
    if (may_be_skinny && matmul_suits_skinny_bf16(p, limits)) return "skinny_bf16";
    if (may_be_skinny && matmul_streams_columns(p, limits)) return "skinny";
    const char *mixed = matmul_prefer_mixed(p, limits);
    if (mixed != NULL) return mixed;
    bool is_in_place = matmul_can_use_b_in_place(problem, limits);
    if (matmul_can_be_streamed(problem, limits) && matmul_suits_streamed(p, limits))
        return matmul_suits_parts(p, limits) ? "direct" : "streamed";
    if (may_be_skinny && matmul_suits_skinny(p, limits, is_in_place)) return skinny_of(p, limits);
    if (is_in_place && (suits_direct(p, limits) || matmul_suits_parts(p, limits))) return "direct";
    if (may_be_skinny && is_in_place && p->m <= MATMUL_ROWS_OF_PASS) return "skinny";
    return suits_tiles(p, limits);
}
