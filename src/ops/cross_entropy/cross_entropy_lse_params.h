// SPDX-License-Identifier: Apache-2.0
// When backward recomputes a row's sum. Both compilers read this file: no library headers.
#ifndef TSRI_CROSS_ENTROPY_LSE_PARAMS_H
#define TSRI_CROSS_ENTROPY_LSE_PARAMS_H

// Rounding lse changes every probability p by up to 2^-24 |lse|; with the error of an exponential, it changes the
// target's p by 2^-24 (16 + |lse|). That is too much if |lse| is large, or relative to 1 - p if p is near 1. With below
// = lse - x of the target, 1 - p is at least below / (1 + below). size is |lse|. A NaN passes the test, because it
// reaches the whole row anyway.
#define CROSS_ENTROPY_LSE_IS_ENOUGH(is_f32, size, below)                                           \
    (!((size) > ((is_f32) ? 64.0f : 1024.0f)) &&                                                   \
     !((below) < (16 + (size)) * ((is_f32) ? 0.01f : 0x1p-14f) * (1 + (below))))

#endif
