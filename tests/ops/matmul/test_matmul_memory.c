// SPDX-License-Identifier: Apache-2.0
// Matmul on the CPU and its operands' memory: no variant reads beyond the last element, overlapping rows of b give the
// same bits for any number of threads, and zero rows with a large b work.
#if defined(__linux__)
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>
#endif
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "core/core_dtype.h"
#include "test_support.h"

static void fill(tsr_dtype dtype, void *x, int64_t count, uint64_t seed) {
    for (int64_t i = 0; i < count; i++) tsr_store(dtype, x, i, test_float(&seed));
}

// ---- What lies beyond ---------------------------------------------------------------------------

#if defined(__linux__)
struct guarded {
    char *pages, *data;
    size_t bytes;
};

// Allocates `bytes` that end at a protected page.
static struct guarded guarded_create(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page;
    struct guarded g = {.bytes = size + page};
    g.pages = mmap(NULL, g.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(g.pages, MAP_FAILED);
    assert_int_equal(mprotect(g.pages + size, page, PROT_NONE), 0);
    g.data = g.pages + size - bytes;
    return g;
}

static void check_guarded(tsr_context *ctx, tsr_dtype dtype, bool turns_a, bool turns_b, int64_t m,
                          int64_t n, int64_t k) {
    size_t bytes = tsr_dtype_bytes(dtype);
    struct guarded a = guarded_create((size_t)(m * k) * bytes),
                   b = guarded_create((size_t)(k * n) * bytes),
                   c = guarded_create((size_t)(m * n) * bytes);
    fill(dtype, a.data, m * k, 1);
    fill(dtype, b.data, k * n, 2);
    for (int v = -1; v < tsr_variant_count("matmul_forward"); v++) {
        tsr_variant_info info = {.name = NULL};
        if (v >= 0) assert_ok(tsr_variant_info_get("matmul_forward", v, &info));
        if (info.flags & (TSR_VARIANT_CUDA | TSR_VARIANT_REFERENCE)) continue;
        tsr_status status = tsr_matmul_forward(
            ctx, &TSR_MATMUL_FORWARD_ARGS(
                         .variant = info.name, .transpose_a = turns_a, .transpose_b = turns_b,
                         .a = TSR_TENSOR(a.data, dtype, turns_a ? k : m, turns_a ? m : k),
                         .b = TSR_TENSOR(b.data, dtype, turns_b ? n : k, turns_b ? k : n),
                         .c = TSR_TENSOR(c.data, dtype, m, n)));
        assert_true(status == TSR_OK || (v >= 0 && status == TSR_UNSUPPORTED));
    }
    munmap(a.pages, a.bytes), munmap(b.pages, b.bytes), munmap(c.pages, c.bytes);
}

static void nothing_beyond_is_read(void **state) {
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    static const int64_t sizes[][3] = {{34, 78, 1868}, {17, 16, 1024}, {17, 3, 300}, {6, 70, 33},
                                       {33, 1, 515},   {16, 100, 257}, {40, 66, 64}};
    for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
        if (!test_has_isa(isa)) continue;
        for (int threads = 1; threads <= 16; threads += 15) {
            tsr_context *ctx;
            assert_ok(tsr_context_create(
                &TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa, .num_threads = threads), &ctx));
            for (int i = 0; i < COUNT(sizes); i++)
                for (int turns = 0; turns < 4; turns++)
                    check_guarded(ctx, dtypes[(i + turns) % 3], turns & 1, turns >> 1, sizes[i][0],
                                  sizes[i][1], sizes[i][2]);
            check_guarded(ctx, TSR_F32, true, false, 34, 78, 1868);
            tsr_context_destroy(ctx);
        }
    }
}
#endif

// ---- Rows that overlap ----------------------------------------------------------------------------

