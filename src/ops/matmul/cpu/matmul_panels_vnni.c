// SPDX-License-Identifier: Apache-2.0
// More rows by quantised weights in integers: codes of 32 columns, a lane each, are made once for up to 64 rows, whose bytes are
// broadcast.
// Floor: 16 vpdpbusd for 512 products, a multiplication and an FMA.
// Limit: vpdpbusd; beside them the sums of each unit of 32 steps.
// Figures: docs/kernels/matmul_quant.md.
#include "ops/matmul/cpu/matmul_integer_codes.h"

enum { LANES = 16, PANELS = 2, PANEL_COLS = LANES * PANELS, PANEL_ROWS = 64 };
enum { AHEAD = 3072 }; // bytes of a column that are fetched ahead, to the second-level cache

// Four codes of each column, and a scale: 16 and 16 quads, of the first halves and of the last.
struct panel {
    __m512i quads[2][16];
    __m512 scale[2][UNITS]; // the second: of Q6_K
};

// Rows of 16 words become columns.
SIMD_INLINE void transpose(const __m512i from[16], __m512i to[16]) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(from[i], from[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(from[i], from[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int h = 0; h < 2; h++) {
            b[i + 2 * h] = _mm512_unpacklo_epi64(a[i + h], a[i + 2 + h]);
            b[i + 2 * h + 1] = _mm512_unpackhi_epi64(a[i + h], a[i + 2 + h]);
        }
    // b[4 g + w]: word w of each quarter, of rows 4 g to 4 g + 3.
    for (int w = 0; w < 4; w++) {
        const __m512i low = _mm512_shuffle_i32x4(b[w], b[4 + w], 0x88);
        const __m512i odd = _mm512_shuffle_i32x4(b[w], b[4 + w], 0xdd);
        const __m512i high = _mm512_shuffle_i32x4(b[8 + w], b[12 + w], 0x88);
        const __m512i high_odd = _mm512_shuffle_i32x4(b[8 + w], b[12 + w], 0xdd);
        to[w] = _mm512_shuffle_i32x4(low, high, 0x88);
        to[8 + w] = _mm512_shuffle_i32x4(low, high, 0xdd);
        to[4 + w] = _mm512_shuffle_i32x4(odd, high_odd, 0x88);
        to[12 + w] = _mm512_shuffle_i32x4(odd, high_odd, 0xdd);
    }
}

SIMD_INLINE void make_panel(struct panel *p, tsr_quant_format format, bool is_whole,
                            const struct tsri_quant_rows *q, const struct column *columns,
                            int64_t at, int64_t k) {
    __m512i first[16], last[16], scale[16], scale_last[16], by_unit[16];
    for (int j = 0; j < LANES; j++) {
        struct codes c;
        read_codes(&c, format, is_whole, q, &columns[j], at, k);
        if (is_whole)
            fetch_codes(format, &columns[j], at, AHEAD, q->x.cols,
                        PANEL_COLS * q->x.stride - q->x.cols, false);
        first[j] = c.first, last[j] = c.last;
        scale[j] = _mm512_castps_si512(c.scale);
        if (format == TSR_QUANT_Q6_K) scale_last[j] = _mm512_castps_si512(c.scale_last);
    }
    transpose(first, p->quads[0]);
    transpose(last, p->quads[1]);
    for (int half = 0; half < (format == TSR_QUANT_Q6_K ? 2 : 1); half++) {
        transpose(half ? scale_last : scale, by_unit);
        for (int unit = 0; unit < UNITS; unit++)
            p->scale[half][unit] = _mm512_castsi512_ps(by_unit[4 * unit]);
    }
}

// Four bytes of a row, for all columns.
SIMD_INLINE __m512i all_columns(const void *four_bytes) {
    int32_t x;
    memcpy(&x, four_bytes, sizeof x);
    return _mm512_set1_epi32(x);
}

// Sums of two panels. Bytes of a row serve both.
struct sums {
    __m512i low[ROWS][PANELS], high[ROWS][PANELS];
};

// Adds products of a unit's first or last halves, of m rows.
SIMD_INLINE void multiply_half(const struct panel *p, int half, int unit, int m,
                               const struct integers *const *a, struct sums *s) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const int quad = 4 * unit + i;
        __m512i codes[PANELS];
        for (int g = 0; g < PANELS; g++) codes[g] = p[g].quads[half][quad];
#pragma GCC unroll 4
        for (int r = 0; r < m; r++) {
            const int8_t *of_low = half ? a[r]->low_last : a[r]->low_first;
            const int8_t *of_high = half ? a[r]->high_last : a[r]->high_first;
            const __m512i low = all_columns(of_low + 4 * quad);
            const __m512i high = all_columns(of_high + 4 * quad);
            for (int g = 0; g < PANELS; g++) {
                s->low[r][g] = _mm512_dpbusd_epi32(s->low[r][g], codes[g], low);
                s->high[r][g] = _mm512_dpbusd_epi32(s->high[r][g], codes[g], high);
            }
        }
    }
}

