// SPDX-License-Identifier: Apache-2.0
// Attention on rows whose indices reach 2^31: keys at the end of a cache, of a packed batch, and on the last pages.
// Sparse mappings hold them, and a window limits the rows that are read. A 32-bit index would give a wrong address.
// Every CPU variant is compared with the definition in double precision.
#define _GNU_SOURCE
#include <math.h>
#include <sys/mman.h>

#include "test_support.h"

enum { QUERIES = 3, DIM = 4, WINDOW = 5, SEEN = QUERIES + WINDOW - 1, PAGE = 16 };
static const int64_t far = INT64_C(1) << 31;

static float q[QUERIES][DIM], out[QUERIES][DIM], lse[QUERIES];
static float keys[SEEN][DIM], values[SEEN][DIM]; // the last ones, which alone are seen

// ---- Tensors that are nearly empty --------------------------------------------------------------

static float *map_rows(int64_t rows) {
    void *data = mmap(NULL, (size_t)rows * sizeof q[0], PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) skip(); // the address space is limited
    return data;
}

static void unmap_rows(float *data, int64_t rows) { munmap(data, (size_t)rows * sizeof q[0]); }

static void draw_all(uint64_t seed) {
    for (int i = 0; i < QUERIES * DIM; i++) q[i / DIM][i % DIM] = test_float(&seed);
    for (int i = 0; i < SEEN * DIM; i++) keys[i / DIM][i % DIM] = test_float(&seed);
    for (int i = 0; i < SEEN * DIM; i++) values[i / DIM][i % DIM] = test_float(&seed);
}

// ---- The definition: query i sees keys i to i + WINDOW - 1 of the last SEEN, itself the last ----

static void check(const char *variant, double slope) {
    for (int i = 0; i < QUERIES; i++) {
        double weight[WINDOW], sum = 0, expected[DIM] = {0};
        for (int j = 0; j < WINDOW; j++) {
            double s = 0;
            for (int c = 0; c < DIM; c++) s += (double)q[i][c] * (double)keys[i + j][c] / 2;
            sum += weight[j] = exp(s - slope * (WINDOW - 1 - j));
        }
        for (int j = 0; j < WINDOW; j++)
            for (int c = 0; c < DIM; c++) expected[c] += weight[j] / sum * (double)values[i + j][c];
        for (int c = 0; c < DIM; c++)
            if (!(fabs((double)out[i][c] - expected[c]) < 1e-4))
                fail_msg("%s: out[%d][%d] is %g, expected %g", variant, i, c, (double)out[i][c],
                         expected[c]);
        if (!(fabs((double)lse[i] - log(sum)) < 1e-4))
            fail_msg("%s: lse[%d] is %g, expected %g", variant, i, (double)lse[i], log(sum));
    }
}

static void poison(void) {
    memset(out, 0xff, sizeof out);
    memset(lse, 0xff, sizeof lse);
}

// Returns the i-th variant of the CPU, or NULL after the last.
static const char *next_variant(const char *op, int *i) {
    tsr_variant_info info;
    while (tsr_variant_info_get(op, (*i)++, &info) == TSR_OK)
        if (!(info.flags & TSR_VARIANT_CUDA)) return info.name;
    return NULL;
}

#define QUERY_FIELDS                                                                               \
    .variant = name, .mask = TSR_MASK_CAUSAL, .window_left = WINDOW - 1, .has_window_left = 1

// ---- Keys beyond 2^31 ---------------------------------------------------------------------------

static void last_of_many_keys(void **state) {
    (void)state;
    const int64_t rows = far + SEEN + 3;
    // Variants whose memory and time do not grow with keys that no query sees. NULL: the default variant.
    static const char *const variants[] = {"tuned", "few", "flash2", "reference", NULL};
    float *k = map_rows(rows), *v = map_rows(rows), slope = 0.25f;
    draw_all(1);
    memcpy(k + (rows - SEEN) * DIM, keys, sizeof keys);
    memcpy(v + (rows - SEEN) * DIM, values, sizeof values);
    tsr_context *ctx = test_context(2);
    for (int i = 0; i < COUNT(variants); i++) {
        const char *name = variants[i];
        poison();
        assert_ok(tsr_attention_forward(
            ctx, &TSR_ATTENTION_FORWARD_ARGS(QUERY_FIELDS,
                                             .q = TSR_TENSOR(q, TSR_F32, 1, QUERIES, 1, DIM),
                                             .k = TSR_TENSOR(k, TSR_F32, 1, rows, 1, DIM),
                                             .v = TSR_TENSOR(v, TSR_F32, 1, rows, 1, DIM),
                                             .out = TSR_TENSOR(out, TSR_F32, 1, QUERIES, 1, DIM),
                                             .lse = TSR_TENSOR(lse, TSR_F32, 1, 1, QUERIES),
                                             .alibi_slopes = TSR_TENSOR(&slope, TSR_F32, 1))));
        check(name == NULL ? "chosen" : name, 0.25);
    }
    tsr_context_destroy(ctx);
    unmap_rows(k, rows);
    unmap_rows(v, rows);
}

