// SPDX-License-Identifier: Apache-2.0
// When backward takes a row's sum anew. Read by both compilers: no headers of the library's.
#ifndef TSRI_CROSS_ENTROPY_LSE_PARAMS_H
#define TSRI_CROSS_ENTROPY_LSE_PARAMS_H

// Rounding of lse shifts every probability p by up to 2^-24 |lse|, and with the errors of an exponential that of the target
// by 2^-24 (16 + |lse|): too much of it where |lse| is large, and of 1 - p where p is near 1. With below = lse - x of the
// target 1 - p is at least below / (1 + below). size is |lse|; NaN is enough: it goes everywhere.
#define CROSS_ENTROPY_LSE_IS_ENOUGH(is_f32, size, below)                                           \
    (!((size) > ((is_f32) ? 64.0f : 1024.0f)) &&                                                   \
     !((below) < (16 + (size)) * ((is_f32) ? 0.01f : 0x1p-14f) * (1 + (below))))

#endif
