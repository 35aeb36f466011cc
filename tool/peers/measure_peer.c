// SPDX-License-Identifier: Apache-2.0
// Libraries as contenders. A peer writes f32 to its own output, which must agree with ours before
// anything is timed: a peer called with the wrong transposes would be fast, too.
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "measure/measure_contender.h"
#include "peers/peer_blas.h"

static const int64_t settle_ns = 2000000; // twice as long as a peer's threads spin: peer_blas.c

void peer_settle(void) { nanosleep(&(struct timespec){.tv_nsec = settle_ns}, NULL); }

bool peer_call(const struct op_case *c, struct contender *contender) {
    bool is_done = peer_blas_call(contender->peer, c, contender->peer_out);
    if (!is_done)
        contender_fail(contender, MEASURE_FAILED, "%s: %s of %s failed", c->spec->op,
                       contender->result->variant, contender->result->peer);
    return is_done;
}

// The largest difference divided by the largest value. Both sum in fp32; ours is then rounded to its dtype.
static double disagreement(const tsr_tensor *ours, const float *theirs,
                           double *largest_difference) {
    double largest = 0, difference = 0;
    int64_t numel = tsr_tensor_numel(ours);
    for (int64_t i = 0; i < numel; i++) {
        double value = tsr_load(ours->dtype, ours->data, i), off = fabs(value - (double)theirs[i]);
        if (isnan(off)) return *largest_difference = NAN;
        largest = fmax(largest, fabs(value));
        difference = fmax(difference, off);
    }
    *largest_difference = difference;
    return difference > 0 ? difference / largest : difference;
}

void peer_prepare(const struct op_case *c, struct contender *contender,
                  const struct contender *ours) {
    struct result *result = contender->result;
    char sentence[256];
    const char *name = peer_blas_call_name(contender->peer, c, sentence, sizeof sentence);
    if (name == NULL) {
        contender_fail(contender, MEASURE_UNSUPPORTED, "%s: %s", c->spec->op, sentence);
        return;
    }
    snprintf(result->variant, sizeof result->variant, "%s", name);
    const tsr_tensor *out = &c->tensor[spec_slot(c->spec, "c")];
    contender->peer_out_bytes = (size_t)tsr_tensor_numel(out) * sizeof(float);
    contender->peer_out = allocation_get(&contender->memory, contender->peer_out_bytes);
    if (contender->peer_out == NULL) {
        contender_fail(contender, MEASURE_FAILED, "%s: no memory for the output of %s", c->spec->op,
                       result->peer);
        return;
    }
    memset(contender->peer_out, 0xff, contender->peer_out_bytes); // NaN
    if (ours->outcome != MEASURE_OK) {
        contender_fail(contender, MEASURE_UNSUPPORTED, "%s: no result of ours to compare %s with",
                       c->spec->op, result->peer);
        return;
    }
    if (c->spec->call(ours->ctx, c, ours->variant, NULL, 0, NULL) != TSR_OK) {
        contender_fail(contender, MEASURE_FAILED, "%s", tsr_last_error());
        return;
    }
    if (!peer_call(c, contender)) return;
    double allowed = c->dtype == TSR_F32 ? 1e-4 : 1e-2;
    double off = disagreement(out, contender->peer_out, &result->max_abs_err);
    if (!(off <= allowed))
        contender_fail(contender, MEASURE_WRONG,
                       "%s: %s of %s disagrees with us by %.2g of the largest value", c->spec->op,
                       name, result->peer, off);
}
