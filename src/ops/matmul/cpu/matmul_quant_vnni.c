// SPDX-License-Identifier: Apache-2.0
// Products by quantised weights in integers, by vpdpbusd: the integers of rows of a, and few rows, by one or two columns at a time.
// Floor: b read once; four vpdpbusd for 128 products of each row, a multiplication and an FMA.
// Limit: one row: making codes of bytes; more rows: those six operations of one port.
// Figures: docs/kernels/matmul_quant.md.
#include "cpu/cpu_isa.h"
#include "ops/matmul/cpu/matmul_integer_codes.h"

enum { COLS = 2, AHEAD = 1024 }; // AHEAD: bytes of two columns that are fetched ahead

// ---- Rows of a ----------------------------------------------------------------------------------

// A power of two such that numbers up to `most` are integers of at most 32512 units.
SIMD_INLINE float unit_for(float most) {
    enum { LEAST = -114, BITS = 14 };
    int exponent = (int)(tsri_bits_of_float(most) >> 23) - 127 - BITS;
    if (exponent < LEAST) exponent = LEAST;
    const float unit = tsri_float_of_bits((uint32_t)(exponent + 127) << 23);
    return most > 32512 * unit ? 2 * unit : unit;
}

// Even bytes, then odd ones.
SIMD_INLINE __m256i evens_first(__m256i x) {
    const __m256i within = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0,
                                            2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, within), 0xd8);
}

SIMD_INLINE void store_halves(__m256i x, int8_t *first, int8_t *last) {
    _mm_store_si128((__m128i *)first, _mm256_castsi256_si128(x));
    _mm_store_si128((__m128i *)last, _mm256_extracti128_si256(x, 1));
}

// A unit of n numbers; its scale is NaN if one of them is not finite.
SIMD_INLINE void quantise(const float *a, int64_t n, bool is_of_pairs, int unit,
                          struct integers *to) {
    const __mmask32 here = (__mmask32)(((uint64_t)1 << n) - 1);
    const __m512 x = _mm512_maskz_loadu_ps((__mmask16)here, a);
    const __m512 y = _mm512_maskz_loadu_ps((__mmask16)(here >> 16), a + 16);
    const __m512 zero = _mm512_add_ps(_mm512_sub_ps(x, x), _mm512_sub_ps(y, y)); // or NaN
    const bool is_finite = _mm512_cmp_ps_mask(zero, zero, _CMP_ORD_Q) == 0xffff;
    const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x), _mm512_abs_ps(y)));
    const float scale = is_finite ? unit_for(most) : NAN;
    const __m512 inverse = _mm512_set1_ps(is_finite ? 1 / scale : 0);
    const __m256i low = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
    const __m256i high = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(y, inverse)));
    const __m512i all = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    __m256i lower = _mm512_cvtepi16_epi8(all);
    __m256i upper = _mm512_cvtepi16_epi8(
        _mm512_srai_epi16(_mm512_sub_epi16(all, _mm512_cvtepi8_epi16(lower)), 8));
    if (is_of_pairs) lower = evens_first(lower), upper = evens_first(upper);
    store_halves(lower, to->low_first + unit * 16, to->low_last + unit * 16);
    store_halves(upper, to->high_first + unit * 16, to->high_last + unit * 16);
    for (int i = 0; i < 4; i++) to->scale[unit * 4 + i] = scale;
}

// Sums of four integers of a half.
SIMD_INLINE __m512i sums_of(const int8_t *low, const int8_t *high) {
    const __m512i one = _mm512_set1_epi8(1), none = _mm512_setzero_si512();
    const __m512i of_low = _mm512_dpbusd_epi32(none, one, _mm512_load_si512(low));
    const __m512i of_high = _mm512_dpbusd_epi32(none, one, _mm512_load_si512(high));
    return _mm512_add_epi32(of_low, _mm512_slli_epi32(of_high, 8));
}

