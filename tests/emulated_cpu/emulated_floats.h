// SPDX-License-Identifier: Apache-2.0
// Arithmetic of AVX-512, for this folder's immintrin.h.
#ifndef EMULATED_FLOATS_H
#define EMULATED_FLOATS_H

// An AVX2 operation on each half.
#define EMULATED_HALVES(call_low, call_high)                                                       \
    (__m512) emulated_whole((__m256i)(call_low), (__m256i)(call_high))
#define LOW(x) ((__m256)emulated_half((__m512i)(x), 0))
#define HIGH(x) ((__m256)emulated_half((__m512i)(x), 1))

EMULATED __m512 _mm512_set1_ps(float x) {
    return EMULATED_HALVES(_mm256_set1_ps(x), _mm256_set1_ps(x));
}
EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    return EMULATED_HALVES(_mm256_fmadd_ps(LOW(a), LOW(b), LOW(c)),
                           _mm256_fmadd_ps(HIGH(a), HIGH(b), HIGH(c)));
}
EMULATED __m512 _mm512_fmsub_ps(__m512 a, __m512 b, __m512 c) {
    return EMULATED_HALVES(_mm256_fmsub_ps(LOW(a), LOW(b), LOW(c)),
                           _mm256_fmsub_ps(HIGH(a), HIGH(b), HIGH(c)));
}
EMULATED __m512 _mm512_fnmadd_ps(__m512 a, __m512 b, __m512 c) {
    return EMULATED_HALVES(_mm256_fnmadd_ps(LOW(a), LOW(b), LOW(c)),
                           _mm256_fnmadd_ps(HIGH(a), HIGH(b), HIGH(c)));
}
EMULATED __m512 _mm512_max_ps(__m512 a, __m512 b) {
    return EMULATED_HALVES(_mm256_max_ps(LOW(a), LOW(b)), _mm256_max_ps(HIGH(a), HIGH(b)));
}
EMULATED __m512 _mm512_min_ps(__m512 a, __m512 b) {
    return EMULATED_HALVES(_mm256_min_ps(LOW(a), LOW(b)), _mm256_min_ps(HIGH(a), HIGH(b)));
}
EMULATED __m512 _mm512_sqrt_ps(__m512 x) {
    return EMULATED_HALVES(_mm256_sqrt_ps(LOW(x)), _mm256_sqrt_ps(HIGH(x)));
}
EMULATED __m512 _mm512_and_ps(__m512 a, __m512 b) {
    return (__m512)((emulated_ints)a & (emulated_ints)b);
}
EMULATED __m512 _mm512_or_ps(__m512 a, __m512 b) {
    return (__m512)((emulated_ints)a | (emulated_ints)b);
}
EMULATED __m512 _mm512_andnot_ps(__m512 a, __m512 b) {
    return (__m512)(~(emulated_ints)a & (emulated_ints)b);
}
EMULATED __m512 _mm512_abs_ps(__m512 x) { return (__m512)((emulated_ints)x & 0x7fffffff); }

// The quiet predicates that src/ uses.
EMULATED __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int predicate) {
    switch (predicate) {
    case _CMP_LT_OQ: return emulated_mask((emulated_ints)(a < b));
    case _CMP_GT_OQ: return emulated_mask((emulated_ints)(a > b));
    case _CMP_EQ_OQ: return emulated_mask((emulated_ints)(a == b));
    case _CMP_NLT_UQ: return emulated_mask(~(emulated_ints)(a < b));
    case _CMP_ORD_Q: return emulated_mask((emulated_ints)(a == a) & (emulated_ints)(b == b));
    default: __builtin_trap();
    }
}
EMULATED __mmask16 _mm512_mask_cmp_ps_mask(__mmask16 mask, __m512 a, __m512 b, int predicate) {
    return mask & _mm512_cmp_ps_mask(a, b, predicate);
}

