// SPDX-License-Identifier: Apache-2.0
// c (m x n, fp32) = or += a (m x k) b (k x n) of bf16, on two units: micro-kernels, and the packing that both share.
// vdpbf16ps: 6 rows by 64 columns in 24 accumulators, as the FMA kernel of gemm_simd.c; a step takes a pair of k. AMX: 32 x 32 in
// four tiles, the most that two tiles of A and two of B can serve: a step of 32 of k is four loads of 1 KiB for four products.
// Floor: 2 m n k FLOPs at the unit's rate out of registers, which `tessera info` measures.
// Figures: docs/kernels/matmul_cpu_bf16.md.
#include "cpu/gemm_bf16.h"

#include "cpu/simd.h"
#include "cpu/simd_nan.h"

enum { MR = 6, NR = GEMM_BF16_NR, NV = NR / VL, PAIR_ROW = 2 * NR };

// ---- vdpbf16ps --------------------------------------------------------------------------------

SIMD_INLINE void dot_tile(int rows, int vectors, int64_t k, const uint16_t *a, int64_t a_stride,
                          const uint16_t *b, float *c, int64_t c_stride, bool is_accumulating) {
    vf acc[MR][NV];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) acc[i][j] = vf_set1(0.0f);
    for (int64_t p = 0; p < k; p += 2, b += PAIR_ROW) {
        __m512bh row[NV];
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) row[j] = (__m512bh)_mm512_loadu_si512(b + j * 2 * VL);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            int32_t pair;
            memcpy(&pair, a + i * a_stride + p, sizeof pair);
            __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], x, row[j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            float *to = c + i * c_stride + j * VL;
            if (is_accumulating) acc[i][j] = acc[i][j] + vf_load(to);
            vf_store(to, acc[i][j]);
        }
    simd_nans nans = simd_no_nans();
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j += 2)
            nans = simd_find_nans(nans, acc[i][j], acc[i][j + 1 < vectors ? j + 1 : j]);
    if (simd_has_nan(nans)) simd_one_nan_tile(c, c_stride, rows, vectors * VL);
}

typedef void dot_kernel(int64_t k, const uint16_t *a, int64_t a_stride, const uint16_t *b, float *c,
                        int64_t c_stride, bool is_accumulating);

#define TILE(rows, vectors)                                                                        \
    static void dot_##rows##_##vectors(int64_t k, const uint16_t *a, int64_t a_stride,             \
                                       const uint16_t *b, float *c, int64_t c_stride,              \
                                       bool is_accumulating) {                                     \
        dot_tile(rows, vectors, k, a, a_stride, b, c, c_stride, is_accumulating);                  \
    }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2) TILE(rows, 3) TILE(rows, 4)
#define NAMES(rows)                                                                                \
    { dot_##rows##_1, dot_##rows##_2, dot_##rows##_3, dot_##rows##_4 }
// clang-format off
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6)
static dot_kernel *const dots[MR][NV] = {NAMES(1), NAMES(2), NAMES(3), NAMES(4), NAMES(5), NAMES(6)};
// clang-format on

static void dot_multiply(const struct gemm_bf16_product *t) {
    for (int64_t j = t->first / NR * NR; j < t->n; j += NR) {
        int64_t cols = t->n - j < NR ? t->n - j : NR;
        const uint16_t *panel = t->b + j / NR * t->b_stride;
        for (int64_t i = 0; i < t->m; i += MR) {
            int64_t rows = t->m - i < MR ? t->m - i : MR;
            dots[rows - 1][(cols + VL - 1) / VL - 1](t->k, t->a + i * t->a_stride, t->a_stride,
                                                     panel, t->c + i * t->c_stride + j, t->c_stride,
                                                     t->is_accumulating);
        }
    }
}

static void dot_open(void) {}

// ---- AMX --------------------------------------------------------------------------------------

enum { TILE_ROWS = 16, TILE_BYTES = 64 };

static void tiles_open(void) {
    // Eight tiles of 16 rows of 64 bytes, as ldtilecfg reads them.
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) config.row_bytes[i] = TILE_BYTES, config.rows[i] = TILE_ROWS;
    __asm__ volatile("" ::"r"(&config) : "memory"); // gcc's intrinsics hide what they read
    _tile_loadconfig(&config);
}

