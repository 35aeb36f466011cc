// SPDX-License-Identifier: Apache-2.0
// Matmul backward on a real GPU, or on the emulated one: a prepared call can be captured. Its two products have plans of their own
// where they run side by side, and prepare must load the kernels of these.
#include "cuda_case.h"

static tsr_context *ctx;
static uint16_t *memory;
static const int64_t shapes[][3] = {
    {24, 4096, 1024}, {16, 1024, 6144}, {256, 512, 512}, {200, 264, 136}};
enum { MOST = 8192 * 1024 };

static tsr_tensor matrix(int which, int64_t rows, int64_t cols) {
    return on_cuda(TSR_TENSOR(memory + (int64_t)which * MOST, TSR_BF16, rows, cols));
}

static void prepared_calls_are_captured(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(shapes); i++) {
        const int64_t m = shapes[i][0], k = shapes[i][1], n = shapes[i][2];
        const tsr_matmul_backward_args args =
            TSR_MATMUL_BACKWARD_ARGS(.a = matrix(0, m, k), .b = matrix(1, k, n),
                                     .dc = matrix(2, m, n), .da = matrix(3, m, k),
                                     .db = matrix(4, k, n));
        tsr_graph *graph;
        size_t bytes;
        assert_ok(tsr_matmul_backward_prepare(ctx, &args, &bytes));
        assert_ok(tsr_graph_begin(ctx));
        assert_ok(tsr_matmul_backward(ctx, &args));
        assert_ok(tsr_graph_end(ctx, &graph));
        tsr_graph_destroy(ctx, graph);
    }
}

int main(void) {
    void *all, *stream;
    int skip = cuda_case_open(80, 5 * (size_t)MOST * sizeof *memory, &ctx, &all);
    if (skip != 0) return skip;
    memory = all;
    if (tsr_stream_create(ctx, &stream) != TSR_OK || tsr_context_set_stream(ctx, stream) != TSR_OK)
        return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(prepared_calls_are_captured)};
    int failed = cmocka_run_group_tests_name("cuda matmul backward", tests, NULL, NULL);
    cuda_case_close(ctx, all);
    return failed;
}
