// SPDX-License-Identifier: Apache-2.0
// Chooses among the variants for small m, for matmul_prefer, from tables of measurements
// (docs/kernels/matmul_cpu_rows.md, `tessera compare`). The choice of skinny depends on the problem only, because
// skinny may add in another order. Pure.
#include "ops/matmul/cpu/matmul_cpu_choice.h"

enum {
    STREAM_ELEMENTS = 4 << 20, // of b, outside the caches
    // Streamed B on AVX2: minimum of columns; minimum of k and floats for 7 to 9 rows (besides up to 3 rows); floats
    // from which all rows gain up to STREAMED_M, and more rows with more columns.
    STREAMED_N = 512,
    STREAMED_K = 384,
    STREAMED_SOME_FLOATS = 256 << 10,
    STREAMED_FLOATS = 11 << 17,
    STREAMED_M = 24,
    STREAMED_LONG_N = 1024,
    STREAMED_LONG_M = 32,
    // 16 bits: minimum of rows outside the caches; and minimum of k for more rows than skinny takes at once, twice that
    // for many.
    STREAMED_HALVES_M = 4,
    STREAMED_HALVES_K = 128,
    // Intel: columns and k for few rows, and columns for many rows with two or three threads.
    STREAMED_BROAD_N = 1000,
    STREAMED_BROADER_N = 1500,
    STREAMED_LONG_RUN_N = 4096,
    STREAMED_DEEP_K = 4096,
    STREAMED_FULL_M = 10,
    STREAMED_TILE_M = 8,
    // The same with registers of 16 floats; up to MATMUL_ROWS_OF_PASS rows only beyond DIRECT_ROWS_FLOATS.
    STREAMED_WIDE_FAR_M = 48,
    TALL_FLOATS = 512 << 10, // of B with so few columns: outside the second-level cache
    TALL_N = 512,
    // B outside the first-level cache with unaligned rows, so that panels read most lines twice.
    SPLIT_LINES_K = 64,
    SPLIT_LINES_FLOATS = 16 << 10,
    // Tiles that fetch B again, with two or three threads, then with one: minimum of rows, maximum of columns up to
    // STREAMED_WIDE_M rows, and for more; one thread uses them for twice as many rows with a small b.
    FETCHED_M = 20,
    FETCHED_N = 3072,
    FETCHED_MANY_M = 48,
    FETCHED_MANY_N = 2560,
    FETCHED_ALONE_M = 24,
    FETCHED_ALONE_N = 2560,
    FETCHED_ALONE_MANY_N = 1536,
    FETCHED_NEAR_N = 1024,
    FETCHED_NEAR = 1280 << 10,
    // The same on AMD: maximum of elements of b for up to 10, 32, 128 and 256 rows (no limit up to 96); if rows of b
    // map to the same cache sets, for up to 32 and 64.
    PLACED_FEW_M = 10,
    PLACED_FEW = 3 << 20,
    PLACED_M = 32,
    PLACED = 9 << 19,
    PLACED_MANY_M = 96,
    PLACED_MORE_M = 128,
    PLACED_MOST_M = 256,
    PLACED_MOST = 2 << 20,
    PLACED_FALLING = 2 << 20,
    PLACED_FALLING_MANY_M = 64,
    PLACED_FALLING_MANY = 1 << 20,
};

