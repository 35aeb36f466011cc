// SPDX-License-Identifier: Apache-2.0
#include "softmax_job.h"

static size_t job_bytes(const struct softmax_job *job) {
    return (size_t)(job->rows * job->cols) * sizeof(float);
}

static tsr_status run(tsr_context *ctx, const struct softmax_job *job, float *y) {
    return tsr_softmax_forward(
        ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = TSR_TENSOR(job->x, TSR_F32, job->rows, job->cols),
                                       .y = TSR_TENSOR(y, TSR_F32, job->rows, job->cols)));
}

void softmax_job_create(struct softmax_job *job, int64_t rows, int64_t cols) {
    *job = (struct softmax_job){rows, cols, NULL, NULL, NULL};
    uint64_t seed = 99;
    tsr_context *ctx = test_context(1);
    job->x = malloc(job_bytes(job));
    job->y = malloc(job_bytes(job));
    job->expected = malloc(job_bytes(job));
    assert_true(job->x != NULL && job->y != NULL && job->expected != NULL);
    for (int64_t i = 0; i < rows * cols; i++) job->x[i] = test_float(&seed);
    assert_ok(run(ctx, job, job->expected));
    tsr_context_destroy(ctx);
}

void softmax_job_release(struct softmax_job *job) {
    free(job->x);
    free(job->y);
    free(job->expected);
}

tsr_status softmax_job_run(tsr_context *ctx, struct softmax_job *job) {
    memset(job->y, 0xff, job_bytes(job));
    return run(ctx, job, job->y);
}

bool softmax_job_is_right(const struct softmax_job *job) {
    return memcmp(job->y, job->expected, job_bytes(job)) == 0;
}

bool softmax_job_is_untouched(const struct softmax_job *job) {
    return test_all_bytes_are(job->y, 0xff, job_bytes(job));
}
