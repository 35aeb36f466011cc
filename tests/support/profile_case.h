// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of profiling: a call, and the records that were received. One test program includes this file.
#ifndef PROFILE_CASE_H
#define PROFILE_CASE_H

#include "test_support.h"

enum { MOST = 256, ROWS = 64, COLS = 256 };

static float x[ROWS * COLS], y[ROWS * COLS];
static tsr_profile_record seen[MOST];
static char names[MOST][64];
static int num_seen;

static inline void see(void *user, const tsr_profile_record *record) {
    assert_ptr_equal(user, &num_seen);
    assert_true(num_seen < MOST);
    snprintf(names[num_seen], sizeof *names, "%s", record->name);
    seen[num_seen++] = *record;
}

static inline tsr_status softmax(tsr_context *ctx, tsr_device device) {
    tsr_softmax_forward_args args =
        TSR_SOFTMAX_FORWARD_ARGS(.x = TSR_TENSOR(x, TSR_F32, ROWS, COLS),
                                 .y = TSR_TENSOR(y, TSR_F32, ROWS, COLS));
    args.x.device = args.y.device = device;
    return tsr_softmax_forward(ctx, &args);
}

#endif