static void tiles_close(void) { _tile_release(); }

// A pause after each tile load or product. A throttled AMX unit accepts fewer instructions the closer they follow each
// other. These eight nops make its loops a tenth to a half faster there and cost nothing elsewhere, because products
// leave most issue slots empty.
#define SPACED(instruction)                                                                        \
    do {                                                                                           \
        instruction;                                                                               \
        __asm__ volatile(".rept 8\n\tnop\n\t.endr");                                               \
    } while (0)

// A 32 x 32 block of c in tiles 0 to 3 (two rows of two), with a in 4 and 5 and b in 6 and 7. is_half: only the upper
// 16 rows; is_narrow: only the left 16 columns.
SIMD_INLINE void tiles_square(const struct gemm_bf16_product *t, int64_t i, int64_t j, bool is_half,
                              bool is_narrow, bool is_streamed) {
    int64_t a_bytes = t->a_stride * 2, b_bytes = PAIR_ROW * 2, c_bytes = t->c_stride * 4;
    const uint16_t *a = t->a + i * t->a_stride, *a_low = a + TILE_ROWS * t->a_stride;
    const uint16_t *b = t->b + j / NR * t->b_stride + j % NR * 2;
    float *c = t->c + i * t->c_stride + j, *c_low = c + TILE_ROWS * t->c_stride;
    bool has_low = !is_half, has_right = !is_narrow, has_corner = has_low && has_right;
    if (t->is_accumulating) {
        _tile_loadd(0, c, c_bytes);
        if (has_right) _tile_loadd(1, c + VL, c_bytes);
        if (has_low) _tile_loadd(2, c_low, c_bytes);
        if (has_corner) _tile_loadd(3, c_low + VL, c_bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t p = 0; p < t->k; p += GEMM_BF16_DEPTH, b += GEMM_BF16_DEPTH / 2 * PAIR_ROW) {
        SPACED(_tile_loadd(4, a + p, a_bytes));
        if (is_streamed) {
            SPACED(_tile_stream_loadd(6, b, b_bytes));
            if (has_right) SPACED(_tile_stream_loadd(7, b + 2 * VL, b_bytes));
        } else {
            SPACED(_tile_loadd(6, b, b_bytes));
            if (has_right) SPACED(_tile_loadd(7, b + 2 * VL, b_bytes));
        }
        if (has_low) SPACED(_tile_loadd(5, a_low + p, a_bytes));
        SPACED(_tile_dpbf16ps(0, 4, 6));
        if (has_right) SPACED(_tile_dpbf16ps(1, 4, 7));
        if (has_low) SPACED(_tile_dpbf16ps(2, 5, 6));
        if (has_corner) SPACED(_tile_dpbf16ps(3, 5, 7));
    }
    _tile_stored(0, c, c_bytes);
    if (has_right) _tile_stored(1, c + VL, c_bytes);
    if (has_low) _tile_stored(2, c_low, c_bytes);
    if (has_corner) _tile_stored(3, c_low + VL, c_bytes);
}

static void tiles_multiply(const struct gemm_bf16_product *t) {
    __asm__ volatile("" ::: "memory"); // as above, and the intrinsics also write
    for (int64_t j = t->first; j < t->n; j += 2 * VL) {
        bool is_narrow = t->n - j <= VL;
        for (int64_t i = 0; i < t->m; i += 2 * TILE_ROWS) {
            bool is_half = t->m - i <= TILE_ROWS;
            if (is_half && is_narrow)
                tiles_square(t, i, j, true, true, true);
            else if (is_narrow)
                tiles_square(t, i, j, false, true, true);
            else if (is_half)
                tiles_square(t, i, j, true, false, true);
            else if (t->is_b_streamed)
                tiles_square(t, i, j, false, false, true);
            else
                tiles_square(t, i, j, false, false, false);
        }
    }
    __asm__ volatile("" ::: "memory");
}

// ---- Packing ----------------------------------------------------------------------------------

// The first n of 32 elements at x, then zeros.
SIMD_INLINE __m512i load_32(const uint16_t *x, int64_t n) {
    if (n >= 32) return _mm512_loadu_si512(x);
    return n <= 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16(simd_first_n_of_pair(n), x);
}

// A pair of k is 32 bits, so 16 columns of 16 pairs are transposed as a matrix of floats.
SIMD_INLINE void pack_cols_of(const uint16_t *b, int64_t stride, int64_t k, int64_t n,
                              int64_t width, uint16_t *panel) {
    for (int64_t p = 0; p < k; p += 2 * VL)
        for (int64_t j = 0; j < width; j += VL) {
            vf x[VL];
            for (int64_t i = 0; i < VL; i++)
                x[i] = j + i < n ? _mm512_castsi512_ps(load_32(b + (j + i) * stride + p, k - p))
                                 : vf_set1(0.0f);
            if (j < n) vf_transpose(x);
            for (int64_t i = 0; i < VL; i++)
                _mm512_storeu_si512(panel + (p / 2 + i) * PAIR_ROW + 2 * j,
                                    _mm512_castps_si512(x[i]));
        }
}

static void pack_cols(const uint16_t *b, int64_t stride, int64_t k, int64_t n, int64_t width,
                      uint16_t *panel) {
    if (width == NR)
        pack_cols_of(b, stride, k, n, NR, panel);
    else
        pack_cols_of(b, stride, k, n, width, panel);
}

// Packs a quarter of 16 pairs of k, for 16 columns. Masked loads, which are cheaper than shuffles on processors with
// AMX, put columns 4 apart into the quarters of one vector; then only the 4 x 4 blocks within quarters are transposed.
// Columns from n on are zero.
SIMD_INLINE void pack_quarter(const uint16_t *b, int64_t stride, int64_t n, uint16_t *panel) {
    vf x[4];
    for (int64_t i = 0; i < 4; i++) {
        x[i] = i < n ? _mm512_zextps128_ps512(
                           _mm_loadu_ps((const float *)(const void *)(b + i * stride)))
                     : vf_set1(0.0f);
        for (int64_t q = 1; q < 4; q++) {
            const void *at = b + (i + 4 * q) * stride;
            if (i + 4 * q < n)
                x[i] =
                    _mm512_mask_broadcast_f32x4(x[i], (__mmask16)(0xf << 4 * q), _mm_loadu_ps(at));
        }
    }
    vf_transpose_quarters(x);
    for (int64_t i = 0; i < 4; i++)
        _mm512_storeu_si512(panel + i * PAIR_ROW, _mm512_castps_si512(x[i]));
}

// Packs by quarters where k is long. The rest of k, and a short k, use pack_cols: the keys of a head wait in the
// first-level cache and would lose their lines between the quarters.
static void pack_cols_quarters(const uint16_t *b, int64_t stride, int64_t k, int64_t n,
                               int64_t width, uint16_t *panel) {
    enum { STEP = 2 * VL, QUARTER = STEP / 4, LEAST_K = 256 };
    int64_t whole = k < LEAST_K ? 0 : k / STEP * STEP;
    for (int64_t p = 0; p < whole; p += STEP)
        for (int64_t j = 0; j < width; j += VL)
            for (int64_t q = p; q < p + STEP; q += QUARTER) {
                const uint16_t *from = b + j * stride + q;
                uint16_t *to = panel + q / 2 * PAIR_ROW + 2 * j;
                if (n - j >= VL)
                    pack_quarter(from, stride, VL, to);
                else
                    pack_quarter(from, stride, n - j, to);
            }
    if (whole < k) pack_cols(b + whole, stride, k - whole, n, width, panel + whole / 2 * PAIR_ROW);
}

SIMD_INLINE void pack_rows_of(const uint16_t *b, int64_t stride, int64_t k, int64_t n,
                              int64_t width, uint16_t *panel, bool *has_nonfinite) {
    const __m512i low = simd_first_pairs(), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __m512i exponent = _mm512_set1_epi16(0x7f80); // all exponent bits set: infinite or NaN
    __mmask32 nonfinite = 0;
    int64_t depth = (k + GEMM_BF16_DEPTH - 1) / GEMM_BF16_DEPTH * GEMM_BF16_DEPTH;
    for (int64_t p = 0; p < depth; p += 2, panel += PAIR_ROW)
        for (int64_t j = 0; j < width; j += 2 * VL) {
            __m512i even = load_32(b + p * stride + j, p < k ? n - j : 0);
            __m512i odd = load_32(b + (p + 1) * stride + j, p + 1 < k ? n - j : 0);
            if (has_nonfinite != NULL)
                nonfinite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(even, exponent), exponent) |
                             _mm512_cmpeq_epi16_mask(_mm512_and_si512(odd, exponent), exponent);
            _mm512_storeu_si512(panel + 2 * j, _mm512_permutex2var_epi16(even, low, odd));
            _mm512_storeu_si512(panel + 2 * j + 2 * VL, _mm512_permutex2var_epi16(even, high, odd));
        }
    if (has_nonfinite != NULL && nonfinite != 0) *has_nonfinite = true;
}

