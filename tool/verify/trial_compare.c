// SPDX-License-Identifier: Apache-2.0
// Compares a variant's outputs with the oracle's, element by element, and describes what is wrong.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "system/device_option.h"
#include "system/heap.h"
#include "verify/trial.h"

// ---- Roundoff ---------------------------------------------------------------------------------

struct format {
    double roundoff, smallest, largest; // unit roundoff, smallest subnormal, largest finite
    bool saturates;                     // larger values and infinities become the largest value
};

static struct format format_of(tsr_dtype dtype) {
    switch (dtype) {
    case TSR_F64: return (struct format){0x1p-53, 0x1p-1074, 0x1.fffffffffffffp1023};
    case TSR_BF16: return (struct format){0x1p-8, 0x1p-133, 0x1.fep127};
    case TSR_F16: return (struct format){0x1p-11, 0x1p-24, 65504};
    case TSR_E4M3: return (struct format){0x1p-4, 0x1p-9, 448, true};
    case TSR_E5M2: return (struct format){0x1p-3, 0x1p-16, 57344, true};
    case TSR_I32: return (struct format){0, 0, 2147483647};
    case TSR_U8: return (struct format){0, 0, 255};
    default: return (struct format){0x1p-24, 0x1p-149, 0x1.fffffep127};
    }
}

// ---- Comparing --------------------------------------------------------------------------------

static void say(char *sentence, size_t bytes, const struct trial *trial, const char *variant,
                const tsr_context *ctx, const char *what) {
    char text[1024];
    if (sentence[0] != '\0') return;
    snprintf(sentence, bytes, "%s %s, variant %s, %s, %s, %d threads%s%s (seed %llu): %s",
             trial->c.spec->op, case_text(&trial->c, text, sizeof text),
             variant != NULL ? variant : "(default)", tsr_dtype_name(trial->c.dtype),
             device_arch(ctx), (int)tsr_context_num_threads(ctx),
             trial->edge != NULL ? ", edge " : "", trial->edge != NULL ? trial->edge : "",
             (unsigned long long)trial->seed, what);
}

void trial_fail(struct verdict *verdict, const struct trial *trial, const char *variant,
                const tsr_context *ctx, const char *what) {
    verdict->num_failed++;
    say(verdict->failure, sizeof verdict->failure, trial, variant, ctx, what);
}

void trial_not_run(struct verdict *verdict, const struct trial *trial, const char *variant,
                   const tsr_context *ctx, const char *what) {
    verdict->num_not_run++;
    say(verdict->obstacle, sizeof verdict->obstacle, trial, variant, ctx, what);
}

// Error of one element divided by the allowed error, 0 where the contract leaves it undefined; INFINITY if a NaN, an infinity or
// the sign of one of them is wrong. *error is the distance from the best possible value.
static double compare_element(double got, double expected, double bound, struct format format,
                              bool keeps_nan_sign, double *error) {
    *error = 0;
    if (bound == -INFINITY) return 0; // undefined
    if (isnan(expected)) {
        bool is_same_sign = !keeps_nan_sign || isnan(bound) || !signbit(got) == !signbit(expected);
        return isnan(got) && is_same_sign ? 0 : INFINITY;
    }
    if (format.saturates && fabs(expected) > format.largest &&
        got == copysign(format.largest, expected))
        return 0;
    if (isinf(expected)) return got == expected && !format.saturates ? 0 : INFINITY;
    if (got == expected) return 0;
    if (isnan(bound) || isnan(got)) return INFINITY;
    double allowed = bound + fmax(format.roundoff * (fabs(expected) + bound), format.smallest / 2);
    if (isinf(got)) { // right if the exact value may round beyond the largest finite one
        bool is_near = fabs(expected) + allowed >= format.largest && !format.saturates;
        bool is_same_sign = isinf(bound) || !signbit(got) == !signbit(expected);
        return is_near && is_same_sign ? 0 : INFINITY;
    }
    *error = fabs(got - expected);
    return allowed > 0 ? *error / allowed : INFINITY;
}

bool trial_compare(const struct trial *trial, int s, const tsr_tensor *got, struct verdict *verdict,
                   char *what, size_t what_bytes) {
    const double *expected = trial->oracle.c.tensor[s].data;
    int64_t numel = tsr_tensor_numel(got);
    struct format format = format_of(got->dtype);
    tsr_tensor plain = trial->oracle.c.tensor[s];
    plain.dtype = TSR_F64;
    double *values = heap_get((size_t)numel, sizeof *values);
    plain.data = values;
    tensor_copy(got, &plain);
    double worst = 0;
    int64_t worst_at = 0;
    bool is_index = trial->c.spec->slots[s].kind >= SLOT_I32;
    for (int64_t i = 0; i < numel; i++) {
        double error, ratio;
        double reference = is_index ? tsr_load(got->dtype, expected, i) : expected[i];
        ratio = compare_element(values[i], reference, trial->bound[s][i], format,
                                trial->c.spec->keeps_nan_sign, &error);
        if (ratio > worst) worst = ratio, worst_at = i;
        if (error > verdict->max_abs_err) verdict->max_abs_err = error;
        verdict->sum_abs_err += error;
        if (error > verdict->max_rel_err * fabs(reference) && fabs(reference) >= 1e-3 &&
            isfinite(reference))
            verdict->max_rel_err = error / fabs(reference);
    }
    verdict->num_elements += (double)numel;
    verdict->err_over_bound = fmax(verdict->err_over_bound, worst);
    if (worst > 1)
        snprintf(what, what_bytes, "%s[%lld] is %.9g, expected %.9g within %.3g (%.3g times over)",
                 trial->c.spec->slots[s].name, (long long)worst_at, values[worst_at],
                 is_index ? tsr_load(got->dtype, expected, worst_at) : expected[worst_at],
                 trial->bound[s][worst_at], worst);
    free(values);
    return worst <= 1;
}
