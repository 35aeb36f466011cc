// SPDX-License-Identifier: Apache-2.0
// A softmax large enough for many threads, and the bits that one thread gives: what the tests of
// contexts and teams run.
#ifndef SOFTMAX_JOB_H
#define SOFTMAX_JOB_H

#include "test_support.h"

struct softmax_job {
    int64_t rows, cols;
    float *x, *y, *expected;
};

// 4 KiB rows at 1024 columns: two rows make a task.
void softmax_job_create(struct softmax_job *job, int64_t rows, int64_t cols);
void softmax_job_release(struct softmax_job *job);
// Poisons y and runs.
tsr_status softmax_job_run(tsr_context *ctx, struct softmax_job *job);
// y has the bits of one thread.
bool softmax_job_is_right(const struct softmax_job *job);
// y is poison throughout.
bool softmax_job_is_untouched(const struct softmax_job *job);

#endif
