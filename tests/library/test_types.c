// SPDX-License-Identifier: Apache-2.0
// Data types: every code of every small format against this file's own decoder, every rounding boundary between
// neighbours, and the fast float conversions against the exact ones.
#include "test_support.h"

#include <float.h>
#include <math.h>

#include "core/core_dtype.h"

// ---- An independent description of the formats ------------------------------------------------

struct format {
    tsr_dtype dtype;
    int bits, mantissa_bits, bias;
    bool has_infinity; // the top exponent is for infinity and NaN
    bool saturates;    // beyond the largest finite value gives the largest finite value
    uint32_t largest;  // code of the largest finite value
};

static const struct format formats[] = {
    {TSR_BF16, 16, 7, 127, true, false, 0x7f7f},
    {TSR_F16, 16, 10, 15, true, false, 0x7bff},
    {TSR_E4M3, 8, 3, 7, false, true, 0x7e},
    {TSR_E5M2, 8, 2, 15, true, true, 0x7b},
};

static uint32_t sign_bit(const struct format *f) { return 1u << (f->bits - 1); }

// The value of a code according to the format's definition.
static double decode(const struct format *f, uint32_t code) {
    uint32_t magnitude = code & (sign_bit(f) - 1);
    double sign = code & sign_bit(f) ? -1.0 : 1.0, value;
    if (magnitude > f->largest)
        value = f->has_infinity && magnitude == f->largest + 1 ? (double)INFINITY : (double)NAN;
    else {
        int exponent = (int)(magnitude >> f->mantissa_bits);
        double fraction =
            (double)(magnitude & ((1u << f->mantissa_bits) - 1)) / (double)(1u << f->mantissa_bits);
        value = exponent == 0 ? pow(2, 1 - f->bias) * fraction
                              : pow(2, exponent - f->bias) * (1 + fraction);
    }
    return copysign(value, sign);
}

static uint32_t code_at(const struct format *f, const void *data) {
    if (f->bits == 8) return *(const uint8_t *)data;
    return *(const uint16_t *)data;
}

static double load_code(const struct format *f, uint32_t code) {
    uint8_t narrow = (uint8_t)code;
    uint16_t wide = (uint16_t)code;
    return tsr_load(f->dtype, f->bits == 8 ? (const void *)&narrow : (const void *)&wide, 0);
}

static uint32_t store_code(const struct format *f, double value) {
    uint16_t buffer = 0;
    tsr_store(f->dtype, &buffer, 0, value);
    return code_at(f, &buffer);
}

static void expect_code(const struct format *f, double value, uint32_t expected) {
    uint32_t got = store_code(f, value);
    if (got != expected)
        fail_msg("%s of %a is 0x%x, expected 0x%x", tsr_dtype_name(f->dtype), value, got, expected);
}

// Checks value and -value.
static void expect_codes(const struct format *f, double value, uint32_t expected) {
    expect_code(f, value, expected);
    expect_code(f, -value, expected | sign_bit(f));
}

// ---- Names ------------------------------------------------------------------------------------

static void names_and_sizes(void **state) {
    (void)state;
    static const struct {
        tsr_dtype dtype;
        const char *name, *long_name;
        size_t bytes;
    } expected[] = {
        {TSR_F64, "f64", "float64", 8},         {TSR_F32, "f32", "float32", 4},
        {TSR_BF16, "bf16", "bfloat16", 2},      {TSR_F16, "f16", "float16", 2},
        {TSR_E4M3, "e4m3", "float8_e4m3fn", 1}, {TSR_E5M2, "e5m2", "float8_e5m2", 1},
        {TSR_I32, "i32", "int32", 4},           {TSR_U8, "u8", "uint8", 1},
    };
    assert_int_equal(COUNT(expected), TSR_DTYPE_COUNT - 1);
    for (int i = 0; i < COUNT(expected); i++) {
        assert_string_equal(tsr_dtype_name(expected[i].dtype), expected[i].name);
        assert_int_equal(tsr_dtype_from_name(expected[i].name), expected[i].dtype);
        assert_int_equal(tsr_dtype_from_name(expected[i].long_name), expected[i].dtype);
        assert_int_equal(tsr_dtype_bytes(expected[i].dtype), expected[i].bytes);
    }
    assert_string_equal(tsr_dtype_name(TSR_DTYPE_NONE), "none");
    assert_int_equal(tsr_dtype_bytes(TSR_DTYPE_NONE), 0);
    static const char *const unknown[] = {"", "none", "f", "f323", "F32", "int", "bf16 ", "none\n"};
    for (int i = 0; i < COUNT(unknown); i++)
        assert_int_equal(tsr_dtype_from_name(unknown[i]), TSR_DTYPE_NONE);
    assert_int_equal(tsr_dtype_from_name(NULL), TSR_DTYPE_NONE);
    static const int beyond[] = {TSR_DTYPE_COUNT, -1, 1 << 30};
    for (int i = 0; i < COUNT(beyond); i++) {
        assert_string_equal(tsr_dtype_name((tsr_dtype)beyond[i]), "unknown dtype");
        assert_int_equal(tsr_dtype_bytes((tsr_dtype)beyond[i]), 0);
    }
}

