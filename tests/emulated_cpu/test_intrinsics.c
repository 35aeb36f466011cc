// SPDX-License-Identifier: Apache-2.0
// The results of the intrinsics for important inputs, as in Intel's manual. Built with the emulated intrinsics, and
// with the compiler's, which are skipped if the processor lacks AVX-512.
// clang-format off
#include <setjmp.h> // cmocka.h needs these four first
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <immintrin.h>
#include <math.h>
#include <string.h>

enum { LANES_OF_ALL = 16 };

static float lane(__m512 x, int i) {
    float y[LANES_OF_ALL];
    _mm512_storeu_ps(y, x);
    return y[i];
}
static uint32_t bits_of(__m512 x, int i) {
    float y = lane(x, i);
    uint32_t bits;
    memcpy(&bits, &y, sizeof bits);
    return bits;
}
static __m512 with_bits(uint32_t bits) { return _mm512_castsi512_ps(_mm512_set1_epi32((int)bits)); }
static __m512 counted(float first) {
    float x[LANES_OF_ALL];
    for (int i = 0; i < LANES_OF_ALL; i++) x[i] = first + (float)i;
    return _mm512_loadu_ps(x);
}
static void assert_lanes(__m512 x, const float *expected) {
    for (int i = 0; i < LANES_OF_ALL; i++)
        if (lane(x, i) != expected[i])
            fail_msg("lane %d is %g, not %g", i, (double)lane(x, i), (double)expected[i]);
}

static float scaled(float x, float n) {
    return lane(_mm512_scalef_ps(_mm512_set1_ps(x), _mm512_set1_ps(n)), 5);
}
static void scalef_takes_the_floor_and_rounds_once(void **state) {
    (void)state;
    assert_true(scaled(1.5f, 3.0f) == 12.0f && scaled(1.0f, -0.5f) == 0.5f);
    assert_true(scaled(1.0f, -149.0f) == 0x1p-149f && scaled(1.0f, -150.0f) == 0.0f);
    assert_true(scaled(1.5f, -149.0f) == 0x1p-148f && scaled(1.25f, -149.0f) == 0x1p-149f);
    assert_true(scaled(1.0f, 128.0f) == INFINITY && scaled(0x1p-149f, 276.0f) == 0x1p127f);
    assert_true(scaled(1.0f, -INFINITY) == 0.0f && scaled(-1.0f, INFINITY) == -INFINITY);
    assert_true(isnan(scaled(1.0f, NAN)) && isnan(scaled(NAN, 1.0f)));
    assert_true(isnan(scaled(0.0f, INFINITY)) && isnan(scaled(INFINITY, -INFINITY)));
}

