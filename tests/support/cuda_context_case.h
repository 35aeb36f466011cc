// SPDX-License-Identifier: Apache-2.0
// Contexts on CUDA with the tests' own driver, whose memory is host memory and whose kernels do nothing; and two calls,
// one of which needs workspace. One test program includes this file.
#ifndef CUDA_CONTEXT_CASE_H
#define CUDA_CONTEXT_CASE_H

#include "kernel_pack_case.h"
#include "test_support.h"

static inline int setup(void **state) {
    (void)state;
    memset(&fake, 0, sizeof fake);
    tsri_cuda_kernel_forget();
    tsri_cuda_driver_replace(&driver);
    return 0;
}

static inline int teardown(void **state) {
    (void)state;
    tsri_cuda_driver_replace(NULL);
    return fake.num_memory == 0 && fake.num_retained == 0 ? 0 : -1;
}

// ---- Calls ------------------------------------------------------------------------------------

#define ON_CUDA TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0})

enum { ROWS = 100, COLS = 1024 };
static float x[ROWS * COLS], y[ROWS * COLS], dx[ROWS * COLS], statistics[ROWS], dweight[COLS];

static inline tsr_softmax_forward_args softmax_args(void) {
    return TSR_SOFTMAX_FORWARD_ARGS(.x = on_cuda(TSR_TENSOR(x, TSR_F32, ROWS, COLS)),
                                    .y = on_cuda(TSR_TENSOR(y, TSR_F32, ROWS, COLS)));
}

static inline tsr_layernorm_backward_args norm_args(void) {
    return TSR_LAYERNORM_BACKWARD_ARGS(.x = on_cuda(TSR_TENSOR(x, TSR_F32, ROWS, COLS)),
                                       .dy = on_cuda(TSR_TENSOR(y, TSR_F32, ROWS, COLS)),
                                       .dx = on_cuda(TSR_TENSOR(dx, TSR_F32, ROWS, COLS)),
                                       .mean = on_cuda(TSR_TENSOR(statistics, TSR_F32, ROWS)),
                                       .rstd = on_cuda(TSR_TENSOR(statistics, TSR_F32, ROWS)),
                                       .dweight = on_cuda(TSR_TENSOR(dweight, TSR_F32, COLS)));
}

static inline tsr_status run_softmax(tsr_context *ctx) {
    const tsr_softmax_forward_args args = softmax_args();
    return tsr_softmax_forward(ctx, &args);
}

static inline tsr_status run_norm(tsr_context *ctx) {
    const tsr_layernorm_backward_args args = norm_args();
    return tsr_layernorm_backward(ctx, &args);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