// Row p of b begins one element after row p - 1 (a Hankel matrix). A single column of it is not contiguous.
static void rows_of_b_may_overlap(void **state) {
    (void)state;
    enum { MOST = 145, K = 700 };
    static float a[14 * K], b[K + MOST], c[14 * MOST], expected[14 * MOST];
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    for (int d = 0; d < COUNT(dtypes); d++)
        for (int64_t m = 1; m <= 14; m += 5)
            for (int64_t n = 1; n <= MOST; n += 16) {
                fill(dtypes[d], a, m * K, 1);
                fill(dtypes[d], b, K + n - 1, 2);
                size_t bytes = (size_t)(m * n) * sizeof *c;
                for (int threads = 1; threads <= 16; threads += 5) {
                    tsr_context *ctx = test_context(threads);
                    tsr_tensor view = TSR_TENSOR(b, dtypes[d], K, n);
                    view.stride[0] = 1;
                    memset(c, 0xff, bytes);
                    assert_ok(tsr_matmul_forward(
                        ctx,
                        &TSR_MATMUL_FORWARD_ARGS(.a = TSR_TENSOR(a, dtypes[d], m, K), .b = view,
                                                 .c = TSR_TENSOR(c, TSR_F32, m, n))));
                    if (threads == 1)
                        memcpy(expected, c, bytes);
                    else
                        assert_memory_equal(c, expected, bytes);
                    tsr_context_destroy(ctx);
                }
            }
}

// ---- Nothing beside much --------------------------------------------------------------------------

// No rows of a and a large b, and gradients with k = 0: db becomes 0, and nothing else is written.
static void no_rows_beside_much(void **state) {
    (void)state;
    enum { N = 2500, K = 64 };
    static float b[N * K], db[N * K], one[1];
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
        if (!test_has_isa(isa)) continue;
        for (int threads = 1; threads <= 16; threads += 3) {
            tsr_context *ctx;
            assert_ok(tsr_context_create(
                &TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa, .num_threads = threads), &ctx));
            for (int i = 0; i < COUNT(dtypes) * 8; i++) {
                tsr_dtype dtype = dtypes[i / 8];
                int64_t k = i & 1 ? K : 16;
                bool turns_b = i & 2;
                uint32_t flags = i & 4 ? TSR_BATCH_INVARIANT : 0;
                tsr_tensor a = TSR_TENSOR(one, dtype, 0, k), c = TSR_TENSOR(one, dtype, 0, N);
                tsr_tensor of_b = TSR_TENSOR(b, dtype, turns_b ? N : k, turns_b ? k : N);
                assert_ok(tsr_matmul_forward(
                    ctx, &TSR_MATMUL_FORWARD_ARGS(.flags = flags, .transpose_b = turns_b, .a = a,
                                                  .b = of_b, .c = c)));
                tsr_tensor gradient = of_b;
                gradient.data = db;
                memset(db, 0xff, sizeof db);
                assert_ok(tsr_matmul_backward(
                    ctx, &TSR_MATMUL_BACKWARD_ARGS(.flags = flags, .transpose_b = turns_b, .a = a,
                                                   .b = of_b, .dc = c, .da = a, .db = gradient)));
                for (int64_t j = 0; j < N * k; j++) assert_true(tsr_load(dtype, db, j) == 0);
                // k = 0: nothing is written, because da and db have no elements.
                assert_ok(tsr_matmul_backward(
                    ctx,
                    &TSR_MATMUL_BACKWARD_ARGS(.flags = flags, .a = TSR_TENSOR(one, dtype, 40, 0),
                                              .b = TSR_TENSOR(one, dtype, 0, N),
                                              .dc = TSR_TENSOR(b, dtype, 40, N),
                                              .da = TSR_TENSOR(one, dtype, 40, 0),
                                              .db = TSR_TENSOR(one, dtype, 0, N))));
            }
            tsr_context_destroy(ctx);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#if defined(__linux__)
        cmocka_unit_test(nothing_beyond_is_read),
#endif
        cmocka_unit_test(rows_of_b_may_overlap),
        cmocka_unit_test(no_rows_beside_much),
    };
    return cmocka_run_group_tests_name("matmul and its memory", tests, NULL, NULL);
}