SIMD_INLINE void multiply_panels(tsr_quant_format format, const struct panel *p, int m,
                                 const struct integers *const *a, float *sums) {
    const bool is_split = format == TSR_QUANT_Q6_K;
#pragma GCC unroll 1
    for (int unit = 0; unit < UNITS; unit++) {
        struct sums s;
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            for (int r = 0; r < m && (half == 0 || is_split); r++)
                for (int g = 0; g < PANELS; g++) {
                    const int32_t *start = half ? a[r]->start_of_last : a[r]->start_of_first;
                    s.low[r][g] = _mm512_set1_epi32(start[unit]);
                    s.high[r][g] = _mm512_setzero_si512();
                }
            multiply_half(p, half, unit, m, a, &s);
            if (half == 0 && !is_split) continue;
#pragma GCC unroll 4
            for (int r = 0; r < m; r++)
                for (int g = 0; g < PANELS; g++) {
                    float *sum = sums + r * PANEL_COLS + g * LANES;
                    const __m512 of_row = _mm512_set1_ps(a[r]->scale[4 * unit]);
                    const __m512 scale =
                        _mm512_mul_ps(p[g].scale[is_split ? half : 0][unit], of_row);
                    _mm512_store_ps(sum,
                                    scaled(s.low[r][g], s.high[r][g], scale, _mm512_load_ps(sum)));
                }
        }
    }
}

// Up to PANEL_ROWS rows by up to PANEL_COLS columns.
SIMD_INLINE void panel_of(tsr_quant_format format, const struct tsri_quant_rows *q, int64_t col,
                          int64_t n, int64_t k, int64_t m, const char *a, int64_t a_stride,
                          float *acc, int64_t stride) {
    _Alignas(64) float sums[PANEL_ROWS * PANEL_COLS];
    struct column column[PANEL_COLS]; // beyond n: the last one
    for (int64_t j = 0; j < PANEL_COLS; j++)
        column[j] = column_of(format, q, col + tsri_min(j, n - 1));
    memset(sums, 0, (size_t)(m * PANEL_COLS) * sizeof *sums);
    for (int64_t at = 0; at < k; at += MATMUL_INTEGERS) {
        struct panel p[PANELS];
        for (int g = 0; g < PANELS; g++)
            if (at + MATMUL_INTEGERS <= k)
                make_panel(&p[g], format, true, q, column + g * LANES, at, k);
            else
                make_panel(&p[g], format, false, q, column + g * LANES, at, k);
        for (int64_t i = 0; i < m; i += ROWS) {
            const struct integers *row[ROWS];
            for (int r = 0; r < tsri_min(m - i, ROWS); r++)
                row[r] = (const struct integers *)(const void *)(a + (i + r) * a_stride) +
                         at / MATMUL_INTEGERS;
            float *of_rows = sums + i * PANEL_COLS;
            switch (m - i) {
            case 1: multiply_panels(format, p, 1, row, of_rows); break;
            case 2: multiply_panels(format, p, 2, row, of_rows); break;
            case 3: multiply_panels(format, p, 3, row, of_rows); break;
            default: multiply_panels(format, p, ROWS, row, of_rows);
            }
        }
    }
    for (int64_t i = 0; i < m; i++)
        memcpy(acc + i * stride, sums + i * PANEL_COLS, (size_t)n * sizeof *acc);
}

#define OF_FORMAT(format)                                                                          \
    static __attribute__((noinline)) void format##_panels(                                         \
        const struct tsri_quant_rows *q, int64_t col, int64_t n, int64_t k, int64_t m,             \
        const char *a, int64_t a_stride, float *acc, int64_t stride) {                             \
        panel_of(TSR_QUANT_##format, q, col, n, k, m, a, a_stride, acc, stride);                   \
    }
EACH_INTEGER_FORMAT(OF_FORMAT)

typedef void panel_kernel(const struct tsri_quant_rows *q, int64_t col, int64_t n, int64_t k,
                          int64_t m, const char *a, int64_t a_stride, float *acc, int64_t stride);

void tsri_matmul_integer_panels(const struct tsri_quant_rows *q, int64_t col, int64_t n, int64_t k,
                                int64_t m, const void *a, int64_t a_stride, float *acc,
                                int64_t stride) {
#define ROW(format) [TSR_QUANT_##format] = format##_panels,
    static panel_kernel *const all[TSR_QUANT_COUNT] = {EACH_INTEGER_FORMAT(ROW)};
    for (int64_t i = 0; i < m; i += PANEL_ROWS)
        for (int64_t j = 0; j < n; j += PANEL_COLS)
            all[q->format](q, col + j, tsri_min(n - j, PANEL_COLS), k, tsri_min(m - i, PANEL_ROWS),
                           (const char *)a + i * a_stride, a_stride, acc + i * stride + j, stride);
}
