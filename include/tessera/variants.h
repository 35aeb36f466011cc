// SPDX-License-Identifier: Apache-2.0
// Enumeration of the library's operations and their variants. Tests, benchmarks and verification walk these tables, so
// a variant is verified and measured as soon as it has a row.
#ifndef TESSERA_VARIANTS_H
#define TESSERA_VARIANTS_H

#include <tessera/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TSR_VARIANT_REFERENCE = 1u << 0, // the oracle: double precision, one thread, any dtype with f64
    TSR_VARIANT_BASELINE = 1u << 1,  // the plain algorithm, kept for comparison
    TSR_VARIANT_ISA = 1u << 2,       // built once per instruction set
    // The ceiling of its products is TSR_PROBE_BF16_DOT, BF16_TILES or BYTE_DOT instead of FMA.
    TSR_VARIANT_BF16_DOT = 1u << 3,
    TSR_VARIANT_BF16_TILES = 1u << 4,
    TSR_VARIANT_CUDA = 1u << 5, // runs on CUDA devices; variants without this flag run on the CPU
    TSR_VARIANT_BYTE_DOT = 1u << 6
};

typedef struct tsr_variant_info {
    const char *name;    // what args.variant takes
    const char *summary; // one line
    uint32_t flags;
} tsr_variant_info;

// An operation's name is its function's without the prefix: "softmax_forward".
TSR_API int tsr_op_count(void);
TSR_API const char *tsr_op_name(int op); // NULL when out of range

// The variants of an operation, in the order in which the library falls back. For a name or an index that does not
// exist tsr_variant_count gives 0 and tsr_variant_info_get TSR_INVALID_ARGUMENT.
TSR_API int tsr_variant_count(const char *op);
TSR_API tsr_status tsr_variant_info_get(const char *op, int index, tsr_variant_info *info);

#ifdef __cplusplus
}
#endif
#endif
