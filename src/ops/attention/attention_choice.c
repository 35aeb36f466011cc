// SPDX-License-Identifier: Apache-2.0
// Which variant of attention serves which problem. Forward's results may not depend on the number of threads. So the choice
// between variants that sum in different orders may not depend on it either. Pure.
#include <math.h>

#include "ops/attention/cpu/attention_seen.h"
#include "ops/attention/cpu/backward/attention_grad.h"
#include "ops/attention/cpu/backward/attention_grad_mixed.h"
#include "ops/attention/cpu/forward/attention_mixed.h"

enum {
    FLASH2_KEYS = 64, // its block
    // Limits of a call with one head and one block of keys that goes to one thread: rows, and dims of keys and values. Many
    // threads cost more to wake, so their limit of dims is lower. Two or three threads share the rows.
    LONE_ROWS = 64,
    LONE_DIMS = 128,
    LONE_CROWD_DIMS = 48,
    BF16_LEAST_ROWS = 16, // backward: rows, and keys
    // Forward: keys (packed 32 at a time) and elements of keys and values. A tile has 16 rows, so fewer than BF16_TILE_ROWS rows
    // need more elements; vdpbf16ps uses that limit too.
    BF16_LEAST_KEYS = 24,
    BF16_LEAST_NUMEL = 2048,
    BF16_TILE_ROWS = 8,
    BF16_LEAST_TILE_NUMEL = 8192,
    // Forward with tiles: this many rows and elements may have fewer keys.
    BF16_SHORT_KEYS = 8,
    BF16_SHORT_ROWS = 14,
    BF16_SHORT_NUMEL = 2304,
    // Backward: min(rows, keys) x (head_dim + head_dim_v) x the share of its panels that the minimum fills.
    BF16_LEAST_WORK = 4500,
    BF16_LEAST_WHOLE_WORK = 2000,
    // Backward with tiles, alternatively: rows x keys x dims of a head, times the share of steps of 32 that min(rows, keys) fills.
    // Few rows need many dims and keys; few keys need still more dims and rows.
    BF16_STEP = 32,
    BF16_LEAST_PRODUCTS = 150 << 10,
    BF16_LEAST_WHOLE_PRODUCTS = 100 << 10,
    BF16_FEW = 24,
    BF16_FEW_DIMS = 64,
    BF16_FEW_KEYS = 128,
    BF16_FEW_KEYS_DIMS = 128,
    BF16_FEW_KEYS_ROWS = 400,
    MANY = 1 << 20, // rows and keys of a call of any length
    // vdpbf16ps. Forward: keys (under a causal mask twice a panel) and elements of keys and values. Heads that do not fill steps
    // of 32 cost a third more and need more keys; narrow heads need still more. Backward: rows and keys, more under a causal mask.
    DOT_KEYS = 17,
    DOT_CAUSAL_KEYS = 33,
    DOT_CAUSAL_MOST_KEYS = 55,
    DOT_NUMEL = 1024,
    DOT_ODD_KEYS = 48,
    DOT_ODD_CAUSAL_KEYS = 96,
    DOT_NARROW_KEYS = 128,
    DOT_GRAD = 56,
    DOT_GRAD_CAUSAL = 64,
    DOT_GRAD_ODD_CAUSAL = 128,
    DOT_NARROW_DIMS = 32,
    DOT_ROWS = 2, // where tiles exist: most rows, with fewer dims than DOT_DIMS
    DOT_DIMS = 96,
};

static bool is_invariant(const struct tsri_limits *limits) {
    return (limits->flags & TSR_BATCH_INVARIANT) != 0;
}

// The sizes that the choice may use. Under TSR_BATCH_INVARIANT every row counts as one of many, in a batch with longer sequences.
static int64_t rows_of(const struct attention_problem *p, const struct tsri_limits *limits) {
    int64_t rows = attention_most_rows(p);
    return rows > 0 && is_invariant(limits) ? MANY : rows;
}

