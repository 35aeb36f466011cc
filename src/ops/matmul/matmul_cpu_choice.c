// SPDX-License-Identifier: Apache-2.0
// Which variant serves which product on the CPU: tables of what was measured, for registers of 16 floats and of 8
// (docs/kernels/matmul_cpu.md, `tessera compare`). Variants that may differ in the order of their sums (skinny, those in bf16) are
// chosen by the problem alone; among the others, whose results are the same bits, the number of threads counts too. Pure.
#include "ops/matmul/matmul_problem.h"

#include "ops/matmul/matmul_cuda.h"

enum {
    // Shared with the plans, which say what they are for.
    BLOCK_M = 96,
    LOCAL_M = 256,
    SHALLOW_K = 64,
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
    STREAM_ELEMENTS = 4 << 20,       // of b, past the caches
    DIRECT_FLOATS = 128 << 10,       // B of this size is used in place at any m,
    DIRECT_LARGE_FLOATS = 256 << 10, // of this at most where the second-level cache is large,
    DIRECT_SIDE =
        768, // of a square: rows, and floats from row to row of B, with registers of 16 floats,
    DIRECT_FEW_SIDE = 896, // of two and three threads,
    // One thread of Intel's: rows from which on B is of at most so many floats; fewer of more rows where its own fall together.
    DIRECT_ALONE_M = 200,
    DIRECT_ALONE_FLOATS = 384 << 10,
    DIRECT_ALONE_TALL_M = 480,
    DIRECT_ALONE_TALL_FLOATS = 192 << 10,
    DIRECT_CROWD_FLOATS = 640 << 10,   // of this where threads are many,
    DIRECT_CROWD_LOW_FLOATS = 2 << 20, // of this, up to BLOCK_M rows,
    DIRECT_SWARM = 16,                 // and so many threads take any rows of B
    DIRECT_CROWD_M = 8,                // and of any size for so few
    DIRECT_M = 16,                     // and for so few rows, which never pay for packing B, of
    DIRECT_ROWS_FLOATS = 8 << 20,      // this: past it, panels of B miss the translation caches
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
    // Of B that passes by on AVX2: columns; depth and floats from which 7 to 9 rows gain beside up to 3, floats from which all
    // do, and more of them.
    STREAMED_N = 512,
    STREAMED_K = 384,
    STREAMED_SOME_FLOATS = 256 << 10,
    STREAMED_FLOATS = 11 << 17,
    STREAMED_M = 24,
    STREAMED_LONG_N = 1024,
    STREAMED_LONG_M = 32,
    // Of 16 bits: rows, past the caches; and depth for more than skinny takes at once, twice that for many.
    STREAMED_HALVES_M = 4,
    STREAMED_HALVES_K = 128,
    STREAMED_PERIOD = 1024, // floats
    // Of Intel's: columns and depth for few rows, and columns for many of two threads and three.
    STREAMED_BROAD_N = 1000,
    STREAMED_BROADER_N = 1500,
    STREAMED_LONG_RUN_N = 4096,
    STREAMED_DEEP_K = 4096,
    STREAMED_FULL_M = 10,
    STREAMED_TILE_M = 8,
    // The same with registers of 16 floats; up to MATMUL_ROWS_OF_PASS rows past DIRECT_ROWS_FLOATS.
    STREAMED_WIDE_N = 256,
    STREAMED_WIDE_M = 32,
    STREAMED_WIDE_FAR_M = 48,
    TALL_FLOATS = 512 << 10, // of B of so few columns: past the second-level cache
    TALL_N = 512,
    WIDE_FLOATS = 768 << 10, // of more columns
    LONE_ELEMENTS = 32 << 10,
};
// Up to 16 rows, sums are added in the order of the one variant or the other, and bits must not follow the number of threads.
_Static_assert(DIRECT_CROWD_LOW_FLOATS <= DIRECT_ROWS_FLOATS &&
                   DIRECT_FEW_SIDE * DIRECT_FEW_SIDE <= (int)DIRECT_ROWS_FLOATS &&
                   (int)MATMUL_ROWS_OF_PASS <= DIRECT_M,
               "many threads take back what few rows have");