// The second of two packed sequences, at the end of as many rows as offsets can express. The first has no queries.
static void last_of_packed_keys(void **state) {
    (void)state;
    const int64_t rows = far - 1;
    int32_t cu_q[] = {0, 0, QUERIES}, cu_k[] = {0, (int32_t)(rows - SEEN), (int32_t)rows};
    float *k = map_rows(rows), *v = map_rows(rows);
    draw_all(2);
    memcpy(k + (rows - SEEN) * DIM, keys, sizeof keys);
    memcpy(v + (rows - SEEN) * DIM, values, sizeof values);
    tsr_context *ctx = test_context(2);
    const char *name;
    for (int i = 0; (name = next_variant("attention_forward", &i)) != NULL;) {
        poison();
        tsr_status status = tsr_attention_forward(
            ctx, &TSR_ATTENTION_FORWARD_ARGS(
                     QUERY_FIELDS, .q = TSR_TENSOR(q, TSR_F32, QUERIES, 1, DIM),
                     .k = TSR_TENSOR(k, TSR_F32, rows, 1, DIM),
                     .v = TSR_TENSOR(v, TSR_F32, rows, 1, DIM),
                     .cu_seqlens_q = TSR_TENSOR(cu_q, TSR_I32, 3),
                     .cu_seqlens_k = TSR_TENSOR(cu_k, TSR_I32, 3),
                     .out = TSR_TENSOR(out, TSR_F32, QUERIES, 1, DIM),
                     .lse = TSR_TENSOR(lse, TSR_F32, 1, QUERIES), .max_seqlen_k = SEEN));
        if (status == TSR_UNSUPPORTED) continue;
        assert_ok(status);
        check(name, 0);
    }
    tsr_context_destroy(ctx);
    unmap_rows(k, rows);
    unmap_rows(v, rows);
}

// ---- Pages --------------------------------------------------------------------------------------

// The rows of the last two pages lie beyond 2^32 elements. One page receives the new key.
static void last_pages(void **state) {
    (void)state;
    const int64_t pages = far / PAGE + 2, rows = pages * PAGE;
    int32_t table[] = {(int32_t)(pages - 1), (int32_t)(pages - 2)}, length = PAGE + 1 - QUERIES;
    float *k = map_rows(rows), *v = map_rows(rows);
    draw_all(3);
    // Keys 0 to PAGE of the sequence. Row 0 of the last but one page holds the last key.
    for (int j = 0; j < SEEN; j++) {
        int64_t key = PAGE + 1 - SEEN + j, row = table[key / PAGE] * (int64_t)PAGE + key % PAGE;
        if (key >= length) continue; // the call appends it
        memcpy(k + row * DIM, keys[j], sizeof keys[j]);
        memcpy(v + row * DIM, values[j], sizeof values[j]);
    }
    tsr_context *ctx = test_context(2);
    const char *name;
    for (int i = 0; (name = next_variant("attention_decode", &i)) != NULL;) {
        poison();
        memset(k + table[1] * (int64_t)PAGE * DIM, 0, sizeof keys[0]);
        tsr_status status = tsr_attention_decode(
            ctx, &TSR_ATTENTION_DECODE_ARGS(
                     QUERY_FIELDS, .q = TSR_TENSOR(q, TSR_F32, 1, QUERIES, 1, DIM),
                     .k_new = TSR_TENSOR(keys[SEEN - QUERIES], TSR_F32, 1, QUERIES, 1, DIM),
                     .v_new = TSR_TENSOR(values[SEEN - QUERIES], TSR_F32, 1, QUERIES, 1, DIM),
                     .k_cache = TSR_TENSOR(k, TSR_F32, pages, PAGE, 1, DIM),
                     .v_cache = TSR_TENSOR(v, TSR_F32, pages, PAGE, 1, DIM),
                     .cache_seqlens = TSR_TENSOR(&length, TSR_I32, 1),
                     .page_table = TSR_TENSOR(table, TSR_I32, 1, 2),
                     .out = TSR_TENSOR(out, TSR_F32, 1, QUERIES, 1, DIM),
                     .lse = TSR_TENSOR(lse, TSR_F32, 1, 1, QUERIES)));
        if (status == TSR_UNSUPPORTED) continue;
        assert_ok(status);
        check(name, 0);
        assert_memory_equal(k + table[1] * (int64_t)PAGE * DIM, keys[SEEN - 1], sizeof keys[0]);
    }
    tsr_context_destroy(ctx);
    unmap_rows(k, rows);
    unmap_rows(v, rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(last_of_many_keys),
        cmocka_unit_test(last_of_packed_keys),
        cmocka_unit_test(last_pages),
    };
    return cmocka_run_group_tests_name("attention far", tests, NULL, NULL);
}