static void pack_rows(const uint16_t *b, int64_t stride, int64_t k, int64_t n, int64_t width,
                      uint16_t *panel, bool *has_nonfinite) {
    bool is_half = width <= 2 * VL;
    if (has_nonfinite != NULL && is_half)
        pack_rows_of(b, stride, k, n, 2 * VL, panel, has_nonfinite);
    else if (has_nonfinite != NULL)
        pack_rows_of(b, stride, k, n, NR, panel, has_nonfinite);
    else if (is_half)
        pack_rows_of(b, stride, k, n, 2 * VL, panel, NULL);
    else
        pack_rows_of(b, stride, k, n, NR, panel, NULL);
}

static void pack_a_rows(const uint16_t *a, int64_t stride, int64_t m, int64_t k, uint16_t *rows,
                        int64_t row_stride) {
    for (int64_t i = 0; i < (m <= TILE_ROWS ? TILE_ROWS : 2 * TILE_ROWS); i++)
        for (int64_t p = 0; p < k; p += GEMM_BF16_DEPTH)
            _mm512_storeu_si512(rows + i * row_stride + p,
                                load_32(a + i * stride + p, i < m ? k - p : 0));
}

// Two rows of 32 elements make 32 pairs; 16 such rows of pairs are transposed as two matrices of floats.
static void pack_a_cols(const uint16_t *a, int64_t stride, int64_t m, int64_t k, uint16_t *rows,
                        int64_t row_stride) {
    const __m512i low = simd_first_pairs(), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int64_t p = 0; p < k; p += GEMM_BF16_DEPTH) {
        vf upper[VL], lower[VL];
        for (int64_t q = 0; q < VL; q++) {
            int64_t at = p + 2 * q;
            __m512i even = load_32(a + at * stride, at < k ? m : 0);
            __m512i odd = load_32(a + (at + 1) * stride, at + 1 < k ? m : 0);
            upper[q] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, low, odd));
            lower[q] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, high, odd));
        }
        vf_transpose(upper);
        vf_transpose(lower);
        for (int64_t i = 0; i < VL; i++) {
            _mm512_storeu_si512(rows + i * row_stride + p, _mm512_castps_si512(upper[i]));
            _mm512_storeu_si512(rows + (VL + i) * row_stride + p, _mm512_castps_si512(lower[i]));
        }
    }
}

static void pack_a(const uint16_t *a, int64_t stride, bool is_transposed, int64_t m, int64_t k,
                   uint16_t *rows, int64_t row_stride) {
    if (is_transposed)
        pack_a_cols(a, stride, m, k, rows, row_stride);
    else
        pack_a_rows(a, stride, m, k, rows, row_stride);
}

const struct gemm_bf16_kernels tsri_gemm_bf16_dot = {
    .mr = 8 * MR,
    .open = dot_open,
    .close = dot_open,
    .multiply = dot_multiply,
    .pack_cols = pack_cols,
    .pack_rows = pack_rows,
    .pack_a = pack_a,
};
const struct gemm_bf16_kernels tsri_gemm_bf16_tiles = {
    .mr = 2 * TILE_ROWS,
    .open = tiles_open,
    .close = tiles_close,
    .multiply = tiles_multiply,
    .pack_cols = pack_cols_quarters,
    .pack_rows = pack_rows,
    .pack_a = pack_a,
};
