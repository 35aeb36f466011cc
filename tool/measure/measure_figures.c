// SPDX-License-Identifier: Apache-2.0
// After the sampling: chooses the samples that count, and computes the figures from them.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "measure/measure_contender.h"
#include "system/progress.h"

static const double good_clock = 0.95; // the least share of the best probe
static const double impossible = 1.05; // times the ceiling: such a figure is refused
static const double doubt_seconds = 1; // for measuring an exceeded ceiling again

int contender_count_good(const struct contender *contender) {
    int good = 0;
    for (int i = 0; i < contender->num_samples; i++)
        good += contender->samples[i].clock >= good_clock * contender->session->fma_best &&
                !contender->samples[i].is_disturbed;
    return good;
}

// Sorts good samples first.
static int by_quality(const void *a, const void *b) {
    const struct sample *x = a, *y = b;
    if (x->is_disturbed != y->is_disturbed) return x->is_disturbed - y->is_disturbed;
    return (x->clock < y->clock) - (x->clock > y->clock);
}

static int by_time(const void *a, const void *b) {
    double x = ((const struct sample *)a)->seconds, y = ((const struct sample *)b)->seconds;
    return (x > y) - (x < y);
}

static double quantile_ms(const struct sample *sorted, int count, double q) {
    double at = q * (count - 1);
    int low = (int)at, high = low + 1 < count ? low + 1 : low;
    return 1e3 * (sorted[low].seconds + (at - low) * (sorted[high].seconds - sorted[low].seconds));
}

// Keeps the good samples; if there are too few, the best of all.
static int keep_good(struct contender *contender) {
    int count = contender->num_samples, good = contender_count_good(contender);
    qsort(contender->samples, (size_t)count, sizeof *contender->samples, by_quality);
    int enough = count < MIN_SAMPLES ? count : MIN_SAMPLES;
    contender->result->is_throttled = good < enough;
    int best = count / 5 > MIN_GOOD ? count / 5 : MIN_GOOD;
    int kept = good >= enough ? good : count < best ? count : best;
    qsort(contender->samples, (size_t)kept, sizeof *contender->samples, by_time);
    contender->result->num_samples = kept;
    contender->result->num_set_aside = count - kept;
    return kept;
}

// The mean rate of the unit for products at the clock of these samples.
static double unit_beside(const struct sample *samples, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += samples[i].unit_rate;
    return sum / count;
}

void contender_summarise(const struct op_case *c, const struct allocation_table *tensors,
                         struct contender *contender) {
    struct measure_session *session = contender->session;
    struct result *result = contender->result;
    int kept = keep_good(contender);
    tsr_probe_kind unit = contender->unit;
    double flops = c->spec->flops(c), ceiling = *unit_best(session, unit);
    result->median_ms = quantile_ms(contender->samples, kept, 0.5);
    result->p20_ms = quantile_ms(contender->samples, kept, 0.2);
    result->p80_ms = quantile_ms(contender->samples, kept, 0.8);
    double seconds = 1e-3 * result->median_ms;
    if (contender->beside != NULL) return; // calls of one thread have no other figures
    // The FMA probe is in fp32, so it is no ceiling for a peer that uses 16-bit units.
    bool is_within_probe = contender->peer == NULL || c->dtype == TSR_F32;
    if (!is_within_probe) ceiling = INFINITY;
    // The ceiling itself may be too low: while other processes run, a probe of some milliseconds may always lose a
    // processor, but a probe of a tenth of a millisecond finds an undisturbed moment.
    double doubted = seconds_now();
    while (flops / seconds > impossible * ceiling && seconds_now() - doubted < doubt_seconds) {
        clock_probe(session);
        double burst = unit_burst(session, unit);
        ceiling = fmax(ceiling, fmax(burst, *unit_best(session, unit)));
    }
    if (flops / seconds > impossible * ceiling) {
        contender_fail(contender, MEASURE_FAILED,
                       "%s: variant '%s' measured %.0f GFLOP/s, more than its unit's ceiling of "
                       "%.0f: the figure is refused",
                       c->spec->op, contender_name(contender), 1e-9 * flops / seconds,
                       1e-9 * ceiling);
        result->median_ms = result->p20_ms = result->p80_ms = NAN;
        return;
    }
    result->tflops = 1e-12 * flops / seconds;
    result->gb_s = 1e-9 * case_bytes(c) / seconds;
    result->is_cold =
        session->options.is_cold || inputs_bytes(c) > (double)session->machine.l3_bytes;
    if (!is_within_probe) return;
    result->unit_gflops = 1e-9 * ceiling;
    result->ceiling_ms = 1e3 * measure_floor_s(session, c, unit_beside(contender->samples, kept),
                                               session->options.is_cold);
    result->share_of_ceiling = result->ceiling_ms / result->median_ms;
    if (contender->peer == NULL) // a peer's allocations are not counted
        result->peak_bytes =
            tensors->peak_bytes + contender->memory.peak_bytes - contender->context_bytes;
}

void contenders_compare(const struct op_case *c, const struct contender *contenders, int count) {
    double baseline = NAN;
    for (int i = 0; i < count; i++)
        if (spec_is_baseline(c->spec, contenders[i].variant))
            baseline = result_device_ms(contenders[i].result);
    for (int i = 0; i < count; i++) {
        struct result *result = contenders[i].result;
        result->speedup_over_naive = baseline / result_device_ms(result);
        if (contenders[i].peer == NULL) continue;
        result->ours_ms = contenders[0].result->median_ms;
        result->speedup_over_peer = result->median_ms / result->ours_ms;
    }
}