void tsri_matmul_integers(tsr_quant_format format, const float *a, int64_t k, void *to) {
    struct integers *out = to;
    const __m512i excess = _mm512_set1_epi32(-excess_of(format));
    for (int64_t at = 0; at < k; at += MATMUL_INTEGERS, out++) {
        const int64_t left = k - at;
        if (left < MATMUL_INTEGERS) memset(out, 0, sizeof *out);
        for (int unit = 0; unit < UNITS && unit * UNIT < left; unit++)
            quantise(a + at + unit * UNIT, left - unit * UNIT < UNIT ? left - unit * UNIT : UNIT,
                     is_in_pairs(format), unit, out);
        __m512i first = sums_of(out->low_first, out->high_first);
        __m512i last = sums_of(out->low_last, out->high_last);
        if (format != TSR_QUANT_Q6_K) first = _mm512_add_epi32(first, last);
        first = _mm512_mullo_epi32(first, excess), last = _mm512_mullo_epi32(last, excess);
        _mm512_store_si512(out->start_first, first);
        _mm512_store_si512(out->start_last, last);
        for (int unit = 0; unit < UNITS; unit++) {
            out->start_of_first[unit] =
                _mm512_mask_reduce_add_epi32((__mmask16)(15 << 4 * unit), first);
            out->start_of_last[unit] =
                _mm512_mask_reduce_add_epi32((__mmask16)(15 << 4 * unit), last);
        }
    }
}

// ---- Products -----------------------------------------------------------------------------------

SIMD_INLINE __m512i products(const struct integers *a, bool is_last, __m512i codes, __m512i low,
                             __m512i *high) {
    const __m512i of_high = _mm512_load_si512(is_last ? a->high_last : a->high_first);
    const __m512i of_low = _mm512_load_si512(is_last ? a->low_last : a->low_first);
    *high = _mm512_dpbusd_epi32(*high, codes, of_high);
    return _mm512_dpbusd_epi32(low, codes, of_low);
}

SIMD_INLINE void multiply(tsr_quant_format format, int m, int n, const struct codes *c,
                          const struct integers *const *a, __m512 sum[ROWS][COLS]) {
    for (int r = 0; r < m; r++) {
        const __m512 scale = _mm512_load_ps(a[r]->scale);
        const __m512i start = _mm512_load_si512(a[r]->start_first);
        for (int j = 0; j < n; j++) {
            const bool is_split = format == TSR_QUANT_Q6_K; // its halves have scales of their own
            __m512i high = _mm512_setzero_si512(), low;
            low = products(a[r], false, c[j].first, start, &high);
            if (is_split) {
                sum[r][j] = scaled(low, high, _mm512_mul_ps(scale, c[j].scale), sum[r][j]);
                high = _mm512_setzero_si512();
                low = _mm512_load_si512(a[r]->start_last);
            }
            low = products(a[r], true, c[j].last, low, &high);
            const __m512 of_codes = is_split ? c[j].scale_last : c[j].scale;
            sum[r][j] = scaled(low, high, _mm512_mul_ps(scale, of_codes), sum[r][j]);
        }
    }
}

// Fetches lines of several pages (simd_far_line), as one column after the other lies in memory.
SIMD_INLINE void fetch_far(tsr_quant_format format, const struct column *column, int64_t at) {
    const struct tsri_quant_block shape = tsri_quant_block(format);
    const uintptr_t from = (uintptr_t)column->row + (uintptr_t)(at / shape.cols * shape.bytes);
    for (int i = 0; i < MATMUL_INTEGERS * shape.bytes / shape.cols; i += 64)
        __builtin_prefetch(simd_far_line(from + (uintptr_t)i), 0, 2);
}

