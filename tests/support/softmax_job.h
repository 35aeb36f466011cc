// SPDX-License-Identifier: Apache-2.0
// A softmax large enough for many threads, and its result on one thread. The tests of contexts and teams run it.
#ifndef SOFTMAX_JOB_H
#define SOFTMAX_JOB_H

#include "test_support.h"

struct softmax_job {
    int64_t rows, cols;
    float *x, *y, *expected;
};

// At 1024 columns a row has 4 KiB, and two rows make a task.
void softmax_job_create(struct softmax_job *job, int64_t rows, int64_t cols);
void softmax_job_release(struct softmax_job *job);
// Poisons y and runs the job.
tsr_status softmax_job_run(tsr_context *ctx, struct softmax_job *job);
// Returns whether y has the same bits as on one thread.
bool softmax_job_is_right(const struct softmax_job *job);
// Returns whether all of y is poison.
bool softmax_job_is_untouched(const struct softmax_job *job);

#endif
