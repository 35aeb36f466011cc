// SPDX-License-Identifier: Apache-2.0
// Chooses the variant that serves a product on the CPU, from tables of measurements, for registers of 16 and of 8
// floats (docs/kernels/matmul_cpu.md, `tessera compare`). Variants that may add in another order (skinny, and those in
// bf16) are chosen by the problem only. Among the others, whose results have the same bits, the number of threads
// counts too. Pure.
#include "ops/matmul/cpu/matmul_cpu_choice.h"

#include "ops/matmul/cuda/matmul_cuda.h"

enum {
    // The same as in the plans, which explain them.
    BLOCK_M = 96,
    LOCAL_M = 256,
    BLOCKED_LEAST_N = 384, // with fewer columns, packing A does not pay
    // Floats of B for small m: outside the caches, the long runs of its rows count.
    BLOCKED_LEAST_FLOATS = 2 << 20,
    LEAST_PACKED_K = 16, // below, a shared packing costs more than packing in each task
    // One thread shares panels with none: "local" up to so many columns,
    ALONE_LOCAL_N = 64,
    ALONE_SHALLOW_K = 2 * SHALLOW_K, // or up to ALONE_PACKED_N columns with small k; on AVX2
    ALONE_PACKED_N = 512,            // "local" or "packed" up to here,
    WIDENED_N = 256, // and for 16 bits from here on "blocked", which widens A only once
    // Two or three threads of AVX2: the number of rows, and for 16 bits of panels, from which tasks have equal size.
    // For f32, private panels up to so many columns, or more if k is not cut.
    FEW_LEAST_M = 32,
    FEW_PANELS = 24,
    FEW_LOCAL_N = 640,
    FEW_FLAT_N = 1152,
    FEW_FLAT_K = 512,
    // Registers of 16 floats, one to three threads, f32: private instead of shared panels up to OWN_M rows (any number
    // if k is small), with one thread from so many floats of B on. With a large second-level cache, two or three
    // threads use private panels instead of panels of A up to OWN_LARGE_M rows and OWN_LARGE_N columns.
    OWN_M = 512,
    OWN_ALONE_FLOATS = 192 << 10,
    OWN_PASSING_M = 768, // with narrow B that is packed once for all rows
    OWN_LARGE_M = 1024,
    OWN_LARGE_N = 1280,
    DIRECT_FLOATS = 128 << 10,       // up to this size, B is used in place at any m,
    DIRECT_LARGE_FLOATS = 256 << 10, // up to this one with a large second-level cache,
    DIRECT_SIDE = 768,     // square: rows, and floats per row of B, with registers of 16 floats,
    DIRECT_FEW_SIDE = 896, // the same with two or three threads
    // One thread on Intel: from so many rows on, B in place only up to so many floats; fewer if there are more rows and
    // the rows of B map to the same cache sets.
    DIRECT_ALONE_M = 200,
    DIRECT_ALONE_K = 32,  // with up to SHALLOW_K steps: panels from so many on,
    DIRECT_ALONE_N = 512, // and so many columns
    DIRECT_ALONE_FLOATS = 384 << 10,
    DIRECT_ALONE_TALL_M = 480,
    DIRECT_ALONE_TALL_FLOATS = 192 << 10,
    DIRECT_CROWD_FLOATS = 640 << 10,   // B up to this size with many threads,
    DIRECT_CROWD_LOW_FLOATS = 2 << 20, // B up to this size with up to BLOCK_M rows,
    DIRECT_CROWD_LOW_M = BLOCK_M / 2,  // fewer than these rows with so many columns;
    DIRECT_CROWD_LONG_N = 2048,
    DIRECT_SWARM = 16, // so many threads accept rows of B at any alignment
    // Rows of B at unaligned addresses, whose vector loads take two lines each: panels, except for so few columns or
    // steps.
    DIRECT_SPLIT_N = 64,
    DIRECT_SPLIT_K = 128,
    // Panels of 16 columns touch a page at each step: in place only for so few rows, or B up to this size,
    DIRECT_NARROW_M = 64,
    DIRECT_NARROW_FLOATS = 48 << 10,
    DIRECT_NARROW_N = 256, // except for many rows with more columns than this and
    DIRECT_NARROW_K = 32,  // more steps than this;
    DIRECT_FAR_M = 32,     // for so few rows, any size with so many columns
    DIRECT_FAR_N = 4096,
    LONE_ELEMENTS = 32 << 10,
};
// Up to 16 rows, variants add in different orders, and the bits must not depend on the number of threads.
_Static_assert((int)DIRECT_CROWD_LOW_FLOATS <= (int)DIRECT_ROWS_FLOATS &&
                   DIRECT_FEW_SIDE * DIRECT_FEW_SIDE <= (int)DIRECT_ROWS_FLOATS &&
                   (int)MATMUL_ROWS_OF_PASS <= DIRECT_M,
               "many threads take back what few rows have");

