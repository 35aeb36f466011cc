// SPDX-License-Identifier: Apache-2.0
// Grouped matmul gives the same bits by lists of rows as from a copy in their order, in every variant, for one and for
// several threads, in a workspace of exactly the requested size.
#include "test_support.h"

enum { ROWS = 120, LINES = 50, K = 530, N = 72, GROUPS = 3, GUARD = 64 };
static _Alignas(64) unsigned char a[LINES * K * 4], dc[LINES * N * 4], b[GROUPS * K * N * 4],
    copy_of_a[ROWS * K * 4], copy_of_dc[ROWS * N * 4];
static float out[GROUPS * K * N];
static uint64_t random_state;

// The name of variant v, "" if it runs on CUDA; the default for v = -1.
static const char *variant_name(const char *op, int v) {
    tsr_variant_info info = {.name = NULL};
    if (v >= 0) assert_ok(tsr_variant_info_get(op, v, &info));
    return info.flags & TSR_VARIANT_CUDA ? "" : info.name;
}

struct bits_case {
    tsr_dtype dtype;
    bool is_transposed;
    uint32_t flags;
    int32_t offsets[GROUPS + 1];
};

static const int32_t places[][GROUPS + 1] = {
    {5, 5, 90, 117}, {0, 3, 9, 10}, {7, 23, 40, 57}, {0, 1, 2, 120}};

static void random_rows(tsr_dtype dtype, void *lines, void *copy, int64_t cols,
                        const int32_t *rows) {
    const size_t bytes = (size_t)cols * tsr_dtype_bytes(dtype);
    for (int64_t i = 0; i < LINES * cols; i++)
        tsr_store(dtype, lines, i, test_float(&random_state));
    for (int64_t i = 0; i < ROWS; i++)
        if (rows[i] >= 0)
            memcpy((char *)copy + (size_t)i * bytes, (char *)lines + (size_t)rows[i] * bytes,
                   bytes);
}

// Runs the call with the lists (which = 1) or the copies (0), in a workspace of exactly the requested size.
static tsr_status run_bits(const struct bits_case *c, tsr_context *ctx, const char *variant,
                           bool is_forward, bool by_list, const int32_t *const rows[2]) {
    const tsr_tensor starts = TSR_TENSOR(c->offsets, TSR_I32, GROUPS + 1);
    const tsr_tensor of_a =
        by_list ? TSR_TENSOR(a, c->dtype, LINES, K) : TSR_TENSOR(copy_of_a, c->dtype, ROWS, K);
    const tsr_tensor of_dc =
        by_list ? TSR_TENSOR(dc, c->dtype, LINES, N) : TSR_TENSOR(copy_of_dc, c->dtype, ROWS, N);
    const tsr_tensor none = {0}, a_rows = TSR_TENSOR(rows[0], TSR_I32, ROWS),
                     dc_rows = TSR_TENSOR(rows[1], TSR_I32, ROWS);
    const int64_t d1 = c->is_transposed ? N : K, d2 = c->is_transposed ? K : N;
    tsr_matmul_grouped_forward_args forward =
        TSR_MATMUL_GROUPED_FORWARD_ARGS(.a = of_a, .b = TSR_TENSOR(b, c->dtype, GROUPS, d1, d2),
                                        .c = TSR_TENSOR(out, TSR_F32, ROWS, N),
                                        .transpose_b = c->is_transposed, .variant = variant,
                                        .flags = c->flags, .offsets = starts,
                                        .a_rows = by_list ? a_rows : none);
    tsr_matmul_grouped_backward_args backward =
        TSR_MATMUL_GROUPED_BACKWARD_ARGS(.a = of_a, .dc = of_dc,
                                         .db = TSR_TENSOR(out, TSR_F32, GROUPS, d1, d2),
                                         .transpose_b = c->is_transposed, .variant = variant,
                                         .flags = c->flags, .offsets = starts,
                                         .a_rows = by_list ? a_rows : none,
                                         .dc_rows = by_list ? dc_rows : none);
    size_t bytes;
    tsr_status status = is_forward ? tsr_matmul_grouped_forward_prepare(ctx, &forward, &bytes)
                                   : tsr_matmul_grouped_backward_prepare(ctx, &backward, &bytes);
    if (status == TSR_UNSUPPORTED) return status;
    assert_ok(status);
    unsigned char *workspace = aligned_alloc(64, (bytes + GUARD + 63) / 64 * 64);
    memset(workspace, 0xa5, bytes + GUARD);
    memset(out, 0xff, sizeof out);
    forward.workspace = backward.workspace = workspace;
    forward.workspace_bytes = backward.workspace_bytes = bytes;
    assert_ok(is_forward ? tsr_matmul_grouped_forward(ctx, &forward)
                         : tsr_matmul_grouped_backward(ctx, &backward));
    assert_true(test_all_bytes_are(workspace + bytes, 0xa5, GUARD));
    free(workspace);
    return TSR_OK;
}

static void check_bits(const struct bits_case *c, tsr_context *ctx, bool is_forward) {
    static float first[GROUPS * K * N];
    static int32_t rows[2][ROWS];
    for (int list_of = 0; list_of < 2; list_of++)
        for (int i = 0; i < ROWS; i++)
            rows[list_of][i] = i >= c->offsets[0] && i < c->offsets[GROUPS]
                                   ? (int32_t)(test_bits(&random_state) % LINES)
                                   : -1;
    const int32_t *const lists[] = {rows[0], rows[1]};
    random_rows(c->dtype, a, copy_of_a, K, rows[0]);
    random_rows(c->dtype, dc, copy_of_dc, N, rows[1]);
    for (int64_t i = 0; i < GROUPS * K * N; i++)
        tsr_store(c->dtype, b, i, test_float(&random_state));
    const char *op = is_forward ? "matmul_grouped_forward" : "matmul_grouped_backward";
    for (int v = -1; v < tsr_variant_count(op); v++) {
        const char *variant = variant_name(op, v);
        if (v >= 0 && variant[0] == 0) continue;
        if (run_bits(c, ctx, variant, is_forward, false, lists) == TSR_UNSUPPORTED) continue;
        memcpy(first, out, sizeof first);
        assert_ok(run_bits(c, ctx, variant, is_forward, true, lists));
        assert_memory_equal(first, out, sizeof first);
    }
}

static void bits_of_a_copy(void **state) {
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    static const int threads[] = {1, 2, 16};
    random_state = test_seed(20261130);
    for (int t = 0; t < COUNT(threads); t++) {
        tsr_context *ctx = test_context(threads[t]);
        for (int i = 0; i < COUNT(dtypes) * COUNT(places) * 2; i++) {
            struct bits_case c = {.dtype = dtypes[i % COUNT(dtypes)],
                                  .is_transposed = i / COUNT(dtypes) % 2,
                                  .flags = i % 5 == 0 ? TSR_BATCH_INVARIANT : 0};
            memcpy(c.offsets, places[i / COUNT(dtypes) / 2], sizeof c.offsets);
            check_bits(&c, ctx, true);
            check_bits(&c, ctx, false);
        }
        tsr_context_destroy(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_of_a_copy)};
    return cmocka_run_group_tests_name("matmul grouped lists bits", tests, NULL, NULL);
}