// m rows by n columns from `col` on.
SIMD_INLINE void columns(tsr_quant_format format, const struct tsri_quant_rows *q, int64_t col,
                         int n, int64_t k, int m, const char *a, int64_t a_stride, float *acc,
                         int64_t stride) {
    const int64_t row_bytes = q->x.cols, skip = n * q->x.stride - row_bytes;
    const bool is_far = tsri_gains_from_far_lines(); // others fetch one column by themselves
    const struct integers *row[ROWS];
    struct column column[COLS];
    struct codes c[COLS];
    __m512 sum[ROWS][COLS];
    int64_t at = 0;
    for (int j = 0; j < n; j++) column[j] = column_of(format, q, col + j);
    for (int r = 0; r < m; r++) {
        row[r] = (const struct integers *)(const void *)(a + r * a_stride);
        for (int j = 0; j < n; j++) sum[r][j] = _mm512_setzero_ps();
    }
    for (; at + MATMUL_INTEGERS <= k; at += MATMUL_INTEGERS) {
        for (int j = 0; j < n; j++) {
            if (n > 1) fetch_codes(format, &column[j], at, AHEAD, row_bytes, skip, true);
            if (n == 1 && is_far) fetch_far(format, &column[j], at);
            read_codes(&c[j], format, true, q, &column[j], at, k);
        }
        multiply(format, m, n, c, row, sum);
        for (int r = 0; r < m; r++) row[r]++;
    }
    if (at < k) {
        for (int j = 0; j < n; j++) read_codes(&c[j], format, false, q, &column[j], at, k);
        multiply(format, m, n, c, row, sum);
    }
    for (int r = 0; r < m; r++)
        for (int j = 0; j < n; j++) acc[r * stride + j] = vf_hsum(sum[r][j]);
}

// One row takes column after column, in the order of memory; more rows take two at a time.
SIMD_INLINE void all_columns(tsr_quant_format format, int rows, const struct tsri_quant_rows *q,
                             int64_t col, int64_t n, int64_t k, const char *a, int64_t a_stride,
                             float *acc, int64_t stride) {
    int64_t j = 0;
    for (; rows > 1 && j + COLS <= n; j += COLS)
        columns(format, q, col + j, COLS, k, rows, a, a_stride, acc + j, stride);
    for (; j < n; j++) columns(format, q, col + j, 1, k, rows, a, a_stride, acc + j, stride);
}

// ---- Calls --------------------------------------------------------------------------------------

typedef void few_rows(const struct tsri_quant_rows *q, int64_t col, int64_t n, int64_t k,
                      const char *a, int64_t a_stride, float *acc, int64_t stride);

// Each is a function of its own, so that none gets the registers and the frame of the others.
#define OF_ROWS(format, rows)                                                                      \
    static __attribute__((noinline)) void format##_##rows(                                         \
        const struct tsri_quant_rows *q, int64_t col, int64_t n, int64_t k, const char *a,         \
        int64_t a_stride, float *acc, int64_t stride) {                                            \
        all_columns(TSR_QUANT_##format, rows, q, col, n, k, a, a_stride, acc, stride);             \
    }
#define OF_FORMAT(format)                                                                          \
    OF_ROWS(format, 1) OF_ROWS(format, 2) OF_ROWS(format, 3) OF_ROWS(format, 4)
EACH_INTEGER_FORMAT(OF_FORMAT)

void tsri_matmul_integer_columns(const struct tsri_quant_rows *q, int64_t col, int64_t n, int64_t k,
                                 int64_t m, const void *a, int64_t a_stride, float *acc,
                                 int64_t stride) {
#define ROW(format) [TSR_QUANT_##format] = {format##_1, format##_2, format##_3, format##_4},
    static few_rows *const all[TSR_QUANT_COUNT][ROWS] = {EACH_INTEGER_FORMAT(ROW)};
    for (int64_t i = 0, rows; i < m; i += rows) {
        rows = tsri_min(m - i, ROWS);
        all[q->format][rows - 1](q, col, n, k, (const char *)a + i * a_stride, a_stride,
                                 acc + i * stride, stride);
    }
}
