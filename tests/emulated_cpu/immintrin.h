// SPDX-License-Identifier: Apache-2.0
// In place of the compiler's header where AVX-512, AVX512-BF16 and AMX are emulated: those of their intrinsics that src/
// uses, as plain C over AVX2, so that the same sources run on any processor with AVX2. Each does what Intel's manual says of
// its instruction, but for exceptions and what is said beside it, and stops at a control that it does not know. A new intrinsic in src/ is a new function here:
// without it gcc speaks of a "target specific option mismatch" in its own.
#ifndef EMULATED_IMMINTRIN_H
#define EMULATED_IMMINTRIN_H

#include_next <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef float emulated_floats __attribute__((vector_size(64)));
typedef int32_t emulated_ints __attribute__((vector_size(64)));
typedef int16_t emulated_shorts __attribute__((vector_size(64)));

#define EMULATED static inline __attribute__((always_inline, unused))
#define LANES(n) for (int i = 0; i < (n); i++)

// In this order: each uses those before it.
#include "emulated_names.h"

#include "emulated_integers.h"

#include "emulated_floats.h"

#include "emulated_bf16.h"

#endif