// Columns of b in place, on Intel: where dot products are faster than panels; for two rows and more.
static const int64_t dots_cols[] = {0, 5, 9, 17, 21, 25, 33, 41, 65, 129};
static const struct matmul_depths dots_f32[] = {
    {14, {24, 64, 128, 128, 320, 320, 320, 320, 320, 320}},
    {13, {16, 48, 64, 128, 320, 320, 320, 320, 320, 320}},
    {11, {16, 48, 64, 128, 128, 192, 192, 192, 192, 192}},
    {10, {8, 48, 64, 128, 128, 192, 192, 192, 192, 192}},
    {9, {8, 48, 64, 64, 128, 128, 128, 240, 240, 240}},
    {8, {1, 32, 64, 64, 128, 128, 128, 240, 240, 240}},
    {7, {1, 24, 64, 64, 128, 128, 128, 192, 192, 192}},
    {6, {1, 1, 24, 32, 32, 64, 64, 64, 64, 64}},
    {5, {1, 1, 1, 32, 32, 64, 64, 64, 64, 64}},
    {4, {1, 1, 1, 16, 32, 32, 32, 48, 48, 48}},
    {3, {1, 1, 1, 1, 32, 32, 32, 32, 32, 32}},
    {0, {1, 1, 1, 1, 1, 1, 24, 24, 24, 24}},
};
static const struct matmul_depths dots_16_bits[] = {
    {13, {1, 32, 128, 128, 192, 192, 192, 384, 384, 384}},
    {10, {1, 24, 64, 128, 192, 192, 192, 384, 384, 384}},
    {9, {1, 24, 64, 64, 80, 80, 128, 128, 128, 128}},
    {7, {1, 1, 48, 64, 80, 80, 128, 128, 128, 128}},
    {6, {1, 1, 1, 1, 32, 32, 32, 64, 64, 64}},
    {5, {1, 1, 1, 1, 32, 32, 32, 56, 56, 56}},
    {4, {1, 1, 1, 1, 1, 16, 16, 48, 48, 48}},
    {3, {1, 1, 1, 1, 1, 1, 1, 16, 32, 32}},
    {0, {1, 1, 1, 1, 1, 1, 1, 8, 8, 24}},
};
// The same on AMD.
static const int64_t dots_cols_amd[] = {0, 2, 5, 9, 17, 25, 33, 65, 129, INT64_MAX};
static const struct matmul_depths dots_f32_amd[] = {
    {16, {48, 32, 80, 256, 128, 384, 384, 384, 384}},
    {13, {48, 24, 64, 192, 128, 384, 256, 384, 384}},
    {12, {48, 16, 64, 192, 128, 256, 256, 256, 384}},
    {11, {48, 24, 48, 192, 96, 256, 192, 256, 256}},
    {10, {32, 16, 48, 192, 96, 256, 192, 256, 256}},
    {8, {48, 8, 48, 128, 80, 192, 192, 192, 256}},
    {7, {32, 1, 32, 80, 80, 192, 192, 192, 192}},
    {6, {8, 1, 1, 16, 24, 48, 48, 48, 64}},
    {5, {8, 1, 1, 1, 16, 32, 48, 48, 48}},
    {4, {1, 1, 1, 1, 16, 48, 32, 32, 48}},
    {3, {1, 1, 1, 1, 1, 1, 16, 24, 24}},
    {0, {1, 1, 1, 1, 1, 1, 1, 16, 16}},
};
static const struct matmul_depths dots_16_bits_amd[] = {
    {16, {1, 1, 48, 128, 96, 256, 256, 384, 384}},
    {11, {1, 1, 24, 80, 80, 192, 192, 256, 256}},
    {10, {1, 1, 1, 64, 64, 192, 192, 192, 256}},
    {9, {1, 1, 1, 64, 64, 128, 128, 192, 192}},
    {8, {1, 1, 1, 48, 48, 128, 128, 192, 192}},
    {7, {1, 1, 1, 32, 48, 96, 96, 128, 128}},
    {6, {1, 1, 1, 1, 1, 24, 32, 48, 48}},
    {5, {1, 1, 1, 1, 1, 1, 32, 32, 48}},
    {4, {1, 1, 1, 1, 1, 1, 16, 32, 48}},
    {3, {1, 1, 1, 1, 1, 1, 1, 16, 32}},
    {0, {1, 1, 1, 1, 1, 1, 1, 1, 16}},
};
// Rows of b in place, on AMD: the k from which direct's tiles are faster than skinny.
static const int64_t placed_cols_amd[] = {0, 16, 17, 25, 33, 65, 129, 257, INT64_MAX, INT64_MAX};
static const struct matmul_depths placed_amd[] = {
    {7, {1, 1, 1, 1, 1, 1, 1, 1}},
    {6, {2, 4, 1, 1, 1, 1, 1, 1}},
    {5, {16, 16, 1, 1, 1, 1, 1, 1}},
    {4, {24, 16, 2, 2, 1, 1, 1, 1}},
    {3, {32, 48, 16, 16, 8, 1, 1, 1}},
    {2, {32, 48, 24, 24, 16, 8, 1, 1}},
    {0, {48, INT64_MAX, 48, 48, 32, 16, 8, 2}},
};
// For at least 9 rows of A and more than a vector of 16-bit columns: the number of steps up to which widening the
// columns on the fly is faster than packing panels.
static int64_t most_depth_of_16_bits(const struct matmul_problem *p) {
    bool is_narrow = p->m * p->n <= 768;
    if (p->m == 9) return is_narrow ? 48 : 16;
    if (p->m <= 12) return is_narrow ? 24 : 8;
    return p->m <= 15 || is_narrow ? 8 : 1;
}