static void status_names_and_version(void **state) {
    (void)state;
    assert_string_equal(tsr_status_name(TSR_OK), "TSR_OK");
    assert_string_equal(tsr_status_name(TSR_INVALID_ARGUMENT), "TSR_INVALID_ARGUMENT");
    assert_string_equal(tsr_status_name(TSR_UNSUPPORTED), "TSR_UNSUPPORTED");
    assert_string_equal(tsr_status_name(TSR_OUT_OF_MEMORY), "TSR_OUT_OF_MEMORY");
    assert_string_equal(tsr_status_name(TSR_WORKSPACE), "TSR_WORKSPACE");
    assert_string_equal(tsr_status_name(TSR_COMPILE), "TSR_COMPILE");
    assert_string_equal(tsr_status_name(TSR_DEVICE), "TSR_DEVICE");
    assert_string_equal(tsr_status_name(TSR_DEVICE_LOST), "TSR_DEVICE_LOST");
    assert_string_equal(tsr_status_name(TSR_IO), "TSR_IO");
    assert_string_equal(tsr_status_name(TSR_INTERNAL), "TSR_INTERNAL");
    assert_string_equal(tsr_status_name((tsr_status)(TSR_INTERNAL + 1)), "unknown status");
    assert_string_equal(tsr_status_name((tsr_status)-1), "unknown status");
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", TSR_VERSION_MAJOR, TSR_VERSION_MINOR,
             TSR_VERSION_PATCH);
    assert_string_equal(tsr_version(), version);
    assert_int_equal(tsr_fail(TSR_IO, "a sentence"), TSR_IO);
    assert_string_equal(tsr_last_error(), "a sentence");
    assert_int_equal(tsr_fail(TSR_DEVICE, NULL), TSR_DEVICE);
    assert_string_equal(tsr_last_error(), "");
}

// ---- Every code, every boundary ---------------------------------------------------------------

static void every_code_decodes(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(formats); i++) {
        const struct format *f = &formats[i];
        for (uint32_t code = 0; code < 1u << f->bits; code++) {
            double expected = decode(f, code), got = load_code(f, code);
            bool is_right = isnan(expected) ? isnan(got) : got == expected;
            if (!is_right || !signbit(got) != !signbit(expected))
                fail_msg("%s code 0x%x is %a, expected %a", tsr_dtype_name(f->dtype), code, got,
                         expected);
        }
    }
}

static void every_code_survives_a_round_trip(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(formats); i++) {
        const struct format *f = &formats[i];
        for (uint32_t code = 0; code < 1u << f->bits; code++) {
            double value = decode(f, code);
            if (isfinite(value) || (isinf(value) && !f->saturates)) expect_code(f, value, code);
        }
    }
}

// Between two neighbours a < b: the middle rounds to the even code, numbers beside it round to the nearer one.
static void every_boundary_rounds_to_nearest_even(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(formats); i++) {
        const struct format *f = &formats[i];
        for (uint32_t code = 0; code < f->largest; code++) {
            double a = decode(f, code), b = decode(f, code + 1), middle = a + (b - a) / 2;
            expect_codes(f, middle, code % 2 == 0 ? code : code + 1);
            expect_codes(f, nextafter(middle, 0), code);
            expect_codes(f, nextafter(middle, INFINITY), code + 1);
            expect_codes(f, nextafter(b, 0), code + 1);
            expect_codes(f, nextafter(a, INFINITY), code);
        }
    }
}

