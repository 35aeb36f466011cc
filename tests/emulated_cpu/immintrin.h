// SPDX-License-Identifier: Apache-2.0
// Replaces the compiler's header in builds that emulate AVX-512, AVX512-BF16 and AMX: the intrinsics that src/ uses, as
// plain C with AVX2, so that the same sources run on any processor with AVX2. Each does what Intel's manual says about
// its instruction, except exceptions and noted differences, and stops at an unknown control. A new intrinsic in src/
// needs a new function here: without it gcc reports a "target specific option mismatch" for its own.
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

// The order matters: each header uses those before it.
#include "emulated_names.h"

#include "emulated_integers.h"

#include "emulated_floats.h"

#include "emulated_bf16.h"

#endif