// One thread on Intel with many rows: panels are better earlier if rows of B map to the same sets of the first-level
// cache.
static bool is_better_packed(const struct matmul_problem *p) {
    bool is_even = p->n % 16 == 0 || p->n <= DIRECT_SPLIT_N;
    bool is_falling = p->b.row % (STREAMED_PERIOD / 2) == 0 && p->m >= DIRECT_ALONE_TALL_M;
    if (p->m < DIRECT_ALONE_M) return false;
    if (p->k <= SHALLOW_K) return !is_even && p->k >= DIRECT_ALONE_K && p->n >= DIRECT_ALONE_N;
    return !is_even || p->b.row > DIRECT_SIDE ||
           p->k * p->n > (is_falling ? DIRECT_ALONE_TALL_FLOATS : DIRECT_ALONE_FLOATS);
}

// Whether "direct" (B in place) is best.
static bool suits_direct(const struct matmul_problem *p, const struct tsri_limits *limits) {
    int64_t floats = p->k * p->n;
    bool is_narrow = limits->isa == TSR_ISA_AVX2;
    if (p->m <= DIRECT_M && floats <= DIRECT_ROWS_FLOATS) return true;
    if (is_narrow && p->m <= DIRECT_FAR_M && floats > DIRECT_FLOATS && p->n <= DIRECT_FAR_N)
        return true;
    // Where few threads use "streamed", many use B in place: such small m with b of any size.
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
    // Half of the second-level cache, if that is large.
    int64_t most = tsri_max(tsri_min(limits->l2_bytes / 8, DIRECT_LARGE_FLOATS), DIRECT_FLOATS);
    if (floats > (is_narrow ? DIRECT_FLOATS : most)) return false;
    if (!is_narrow) return is_even;
    // Two or three threads pack a long, shallow B in each task.
    bool is_few = limits->num_threads > 1 && !matmul_is_crowded(limits);
    if (is_few && p->m > FEW_LEAST_M && p->k <= SHALLOW_K && p->n >= ALONE_PACKED_N &&
        p->n % 16 == 0)
        return false;
    if (p->m <= DIRECT_NARROW_M) return true;
    bool is_broad = p->n >= DIRECT_NARROW_N && p->k > DIRECT_NARROW_K && p->m > BLOCK_M;
    return floats <= DIRECT_NARROW_FLOATS && !is_broad;
}

// Panels for two or three threads of AVX2, if they differ from those for more threads; else NULL. f32 uses private
// panels if B is small or shallow. 16-bit A is widened once for all tasks; with few rows only if tasks of whole panels
// have equal size or are many.
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

// Registers of 16 floats, one to three threads: whether private panels are best. No thread waits for them, and no other
// thread's caches hold them.
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

// Chooses between the variants with panels of B and with panels of A.
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

// One row and a small b: "naive" is the same loop without tasks. bf16 dot products are faster with their own unit.
static const char *skinny_of(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_lone = p->m == 1 && p->num_batches == 1 && p->k > 0;
    if (matmul_has_columns(p) && matmul_has_skinny_bf16(p, limits)) return "skinny_bf16";
    return is_lone && p->k * p->n <= LONE_ELEMENTS ? "naive" : "skinny";
}

const char *matmul_prefer(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    if (limits->device.type == TSR_CUDA) return matmul_cuda_prefer(p, limits);
    if (p->quant.format != TSR_QUANT_NONE) return suits_tiles(p, limits);
    // The other variants add in one order for any m; under batch invariance one of them serves every m.
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
