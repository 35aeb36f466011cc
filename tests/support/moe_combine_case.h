// SPDX-License-Identifier: Apache-2.0
// A call of moe_combine for tests: options, buffers with guards on both sides and gaps between rows, random inputs, and single terms
// of the formulas of tessera/moe_permute.h in double.
#ifndef TESSERA_TESTS_MOE_COMBINE_CASE_H
#define TESSERA_TESTS_MOE_COMBINE_CASE_H

#include <math.h>

#include "test_support.h"

enum { TOKENS = 40, TOP_K = 20, HIDDEN = 700, ROWS = TOKENS * 8, GUARD = 32, POISON = 0xff };
enum { WIDE = HIDDEN + 24 }; // a row with a gap

#define BUFFER(name, elements) char name##_before[GUARD], name[(elements)*4], name##_after[GUARD]
struct buffers {
    BUFFER(rows, ROWS *WIDE);
    BUFFER(shared, TOKENS *WIDE);
    BUFFER(residual, TOKENS *WIDE);
    BUFFER(y, TOKENS *WIDE); // dy
    BUFFER(drows, ROWS *WIDE);
    BUFFER(dshared, TOKENS *WIDE);
    float weights[TOKENS * TOP_K], dweights[TOKENS * TOP_K], gate[3 * TOKENS], dgate[3 * TOKENS];
    int32_t token_rows[TOKENS * TOP_K];
};

struct call {
    int tokens, top_k, hidden, num_rows, stride, gate_stride;
    tsr_dtype dtype, residual_dtype;
    bool has_weights, has_shared, has_gate, has_residual;
};

static struct buffers in, out, first;

static inline tsr_tensor strided(void *data, tsr_dtype dtype, int rows, int cols, int stride) {
    tsr_tensor t = TSR_TENSOR(data, dtype, rows, cols);
    t.stride[0] = stride;
    return t;
}

static inline double at(const struct call *c, const char *data, int row, int col) {
    return tsr_load(c->dtype, data, (int64_t)row * c->stride + col);
}

static inline int row_of(const struct call *c, int t, int k) {
    return in.token_rows[t * c->top_k + k];
}
static inline double weight_of(const struct call *c, int t, int k) {
    return c->has_weights ? (double)in.weights[t * c->top_k + k] : 1;
}
static inline double gate_of(const struct call *c, int t) {
    return c->has_gate ? 1 / (1 + exp(-(double)in.gate[t * c->gate_stride])) : 1;
}

// The allowed error of a result after the rounding to its dtype.
static inline double rounded(tsr_dtype dtype, double value, double bound) {
    const double u = dtype == TSR_BF16 ? 0x1p-8 : dtype == TSR_F16 ? 0x1p-11 : 0x1p-24;
    return bound + u * (fabs(value) + bound) + (dtype == TSR_F16 ? 0x1p-25 : 0x1p-140);
}

static inline void assert_within(double got, double expected, double bound) {
    if (!(fabs(got - expected) <= bound))
        fail_msg("got %.9g, expected %.9g within %.3g", got, expected, bound);
}

// ---- Random inputs ----------------------------------------------------------------------------

static inline int below(uint64_t *random, int limit) {
    return (int)(test_bits(random) % (uint64_t)limit);
}

static inline struct call draw(uint64_t *random) {
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    struct call c = {.tokens = 1 + below(random, TOKENS), .top_k = 1 + below(random, TOP_K)};
    c.dtype = dtypes[below(random, 3)];
    c.residual_dtype = below(random, 2) == 0 ? TSR_F32 : c.dtype;
    c.hidden = 1 + below(random, below(random, 2) == 0 ? 40 : HIDDEN);
    c.stride = c.hidden + below(random, 2) * below(random, WIDE - c.hidden);
    c.gate_stride = 1 + below(random, 3);
    c.num_rows = 1 + below(random, ROWS);
    c.has_weights = below(random, 4) != 0;
    c.has_shared = below(random, 2) == 0;
    c.has_gate = c.has_shared && below(random, 2) == 0;
    c.has_residual = below(random, 2) == 0;
    memset(&in, POISON, sizeof in); // NaN
    for (int i = 0; i < c.num_rows * c.stride; i++)
        tsr_store(c.dtype, in.rows, i, (double)test_float(random));
    for (int i = 0; i < c.tokens * c.stride; i++) {
        tsr_store(c.dtype, in.shared, i, (double)test_float(random));
        tsr_store(c.residual_dtype, in.residual, i, (double)test_float(random));
        tsr_store(c.dtype, in.y, i, (double)test_float(random));
    }
    for (int i = 0; i < 3 * TOKENS; i++) in.gate[i] = 4 * test_float(random);
    int order[ROWS];
    for (int r = 0; r < c.num_rows; r++) order[r] = r;
    for (int i = 0, used = 0; i < c.tokens * c.top_k; i++) {
        in.token_rows[i] = -1; // the weight stays NaN
        if (used == c.num_rows || below(random, 6) == 0) continue;
        const int other = used + below(random, c.num_rows - used), row = order[other];
        order[other] = order[used++];
        in.token_rows[i] = row;
        in.weights[i] = test_float(random);
    }
    return c;
}

#define GUARDED(buffers, name)                                                                     \
    (test_all_bytes_are((buffers)->name##_before, POISON, GUARD) &&                                \
     test_all_bytes_are((buffers)->name##_after, POISON, GUARD))

// Whether the bytes of a buffer beyond each row's columns are poison.
static inline bool has_clean_gaps(const struct call *c, const char *data, int rows, size_t bytes) {
    const size_t size = tsr_dtype_bytes(c->dtype), used = (size_t)c->hidden * size;
    for (int r = 0; r < rows; r++)
        if (!test_all_bytes_are(data + (size_t)(r * c->stride) * size + used, POISON,
                                (size_t)(c->stride - c->hidden) * size))
            return false;
    return test_all_bytes_are(data + (size_t)(rows * c->stride) * size, POISON,
                              bytes - (size_t)(rows * c->stride) * size);
}

static inline tsr_moe_combine_forward_args forward_args(const struct call *c) {
    tsr_moe_combine_forward_args args = TSR_MOE_COMBINE_FORWARD_ARGS(
            .rows = strided(in.rows, c->dtype, c->num_rows, c->hidden, c->stride),
            .token_rows = TSR_TENSOR(in.token_rows, TSR_I32, c->tokens, c->top_k),
            .y = strided(out.y, c->dtype, c->tokens, c->hidden, c->stride));
    if (c->has_weights) args.weights = TSR_TENSOR(in.weights, TSR_F32, c->tokens, c->top_k);
    if (c->has_shared) args.shared = strided(in.shared, c->dtype, c->tokens, c->hidden, c->stride);
    if (c->has_gate) {
        args.shared_gate = TSR_TENSOR(in.gate, TSR_F32, c->tokens);
        args.shared_gate.stride[0] = c->gate_stride;
    }
    if (c->has_residual)
        args.residual = strided(in.residual, c->residual_dtype, c->tokens, c->hidden, c->stride);
    return args;
}

// ---- A call for refusals ----------------------------------------------------------------------

static const struct call small = {2, 2, 5, 4, 5, 1, TSR_F32, TSR_F32, true, true, true, true};

static inline void set_small(void) {
    memset(&in, 0, sizeof in);
    memset(&out, POISON, sizeof out);
    memcpy(in.token_rows, (const int32_t[]){0, 1, 2, 3}, 16);
}

#endif
