// SPDX-License-Identifier: Apache-2.0
// AVX512-BF16, and AMX by functions of emulated_cpu.c, for this folder's immintrin.h.
#ifndef EMULATED_BF16_H
#define EMULATED_BF16_H

// These units treat subnormal operands and results as 0.
EMULATED emulated_floats emulated_flush(emulated_floats x) {
    emulated_ints bits = (emulated_ints)x, is_subnormal = (bits & 0x7f800000) == 0;
    return (emulated_floats)emulated_select(is_subnormal, bits & (int32_t)0x80000000, bits);
}
EMULATED emulated_floats emulated_even(__m512i pairs) {
    return emulated_flush((emulated_floats)_mm512_slli_epi32(pairs, 16));
}
EMULATED emulated_floats emulated_odd(__m512i pairs) {
    return emulated_flush((emulated_floats)((emulated_ints)pairs & (int32_t)0xffff0000));
}
EMULATED emulated_floats emulated_add_product(emulated_floats sum, emulated_floats a,
                                              emulated_floats b) {
    return emulated_flush((emulated_floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum));
}
// Adds the odd products before the even ones.
EMULATED __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
    __m512i x = (__m512i)a, y = (__m512i)b;
    emulated_floats s = emulated_flush((emulated_floats)sum);
    s = emulated_add_product(s, emulated_odd(x), emulated_odd(y));
    return (__m512)emulated_add_product(s, emulated_even(x), emulated_even(y));
}

// Rounds to nearest even. NaNs keep their upper bits and become quiet.
EMULATED emulated_ints emulated_round_bf16(__m512 x) {
    typedef uint32_t words __attribute__((vector_size(64)));
    emulated_ints bits = (emulated_ints)emulated_flush((emulated_floats)x);
    words rounded = (words)bits + 0x7fff + ((words)bits >> 16 & 1);
    return emulated_select(emulated_is_nan(x), bits | 0x400000, (emulated_ints)rounded);
}
EMULATED __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
    emulated_ints upper = emulated_round_bf16(high), lower = emulated_round_bf16(low);
    uint16_t y[32];
    LANES(16) y[i] = (uint16_t)((uint32_t)lower[i] >> 16);
    LANES(16) y[16 + i] = (uint16_t)((uint32_t)upper[i] >> 16);
    return (__m512bh)_mm512_loadu_si512(y);
}

// ---- AMX -----------------------------------------------------------------------------------------

// Each thread has its own tiles. Using an unconfigured tile is a fault, as on the processor.
void emulated_tile_configure(const void *config);
void emulated_tile_release(void);
void emulated_tile_zero(int tile);
void emulated_tile_load(int tile, const void *base, int64_t stride);
void emulated_tile_store(int tile, void *base, int64_t stride);
void emulated_tile_product(int sums, int a, int b);

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated_tile_configure
#define _tile_release emulated_tile_release
#define _tile_loadd emulated_tile_load
#define _tile_stream_loadd emulated_tile_load
#define _tile_stored emulated_tile_store
#define _tile_zero emulated_tile_zero
#define _tile_dpbf16ps emulated_tile_product

#endif
