// SPDX-License-Identifier: Apache-2.0
// Where the units that multiply bf16 serve, AMX and vdpbf16ps: tables of what was measured (docs/kernels/matmul_cpu_bf16.md). Up to
// 16 rows by the problem, above by n and k alone. Pure.
#include "ops/matmul/matmul_cpu_choice.h"

enum {
    FEWEST_ROWS = 7, // of tiles, in general
    LEAST_TILES_K =
        64, // below, tiles cost more to wake and to pad than they save, but for many rows and columns
    LEAST_TILES_N = 48,
    LEAST_WIDE_N = 256, // of five rows beside columns of b
    MOST_SKINNY_COLUMNS = 4,
    // Of vdpbf16ps where it is twice as fast as FMA: steps, which are padded to 32; and, beside columns of b, rows, the least of
    // some more columns, and the most steps of less than FEWEST_ROWS.
    LEAST_DOTS_K = 24,
    DOTS_M = 4,
    DOTS_N = 48,
    DOTS_K = 256,
};

static bool is_bf16(const struct matmul_problem *p) { return p->a.dtype == TSR_BF16; }

bool matmul_has_amx_bf16(const void *problem, const struct tsri_limits *limits) {
    return is_bf16(problem) && tsri_can_use_tiles(limits->bf16);
}

bool matmul_has_avx512_bf16(const void *problem, const struct tsri_limits *limits) {
    return is_bf16(problem) && limits->bf16.has_dot;
}

// The tables: one thread of a Xeon (docs/kernels/matmul_cpu_bf16.md). Beside dot products, columns of b in place.
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

// Beside dot products, b packed: the longer these are the less they cost.
static bool suits_tiles_cols(const struct matmul_problem *p) {
    if (p->m <= 4 || p->n <= MOST_SKINNY_COLUMNS) return false;
    if (p->m < FEWEST_ROWS)
        return p->n >= (p->m == 5 ? LEAST_WIDE_N : 64) && p->k < 2 * LEAST_TILES_K;
    if (p->n >= LEAST_TILES_N) return true;
    if (p->n > 32) return p->m >= 10 || p->k >= 96;
    if (p->n > 16) return p->m >= 10 && p->k >= 96;
    return p->m >= 12 && ((p->n == 16 && p->k < 256) || (p->m >= 13 && p->k >= 384));
}

// Beside rows of b that are multiplied one by one.
static bool suits_tiles_rows(const struct matmul_problem *p) {
    int64_t k = p->k;
    if (p->n < LEAST_TILES_N) { // rows from which on, of at most a vector of columns, and of more
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

// Of fewer than LEAST_TILES_K steps: from which on tiles, which pad them to 32 and have 16 rows, take less time than what widens b.
// The more rows and columns, the fewer; above skinny's rows by columns alone.
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

// The tables of vdpbf16ps: one thread of an EPYC (Zen 4). b packed, beside dot products in fp32 and tiles of it.
static bool suits_dots(const struct matmul_problem *p) {
    enum { NO = INT32_MAX };
    static const int64_t cols[] = {0, 9, 17, 25, 33, 49, 65, 128, INT64_MAX, INT64_MAX};
    static const struct matmul_depths by_rows[] = {
        {13, {24, 24, 24, 24, 24, 24, 24, 24}},   {11, {24, 32, 24, 32, 32, 64, 24, 24}},
        {10, {32, 32, 24, 32, 32, 64, 24, 24}},   {9, {32, 64, 24, 24, 32, 64, 24, 24}},
        {7, {48, 96, 24, 32, 64, 96, 24, 24}},    {6, {96, 128, 48, 96, 96, 128, 48, 48}},
        {5, {128, 256, 64, 96, 96, 128, 96, 64}}, {4, {256, 1024, 64, 96, 256, 128, 96, 96}},
        {3, {384, NO, 256, NO, NO, NO, NO, NO}},  {0, {NO, NO, NO, NO, NO, NO, NO, NO}},
    };
    if (p->k < LEAST_DOTS_K) return false;
    if (p->m > MATMUL_SKINNY_M) return true;
    if (!matmul_has_columns(p)) return matmul_is_deep(p, by_rows, cols);
    return (p->m >= FEWEST_ROWS && p->n >= 16) ||
           (p->m >= DOTS_M && p->n >= DOTS_N && p->k <= DOTS_K);
}

// b in place, beside that: its dot products end in a sum over lanes, which short ones do not repay.
bool matmul_suits_skinny_bf16(const struct matmul_problem *p, const struct tsri_limits *limits) {
    static const int64_t cols[] = {0,         25,        33,        65,        129,
                                   INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    static const struct matmul_depths depths[] = {
        {16, {8, 64, 96, 128, 128}}, {14, {8, 48, 80, 128, 128}}, {12, {8, 48, 64, 96, 96}},
        {10, {8, 32, 64, 80, 80}},   {7, {8, 8, 48, 48, 56}},     {5, {8, 8, 16, 48, 48}},
        {4, {8, 8, 8, 24, 32}},      {3, {8, 8, 8, 8, 16}},       {0, {8, 8, 8, 8, 8}},
    };
    if (!limits->bf16.is_dot_fast || tsri_can_use_tiles(limits->bf16)) return false;
    if (!matmul_has_skinny_bf16(p, limits)) return false;
    return p->m > MATMUL_SKINNY_M || matmul_is_deep(p, depths, cols);
}

// By n and k alone for all rows but skinny's: a row's result is the same beside any others. Under the flag by k alone:
// backward takes a gradient that is stored by columns as the transpose of itself, whose n are the rows.
const char *matmul_prefer_mixed(const struct matmul_problem *p, const struct tsri_limits *limits) {
    bool is_invariant = (limits->flags & TSR_BATCH_INVARIANT) != 0;
    if (!is_bf16(p)) return NULL;
    // Few columns want many tasks, which tiles can't have.
    if (!is_invariant && matmul_has_long_columns(p, limits) && p->n <= MOST_SKINNY_COLUMNS)
        return NULL;
    if (tsri_can_use_tiles(limits->bf16)) {
        if (is_invariant) return p->k >= LEAST_TILES_K ? "amx_bf16" : NULL;
        return suits_tiles(p) ? "amx_bf16" : NULL;
    }
    if (!limits->bf16.is_dot_fast) return NULL;
    return (is_invariant ? p->k >= LEAST_DOTS_K : suits_dots(p)) ? "avx512_bf16" : NULL;
}
