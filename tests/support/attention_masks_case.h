// SPDX-License-Identifier: Apache-2.0
// A random call of attention with a large additive mask: its tensors, with guards between them, on the CPU or on a GPU,
// and the forward and backward calls.
#ifndef TESSERA_TESTS_ATTENTION_MASKS_CASE_H
#define TESSERA_TESTS_ATTENTION_MASKS_CASE_H

#include <math.h>

#include "test_support.h"

enum { MOST_HEADS = 4, MOST_Q = 70, MOST_K = 300, MOST_DIM = 128, GUARD = 64 };
enum { MOST_NUMEL = MOST_HEADS * MOST_K * MOST_DIM, MOST_BYTES = 8 << 20 };
enum { Q, K, V, BIAS, SINKS, OUT, LSE, DOUT, DQ, DK, DV, DBIAS, NUM_TENSORS };
static const char *const names[] = {"q",   "k",    "v",  "bias", "sinks", "out",
                                    "lse", "dout", "dq", "dk",   "dv",    "dbias"};

struct test_case {
    uint64_t seed;
    int64_t heads, group, len_q, len_k, dim; // heads: query heads
    tsr_dtype dtype;
    tsr_mask mask;
    bool has_sinks, has_all_rows; // has_all_rows: the bias has a row for each query
    int kind;
    double value, scale; // value: of the mask; scale: softmax_scale
};

static struct test_case the_case;
static tsr_tensor tensors[NUM_TENSORS];
static unsigned char *host, *device; // all tensors, one after the other
static size_t total_bytes;
static double *values[NUM_TENSORS];
static int64_t below(uint64_t *rng, int64_t n) { return (int64_t)(test_bits(rng) % (uint64_t)n); }
static double normal(uint64_t *rng) {
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += (double)(test_bits(rng) >> 11) * 0x1p-53;
    return sum - 6;
}

static void fail_case(const char *what, const char *variant, double got, double expected) {
    const struct test_case *c = &the_case;
    fail_msg("%s of %s is %.9g, expected %.9g: seed %llu, %s, kind %d, mask %g, %d heads, groups "
             "of %d, %d x "
             "%d x %d, %s%s",
             what, variant, got, expected, (unsigned long long)c->seed, tsr_dtype_name(c->dtype),
             c->kind, c->value, (int)c->heads, (int)c->group, (int)c->len_q, (int)c->len_k,
             (int)c->dim, c->mask == TSR_MASK_CAUSAL ? "causal" : "no mask",
             c->has_sinks ? ", sinks" : "");
}

// ---- Cases ------------------------------------------------------------------------------------

static void draw_case(uint64_t seed) {
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    static const int dims[] = {16, 64, 128, 64};
    static const double masks[] = {-1e4,  -65504, -1e5,  -1e6,      -3e7, -1e9, -1e10,
                                   -1e12, -1e20,  -1e30, -3.389e38, 1e6,  1e10, 1e30};
    struct test_case *c = &the_case;
    uint64_t rng = seed;
    *c = (struct test_case){.seed = seed};
    c->group = 1 + below(&rng, 2);
    c->heads = c->group * (1 + below(&rng, 2));
    c->len_q = 1 + below(&rng, below(&rng, 2) ? MOST_Q : 4);
    c->len_k = 1 + below(&rng, below(&rng, 3) ? 40 : MOST_K);
    c->dim = below(&rng, 3) ? dims[below(&rng, 4)] : 1 + below(&rng, MOST_DIM);
    if (below(&rng, 2))
        c->dim = dims[1 + below(&rng, 2)], c->len_k = (c->len_k + 7) / 8 * 8 - 8 * (c->len_k > 296);
    c->dtype = dtypes[below(&rng, 3)];
    c->mask = below(&rng, 4) ? TSR_MASK_NONE : TSR_MASK_CAUSAL;
    c->has_sinks = below(&rng, 6) == 0;
    c->kind = (int)below(&rng, 5);
    c->has_all_rows = c->kind != 2 || below(&rng, 2);
    c->value = masks[below(&rng, COUNT(masks))];
    if (below(&rng, 4) == 0)
        c->value = -pow(10, 3 + 35 * (double)(test_bits(&rng) >> 11) * 0x1p-53);
    c->scale = 1 / sqrt((double)c->dim);
}

// Chooses the shapes and places the tensors, with guards between them.
static void lay_out(void) {
    const struct test_case *c = &the_case;
    uint64_t rng = c->seed + 1;
    tsr_dtype bias = below(&rng, 2) ? TSR_F32 : c->dtype;
    int64_t kv = c->heads / c->group, rows = c->has_all_rows ? c->len_q : 1;
    const int64_t shape[NUM_TENSORS][4] = {[Q] = {1, c->len_q, c->heads, c->dim},
                                           [K] = {1, c->len_k, kv, c->dim},
                                           [V] = {1, c->len_k, kv, c->dim},
                                           [BIAS] = {1, c->heads, rows, c->len_k},
                                           [SINKS] = {c->heads},
                                           [OUT] = {1, c->len_q, c->heads, c->dim},
                                           [LSE] = {1, c->heads, c->len_q},
                                           [DOUT] = {1, c->len_q, c->heads, c->dim},
                                           [DQ] = {1, c->len_q, c->heads, c->dim},
                                           [DK] = {1, c->len_k, kv, c->dim},
                                           [DV] = {1, c->len_k, kv, c->dim},
                                           [DBIAS] = {1, c->heads, rows, c->len_k}};
    total_bytes = GUARD;
    for (int t = 0; t < NUM_TENSORS; t++) {
        tsr_dtype dtype = t == BIAS || t == DBIAS  ? bias
                          : t == LSE || t == SINKS ? TSR_F32
                                                   : c->dtype;
        int ndim = t == SINKS ? 1 : t == LSE ? 3 : 4;
        tensors[t] = tsr_tensor_contiguous(NULL, dtype, ndim, shape[t]);
        tensors[t].data = host + total_bytes;
        size_t bytes = (size_t)tsr_tensor_numel(&tensors[t]) * tsr_dtype_bytes(dtype);
        total_bytes += (bytes + 15) / 16 * 16 + GUARD;
    }
}

