// SPDX-License-Identifier: Apache-2.0
// Which forward calls of few queries use decode's splits (attention_few.c) instead of tiles: with few rows a key takes part in so
// few products that packing it is most of the work. Adjacent heads are read together. The tables hold measurements of one thread
// next to all of two and of 16 threads (docs/kernels/attention_cpu.md). Pure.
#include "ops/attention/attention_problem.h"

enum { HEAD_BANDS = 3, DIM_BANDS = 3, KEY_BANDS = 8 };
// The most rows, by lower bounds of heads, dims (of a key plus a value) and keys.
typedef int8_t most_rows[HEAD_BANDS][DIM_BANDS][KEY_BANDS];

enum {
    SIDE_BY_SIDE = 4,
    // With fewer dims: at most THIN_ROWS rows, and SIDE_BY_SIDE heads, or two heads and THIN_KEYS keys.
    LEAST_DIMS = 48,
    THIN_ROWS = 2,
    THIN_KEYS = 128,
    // Registers of 8 floats: one row for each NARROW_DIMS dims; wide keys and values need fewer keys.
    NARROW_DIMS = 32,
    NARROW_MOST_ROWS = 16,
    NARROW_LEAST_ROWS = 2, // for any dims, except few heads with short rows and few keys
    NARROW_LEAST_DIMS = 80,
    NARROW_FOUR_ROWS = 4,
    NARROW_WIDE_DIMS = 256,
    NARROW_FEW_KEYS = 64,
    NARROW_KEYS = 128,
};

static const int64_t heads_from[HEAD_BANDS] = {0, 2, SIDE_BY_SIDE};
static const int64_t dims_from[DIM_BANDS] = {0, 96, 192};
static const int64_t keys_from[KEY_BANDS] = {0, 12, 24, 48, 96, 256, 768, 2000};

// Compared with fp32 tiles.
static const most_rows of_intel = {
    {{0, 0, 0, 0, 0, 0, 1, 1}, {0, 0, 1, 1, 1, 4, 4, 4}, {2, 3, 4, 6, 6, 4, 4, 12}},
    {{1, 1, 1, 1, 2, 2, 2, 2}, {4, 3, 4, 2, 2, 4, 4, 8}, {8, 4, 4, 6, 6, 8, 8, 12}},
    {{2, 2, 2, 2, 2, 2, 3, 4}, {2, 2, 3, 2, 4, 4, 8, 8}, {4, 4, 4, 4, 8, 12, 12, 16}},
};
static const most_rows of_amd = {
    {{0, 0, 0, 0, 0, 0, 0, 1}, {1, 1, 1, 1, 4, 6, 4, 6}, {2, 3, 6, 8, 12, 8, 12, 16}},
    {{1, 1, 1, 1, 2, 1, 1, 3}, {2, 3, 3, 3, 4, 4, 6, 6}, {4, 4, 6, 8, 12, 8, 8, 16}},
    {{2, 2, 3, 3, 4, 4, 4, 4}, {4, 4, 4, 8, 8, 8, 8, 16}, {8, 8, 12, 12, 16, 16, 16, 16}},
};
// Compared with AMX, and with fast vdpbf16ps.
static const most_rows of_intel_bf16 = {
    {{0, 0, 0, 0, 0, 0, 0, 0}, {0, 1, 2, 2, 1, 1, 1, 2}, {2, 3, 4, 3, 2, 2, 2, 3}},
    {{2, 2, 2, 2, 1, 0, 0, 0}, {4, 4, 4, 2, 2, 1, 2, 2}, {8, 4, 3, 2, 2, 2, 2, 4}},
    {{2, 2, 2, 2, 1, 0, 0, 2}, {4, 4, 4, 2, 2, 2, 2, 4}, {4, 4, 4, 4, 4, 4, 4, 4}},
};
static const most_rows of_amd_bf16 = {
    {{0, 0, 0, 0, 0, 0, 0, 0}, {0, 1, 0, 0, 0, 0, 0, 0}, {4, 4, 1, 1, 1, 1, 1, 2}},
    {{0, 0, 1, 1, 0, 0, 0, 0}, {4, 3, 1, 1, 0, 0, 1, 1}, {6, 4, 1, 1, 1, 2, 2, 2}},
    {{2, 3, 1, 0, 0, 0, 0, 1}, {4, 4, 2, 1, 1, 1, 1, 2}, {8, 6, 3, 3, 3, 3, 4, 12}},
};

static bool is_few_wide(const struct attention_problem *p, int64_t rows,
                        const struct tsri_limits *limits) {
    int64_t dims = p->head_dim + p->head_dim_v;
    bool is_bf16 = p->dtype == TSR_BF16;
    bool has_tiles = is_bf16 && tsri_can_use_tiles(limits->bf16);
    const most_rows *most = limits->bf16.is_dot_fast ? (is_bf16 ? &of_amd_bf16 : &of_amd)
                            : has_tiles              ? &of_intel_bf16
                                                     : &of_intel;
    if (dims < LEAST_DIMS)
        return rows <= THIN_ROWS && !(is_bf16 && limits->bf16.has_dot) &&
               p->num_heads_kv >= (p->seqlen_k < THIN_KEYS ? SIDE_BY_SIDE : 2);
    return rows <=
           (*most)[tsri_band_of(p->num_heads_kv, heads_from, HEAD_BANDS)][tsri_band_of(
               dims, dims_from, DIM_BANDS)][tsri_band_of(p->seqlen_k, keys_from, KEY_BANDS)];
}

static bool is_few_narrow(const struct attention_problem *p, int64_t rows) {
    int64_t dims = p->head_dim + p->head_dim_v, keys = p->seqlen_k;
    bool has_heads = p->num_heads_kv >= SIDE_BY_SIDE;
    bool is_wide = rows <= NARROW_FOUR_ROWS && dims >= NARROW_WIDE_DIMS;
    if (rows <= NARROW_LEAST_ROWS)
        return has_heads || dims >= NARROW_LEAST_DIMS || keys >= NARROW_KEYS;
    return keys >= (is_wide ? NARROW_FEW_KEYS : NARROW_KEYS) && rows <= NARROW_MOST_ROWS &&
           rows * NARROW_DIMS <= dims;
}

bool attention_prefers_few(const struct attention_problem *p, const struct tsri_limits *limits) {
    int64_t rows = attention_most_rows(p);
    // Few rows are summed in another order. Under the flag a row is served as one of many.
    if (!attention_has_few(p, limits) || (limits->flags & TSR_BATCH_INVARIANT) != 0) return false;
    return limits->isa == TSR_ISA_AVX512 ? is_few_wide(p, rows, limits) : is_few_narrow(p, rows);
}
