// SPDX-License-Identifier: Apache-2.0
// When backward sums a row's scores anew, and what it makes of the sum. Read by both compilers: no headers, no typedefs.
#ifndef TSRI_ATTENTION_LSE_PARAMS_H
#define TSRI_ATTENTION_LSE_PARAMS_H

// Half an ulp of an |lse| below these moves a weight by 2^-18 at most, by 2^-15 beside products of 16 bits.
#define ATTENTION_LEAST_COARSE(is_f32) ((is_f32) ? 128.0f : 1024.0f)

// How far an lse may be from that of backward's scores, beside its size: its own rounding, and that of scores which forward
// summed in another order. 2^-19.
#define ATTENTION_LSE_ROUNDING 1.9073486328125e-6f

#endif