static int64_t keys_of(const struct attention_problem *p, const struct tsri_limits *limits) {
    return p->is_packed && is_invariant(limits) ? MANY : p->seqlen_k;
}

// n divided by n rounded up to whole steps.
static double filled(int64_t n, int64_t step) {
    return (double)n / (double)tsri_round_up((size_t)tsri_max(n, 1), (size_t)step);
}

static bool fills_tiles(int64_t rows, int64_t keys, int64_t dims) {
    int64_t shorter = tsri_min(rows, keys);
    double part = filled(shorter, BF16_STEP);
    if (shorter < BF16_FEW) return false;
    if (keys < BF16_STEP) return rows >= BF16_FEW_KEYS_ROWS && dims >= BF16_FEW_KEYS_DIMS;
    if (rows < BF16_STEP) return keys >= BF16_FEW_KEYS && dims >= BF16_FEW_DIMS;
    if (dims < BF16_FEW_DIMS && part < 0.75) return false;
    return (double)rows * (double)keys * (double)dims * part >=
           (part < 0.75 ? BF16_LEAST_PRODUCTS : BF16_LEAST_WHOLE_PRODUCTS);
}

// vdpbf16ps: panels of B and of pairs are steps of 32. Dims and keys should fill them, in backward rows too.
static double filled_by_dims(const struct attention_problem *p) {
    return fmin(filled(p->head_dim, BF16_STEP), filled(p->head_dim_v, BF16_STEP));
}

static bool fills_dots_backward(const struct attention_problem *p, int64_t rows, int64_t keys) {
    bool is_odd = filled_by_dims(p) < 0.7, is_causal = p->mask != TSR_MASK_NONE;
    int64_t least = is_causal ? (is_odd ? DOT_GRAD_ODD_CAUSAL : DOT_GRAD_CAUSAL) : DOT_GRAD;
    double part = is_odd ? 0.92 : 0.86;
    return p->head_dim + p->head_dim_v > DOT_NARROW_DIMS && tsri_min(rows, keys) >= least &&
           filled(rows, BF16_STEP) > part && filled(keys, BF16_STEP) > part;
}

static bool fills_dots_forward(const struct attention_problem *p, int64_t rows, int64_t keys) {
    int64_t dims = p->head_dim + p->head_dim_v;
    bool is_causal = p->mask != TSR_MASK_NONE && rows >= DOT_CAUSAL_KEYS;
    if (rows == 0 || keys < DOT_KEYS || keys * dims < DOT_NUMEL) return false;
    if (dims <= DOT_NARROW_DIMS) return keys >= DOT_NARROW_KEYS && filled(keys, BF16_STEP) > 0.9;
    if (filled_by_dims(p) < 0.8) return keys >= (is_causal ? DOT_ODD_CAUSAL_KEYS : DOT_ODD_KEYS);
    if (p->mask != TSR_MASK_NONE && rows >= BF16_TILE_ROWS * 2 && keys < BF16_FEW) return false;
    return !is_causal || keys < DOT_CAUSAL_KEYS || keys > DOT_CAUSAL_MOST_KEYS;
}

// Whether products in bf16 gain more than their padding to whole tiles and steps costs. In backward less work is enough where rows
// fill their panels. Forward of few rows gains by packing: half the bytes, and no conversion.
static bool is_worth_bf16(const struct attention_problem *p, bool is_backward,
                          const struct tsri_limits *limits) {
    int64_t rows = rows_of(p, limits), keys = keys_of(p, limits), shorter = tsri_min(rows, keys);
    int64_t dims = p->head_dim + p->head_dim_v;
    if (p->dtype != TSR_BF16) return false;
    if (!limits->bf16.has_tiles)
        return is_backward ? fills_dots_backward(p, rows, keys) : fills_dots_forward(p, rows, keys);
    if (!is_backward) {
        if (rows >= BF16_SHORT_ROWS && keys * dims >= BF16_SHORT_NUMEL)
            return keys >= BF16_SHORT_KEYS;
        int64_t least = rows < BF16_TILE_ROWS ? BF16_LEAST_TILE_NUMEL : BF16_LEAST_NUMEL;
        return rows > 0 && keys >= BF16_LEAST_KEYS && keys * dims >= least;
    }
    if (fills_tiles(rows, keys, dims)) return true;
    if (shorter < BF16_LEAST_ROWS) return false;
    double part = filled(shorter, GEMM_BF16_NR);
    return (double)shorter * (double)dims * part >=
           (part >= 0.9 ? BF16_LEAST_WHOLE_WORK : BF16_LEAST_WORK);
}

