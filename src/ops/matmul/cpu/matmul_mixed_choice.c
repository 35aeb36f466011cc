// SPDX-License-Identifier: Apache-2.0
// When the units that multiply bf16 (AMX and vdpbf16ps) are best, from tables of measurements
// (docs/kernels/matmul_cpu_bf16.md and matmul_cpu_amd.md). Up to 16 rows by the problem, above by n and k only. Pure.
#include "ops/matmul/cpu/matmul_cpu_choice.h"

enum {
    FEWEST_ROWS = 7,    // usual minimum of rows for tiles
    LEAST_TILES_K = 64, // below, tiles cost more than they save, except with many rows and columns
    LEAST_TILES_N = 48,
    LEAST_WIDE_N = 256, // for five rows with columns of b
    MOST_SKINNY_COLUMNS = 4,
    // For vdpbf16ps at twice the rate of FMA: minimum of steps (padded to 32), less with some columns, more with few.
    // With columns of b: minimum of rows and of columns, and maximum of steps for fewer than FEWEST_ROWS rows.
    LEAST_DOTS_K = 24,
    LEAST_WIDE_DOTS_K = 16,
    DOTS_WIDE_N = 64,
    DEEP_DOTS_K = 96,
    DOTS_M = 4,
    DOTS_N = 48,
    DOTS_K = 256,
    // Stride in bf16 elements of rows of b that are a multiple of 4 KiB apart (matmul_is_falling counts floats), for b
    // within the caches.
    FALLING_STRIDE = 2048,
    FALLING_ELEMENTS = 4 << 20,
};

static bool is_bf16(const struct matmul_problem *p) { return p->a.dtype == TSR_BF16; }

// The tables are from one thread of a Xeon (docs/kernels/matmul_cpu_bf16.md). Tiles with columns of b in place, against
// dot products.
static bool suits_turned(const struct matmul_problem *p) {
    if (!matmul_is_turned(p, 0, 1)) return false;
    bool is_deep = p->k > 2048;
    switch (p->m) {
    case 1:
    case 2: return false;
    case 3: return p->n >= 256 && !is_deep;
    case 4: return p->n >= 64 && (p->n <= 512 || !is_deep);
    case 5: return p->n >= 48;
    case 6: return p->n >= (p->k >= 1024 ? 32 : 48);
    default: return p->n >= 16;
    }
}

// Tiles with packed b, against dot products, which cost less the longer they are.
static bool suits_tiles_cols(const struct matmul_problem *p) {
    if (p->m <= 4 || p->n <= MOST_SKINNY_COLUMNS) return false;
    if (p->m < FEWEST_ROWS)
        return p->n >= (p->m == 5 ? LEAST_WIDE_N : 64) && p->k < 2 * LEAST_TILES_K;
    if (p->n >= LEAST_TILES_N) return true;
    if (p->n > 32) return p->m >= 10 || p->k >= 96;
    if (p->n > 16) return p->m >= 10 && p->k >= 96;
    return p->m >= 12 && ((p->n == 16 && p->k < 256) || (p->m >= 13 && p->k >= 384));
}

// Tiles against rows of b that are multiplied one by one.
static bool suits_tiles_rows(const struct matmul_problem *p) {
    int64_t k = p->k;
    if (p->n < LEAST_TILES_N) { // minimum of rows for up to one vector of columns, and for more
        if (p->n <= 1) return false;
        if (p->n <= 16)
            return p->m >= (k >= 1024 ? 6 : k >= 384 ? 7 : k >= 192 ? 8 : k >= 96 ? 12 : 13);
        return p->m >= (k >= 384 ? 5 : k >= 256 ? 6 : k >= 192 ? 7 : k >= 96 ? 8 : 10);
    }
    switch (p->m) {
    case 1:
    case 2:
    case 3: return false;
    case 4: return k >= 384 && p->n >= 96 && p->n <= 256;
    case 5: return k >= (p->n >= 256 ? 192 : 384);
    case 6: return k >= 192 || p->n >= 96;
    default: return true;
    }
}