// Whether skinny serves up to 16 rows best. With registers of 16 floats, of the two that take b as it is, direct has the
// smaller cost per element, skinny the smaller one per call: for a few rows of next to no depth, or one that is a few whole
// vectors; and for a row or two against a tall b past the second-level cache, where whole rows of b are long runs of memory,
// which direct's panels, 4 to 16 times narrower than b, are not. Against packing b, which skinny spares, stand dot products
// over short columns where b is transposed (docs/kernels/matmul_cpu.md).
static bool suits_skinny_wide_cols(const struct matmul_problem *p) {
    bool is_f32 = p->b.dtype == TSR_F32;
    if (p->m == 1) return !is_f32 || p->n <= 256 || p->k >= 16;
    if (p->n <= 4) return p->k >= 8 || p->m <= 8;
    if (p->n <= 16) return p->m <= 6 || p->k >= (p->m <= 13 || (!is_f32 && p->n <= 8) ? 64 : 128);
    bool is_short = !is_f32 && p->n <= 128;
    switch (p->m) {
    case 2: return p->k >= (is_short ? 8 : 64);
    case 3: return p->k >= (is_short ? 16 : 64);
    case 4:
    case 5:
    case 6: return p->k >= 64;
    case 7:
    case 8:
    case 9: return p->k >= (!is_f32 && p->n <= 32 ? 80 : 256);
    default: return p->k >= (is_f32 && p->m <= 12 && p->n > 64 && p->n <= 128 ? 256 : 768);
    }
}
static bool suits_skinny_wide(const struct matmul_problem *p, bool is_in_place) {
    if (matmul_has_columns(p)) return suits_skinny_wide_cols(p);
    if (!is_in_place)
        return p->m <= 8 || p->m * p->n <= 768 || p->k <= (p->m == 9 ? 16 : p->m <= 15 ? 8 : 1);
    bool is_past_l2 = p->k * p->n >= (p->n <= TALL_N ? TALL_FLOATS : WIDE_FLOATS);
    if (p->m == 1)
        return p->k <= (p->n <= 256 ? 16 : 4) || (p->n <= 16 && (p->n > 4 || p->k <= 128)) ||
               (p->n > 64 && p->n <= 128 && p->k >= 256) ||
               (p->n % 16 == 0 && p->k * p->n <= 1024) || (p->n <= TALL_N && is_past_l2);
    if (p->n <= 4) return p->m <= 5 && p->m * p->k <= 64;
    if (p->n <= 16) return p->m <= 5 && (p->m * p->k <= 64 || (p->m == 2 && p->k <= 320));
    return p->m == 2 && p->n <= TALL_N && (p->k <= 8 || is_past_l2);
}

