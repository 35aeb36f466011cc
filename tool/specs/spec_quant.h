// SPDX-License-Identifier: Apache-2.0
// Quantised rows in cases: names of formats, sizes, and bytes that hold usual scales.
#ifndef SPEC_QUANT_H
#define SPEC_QUANT_H

#include "specs/spec.h"

// From q8_0 on, in the order of tsr_quant_format; ends with NULL.
extern const char *const spec_quant_names[];

bool spec_quant_has_scales(tsr_quant_format format); // beside the rows
bool spec_quant_has_groups(tsr_quant_format format); // of as many columns as a call says
int64_t spec_quant_unit(
    tsr_quant_format format); // columns that follow each other in whole blocks: 32 or 256
double spec_quant_groups(tsr_quant_format format, double cols, double group);
// Any bytes; but for SPECIAL the scales in blocks are usual numbers.
void spec_quant_fill(struct rng *rng, tsr_quant_format format, enum edge_fill fill, int64_t numel,
                     double *values);
// Scales that are powers, in bytes.
void spec_quant_fill_powers(struct rng *rng, enum edge_fill fill, int64_t numel, double *values);

#endif