// Fewer than LEAST_TILES_K steps: the number of steps from which tiles, which pad steps to 32 and have 16 rows, are
// faster than widening b. It falls with rows and columns; above skinny's rows it depends on columns only.
static bool suits_shallow_tiles(const struct matmul_problem *p) {
    enum { NO = LEAST_TILES_K };
    static const int64_t cols[] = {0, 17, 33, 64, 96, 192, 256, 512, INT64_MAX, INT64_MAX};
    static const struct matmul_depths by_rows[] = {
        {MATMUL_SKINNY_M + 1, {56, 48, 40, 24, 20, 20, 16, 16}},
        {13, {NO, 56, 48, 40, 24, 20, 20, 16}},
        {10, {NO, 56, 56, 40, 32, 24, 24, 24}},
        {8, {NO, NO, NO, 56, 48, 48, 48, 48}},
        {0, {NO, NO, NO, NO, NO, NO, NO, NO}},
    };
    static const struct matmul_depths by_columns[] = {
        {MATMUL_SKINNY_M + 1, {56, 48, 40, 24, 20, 20, 16, 16}},
        {13, {NO, 48, 40, 24, 20, 20, 16, 16}},
        {8, {NO, 56, 56, 40, 32, 24, 24, 24}},
        {5, {NO, NO, NO, 56, 48, 48, 48, 48}},
        {0, {NO, NO, NO, NO, NO, NO, NO, NO}},
    };
    return matmul_is_deep(p, matmul_has_columns(p) ? by_columns : by_rows, cols);
}

static bool suits_tiles(const struct matmul_problem *p) {
    if (p->k < LEAST_TILES_K) return suits_shallow_tiles(p);
    if (p->m > MATMUL_SKINNY_M) return true;
    return matmul_has_columns(p) ? suits_turned(p) || suits_tiles_cols(p) : suits_tiles_rows(p);
}

// For vdpbf16ps, from one thread of an EPYC (Zen 4): packed b, against products in fp32.
static bool suits_dots(const struct matmul_problem *p) {
    if (p->k < (p->n >= DOTS_WIDE_N ? LEAST_WIDE_DOTS_K : LEAST_DOTS_K)) return false;
    if (p->m > MATMUL_SKINNY_M) return true;
    bool has_many = p->m >= FEWEST_ROWS;
    if (!matmul_has_columns(p)) return has_many && (p->n > DOTS_WIDE_N || p->k >= DEEP_DOTS_K);
    return has_many ? p->n >= 16 : p->m >= DOTS_M && p->n >= DOTS_N && p->k <= DOTS_K;
}