// The same with registers of 8 floats and tiles of 16 columns, where measured (docs/kernels/matmul_cpu.md): f32 rows of b, rows of
// 16 bits, which packing widens too, and columns of b.
static bool suits_skinny_rows(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_past_l2 = p->k * p->n * (int64_t)sizeof(float) >= limits->l2_bytes;
    if (p->n <= TALL_N && is_past_l2) return p->m <= (p->n <= TALL_N / 2 ? 4 : 3);
    bool is_whole = p->n % 16 == 0 && p->n <= TALL_N; // vectors
    switch (p->m) {
    case 1: return p->n <= TALL_N ? p->n >= 8 || p->k <= 64 : p->k < 8;
    case 2: return p->n <= 16 ? p->k <= 16 : p->n <= TALL_N && p->k <= (is_whole ? 8 : 7);
    case 3: return p->n <= 16 ? p->k <= 16 : is_whole && p->k < 8;
    default: return p->m == 4 && p->k <= 8 && p->n <= 16;
    }
}
static bool suits_skinny_rows_16_bits(const struct matmul_problem *p) {
    if (p->n < 8) return p->m <= 2 || p->m * p->k <= (p->m <= 8 ? 192 : 80);
    if (p->m == 6 && p->n > TALL_N) return p->k < 64 || p->k >= 512; // tiles have no idle rows
    if (p->m <= 7) return true;
    if (p->m == 8) return p->n <= 64 || p->n >= 256 || p->k <= 32;
    if (p->m * p->n <= 768) return p->k <= 32 || (p->m == 9 && p->n > 16);
    return p->k <= (p->m <= 10 && p->n <= 128 ? 16 : p->m <= 14 ? 8 : 1);
}
static bool suits_skinny_cols(const struct matmul_problem *p) {
    bool is_long = p->n > TALL_N;
    if (p->m == 1 || (p->n <= 8 && p->m <= 8) || (p->n <= 4 && p->k >= (p->m <= 12 ? 8 : 16)))
        return true;
    if (p->b.dtype != TSR_F32 && p->m <= 3) return true;
    if (p->m == 2) return !is_long || p->k >= 16;
    if (p->b.dtype != TSR_F32) {
        if (p->n <= 8 || (p->n <= 16 && p->k >= (p->m <= 10 ? 64 : 256))) return true;
        if (p->m <= 6)
            return is_long ? p->k >= (p->m <= 5 ? 16 : 64)
                           : p->m <= 4 || p->k == 1 || p->k >= 16 || p->n <= 128;
        if (p->m <= 8) return p->k >= (p->m == 7 || p->n <= 128 ? 64 : 128);
        return p->m <= 14 && p->k >= (p->m > 10 && is_long ? 1024 : 256);
    }
    switch (p->m) {
    case 3: return p->n <= 40 || p->k >= (p->n <= 128 ? 16 : 64);
    case 4: return p->n <= 40 || p->k >= 64;
    case 5: return p->n <= 16 || p->k >= (is_long ? 128 : 64);
    case 6: return p->k >= 512;
    case 7: return p->k >= 128;
    case 8: return p->k >= 512;
    default: return p->k >= 1024 && p->m <= 14 && (p->m % 4 == 1 || p->m % 4 == 2);
    }
}

static bool suits_skinny(const struct matmul_problem *p, const struct tsri_limits *limits,
                         bool is_in_place) {
    if (p->m > MATMUL_SKINNY_M) return matmul_has_long_columns(p, limits); // by n and k alone
    // b would be read twice.
    if (p->m > MATMUL_ROWS_OF_PASS && p->b.col == 1 && p->k * p->n > STREAM_ELEMENTS) return false;
    if (limits->isa != TSR_ISA_AVX2) return suits_skinny_wide(p, is_in_place);
    if (matmul_has_columns(p)) return suits_skinny_cols(p);
    return is_in_place ? suits_skinny_rows(p, limits) : suits_skinny_rows_16_bits(p);
}

// A few rows more than the registers take, and long columns of b, whose one pass through memory decides; tiles do it as well
// where they take b as it is, and from 9 rows on.
static bool streams_columns(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_for_tiles =
        matmul_has_amx_bf16(p, limits) && (p->m > 8 || matmul_is_turned(p, limits->flags, 1));
    return p->m > MATMUL_ROWS_OF_PASS && !is_for_tiles && p->b.col != 1 &&
           p->n * p->k >= STREAM_ELEMENTS;
}

// AMD's, with registers of 16 floats (no others have fast dot products of bf16). Rows of B a multiple of 4 KiB apart fall on the
// same lines of the caches, which lose what they fetch ahead of a tile that goes down them; one row or two gain at any distance.
static bool suits_streamed_amd(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_alone = limits->num_threads == 1, is_falling = p->b.row % STREAMED_PERIOD == 0;
    if (!limits->bf16.is_dot_fast || matmul_is_crowded(limits) || p->n <= TALL_N) return false;
    bool is_light = p->m == 1 || (p->m == 2 && is_falling);
    if (p->k < (is_light ? SHALLOW_K : STREAMED_HALVES_K)) return false;
    if (is_alone && p->m <= 2 && p->k * p->n <= STREAM_ELEMENTS) return true;
    if (p->m == 1) return p->b.row % (STREAMED_PERIOD / 2) == 0;
    return is_falling && p->m <= (is_alone ? 4 : 2);
}