static void beyond_the_largest(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(formats); i++) {
        const struct format *f = &formats[i];
        double largest = decode(f, f->largest);
        double half_step = (largest - decode(f, f->largest - 1)) / 2;
        uint32_t over = f->saturates ? f->largest : f->largest + 1; // infinity
        expect_codes(f, nextafter(largest + half_step, 0), f->largest);
        expect_codes(f, largest + half_step, over); // the largest code is odd, the next one even
        expect_codes(f, largest + 2 * half_step, over);
        expect_codes(f, 1e30 * largest, over);
        expect_codes(f, DBL_MAX, over);
        expect_codes(f, (double)INFINITY, over);
    }
    const struct format *e4m3 = &formats[2], *e5m2 = &formats[3];
    expect_codes(e4m3, 448, 0x7e);
    expect_codes(e4m3, 465, 0x7e); // ml_dtypes gives NaN here
    expect_codes(e4m3, 512, 0x7e);
    expect_codes(e5m2, 57344, 0x7b);
    expect_codes(e5m2, 61440, 0x7b);
    expect_codes(e5m2, 65536, 0x7b);
}

static void tiny_values_become_signed_zeros(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(formats); i++) {
        const struct format *f = &formats[i];
        expect_codes(f, 0.0, 0);
        expect_codes(f, DBL_TRUE_MIN, 0);
        expect_codes(f, DBL_MIN, 0);
        expect_codes(f, decode(f, 1) / 2, 0);
        expect_codes(f, nextafter(decode(f, 1) / 2, 1), 1);
    }
}

static void nan_stays_nan_with_its_sign(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(formats); i++) {
        const struct format *f = &formats[i];
        for (int negative = 0; negative < 2; negative++) {
            uint32_t code = store_code(f, copysign((double)NAN, negative ? -1.0 : 1.0));
            assert_true(isnan(decode(f, code)));
            assert_int_equal((code & sign_bit(f)) != 0, negative);
        }
    }
}

static void wide_types(void **state) {
    (void)state;
    double d[2] = {0, 0};
    tsr_store(TSR_F64, d, 1, 1.0 / 3);
    assert_true(d[0] == 0 && d[1] == 1.0 / 3 && tsr_load(TSR_F64, d, 1) == 1.0 / 3);
    float f[2] = {0, 0};
    tsr_store(TSR_F32, f, 1, 1 + 0x1p-24); // half a step: rounds to even
    assert_true(f[0] == 0 && f[1] == 1);
    tsr_store(TSR_F32, f, 1, 1 + 0x1.8p-23);
    assert_true(f[1] == 1 + 0x1p-22f);
    tsr_store(TSR_F32, f, 1, 1e300);
    assert_true(isinf(f[1]) && tsr_load(TSR_F32, f, 1) == (double)INFINITY);
    tsr_store(TSR_F32, f, 1, -DBL_TRUE_MIN);
    assert_true(f[1] == 0 && signbit(f[1]));
}

static void integers_round_and_saturate(void **state) {
    (void)state;
    static const struct {
        double value;
        int32_t expected;
    } cases[] = {
        {0, 0},
        {-7, -7},
        {2.5, 2},
        {3.5, 4},
        {-2.5, -2},
        {2.75, 3},
        {-2.75, -3},
        {2147483647.0, INT32_MAX},
        {2147483648.0, INT32_MAX},
        {-2147483648.0, INT32_MIN},
        {-1e300, INT32_MIN},
        {(double)INFINITY, INT32_MAX},
        {(double)NAN, 0},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        int32_t data[2] = {99, 99};
        tsr_store(TSR_I32, data, 1, cases[i].value);
        assert_int_equal(data[0], 99);
        assert_int_equal(data[1], cases[i].expected);
        assert_true(tsr_load(TSR_I32, data, 1) == (double)cases[i].expected);
    }
}

