// SPDX-License-Identifier: Apache-2.0
// Words of 4 bytes: one f32 or two 16-bit elements; and groups of a vector's columns that begin anywhere.
#ifndef TSRI_DEVICE_WORDS_CUH
#define TSRI_DEVICE_WORDS_CUH

#include "cuda/device/numbers.cuh"

#if DTYPE == DTYPE_F32
#define PER_WORD 1
#else
#define PER_WORD 2
#endif

// Whether a row begins in the middle of a word.
DEVICE int is_odd(const void *data, long long at) {
    return PER_WORD == 2 ? (int)((unsigned long long)data / 2 + (unsigned long long)at) & 1 : 0;
}

DEVICE void widen_word(unsigned raw, float x[PER_WORD]) {
#if DTYPE == DTYPE_F32
    x[0] = __uint_as_float(raw);
#else
    x[0] = float_of_half(raw & 0xffff);
    x[1] = float_of_half(raw >> 16);
#endif
}

DEVICE unsigned narrow_word(const float x[PER_WORD]) {
#if DTYPE == DTYPE_F32
    return __float_as_uint(x[0]);
#else
    return pair_of_floats(x[0], x[1]);
#endif
}

// GROUP words of a row's neighbourhood become those that begin `ahead` words later, 0 to 3.
DEVICE void move_words(unsigned *words, int count, int ahead) {
#pragma unroll
    for (int i = 0; i + 2 < count; i++) words[i] = ahead & 2 ? words[i + 2] : words[i];
#pragma unroll
    for (int i = 0; i + 1 < count; i++) words[i] = ahead & 1 ? words[i + 1] : words[i];
}

DEVICE void put_group(unsigned *words, uint4 raw) {
    words[0] = raw.x, words[1] = raw.y, words[2] = raw.z, words[3] = raw.w;
}

// Columns [col, col + GROUP) of a vector of `cols` columns, which need not begin at a multiple of 16 bytes: from the groups of 16
// bytes that hold them, unless those reach beyond the vector.
DEVICE void load_floats_near(float x[GROUP], const float *vector, int col, int cols) {
    const int ahead = (int)((unsigned long long)(vector + col) / 4 % 4), from = col - ahead;
    unsigned words[GROUP + 4];
    if (from < 0 || from + GROUP + 4 > cols) {
#pragma unroll
        for (int i = 0; i < GROUP; i++) x[i] = vector[col + i];
        return;
    }
#pragma unroll
    for (int i = 0; i < GROUP + 4; i += 4)
        put_group(words + i, *(const uint4 *)(const void *)(vector + from + i));
    move_words(words, GROUP + 4, ahead);
#pragma unroll
    for (int i = 0; i < GROUP; i++) x[i] = __uint_as_float(words[i]);
}

DEVICE void load_group_near(float x[GROUP], const void *vector, int col, int cols, int is_f32) {
#if PER_WORD == 2
    const int ahead = (int)(((unsigned long long)vector / 2 + (unsigned)col) % GROUP),
              from = col - ahead;
    unsigned words[8];
    if (is_f32) {
        load_floats_near(x, (const float *)vector, col, cols);
    } else if (from < 0 || from + 2 * GROUP > cols) {
#pragma unroll
        for (int i = 0; i < GROUP; i++) x[i] = load(vector, col + i);
    } else {
        put_group(words, *(const uint4 *)((const char *)vector + (long long)from * 2));
        put_group(words + 4, *(const uint4 *)((const char *)vector + (long long)from * 2 + 16));
        move_words(words, 8, ahead / 2);
#pragma unroll
        for (int i = 0; i < 4; i++)
            words[i] = ahead & 1 ? __byte_perm(words[i], words[i + 1], 0x5432) : words[i];
        widen(make_uint4(words[0], words[1], words[2], words[3]), x);
    }
#else
    load_floats_near(x, (const float *)vector, col, cols);
#endif
}

#endif
