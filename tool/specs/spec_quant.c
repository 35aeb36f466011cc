// SPDX-License-Identifier: Apache-2.0
#include "specs/spec_quant.h"

#include <math.h>

const char *const spec_quant_names[] = {"q8_0",       "q4_0", "q4_1", "q4_k",  "q6_k",
                                        "mxfp4_gguf", "int8", "int4", "mxfp4", NULL};

bool spec_quant_has_scales(tsr_quant_format format) { return format >= TSR_QUANT_INT8; }
bool spec_quant_has_groups(tsr_quant_format format) {
    return format == TSR_QUANT_INT8 || format == TSR_QUANT_INT4;
}

int64_t spec_quant_unit(tsr_quant_format format) {
    return format == TSR_QUANT_Q4_K || format == TSR_QUANT_Q6_K ? 256 : 32;
}

double spec_quant_groups(tsr_quant_format format, double cols, double group) {
    if (!spec_quant_has_groups(format)) return ceil(cols / 32);
    return group > 0 ? ceil(cols / group) : cols > 0;
}

static void put_f16(double *bytes, double value) {
    uint8_t raw[2];
    tsr_store(TSR_F16, raw, 0, value);
    bytes[0] = raw[0];
    bytes[1] = raw[1];
}

// The scales in a block, where its format has them.
static void fill_scales(struct rng *rng, tsr_quant_format format, double *block) {
    switch (format) {
    case TSR_QUANT_Q4_1:
    case TSR_QUANT_Q4_K:
        put_f16(block + 2, rng_normal(rng)); // and d
    // fall through
    case TSR_QUANT_Q8_0:
    case TSR_QUANT_Q4_0: put_f16(block, rng_normal(rng)); break;
    case TSR_QUANT_Q6_K: put_f16(block + 208, rng_normal(rng)); break;
    case TSR_QUANT_MXFP4_GGUF: block[0] = (double)rng_int(rng, 110, 135); break;
    default: break;
    }
}

void spec_quant_fill(struct rng *rng, tsr_quant_format format, enum edge_fill fill, int64_t numel,
                     double *values) {
    const int64_t bytes = tsr_quant_row_bytes(format, spec_quant_unit(format));
    for (int64_t i = 0; i < numel; i++) values[i] = (double)rng_int(rng, 0, 255);
    for (int64_t i = 0; i + bytes <= numel && fill != FILL_SPECIAL; i += bytes)
        fill_scales(rng, format, values + i);
}

void spec_quant_fill_powers(struct rng *rng, enum edge_fill fill, int64_t numel, double *values) {
    for (int64_t i = 0; i < numel; i++)
        values[i] = (double)(fill == FILL_SPECIAL ? rng_int(rng, 0, 255) : rng_int(rng, 110, 135));
}