static void range_compares_magnitudes(void **state) {
    (void)state;
    const struct {
        float a, b, least, most;
    } rows[] = {{-3, 2, 2, 3},
                {1, -5, 1, 5},
                {NAN, 4, 4, 4},
                {-INFINITY, 7, 7, INFINITY},
                {-0.0f, 1, 0, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        __m512 a = _mm512_set1_ps(rows[i].a), b = _mm512_set1_ps(rows[i].b);
        assert_true(lane(_mm512_range_ps(a, b, 0xa), 3) == rows[i].least);
        assert_true(lane(_mm512_range_ps(a, b, 0xb), 3) == rows[i].most);
        assert_int_equal(bits_of(_mm512_range_ps(a, b, 0xa), 3) >> 31, 0);
    }
    assert_true(isnan(lane(_mm512_range_ps(_mm512_set1_ps(NAN), _mm512_set1_ps(NAN), 0xa), 0)));
}

static void fixupimm_mends_nans_alone(void **state) {
    (void)state;
    __m512 one = _mm512_set1_ps(1.0f), quiet = with_bits(0xffc12345),
           signaling = with_bits(0x7f812345);
    __m512i keep = _mm512_set1_epi32(0x22), standard = _mm512_set1_epi32(0x33);
    assert_int_equal(bits_of(_mm512_fixupimm_ps(one, quiet, keep, 0), 1), 0xffc12345);
    assert_int_equal(bits_of(_mm512_fixupimm_ps(one, signaling, keep, 0), 1), 0x7fc12345);
    assert_int_equal(bits_of(_mm512_fixupimm_ps(one, signaling, standard, 0), 15), 0xffc00000);
    const float numbers[] = {0.0f, -0.0f, 1.0f, -2.0f, INFINITY, -INFINITY, 0x1p-140f};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        assert_true(lane(_mm512_fixupimm_ps(one, _mm512_set1_ps(numbers[i]), standard, 0), 2) ==
                    1.0f);
}

static void estimates_and_fractions(void **state) {
    (void)state;
    for (float x = 1.0f; x < 2.0f; x += 0.001f) {
        float y = lane(_mm512_rcp14_ps(_mm512_set1_ps(x)), 7);
        assert_true(fabs((double)y * (double)x - 1.0) <= 0x1p-14);
    }
    const float x[] = {2.75f, -2.75f, 5.0f, INFINITY, -INFINITY}, y[] = {0.75f, 0.25f, 0, 0, 0};
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++)
        assert_true(lane(_mm512_reduce_ps(_mm512_set1_ps(x[i]), 0x09), 7) == y[i]);
    assert_true(isnan(lane(_mm512_reduce_ps(_mm512_set1_ps(NAN), 0x09), 7)));
    const float fine[] = {2.75f + 0x1p-7f, -0x1p-7f, 5.03125f, INFINITY, -INFINITY, -3e38f};
    const float rest[] = {0x1p-7f, 0x3p-7f, 0, 0, 0, 0}; // x minus a multiple of 1/32
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++)
        assert_true(lane(_mm512_reduce_ps(_mm512_set1_ps(fine[i]), 0x59), 7) == rest[i]);
    assert_true(isnan(lane(_mm512_reduce_ps(_mm512_set1_ps(NAN), 0x59), 7)));
}