// Only rounding to the nearest integer.
EMULATED __m512 _mm512_roundscale_ps(__m512 x, int mode) {
    if (mode != (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)) __builtin_trap();
    return EMULATED_HALVES(_mm256_round_ps(LOW(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                           _mm256_round_ps(HIGH(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

EMULATED emulated_ints emulated_is_nan(__m512 x) {
    return ((emulated_ints)x & 0x7fffffff) > 0x7f800000;
}
EMULATED emulated_ints emulated_is_quiet(__m512 x) {
    return ((emulated_ints)x & 0x7fffffff) >= 0x7fc00000;
}

// The lesser or the greater magnitude, without sign: controls 1010 and 1011. If one operand is a quiet NaN the other is
// the result; a signaling NaN becomes quiet and is the result.
EMULATED __m512 _mm512_range_ps(__m512 a, __m512 b, int control) {
    if (control != 0xa && control != 0xb) __builtin_trap();
    emulated_ints x = (emulated_ints)a & 0x7fffffff, y = (emulated_ints)b & 0x7fffffff;
    emulated_ints is_a = control == 0xa ? x <= y : x >= y;
    is_a = emulated_select(emulated_is_nan(b), ~(x & 0),
                           emulated_select(emulated_is_nan(a), x & 0, is_a));
    emulated_ints chosen = emulated_select(is_a, x, y);
    emulated_ints a_signals = emulated_is_nan(a) & ~emulated_is_quiet(a);
    emulated_ints b_signals = emulated_is_nan(b) & ~emulated_is_quiet(b);
    chosen = emulated_select(b_signals, (emulated_ints)b | 0x400000, chosen);
    return (__m512)emulated_select(a_signals, (emulated_ints)a | 0x400000, chosen);
}

// 1 / x with the instruction's largest allowed error, 2^-14 relative: it has only thirteen bits. If 1 / x is subnormal
// the error is larger, but nothing here needs that.
EMULATED __m512 _mm512_rcp14_ps(__m512 x) {
    emulated_ints inverse = (emulated_ints)(1.0f / (emulated_floats)x);
    emulated_ints is_finite = (inverse & 0x7f800000) != 0x7f800000;
    return (__m512)emulated_select(is_finite, (inverse + 0x200) & ~0x3ff, inverse);
}

// x - floor(x), 0 for infinities: control 0x09; 0x59 takes the floor in steps of 1/32. It rounds to nearest, where the
// processor rounds down: a tiny negative x gives 1 here and the number before 1 there.
EMULATED __m512 _mm512_reduce_ps(__m512 x, int control) {
    if (control != 0x09 && control != 0x59) __builtin_trap();
    float steps = control == 0x59 ? 32.0f : 1.0f;
    __m512 scaled = (__m512)((emulated_floats)x * steps);
    __m512 floor = EMULATED_HALVES(_mm256_floor_ps(LOW(scaled)), _mm256_floor_ps(HIGH(scaled)));
    emulated_floats part = (emulated_floats)x - (emulated_floats)floor / steps;
    emulated_ints magnitude =
        (emulated_ints)x & 0x7fffffff; // from 2^24 on x is whole, also infinity
    emulated_ints is_whole = (magnitude >= 0x4b800000) & (magnitude <= 0x7f800000);
    return (__m512)(~is_whole & (emulated_ints)part);
}

// The sum rounded down: if rounding to nearest, whose error is a float, increased the sum, the previous number.
EMULATED __m512 _mm512_add_round_ps(__m512 a, __m512 b, int rounding) {
    if (rounding != (_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)) __builtin_trap();
    emulated_floats sum = (emulated_floats)a + (emulated_floats)b;
    LANES(16) {
        float x = ((emulated_floats)a)[i], y = ((emulated_floats)b)[i], of_y = sum[i] - x;
        float lost = (x - (sum[i] - of_y)) + (y - of_y); // error of the rounded sum
        if (!(sum[i] - sum[i] == 0 && lost < 0)) continue;
        int32_t bits;
        memcpy(&bits, (const char *)&sum + 4 * i, sizeof bits);
        bits += bits > 0 ? -1 : 1;
        memcpy((char *)&sum + 4 * i, &bits, sizeof bits);
    }
    return (__m512)sum;
}

// x 2^floor(n), rounded once. Combinations of infinities and zeros without a value give NaN. If n is infinite, a quiet
// NaN x disappears.
EMULATED float emulated_scale(float x, float n) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int is_signaling = (bits & 0x7fffffff) > 0x7f800000 && !(bits & 0x400000);
    if (n != n) return x != x ? x + x : n + n;
    if (x != x && !is_signaling && n - n != 0.0f) return n > 0.0f ? __builtin_inff() : 0.0f;
    if (x != x) return x + x;
    float floored = __builtin_floorf(n);
    floored = floored > 400.0f ? 400.0f : floored < -400.0f ? -400.0f : floored;
    if (x == 0.0f && n > 3.4e38f && n - n != 0.0f) return -__builtin_nanf("");
    if (x - x != 0.0f && n < -3.4e38f && n - n != 0.0f) return -__builtin_nanf("");
    uint64_t power = (uint64_t)(1023 + (int)floored) << 52;
    double scale;
    memcpy(&scale, &power, sizeof scale);
    return (float)((double)x * scale);
}
EMULATED __m512 _mm512_scalef_ps(__m512 x, __m512 n) {
    __m512 y;
    LANES(16) y[i] = emulated_scale(x[i], n[i]);
    return y;
}
EMULATED __m512 _mm512_maskz_scalef_ps(__mmask16 mask, __m512 x, __m512 n) {
    return _mm512_maskz_mov_ps(mask, _mm512_scalef_ps(x, n));
}

// The kind of b's lane (quiet NaN, signaling, 0, 1, -inf, inf, negative, positive) selects four bits of the table: 0
// keeps a, 1 gives b, 2 gives b as a quiet NaN, 3 the default NaN.
EMULATED __m512 _mm512_fixupimm_ps(__m512 a, __m512 b, __m512i table, int flags) {
    (void)flags;
    __m512 y = a;
    LANES(16) {
        float x = b[i];
        uint32_t bits = (uint32_t)((emulated_ints)b)[i], of = (uint32_t)((emulated_ints)table)[i];
        int kind = x != x          ? !(bits & 0x400000)
                   : x == 0.0f     ? 2
                   : x == 1.0f     ? 3
                   : x - x != 0.0f ? x < 0.0f ? 4 : 5
                   : x < 0.0f      ? 6
                                   : 7;
        uint32_t fixed;
        switch (of >> 4 * kind & 15) {
        case 0: continue;
        case 1: fixed = bits; break;
        case 2: fixed = bits | 0x7fc00000; break;
        case 3: fixed = 0xffc00000; break;
        default: __builtin_trap();
        }
        memcpy((char *)&y + 4 * i, &fixed, sizeof fixed);
    }
    return y;
}

EMULATED __m512 _mm512_cvtph_ps(__m256i x) {
    return EMULATED_HALVES(_mm256_cvtph_ps(_mm256_castsi256_si128(x)),
                           _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}
EMULATED __m256i _mm512_cvtps_ph(__m512 x, int mode) {
    if (mode != (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)) __builtin_trap();
    return _mm256_set_m128i(_mm256_cvtps_ph(HIGH(x), _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(LOW(x), _MM_FROUND_TO_NEAREST_INT));
}

EMULATED __m256 _mm512_castps512_ps256(__m512 x) { return LOW(x); }
EMULATED __m256 _mm512_extractf32x8_ps(__m512 x, int half) { return half == 0 ? LOW(x) : HIGH(x); }
#undef LOW
#undef HIGH

#endif