// Whether skinny is best, up to 16 rows. With registers of 16 floats, both skinny and direct read b in place. direct
// has the smaller cost per element, skinny the smaller cost per call. So skinny is better for a few rows with tiny k,
// and for one row of a few whole vectors; and for one or two rows against a tall b outside the second-level cache,
// because whole rows of b are long runs of memory, and direct's panels are 4 to 16 times narrower. Against packing b,
// which skinny avoids, dot products over short columns compete if b is transposed (docs/kernels/matmul_cpu_rows.md).
static bool suits_skinny_wide_cols(const struct matmul_problem *p, bool is_intel) {
    bool is_f32 = p->b.dtype == TSR_F32;
    if (p->m == 1) return !is_f32 || p->n <= 256 || p->k >= 16;
    if (is_intel) return matmul_is_deep(p, is_f32 ? dots_f32 : dots_16_bits, dots_cols);
    struct matmul_problem of_panels = *p;
    // A single column: tiles take (k, 1) in place, but the transposed (1, k) is packed like two columns, so it uses
    // their entry.
    if (p->n == 1 && p->b.col != 1) of_panels.n = 2;
    return matmul_is_deep(&of_panels, is_f32 ? dots_f32_amd : dots_16_bits_amd, dots_cols_amd);
}

// Whole rows of a tall b outside the caches are long runs of memory; direct's panels are not.
static bool suits_skinny_amd(const struct matmul_problem *p) {
    if (p->m <= 2 && p->n >= TALL_N / 2 && p->n <= TALL_N && p->k * p->n >= STREAM_ELEMENTS)
        return true;
    return !matmul_is_deep(p, placed_amd, placed_cols_amd);
}

static bool suits_skinny_wide(const struct matmul_problem *p, const struct tsri_limits *limits,
                              bool is_in_place) {
    bool is_intel = tsri_is_intel_avx512(limits);
    if (matmul_has_columns(p)) return suits_skinny_wide_cols(p, is_intel);
    if (!is_in_place) return p->m <= 8 || p->n <= 16 || p->k <= most_depth_of_16_bits(p);
    if (!is_intel) return suits_skinny_amd(p);
    bool is_past_l2 = p->n <= TALL_N && p->k * p->n >= TALL_FLOATS;
    bool is_whole = p->n % 16 == 0; // whole vectors
    if (p->m == 1 && p->n > 64 && p->b.row % 8 != 0 && p->k >= SPLIT_LINES_K &&
        p->k < STREAMED_DEEP_K && p->k * p->n >= SPLIT_LINES_FLOATS &&
        !matmul_is_past_l2(p, limits))
        return true;
    bool is_part = p->n < 16; // part of a vector, which skinny reads again for each row
    if (p->m == 1)
        return p->k <= (p->n <= 256 ? 16 : 4) ||
               (p->n <= 16 && (p->k <= 128 || (p->n > 4 && !is_part))) ||
               (p->n > 64 && p->n <= 128 && p->k >= 256 && !is_whole) ||
               (p->n % 16 == 0 && p->k * p->n <= 1024) || is_past_l2;
    if (p->n <= 4) return p->m <= 5 && p->m * p->k <= 64;
    if (p->n <= 16)
        return p->m <= 5 && (p->m * p->k <= 64 || (p->m == 2 && p->k <= (is_part ? 128 : 320)));
    return p->m == 2 && p->n <= TALL_N && (p->k <= 8 || is_past_l2);
}