// The index counts elements, and neighbours do not change.
static void index_counts_elements(void **state) {
    (void)state;
    for (int dtype = TSR_F64; dtype < TSR_DTYPE_COUNT; dtype++) {
        unsigned char data[8 * 5];
        size_t bytes = tsr_dtype_bytes((tsr_dtype)dtype);
        memset(data, 0xff, sizeof data);
        tsr_store((tsr_dtype)dtype, data, 3, 2.0);
        assert_true(tsr_load((tsr_dtype)dtype, data, 3) == 2.0);
        assert_true(test_all_bytes_are(data, 0xff, 3 * bytes));
        assert_true(test_all_bytes_are(data + 4 * bytes, 0xff, sizeof data - 4 * bytes));
    }
    unsigned char untouched[8];
    memset(untouched, 0xff, sizeof untouched);
    tsr_store(TSR_DTYPE_NONE, untouched, 0, 2.0);
    tsr_store(TSR_DTYPE_COUNT, untouched, 0, 2.0);
    assert_true(test_all_bytes_are(untouched, 0xff, sizeof untouched));
    assert_true(tsr_load(TSR_DTYPE_COUNT, untouched, 0) == 0);
}

// ---- The fast conversions ---------------------------------------------------------------------

static void compare_fast(uint32_t bits) {
    float x = tsri_float_of_bits(bits);
    for (int i = 0; i < 2; i++) {
        const struct format *f = &formats[i];
        uint32_t got = f->dtype == TSR_BF16 ? tsri_bf16_of_float(x) : tsri_f16_of_float(x);
        uint32_t expected = store_code(f, (double)x);
        bool same =
            isnan(x) ? isnan(decode(f, got)) && (got ^ bits >> 16) < 0x8000 : got == expected;
        if (!same)
            fail_msg("%s of float 0x%08x (%a) is 0x%x, expected 0x%x", tsr_dtype_name(f->dtype),
                     bits, (double)x, got, expected);
    }
}

static void fast_conversions_from_float(void **state) {
    (void)state;
    static const uint32_t low[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (uint32_t high = 0; high < 0x10000; high++)
        for (int i = 0; i < COUNT(low); i++) compare_fast(high << 16 | low[i]);
    // The middles between neighbours of f16, also subnormal ones, and the next float on each side.
    for (uint32_t code = 0; code < 0x7bff; code++) {
        double a = decode(&formats[1], code), b = decode(&formats[1], code + 1);
        uint32_t bits = tsri_bits_of_float((float)(a + (b - a) / 2));
        for (uint32_t step = 0; step < 3; step++) {
            compare_fast(bits + step - 1);
            compare_fast((bits + step - 1) | 0x80000000u);
        }
    }
    uint64_t seed = 20240611;
    for (int i = 0; i < (TEST_HAS_TSAN ? 400000 : 4000000); i++)
        compare_fast((uint32_t)test_bits(&seed));
}

static void fast_conversions_to_float(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x10000; code++) {
        float bf16 = tsri_bf16_to_float((uint16_t)code), f16 = tsri_f16_to_float((uint16_t)code);
        double expected_bf16 = decode(&formats[0], code), expected_f16 = decode(&formats[1], code);
        assert_true(isnan(expected_bf16) ? isnan(bf16) : (double)bf16 == expected_bf16);
        assert_true(isnan(expected_f16) ? isnan(f16) : (double)f16 == expected_f16);
        assert_int_equal(tsri_bits_of_float(bf16) >> 31, code >> 15);
        assert_int_equal(tsri_bits_of_float(f16) >> 31, code >> 15);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_sizes),
        cmocka_unit_test(status_names_and_version),
        cmocka_unit_test(every_code_decodes),
        cmocka_unit_test(every_code_survives_a_round_trip),
        cmocka_unit_test(every_boundary_rounds_to_nearest_even),
        cmocka_unit_test(beyond_the_largest),
        cmocka_unit_test(tiny_values_become_signed_zeros),
        cmocka_unit_test(nan_stays_nan_with_its_sign),
        cmocka_unit_test(wide_types),
        cmocka_unit_test(integers_round_and_saturate),
        cmocka_unit_test(index_counts_elements),
        cmocka_unit_test(fast_conversions_from_float),
        cmocka_unit_test(fast_conversions_to_float),
    };
    return cmocka_run_group_tests_name("types", tests, NULL, NULL);
}
