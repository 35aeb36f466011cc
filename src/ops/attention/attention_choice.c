// SPDX-License-Identifier: Apache-2.0
// Which variant of attention serves where. Forward's results may not depend on the number of threads, so that neither may the
// choice among variants whose sums go in different orders. Pure.
#include "ops/attention/attention_grad.h"
#include "ops/attention/attention_grad_mixed.h"
#include "ops/attention/attention_mixed.h"
#include "ops/attention/attention_seen.h"

enum {
    FLASH2_KEYS = 64, // its block
    // One head of so many rows, keys of a block, and dims of keys and values is too little to wake threads for.
    LONE_ROWS = 64,
    LONE_DIMS = 128,
    BF16_LEAST_ROWS = 16, // of backward, and keys
    // Of forward: keys, which are packed 32 at a time; elements of keys and values, more of few rows by tiles, which have 16, and
    // what vdpbf16ps wants.
    BF16_LEAST_KEYS = 24,
    BF16_LEAST_NUMEL = 2048,
    BF16_TILE_ROWS = 8,
    BF16_LEAST_TILE_NUMEL = 8192,
    BF16_LEAST_DOT_NUMEL = 1920,
    // With tiles fewer keys of some rows, where they have so many elements.
    BF16_SHORT_KEYS = 8,
    BF16_SHORT_ROWS = 14,
    BF16_SHORT_NUMEL = 2304,
    // Of backward: rows or keys, the fewer, times head_dim + head_dim_v, times the part that they fill of panels.
    BF16_LEAST_WORK = 4500,
    BF16_LEAST_WHOLE_WORK = 2000,
    // Or, with tiles, products of a head, of its rows with its keys and its dims, times the part that the fewer of these fill of
    // steps of 32: of few rows many dims and keys, of few keys still more of dims and rows.
    BF16_STEP = 32,
    BF16_LEAST_PRODUCTS = 150 << 10,
    BF16_LEAST_WHOLE_PRODUCTS = 100 << 10,
    BF16_FEW = 24,
    BF16_FEW_DIMS = 64,
    BF16_FEW_KEYS = 128,
    BF16_FEW_KEYS_DIMS = 128,
    BF16_FEW_KEYS_ROWS = 400,
    // Rows that go by decode's splits, see prefers_few: for each of so many dims, of keys and values.
    FEW_DIMS = 24,
    FEW_LONG_DIMS = 16,   // of long sequences whose heads lie side by side
    FEW_NARROW_DIMS = 32, // vectors of 8
    FEW_UNIT_DIMS = 96,   // where a unit of bf16 takes more,
    FEW_UNIT_LONG_DIMS = 64,
    FEW_UNIT_FOUR_DIMS = 20, // on Intel, long sequences of some heads, up to four rows,
    FEW_UNIT_MORE_DIMS = 40, // and more
    FEW_LEAST_ROWS = 2,      // of any dims, but for short ones of a few heads
    FEW_LEAST_DIMS = 80,
    FEW_HEADS = 4,
    // One head, which tiles of AVX-512 have packed soon: of any keys, of FEW_LEAST_KEYS, and of any dims.
    FEW_LONE_DIMS = 256,
    FEW_LONE_LEAST_DIMS = 128,
    FEW_LONE_KEYS = 256,
    FEW_MOST_ROWS = 16,
    FEW_LEAST_KEYS = 64, // of up to four rows of so many dims, on Intel of any keys,
    FEW_FOUR_ROWS = 4,
    FEW_WIDE_DIMS = 256,
    FEW_MORE_KEYS = 128, // of others
    FEW_LONG_KEYS = 1024,
    MANY = 1 << 20, // rows, and keys, of any call
};

static bool is_invariant(const struct tsri_limits *limits) {
    return (limits->flags & TSR_BATCH_INVARIANT) != 0;
}

// What the choice may go by: under TSR_BATCH_INVARIANT a row is served as one of many, of sequences beside longer ones.
static int64_t rows_of(const struct attention_problem *p, const struct tsri_limits *limits) {
    int64_t rows = attention_most_rows(p);
    return rows > 0 && is_invariant(limits) ? MANY : rows;
}

static int64_t keys_of(const struct attention_problem *p, const struct tsri_limits *limits) {
    return p->is_packed && is_invariant(limits) ? MANY : p->seqlen_k;
}

static bool fills_tiles(int64_t rows, int64_t keys, int64_t dims) {
    int64_t shorter = tsri_min(rows, keys);
    double filled = (double)shorter / (double)tsri_round_up((size_t)shorter, BF16_STEP);
    if (shorter < BF16_FEW) return false;
    if (keys < BF16_STEP) return rows >= BF16_FEW_KEYS_ROWS && dims >= BF16_FEW_KEYS_DIMS;
    if (rows < BF16_STEP) return keys >= BF16_FEW_KEYS && dims >= BF16_FEW_DIMS;
    if (dims < BF16_FEW_DIMS && filled < 0.75) return false;
    return (double)rows * (double)keys * (double)dims * filled >=
           (filled < 0.75 ? BF16_LEAST_PRODUCTS : BF16_LEAST_WHOLE_PRODUCTS);
}