static bool is_past_l2(const struct matmul_problem *p, const struct tsri_limits *limits) {
    return p->k * p->n * (int64_t)sizeof(float) > limits->l2_bytes;
}

// Intel's, up to MATMUL_ROWS_OF_PASS rows: three are a pass of their own, others gain where b comes from further than the
// second-level cache. Two threads and three have runs of half the columns and less.
static bool suits_streamed_intel(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_alone = limits->num_threads == 1, is_falling = p->b.row % STREAMED_PERIOD == 0;
    bool is_far = is_past_l2(p, limits), is_deep = p->k >= STREAMED_DEEP_K;
    bool is_wide = p->n >= STREAMED_BROAD_N, is_wider = p->n >= STREAMED_BROADER_N;
    bool is_widest = p->n >= STREAMED_LONG_RUN_N, is_even = is_wide && !is_falling;
    switch (p->m) {
    case 1: return is_alone && is_wide && is_deep;
    case 2:
        return (is_alone ? is_wide : is_wider) && (is_deep || !is_falling) && p->k >= 2 * SHALLOW_K;
    case 3: return p->k >= SHALLOW_K && (is_alone || is_wider || is_even);
    case 4: return is_far && (is_alone ? p->k >= STREAMED_DEEP_K / 2 : is_even || is_widest);
    case 5: return is_far && (is_alone || is_even || is_widest);
    case 6: return is_far && (is_alone ? is_wide : is_widest);
    default: return false;
    }
}

// One tile of all rows, which fetches ahead: where rows of B fall on the same lines, and B is no further than the third level.
static bool is_tile_better(const struct matmul_problem *p, const struct tsri_limits *limits) {
    if (p->m < 3 || p->m > STREAMED_TILE_M || (p->m == 3 && !is_past_l2(p, limits))) return false;
    return p->b.row % STREAMED_PERIOD == 0 && p->k * p->n <= STREAM_ELEMENTS;
}

// With registers of 16 floats.
static bool suits_streamed_wide(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_crowded = matmul_is_crowded(limits), is_alone = limits->num_threads == 1;
    if (p->m <= 2 && p->n <= TALL_N) return false; // skinny adds in another order
    if (suits_streamed_amd(p, limits)) return true;
    if (tsri_is_intel_avx512(limits) && !is_crowded) {
        if (is_alone && is_tile_better(p, limits)) return false;
        if (p->n > STREAMED_WIDE_N && suits_streamed_intel(p, limits)) return true;
        if (!is_alone && p->m >= STREAMED_FULL_M && p->n < STREAMED_BROAD_N) return false;
    }
    if (p->n < STREAMED_WIDE_N || !is_past_l2(p, limits)) return false;
    if (is_crowded) return matmul_streams_parts(p, limits->num_threads);
    bool is_far = p->k * p->n > DIRECT_ROWS_FLOATS;
    if (p->m <= MATMUL_ROWS_OF_PASS) return is_far;
    return p->m <= (is_far && !is_alone ? STREAMED_WIDE_FAR_M : STREAMED_WIDE_M);
}