static double bias_of(uint64_t *rng, const bool *is_masked_row, int64_t i, int64_t j) {
    const struct test_case *c = &the_case;
    const bool is_row = is_masked_row[i % MOST_Q];
    const double small = normal(rng);
    switch (c->kind) {
    case 0: return is_row ? c->value : small;     // some rows
    case 1: return c->value;                      // the whole bias
    case 2: return j % 8 != 0 ? c->value : 0;     // most keys
    case 3: return is_row ? c->value + small : 0; // some rows, with noise added
    default: return below(rng, 2) ? c->value : is_row ? c->value / 2 : small;
    }
}

static void fill(void) {
    const struct test_case *c = &the_case;
    uint64_t rng = c->seed + 2;
    bool is_masked_row[MOST_Q];
    for (int i = 0; i < MOST_Q; i++) is_masked_row[i] = below(&rng, 2);
    const int64_t only =
        below(&rng, 2) ? below(&rng, c->len_q) : -1; // the only row with dout; -1: all
    memset(host, 0xff, total_bytes);
    for (int t = 0; t < NUM_TENSORS; t++) {
        if (t == OUT || t == LSE || t >= DQ) continue;
        tsr_dtype dtype = tensors[t].dtype;
        const double most = dtype == TSR_F16 ? 65504 : 3.389e38;
        int64_t numel = tsr_tensor_numel(&tensors[t]);
        for (int64_t n = 0; n < numel; n++) {
            double x = normal(&rng);
            if (t == BIAS)
                x = bias_of(&rng, is_masked_row, n / c->len_k % tensors[BIAS].shape[2],
                            n % c->len_k);
            if (t == DOUT && only >= 0 && n / c->dim / c->heads != only) x = 0;
            tsr_store(dtype, tensors[t].data, n, fmax(fmin(x, most), -most));
            values[t][n] = tsr_load(dtype, tensors[t].data, n);
        }
    }
}

// ---- Calls ------------------------------------------------------------------------------------

static void *to_device(void *pointer) {
    return device != NULL ? device + ((unsigned char *)pointer - host) : pointer;
}

static tsr_status call(tsr_context *ctx, const char *variant, bool is_backward) {
    const struct test_case *c = &the_case;
    tsr_tensor t[NUM_TENSORS];
    for (int n = 0; n < NUM_TENSORS; n++) {
        t[n] = tensors[n];
        t[n].data = to_device(tensors[n].data);
        t[n].device = tsr_context_device(ctx);
        if (n == SINKS && !c->has_sinks) t[n] = (tsr_tensor){0};
    }
    if (device != NULL) assert_ok(tsr_memory_copy(ctx, device, host, total_bytes));
    tsr_status status =
        is_backward
            ? tsr_attention_backward(
                  ctx, &TSR_ATTENTION_BACKWARD_ARGS(.variant = variant, .q = t[Q], .k = t[K],
                                                    .v = t[V], .bias = t[BIAS], .sinks = t[SINKS],
                                                    .out = t[OUT], .lse = t[LSE], .dout = t[DOUT],
                                                    .dq = t[DQ], .dk = t[DK], .dv = t[DV],
                                                    .dbias = t[DBIAS], .mask = c->mask))
            : tsr_attention_forward(
                  ctx, &TSR_ATTENTION_FORWARD_ARGS(.variant = variant, .q = t[Q], .k = t[K],
                                                   .v = t[V], .bias = t[BIAS], .sinks = t[SINKS],
                                                   .out = t[OUT], .lse = t[LSE], .mask = c->mask));
    if (status == TSR_OK && device != NULL) {
        assert_ok(tsr_context_synchronize(ctx));
        assert_ok(tsr_memory_copy(ctx, host, device, total_bytes));
    }
    return status;
}

static void read_back(int t, const char *variant) {
    int64_t numel = tsr_tensor_numel(&tensors[t]);
    size_t bytes = (size_t)numel * tsr_dtype_bytes(tensors[t].dtype);
    for (int64_t n = 0; n < numel; n++) {
        values[t][n] = tsr_load(tensors[t].dtype, tensors[t].data, n);
        bool may_be_infinite = t == LSE && values[t][n] == -INFINITY;
        if (!isfinite(values[t][n]) && !may_be_infinite)
            fail_case(names[t], variant, values[t][n], 0);
    }
    const unsigned char *behind = (const unsigned char *)tensors[t].data + bytes;
    if (!test_all_bytes_are(behind, 0xff, GUARD)) fail_case("the guard", variant, 0, 0);
}

#endif