// Enough of it that products in bf16 gain what their padding to whole tiles and steps costs: in backward less will do where
// rows fill theirs. Forward of few rows gains by what is packed: half the bytes, and no conversion.
static bool is_worth_bf16(const struct attention_problem *p, bool is_backward,
                          const struct tsri_limits *limits) {
    int64_t rows = rows_of(p, limits), keys = keys_of(p, limits), shorter = tsri_min(rows, keys);
    int64_t dims = p->head_dim + p->head_dim_v;
    bool has_tiles = limits->bf16.has_tiles;
    if (p->dtype != TSR_BF16) return false;
    if (!is_backward) {
        int64_t least = !has_tiles              ? BF16_LEAST_DOT_NUMEL
                        : rows < BF16_TILE_ROWS ? BF16_LEAST_TILE_NUMEL
                                                : BF16_LEAST_NUMEL;
        if (has_tiles && rows >= BF16_SHORT_ROWS && keys * dims >= BF16_SHORT_NUMEL)
            return keys >= BF16_SHORT_KEYS;
        return rows > 0 && keys >= BF16_LEAST_KEYS && keys * dims >= least;
    }
    if (has_tiles && fills_tiles(rows, keys, dims)) return true;
    if (shorter < BF16_LEAST_ROWS) return false;
    double filled = (double)shorter / (double)tsri_round_up((size_t)shorter, GEMM_BF16_NR);
    if (!has_tiles && filled < 0.75) return false; // vdpbf16ps is not twice as fast
    return (double)shorter * (double)dims * filled >=
           (filled >= 0.9 ? BF16_LEAST_WHOLE_WORK : BF16_LEAST_WORK);
}

static const char *prefer_bf16(const struct attention_problem *p, bool is_backward,
                               const struct tsri_limits *limits) {
    if (!is_worth_bf16(p, is_backward, limits)) return NULL;
    if (tsri_can_use_tiles(limits->bf16)) return "amx_bf16";
    return limits->bf16.is_dot_fast ? "avx512_bf16" : NULL;
}

// Few rows meet each key in so few products that to pack it is most of the work; where bf16 has a unit of its own, still fewer.
// Heads that lie side by side are read together.
static bool prefers_few(const struct attention_problem *p, int64_t rows,
                        const struct tsri_limits *limits) {
    int64_t dims = p->head_dim + p->head_dim_v, keys = p->seqlen_k, of_row = FEW_DIMS;
    bool has_heads = p->num_heads_kv >= FEW_HEADS;
    if (!attention_has_few(p, limits) || is_invariant(limits)) return false;
    // vdpbf16ps wants packed what then leaves the second-level cache.
    bool has_dot = limits->bf16.is_dot_fast && 2 * keys * dims < limits->l2_bytes;
    bool is_intel = tsri_is_intel_avx512(limits), is_long = has_heads && keys >= FEW_LONG_KEYS;
    if (p->dtype == TSR_BF16 && keys >= FEW_LEAST_KEYS && (limits->bf16.has_tiles || has_dot)) {
        if (is_intel && is_long)
            return rows * (rows <= FEW_FOUR_ROWS ? FEW_UNIT_FOUR_DIMS : FEW_UNIT_MORE_DIMS) <= dims;
        return dims >= FEW_UNIT_DIMS &&
               rows * (has_heads ? FEW_UNIT_LONG_DIMS : FEW_UNIT_DIMS) <= dims;
    }
    if (rows <= FEW_LEAST_ROWS && limits->isa == TSR_ISA_AVX512 && p->num_heads_kv == 1)
        return dims >= FEW_LONE_DIMS || keys >= FEW_LONE_KEYS ||
               (dims >= FEW_LONE_LEAST_DIMS && keys >= FEW_LEAST_KEYS);
    if (rows <= FEW_LEAST_ROWS) return has_heads || dims >= FEW_LEAST_DIMS || keys >= FEW_MORE_KEYS;
    bool is_wide = rows <= FEW_FOUR_ROWS && dims >= FEW_WIDE_DIMS;
    if (keys < FEW_LEAST_KEYS) return is_wide && is_intel;
    if (keys < FEW_MORE_KEYS && !is_wide) return false;
    if (is_long) of_row = FEW_LONG_DIMS;
    if (limits->isa != TSR_ISA_AVX512) of_row = FEW_NARROW_DIMS;
    return rows <= FEW_MOST_ROWS && rows * of_row <= dims;
}

// One tile covers it all: packing for several would only cost, but where threads share heads. Results' bits are the same
// then, as there is one block of keys from the first on.
const char *attention_prefer_forward(const void *problem, const struct tsri_limits *limits) {
    struct attention_problem part;
    if (limits->device.type == TSR_CUDA) return attention_cuda_prefer_forward(problem, limits);
    const struct attention_problem *p = attention_seen_part(problem, limits->flags, &part);
    int64_t rows = attention_most_rows(p);
    if (prefers_few(p, rows, limits)) return "few";
    const char *bf16 = prefer_bf16(p, false, limits);
    if (bf16 != NULL) return bf16;
    bool is_whole = !p->has_window_left, is_shared = is_whole && attention_shares_heads(p, limits);
    bool is_lone =
        is_whole && attention_num_pairs(p) == 1 && p->head_dim + p->head_dim_v <= LONE_DIMS;
    bool is_small =
        p->seqlen_k <= FLASH2_KEYS && rows <= (is_lone ? LONE_ROWS : ATTENTION_LONE_ROWS - 1);
    // Blocks of flash2's begin at the first key that a tile's rows see.
    if (!is_whole && is_invariant(limits)) return "tuned";
    return is_small && !is_shared ? "flash2" : "tuned";
}

const char *attention_prefer_backward(const void *problem, const struct tsri_limits *limits) {
    if (limits->device.type == TSR_CUDA) return attention_cuda_prefer_backward(problem, limits);
    return prefer_bf16(problem, true, limits);
}
