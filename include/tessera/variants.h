// SPDX-License-Identifier: Apache-2.0
// Enumeration: every operation of the library and every variant of it. Tests, benchmarks and
// verification walk these tables, so a variant is measured and proved as soon as it has a row.
#ifndef TESSERA_VARIANTS_H
#define TESSERA_VARIANTS_H

#include <tessera/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TSR_VARIANT_REFERENCE = 1u << 0, // the oracle: double precision, one thread, any dtype with f64
    TSR_VARIANT_BASELINE = 1u << 1,  // the plain way, kept to measure against
    TSR_VARIANT_ISA = 1u << 2,       // built once per instruction set
    // Its products are held against TSR_PROBE_BF16_DOT, or BF16_TILES, and not against FMA.
    TSR_VARIANT_BF16_DOT = 1u << 3,
    TSR_VARIANT_BF16_TILES = 1u << 4,
    TSR_VARIANT_CUDA = 1u << 5 // runs on CUDA devices; one without runs on the CPU
};

typedef struct tsr_variant_info {
    const char *name;    // what args.variant takes
    const char *summary; // one line
    uint32_t flags;
} tsr_variant_info;

// Operations are named as their functions without the prefix: "softmax_forward".
TSR_API int tsr_op_count(void);
TSR_API const char *tsr_op_name(int op); // NULL when out of range

// Variants in the order in which the library falls back. variant_count gives 0 and variant_info
// TSR_INVALID_ARGUMENT for a name or an index that does not exist.
TSR_API int tsr_variant_count(const char *op);
TSR_API tsr_status tsr_variant_info_get(const char *op, int index, tsr_variant_info *info);

#ifdef __cplusplus
}
#endif
#endif
