// SPDX-License-Identifier: Apache-2.0
// What the kernels of sample share: the definition of sample_weight_params.h with the host's bits, a row's options, its numbers in
// groups. A row may begin anywhere: group g has the 16 bytes of lane l at 512 g + 16 l from the multiple of 16 bytes at or before
// the row's begin, so that only a row's first and last units need care.
#ifndef TSRI_SAMPLE_DEVICE_CUH
#define TSRI_SAMPLE_DEVICE_CUH

#include "cuda/device/any_dtype.cuh"

#define SAMPLE_FUNCTION DEVICE
#define SAMPLE_ADD(a, b) __fadd_rn(a, b)
#define SAMPLE_MUL(a, b) __fmul_rn(a, b)
#define SAMPLE_DIV(a, b) __fdiv_rn(a, b)
#define SAMPLE_MAX(a, b) fmaxf(a, b)
#define SAMPLE_ROUND(x) rintf(x)
#define SAMPLE_SCALED(p, t) __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23))
#include "ops/sample/sample_weight_params.h"

#include "ops/sample/sample_params.h"

#define LANE ((int)(threadIdx.x % 32))
#define WARP ((int)(threadIdx.x / 32))
#define ALL_LANES 0xffffffffu
#define NOT_A_NUMBER __int_as_float(0xffc00000)

enum { KEY_OF_MINUS_INF = 0x007fffff, KEY_OF_NAN = -1 };

DEVICE unsigned key_of(float z) { return sample_key(__float_as_uint(z)); }
DEVICE float float_of_key(unsigned key) { return __uint_as_float(sample_bits_of_key(key)); }

// ---- A block's slice ----------------------------------------------------------------------------

struct slice {
    long long row;
    int index, first, last; // groups
};

DEVICE struct slice slice_of(const struct sample_params *p, long long task) {
    struct slice s = {task / p->num_slices, (int)(task % p->num_slices), 0, 0};
    s.first = (int)((long long)p->num_groups * s.index / p->num_slices);
    s.last = (int)((long long)p->num_groups * (s.index + 1) / p->num_slices);
    return s;
}

// ---- Options ----------------------------------------------------------------------------------

DEVICE struct sample_options options_of(const struct sample_params *p, long long row) {
    struct sample_options o = p->given;
    if (p->temperature != 0) o.temperature = p->temperature[row];
    if (p->top_p != 0) o.top_p = p->top_p[row];
    if (p->min_p != 0) o.min_p = p->min_p[row];
    if (p->repetition_penalty != 0)
        o.repetition_penalty = sample_repetition_penalty(p->repetition_penalty[row]);
    if (p->presence_penalty != 0) o.presence_penalty = p->presence_penalty[row];
    if (p->frequency_penalty != 0) o.frequency_penalty = p->frequency_penalty[row];
    if (p->top_k != 0) o.top_k = p->top_k[row];
    return o;
}

DEVICE int has_top_k(const struct sample_params *p, const struct sample_options *o) {
    return o->top_k > 0 && o->top_k < p->vocab;
}

// ---- Numbers ----------------------------------------------------------------------------------

// The elements of a row before its begin, back to a multiple of 16 bytes.
DEVICE int lead_of(const struct sample_numbers *n, long long row) {
    const unsigned long long at =
        (unsigned long long)n->x + (unsigned long long)(row * n->stride) * ELEMENT_BYTES;
    return (int)(at % 16 / ELEMENT_BYTES);
}

// The first column of this lane in a group; it may be negative.
DEVICE int col_of(int group, int lead) { return (group * 32 + LANE) * GROUP - lead; }

// A unit of 16 bytes; -inf beyond the row.
DEVICE void load_unit(float z[GROUP], const struct sample_numbers *n, long long row, int col,
                      int vocab) {
    const long long at = row * n->stride + col;
    if (col >= 0 && col + GROUP <= vocab) {
        widen(load_bytes(n->x, at), z);
    } else {
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            z[i] = col + i >= 0 && col + i < vocab ? load(n->x, at + i) : -INFINITE;
    }
}

// The same of a row without NaN, as z.
DEVICE void load_numbers(float z[GROUP], const struct sample_numbers *n, long long row, int col,
                         int vocab) {
    load_unit(z, n, row, col, vocab);
#pragma unroll
    for (int i = 0; i < GROUP; i++) z[i] = fminf(z[i], SAMPLE_LARGEST);
}

// The key of a row's largest number. All lanes call it.
DEVICE unsigned largest_key(const struct sample_params *p, const struct sample_numbers *n,
                            long long row) {
    const unsigned mine = LANE < p->num_slices ? n->slice_key[row * p->num_slices + LANE] : 0;
    return __reduce_max_sync(ALL_LANES, mine);
}

// Whether a token is drawn: a row with an option out of range, a NaN, or no token gives none.
DEVICE int is_drawn(const struct sample_options *o, unsigned largest) {
    return sample_are_options_valid(o) && largest != (unsigned)KEY_OF_NAN &&
           largest > KEY_OF_MINUS_INF && o->temperature > 0;
}

// ---- Sums -------------------------------------------------------------------------------------

DEVICE unsigned long long weight_of(float z, float max, float scale) {
    return (unsigned long long)sample_weight(z, max, scale);
}

DEVICE unsigned long long add_lanes(unsigned long long x) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(ALL_LANES, x, i);
    return x;
}

// The sum of this lane's and the lower lanes' numbers.
DEVICE unsigned long long add_lower_lanes(unsigned long long x) {
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        const unsigned long long below = __shfl_up_sync(ALL_LANES, x, i);
        if (LANE >= i) x += below;
    }
    return x;
}

#endif