// The same with registers of 8 floats and tiles of 16 columns, as measured (docs/kernels/matmul_cpu_rows.md): f32 rows
// of b, 16-bit rows (which packing widens too), and columns of b.
static bool suits_skinny_rows(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_past_l2 = p->k * p->n * (int64_t)sizeof(float) >= limits->l2_bytes;
    if (p->n <= TALL_N && is_past_l2) return p->m <= (p->n <= TALL_N / 2 ? 4 : 3);
    bool is_whole = p->n % 16 == 0 && p->n <= TALL_N; // whole vectors
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

bool matmul_suits_skinny(const struct matmul_problem *p, const struct tsri_limits *limits,
                         bool is_in_place) {
    if (p->m > MATMUL_SKINNY_M) return matmul_has_long_columns(p, limits); // by n and k only
    // skinny would read b twice.
    if (p->m > MATMUL_ROWS_OF_PASS && p->b.col == 1 && p->k * p->n > STREAM_ELEMENTS) return false;
    if (limits->isa != TSR_ISA_AVX2) return suits_skinny_wide(p, limits, is_in_place);
    if (matmul_has_columns(p)) return suits_skinny_cols(p);
    return is_in_place ? suits_skinny_rows(p, limits) : suits_skinny_rows_16_bits(p);
}

// For slightly more rows than the registers hold and long columns of b, one pass through memory decides the time. Tiles
// are as good if they take b in place, and from 9 rows on.
bool matmul_streams_columns(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_for_tiles =
        matmul_has_amx_bf16(p, limits) && (p->m > 8 || matmul_is_turned(p, limits->flags, 1));
    return p->m > MATMUL_ROWS_OF_PASS && !is_for_tiles && p->b.col != 1 &&
           p->n * p->k >= STREAM_ELEMENTS;
}

// AMD with registers of 16 floats (only its bf16 dot products are fast). Rows of B a multiple of 4 KiB apart map to the
// same cache sets, which lose lines that were prefetched ahead of a tile. One or two rows gain at any distance.
static bool suits_streamed_amd(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_alone = limits->num_threads == 1, is_falling = matmul_is_falling(p);
    if (!limits->bf16.is_dot_fast || matmul_is_crowded(limits) || p->n <= TALL_N) return false;
    bool is_light = p->m == 1 || (p->m == 2 && is_falling);
    if (p->k < (is_light ? SHALLOW_K : STREAMED_HALVES_K)) return false;
    if (is_alone && p->m <= 2 && p->k * p->n <= STREAM_ELEMENTS) return true;
    if (p->m == 1) return p->b.row % (STREAMED_PERIOD / 2) == 0;
    return is_falling && p->m <= (is_alone ? 4 : 2);
}

// Intel, up to MATMUL_ROWS_OF_PASS rows: three rows make a full pass; others gain if b is outside the second-level
// cache. Two or three threads have runs of at most half the columns.
static bool suits_streamed_intel(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_alone = limits->num_threads == 1, is_falling = matmul_is_falling(p);
    bool is_far = matmul_is_past_l2(p, limits), is_deep = p->k >= STREAMED_DEEP_K;
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

// Whether one tile of all rows, with prefetches, is better: rows of B map to the same cache sets, and B fits the
// third-level cache.
static bool is_tile_better(const struct matmul_problem *p, const struct tsri_limits *limits) {
    if (p->m < 3 || p->m > STREAMED_TILE_M || (p->m == 3 && !matmul_is_past_l2(p, limits)))
        return false;
    int64_t most = p->m > MATMUL_ROWS_OF_PASS ? 2 * STREAM_ELEMENTS : STREAM_ELEMENTS;
    return matmul_is_falling(p) && p->k * p->n <= most;
}

static bool suits_fetched_amd(const struct matmul_problem *p) {
    int64_t elements = p->k * p->n;
    if (p->m <= MATMUL_ROWS_OF_PASS) return false;
    if (matmul_is_falling(p))
        return p->m <= PLACED_M ? elements <= PLACED_FALLING
                                : p->m <= PLACED_FALLING_MANY_M && elements <= PLACED_FALLING_MANY;
    if (p->m <= PLACED_M) return elements <= (p->m <= PLACED_FEW_M ? PLACED_FEW : PLACED);
    if (p->m <= PLACED_MANY_M) return true;
    return elements <= (p->m <= PLACED_MORE_M ? PLACED_FEW : PLACED_MOST) && p->m <= PLACED_MOST_M;
}

// Several tiles that fetch B gain most where streaming, or packing, costs more than reading B again.
bool matmul_suits_fetched(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_alone = limits->num_threads == 1;
    if (limits->isa != TSR_ISA_AVX512 || matmul_is_crowded(limits)) return false;
    if (!matmul_is_rows_of_floats(&p->a)) return false;
    if (!tsri_is_intel_avx512(limits)) return suits_fetched_amd(p);
    if (matmul_is_falling(p) || p->m < (is_alone ? FETCHED_ALONE_M : FETCHED_M)) return false;
    int64_t elements = p->k * p->n;
    if (p->m <= STREAMED_WIDE_M)
        return p->n <= (is_alone ? FETCHED_ALONE_N : FETCHED_N) && elements <= 2 * STREAM_ELEMENTS;
    if (p->b.row % 8 != 0) return false; // every load of b takes two lines
    if (p->m <= FETCHED_MANY_M)
        return p->n <= (is_alone ? FETCHED_ALONE_MANY_N : FETCHED_MANY_N) &&
               elements <= STREAM_ELEMENTS;
    return is_alone && p->m <= 2 * FETCHED_MANY_M && p->n <= FETCHED_NEAR_N &&
           elements <= FETCHED_NEAR;
}

// For registers of 16 floats.
static bool suits_streamed_wide(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_alone = limits->num_threads == 1;
    if (matmul_is_crowded(limits)) return false;   // parts of tiles gain more
    if (p->m <= 2 && p->n <= TALL_N) return false; // skinny adds in another order
    if (suits_streamed_amd(p, limits)) return true;
    if (matmul_suits_fetched(p, limits)) return false;
    if (tsri_is_intel_avx512(limits)) {
        if (is_alone && is_tile_better(p, limits)) return false;
        if (p->n > STREAMED_WIDE_N && suits_streamed_intel(p, limits)) return true;
        if (!is_alone && p->m >= STREAMED_FULL_M && p->n < STREAMED_BROAD_N) return false;
    }
    if (p->n < STREAMED_WIDE_N || !matmul_is_past_l2(p, limits)) return false;
    bool is_far = p->k * p->n > DIRECT_ROWS_FLOATS;
    if (p->m <= MATMUL_ROWS_OF_PASS) return is_far;
    return p->m <= (is_far && !is_alone ? STREAMED_WIDE_FAR_M : STREAMED_WIDE_M);
}

bool matmul_suits_streamed(const struct matmul_problem *p, const struct tsri_limits *limits) {
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

// Blocks of k as tasks of many threads. If fewer threads would use skinny, which adds in another order, all do.
bool matmul_suits_parts(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_added_alike =
        p->m > MATMUL_ROWS_OF_PASS || p->n >= STREAMED_WIDE_N || p->k * p->n <= DIRECT_ROWS_FLOATS;
    return is_added_alike && matmul_cuts_depth(p, limits);
}