// vdpbf16ps with b in place, on AMD. Columns: dot products end in a sum over lanes, which does not pay for short ones.
// Rows: three passes over rows of b that map to the same sets of the first-level cache are slower than panels.
static bool suits_skinny_dots_amd(const struct matmul_problem *p) {
    static const int64_t cols[] = {0,         25,        33,        65,        129,
                                   INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    static const struct matmul_depths by_columns[] = {
        {16, {1, 64, 96, 96, 128}}, {14, {1, 48, 80, 80, 128}}, {12, {1, 48, 64, 64, 96}},
        {10, {1, 32, 64, 64, 80}},  {7, {1, 1, 48, 48, 56}},    {5, {1, 1, 16, 16, 48}},
        {4, {1, 1, 1, 8, 16}},      {3, {1, 1, 1, 1, 16}},      {0, {1, 1, 1, 1, 1}},
    };
    if (p->m > MATMUL_SKINNY_M) return true; // a few long columns
    if (matmul_has_columns(p)) return matmul_is_deep(p, by_columns, cols);
    bool is_falling = p->b.row % FALLING_STRIDE == 0 && p->k * p->n <= FALLING_ELEMENTS;
    return !is_falling || p->m <= 2 * MATMUL_ROWS_OF_PASS;
}

// The same on Intel, where vdpbf16ps is no faster than FMA but reads bf16 directly: maximum of rows by bands of steps
// and columns. With more rows, steps or columns, tiles are faster; many columns with few steps are widened and
// multiplied in fp32.
enum { DOT_STEP_BANDS = 8, DOT_COLUMN_BANDS = 9 };
static bool suits_skinny_dots_intel(const struct matmul_problem *p) {
    static const int64_t steps[DOT_STEP_BANDS] = {1, 16, 32, 64, 128, 256, 512, 3000};
    static const int64_t cols[DOT_COLUMN_BANDS] = {0, 3, 9, 17, 33, 65, 129, 513, 1501};
    static const int64_t by_rows[DOT_STEP_BANDS][DOT_COLUMN_BANDS] = {
        {16, 16, 16, 16, 16, 16, 12, 12, 12}, {16, 16, 16, 16, 16, 12, 12, 10, 10},
        {16, 16, 16, 16, 12, 8, 4, 4, 4},     {16, 16, 14, 12, 8, 5, 4, 2, 3},
        {16, 11, 12, 7, 5, 4, 2, 2, 3},       {16, 8, 8, 6, 5, 4, 2, 2, 2},
        {16, 6, 6, 4, 4, 3, 2, 2, 4},         {16, 5, 5, 4, 4, 3, 0, 0, 0},
    };
    static const int64_t by_columns[DOT_STEP_BANDS][DOT_COLUMN_BANDS] = {
        {16, 16, 9, 6, 2, 2, 1, 1, 1},   {16, 16, 9, 6, 3, 3, 2, 2, 2},
        {16, 16, 16, 10, 6, 6, 3, 4, 4}, {16, 16, 16, 10, 6, 6, 4, 4, 4},
        {16, 16, 11, 8, 6, 6, 4, 4, 4},  {16, 16, 8, 5, 3, 2, 2, 2, 2},
        {16, 16, 6, 3, 3, 3, 2, 2, 2},   {16, 16, 6, 3, 3, 3, 3, 3, 3},
    };
    if (p->m > MATMUL_SKINNY_M) return p->n <= MOST_SKINNY_COLUMNS;
    int step = tsri_band_of(p->k, steps, DOT_STEP_BANDS);
    int col = tsri_band_of(p->n, cols, DOT_COLUMN_BANDS);
    return p->m <= (matmul_has_columns(p) ? by_columns : by_rows)[step][col];
}

bool matmul_suits_skinny_bf16(const struct matmul_problem *p, const struct tsri_limits *limits) {
    if (!matmul_has_skinny_bf16(p, limits)) return false;
    return limits->bf16.is_dot_fast ? suits_skinny_dots_amd(p) : suits_skinny_dots_intel(p);
}

// Depends on n and k only, except for skinny's rows: a row's result is the same among any other rows. Under the flag it
// depends on k only, because backward computes a gradient that is stored by columns as its own transpose, whose n is
// the number of rows.
const char *matmul_prefer_mixed(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_invariant = (limits->flags & TSR_BATCH_INVARIANT) != 0;
    if (!is_bf16(p)) return NULL;
    // Few columns need many tasks, which tiles cannot have.
    if (!is_invariant && matmul_has_long_columns(p, limits) && p->n <= MOST_SKINNY_COLUMNS)
        return NULL;
    if (tsri_can_use_tiles(limits->bf16)) {
        if (is_invariant) return p->k >= LEAST_TILES_K ? "amx_bf16" : NULL;
        return suits_tiles(p) ? "amx_bf16" : NULL;
    }
    if (!limits->bf16.is_dot_fast) return NULL;
    return (is_invariant ? p->k >= LEAST_DOTS_K : suits_dots(p)) ? "avx512_bf16" : NULL;
}