// B in place that passes by in long runs: where it is past the second-level cache.
static bool suits_streamed(const struct matmul_problem *p, const struct tsri_limits *limits) {
    int64_t floats = p->k * p->n;
    if (limits->isa == TSR_ISA_AVX512) return suits_streamed_wide(p, limits);
    if (limits->isa != TSR_ISA_AVX2 || p->n < STREAMED_N) return false;
    if (p->b.dtype != TSR_F32) {
        if (p->m <= MATMUL_ROWS_OF_PASS)
            return p->m >= STREAMED_HALVES_M && floats >= STREAM_ELEMENTS;
        return p->m <= STREAMED_LONG_M && floats >= STREAMED_SOME_FLOATS &&
               p->k >= (p->m <= DIRECT_M ? STREAMED_HALVES_K : 2 * STREAMED_HALVES_K);
    }
    if (floats >= STREAMED_FLOATS)
        return p->m <= (p->n >= STREAMED_LONG_N ? STREAMED_LONG_M : STREAMED_M);
    if (floats * (int64_t)sizeof(float) < limits->l2_bytes) return false;
    return p->m <= 3 ||
           (p->m >= 7 && p->m <= 9 && p->k >= STREAMED_K && floats >= STREAMED_SOME_FLOATS);
}

// By one thread of Intel's, beside many rows, the sooner where rows of B fall on the same lines of the first level.
static bool is_better_packed(const struct matmul_problem *p) {
    bool is_even = p->n % 16 == 0 || p->n <= DIRECT_SPLIT_N;
    bool is_falling = p->b.row % (STREAMED_PERIOD / 2) == 0 && p->m >= DIRECT_ALONE_TALL_M;
    if (p->m < DIRECT_ALONE_M || p->k <= SHALLOW_K) return false;
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
    // What is streamed by few threads.
    bool is_wide = limits->isa == TSR_ISA_AVX512;
    int64_t tile = matmul_is_crowded(limits) ? DIRECT_CROWD_M : MATMUL_ROWS_OF_PASS;
    if (is_wide && p->m <= tile && p->n >= STREAMED_WIDE_N) return true;
    bool is_even =
        p->n % 16 == 0 || p->n <= DIRECT_SPLIT_N || p->m <= BLOCK_M || p->k <= DIRECT_SPLIT_K;
    if (matmul_is_crowded(limits) && !is_narrow)
        return (is_even || limits->num_threads >= DIRECT_SWARM) &&
               floats <= (p->m <= BLOCK_M ? DIRECT_CROWD_LOW_FLOATS : DIRECT_CROWD_FLOATS);
    if (is_wide && p->m <= STREAMED_WIDE_M && !is_past_l2(p, limits)) return true;
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
    bool is_in_place = p->a.dtype == TSR_F32 && p->a.col == 1;
    if (limits->isa != TSR_ISA_AVX512 || !is_in_place || p->k <= LEAST_PACKED_K) return false;
    bool is_narrow = p->n < BLOCKED_LEAST_N;
    if (limits->num_threads == 1) {
        if (matmul_is_passing(p, limits))
            return p->n <= OWN_LARGE_N && p->m <= (is_narrow ? OWN_PASSING_M : OWN_M);
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

// A lone row against a small b: naive is the same loop, without tasks.
static const char *skinny_of(const struct matmul_problem *p) {
    bool is_lone = p->m == 1 && p->num_batches == 1 && p->k > 0;
    return is_lone && p->k * p->n <= LONE_ELEMENTS ? "naive" : "skinny";
}

const char *matmul_prefer(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    if (limits->device.type == TSR_CUDA) return matmul_cuda_prefer(p, limits);
    // The others add in one order, whatever m is: under batch invariance one of them serves every m.
    bool may_be_skinny =
        (limits->flags & TSR_BATCH_INVARIANT) == 0 && matmul_is_skinny(problem, limits);
    if (may_be_skinny && streams_columns(p, limits)) return "skinny";
    const char *mixed = matmul_prefer_mixed(p, limits);
    if (mixed != NULL) return mixed;
    bool is_in_place = matmul_can_use_b_in_place(problem, limits);
    if (matmul_can_be_streamed(problem, limits) && suits_streamed(p, limits)) return "streamed";
    if (may_be_skinny && suits_skinny(p, limits, is_in_place)) return skinny_of(p);
    if (is_in_place && suits_direct(p, limits)) return "direct";
    if (may_be_skinny && is_in_place && p->m <= MATMUL_ROWS_OF_PASS) return "skinny";
    return suits_tiles(p, limits);
}
