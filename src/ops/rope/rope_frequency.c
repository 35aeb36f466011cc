// SPDX-License-Identifier: Apache-2.0
// The frequencies of RoPE's tables, in double: given ones or powers of the base, with or without scaling.
#include <math.h>

#include "core/core_dtype.h"
#include "ops/rope/rope_problem.h"

static double scaled(const tsr_rope_scaling *scaling, double frequency) {
    double wavelength = 2 * 3.14159265358979323846 / frequency;
    double turns = scaling->original_max_position / wavelength;
    if (turns > scaling->high_freq_factor) return frequency;
    if (turns < scaling->low_freq_factor) return frequency / scaling->factor;
    double smooth =
        (turns - scaling->low_freq_factor) / (scaling->high_freq_factor - scaling->low_freq_factor);
    return (1 - smooth) * frequency / scaling->factor + smooth * frequency;
}

double rope_frequency(const struct rope_table_problem *p, int64_t i) {
    double frequency = p->inv_freq != NULL ? tsri_load(p->cos.dtype, p->inv_freq, i)
                                           : pow(p->base, -(double)i / (double)p->cos.cols);
    return p->has_scaling ? scaled(&p->scaling, frequency) : frequency;
}
