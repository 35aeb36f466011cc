// SPDX-License-Identifier: Apache-2.0
// When backward sums a row's scores again, and whether it uses the sum. Read by both compilers: no headers, no typedefs.
#ifndef TSRI_ATTENTION_LSE_PARAMS_H
#define TSRI_ATTENTION_LSE_PARAMS_H

// For |lse| below these values half an ulp of lse changes a weight by at most 2^-18, with products of 16 bits by at most 2^-15.
#define ATTENTION_LEAST_COARSE(is_f32) ((is_f32) ? 128.0f : 1024.0f)

// The largest relative distance between the given lse and the sum of backward's scores that rounding explains: lse is rounded, and
// forward sums in another order. 2^-19.
#define ATTENTION_LSE_ROUNDING 1.9073486328125e-6f

#endif