static float rounded_down(float a, float b) {
    return lane(_mm512_add_round_ps(_mm512_set1_ps(a), _mm512_set1_ps(b),
                                    _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC),
                9);
}
static void sums_round_down(void **state) {
    (void)state;
    assert_true(rounded_down(0x1.8p18f, 0x1.fp-5f) == 0x1.8p18f + 0x1p-5f);
    assert_true(rounded_down(0x1.8p18f, -0x1p-30f) == 0x1.8p18f - 0x1p-5f);
    assert_true(rounded_down(0x1.8p18f, -0x1p-40f) == 0x1.8p18f - 0x1p-5f);
    assert_true(rounded_down(-0x1p-149f, 0x1.8p18f) == 0x1.8p18f - 0x1p-5f);
    assert_true(rounded_down(0x1.8p18f, 1e-30f) == 0x1.8p18f);
    assert_true(rounded_down(-0x1.8p18f, -0x1p-30f) == -0x1.8p18f - 0x1p-5f);
    assert_true(rounded_down(1.0f, 2.0f) == 3.0f && rounded_down(-1.0f, 0.25f) == -0.75f);
    assert_true(rounded_down(1.0f, -INFINITY) == -INFINITY && isnan(rounded_down(1.0f, NAN)));
    assert_lanes(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                 (float[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
}

static void lanes_go_where_they_should(void **state) {
    (void)state;
    __m512 a = counted(0), b = counted(16);
    assert_lanes(_mm512_unpacklo_ps(a, b),
                 (float[]){0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29});
    assert_lanes(_mm512_unpackhi_ps(a, b),
                 (float[]){2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31});
    assert_lanes(_mm512_shuffle_ps(a, b, 0x4e),
                 (float[]){2, 3, 16, 17, 6, 7, 20, 21, 10, 11, 24, 25, 14, 15, 28, 29});
    assert_lanes(_mm512_shuffle_f32x4(a, b, 0xd8),
                 (float[]){0, 1, 2, 3, 8, 9, 10, 11, 20, 21, 22, 23, 28, 29, 30, 31});
    __m128 quarter = _mm512_castps512_ps128(b);
    assert_lanes(_mm512_zextps128_ps512(quarter),
                 (float[]){16, 17, 18, 19, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
    assert_lanes(_mm512_mask_broadcast_f32x4(a, 0x0f21, quarter),
                 (float[]){16, 1, 2, 3, 4, 17, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15});
    __m512i at = _mm512_setr_epi32(31, 0, 16, 15, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 32);
    assert_lanes(_mm512_permutex2var_ps(a, at, b),
                 (float[]){31, 0, 16, 15, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0});
    assert_int_equal(_mm512_cmp_ps_mask(a, _mm512_set1_ps(3.0f), _CMP_LT_OQ), 7);
    assert_int_equal(_mm512_cmp_ps_mask(a, _mm512_set1_ps(3.0f), _CMP_EQ_OQ), 8);
    assert_int_equal(_mm512_cmp_ps_mask(a, _mm512_set1_ps(3.0f), _CMP_NLT_UQ), 0xfff8);
    assert_int_equal(_mm512_cmp_ps_mask(a, _mm512_set1_ps(NAN), _CMP_NLT_UQ), 0xffff);
    assert_int_equal(_mm512_mask_cmp_ps_mask(0xf7ff, b, a, _CMP_ORD_Q), 0xf7ff);
    assert_int_equal(_mm512_mask_cmp_ps_mask(0xffff, b, _mm512_set1_ps(NAN), _CMP_ORD_Q), 0);
    assert_lanes(_mm512_mask_blend_ps(0x8001, a, b),
                 (float[]){16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 31});
    // Joins two halves of bytes: the high 16 bits of a's lanes below those of b's.
    __m512i order = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
    __m512i joined = _mm512_mask_shuffle_epi8(_mm512_set1_epi32(0x11112222), 0x3333333333333333,
                                              _mm512_set1_epi32(0x33334444), order);
    assert_int_equal(bits_of(_mm512_castsi512_ps(joined), 9), 0x11113333);
    // Elements alternate in each 128-bit lane.
    __m512i even = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(0x500020));
    __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
    assert_int_equal(bits_of(_mm512_castsi512_ps(low), 0), 0x200000);
    assert_int_equal(bits_of(_mm512_castsi512_ps(low), 1), 0x500000);
    assert_int_equal(bits_of(_mm512_castsi512_ps(low), 14), 0x2d000d);
    assert_int_equal(bits_of(_mm512_castsi512_ps(high), 4), 0x260006);
    assert_int_equal(bits_of(_mm512_castsi512_ps(high), 15), 0x500000);
}

static void words_multiply_and_merge(void **state) {
    (void)state;
    __m512i a = _mm512_setr_epi32(-1, 3, 5, -7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 9);
    __m512i product = _mm512_mul_epu32(a, _mm512_set1_epi32(-2));
    assert_int_equal(bits_of(_mm512_castsi512_ps(product), 0), 2); // (2^32 - 1) (2^32 - 2)
    assert_int_equal(bits_of(_mm512_castsi512_ps(product), 1), 0xfffffffd);
    assert_int_equal(bits_of(_mm512_castsi512_ps(product), 14), 0xfffffffc);
    assert_int_equal(bits_of(_mm512_castsi512_ps(_mm512_srli_epi64(product, 32)), 14), 1);
    assert_int_equal(bits_of(_mm512_castsi512_ps(_mm512_srli_epi64(product, 32)), 15), 0);
    __m512i twos = _mm512_mask_shuffle_epi32(a, 0xaaaa, _mm512_set1_epi32(8), _MM_PERM_CCAA);
    assert_int_equal(bits_of(_mm512_castsi512_ps(twos), 0), 0xffffffff);
    assert_int_equal(bits_of(_mm512_castsi512_ps(twos), 1), 8);
    twos = _mm512_mask_shuffle_epi32(a, 0x5555, a, _MM_PERM_DDBB);
    assert_int_equal(bits_of(_mm512_castsi512_ps(twos), 0), 3);
    assert_int_equal(bits_of(_mm512_castsi512_ps(twos), 2), (uint32_t)-7);
    assert_int_equal(bits_of(_mm512_castsi512_ps(twos), 14), 9);
    __m512i x = _mm512_set1_epi32(0x0f0f3355);
    __m512i y = _mm512_ternarylogic_epi32(x, _mm512_set1_epi32(0x00ff0f33), a, 0x96);
    assert_int_equal(bits_of(_mm512_castsi512_ps(y), 1), 0x0f0f3355u ^ 0x00ff0f33u ^ 3u);
    y = _mm512_ternarylogic_epi32(x, a, a, 0xf0);
    assert_int_equal(bits_of(_mm512_castsi512_ps(y), 7), 0x0f0f3355);
    assert_int_equal(_mm512_cmpgt_epu32_mask(a, _mm512_set1_epi32(4)), 0x800d);
    const __m128i bytes = _mm_setr_epi8(-128, 127, 0, 1, 2, 3, 4, -5, -6, 7, 8, 9, 10, 11, 12, -13);
    const __m512 numbers = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    assert_lanes(numbers, (float[]){-128, 127, 0, 1, 2, 3, 4, -5, -6, 7, 8, 9, 10, 11, 12, -13});
    __m512 n = _mm512_setr_ps(1, -127, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    __m512 scaled_by = _mm512_maskz_scalef_ps(5, _mm512_set1_ps(1.5f), n);
    assert_lanes(scaled_by, (float[]){3, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
}

static void bf16_units_flush_and_round(void **state) {
    (void)state;
    // Lanes of pairs: 2 (low) and 3 (high) times 5 and 7. A subnormal counts as 0.
    __m512bh x = (__m512bh)_mm512_set1_epi32(0x40404000),
             y = (__m512bh)_mm512_set1_epi32(0x40e040a0);
    assert_true(lane(_mm512_dpbf16_ps(_mm512_set1_ps(100.0f), x, y), 4) == 131.0f);
    __m512bh tiny = (__m512bh)_mm512_set1_epi32(0x00010001),
             large = (__m512bh)_mm512_set1_epi32(0x7f007f00);
    assert_true(lane(_mm512_dpbf16_ps(_mm512_set1_ps(0x1p-130f), tiny, large), 4) == 0.0f);
    // Ties round to even, above half rounds up, NaNs become quiet. The lanes of `high` are in the upper half.
    __m512i pairs = (__m512i)_mm512_cvtne2ps_pbh(with_bits(0x3f818000), with_bits(0x3f808000));
    assert_int_equal(bits_of(_mm512_castsi512_ps(pairs), 0), 0x3f803f80);
    assert_int_equal(bits_of(_mm512_castsi512_ps(pairs), 8), 0x3f823f82);
    pairs = (__m512i)_mm512_cvtne2ps_pbh(with_bits(0x7f800001), with_bits(0x00012345));
    assert_int_equal(bits_of(_mm512_castsi512_ps(pairs), 7), 0);
    assert_int_equal(bits_of(_mm512_castsi512_ps(pairs), 15), 0x7fc07fc0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(scalef_takes_the_floor_and_rounds_once),
    cmocka_unit_test(range_compares_magnitudes),
    cmocka_unit_test(fixupimm_mends_nans_alone),
    cmocka_unit_test(estimates_and_fractions),
    cmocka_unit_test(sums_round_down),
    cmocka_unit_test(lanes_go_where_they_should),
    cmocka_unit_test(words_multiply_and_merge),
    cmocka_unit_test(bf16_units_flush_and_round),
};

int main(void) {
#if defined(__AVX512F__)
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512dq")) return 77;
#else
    if (!__builtin_cpu_supports("avx2")) return 77;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