// Where tiles exist, vdpbf16ps still serves one or two rows of narrow heads, and up to four rows with too few elements for tiles.
static bool is_better_by_dots(const struct attention_problem *p, const struct tsri_limits *limits) {
    int64_t rows = rows_of(p, limits), dims = p->head_dim + p->head_dim_v;
    if (p->dtype != TSR_BF16 || !tsri_can_use_tiles(limits->bf16)) return false;
    if (rows == 0 || p->seqlen_k < BF16_LEAST_KEYS || filled_by_dims(p) < 0.8) return false;
    return (rows <= DOT_ROWS && dims < DOT_DIMS) ||
           (rows <= 2 * DOT_ROWS && p->seqlen_k * dims < BF16_LEAST_TILE_NUMEL);
}

static const char *prefer_bf16(const struct attention_problem *p, bool is_backward,
                               const struct tsri_limits *limits) {
    if (!is_backward && is_better_by_dots(p, limits)) return "avx512_bf16";
    if (!is_worth_bf16(p, is_backward, limits)) return NULL;
    if (tsri_can_use_tiles(limits->bf16)) return "amx_bf16";
    return limits->bf16.is_dot_fast ? "avx512_bf16" : NULL;
}

static int64_t lone_dims(const struct tsri_limits *limits) {
    if (limits->num_threads == 1) return LONE_DIMS;
    return limits->num_threads <= ATTENTION_FEW_THREADS ? 0 : LONE_CROWD_DIMS;
}

// flash2 serves where one tile covers all: packing for several tiles would only cost, unless threads share heads. Both variants
// give the same bits then, as all keys are one block that begins at the first key.
const char *attention_prefer_forward(const void *problem, const struct tsri_limits *limits) {
    struct attention_problem part;
    if (limits->device.type == TSR_CUDA) return attention_cuda_prefer_forward(problem, limits);
    const struct attention_problem *p = attention_seen_part(problem, limits->flags, &part);
    int64_t rows = attention_most_rows(p);
    if (attention_prefers_few(p, limits)) return "few";
    const char *bf16 = prefer_bf16(p, false, limits);
    if (bf16 != NULL) return bf16;
    bool is_whole = !p->has_window_left, is_shared = is_whole && attention_shares_heads(p, limits);
    bool is_lone =
        is_whole && attention_num_pairs(p) == 1 && p->head_dim + p->head_dim_v <= lone_dims(limits);
    bool is_small =
        p->seqlen_k <= FLASH2_KEYS && rows <= (is_lone ? LONE_ROWS : ATTENTION_LONE_ROWS - 1);
    // A block of flash2 begins at the first key that a row of the tile sees.
    if (!is_whole && is_invariant(limits)) return "tuned";
    // flash2 also multiplies for rows that see no key; tuned only clears them.
    if (attention_unseen_rows(problem, limits->flags) > 0) return "tuned";
    return is_small && !is_shared ? "flash2" : "tuned";
}

const char *attention_prefer_backward(const void *problem, const struct tsri_limits *limits) {
    if (limits->device.type == TSR_CUDA) return attention_cuda_prefer_backward(problem, limits);
    return prefer_bf16(problem, true, limits);
}
