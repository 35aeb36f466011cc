// SPDX-License-Identifier: Apache-2.0
// c (m x n, fp32) = or += a (m x k) b (k x n): micro-kernel and packing, compiled once per instruction set.
// The register tile has MR rows and NV vectors: 6 x 64 floats on AVX-512 (24 of 32 registers accumulate), 6 x 16 on
// AVX2 (12 of 16), 4 x 4 in plain C. Each step of k loads NV vectors of B and broadcasts MR elements of A. Contiguous
// rows of A stay in place, at some loss, because six rows are few enough streams. B is packed into panels of NR columns
// for aligned, sequential loads. After Goto and van de Geijn (2008) and BLIS (Van Zee and van de Geijn, 2015).
// Floor: 2 m n k FLOPs at the FMA rate out of registers (`tessera info`).
// Limit: on AVX-512 the tile's loads of A and B.
// Figures: docs/kernels/matmul_cpu.md.
#include "cpu/gemm.h"

#include "core/core_tensor.h"
#include "cpu/simd_fp8.h"
#include "cpu/simd_nan.h"
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER 1
#endif
// Not with a sanitizer, which cannot see the tile's loads, and not with emulated AVX-512.
#if defined(TSRI_SIMD_AVX512) && defined(__AVX512F__) && !defined(HAS_SANITIZER)
#define GEMM_HAS_FULL_TILE 1
#include "cpu/gemm_avx512.h"
#endif

#if defined(TSRI_SIMD_SCALAR)
enum { MR = 4, NV = 4 };
#elif defined(TSRI_SIMD_AVX2)
enum { MR = 6, NV = 2 };
#else
enum { MR = 6, NV = 4 };
#endif
#if defined(TSRI_SIMD_AVX512)
#define GEMM_HAS_TALL_TILES 1
enum { TALL_ROWS = 8, TALL_NV = 2 };
#else
enum { TALL_ROWS = MR };
#endif
enum { NR = NV * VL, AHEAD = 8, PASS_AHEAD = 16, LINE_FLOATS = 16 };
// FETCHED_ROWS: GEMM_ROWS, several rows, with B in place and prefetched, because the hardware does not see its rows as
// a stream. Rows of B that are a multiple of FALLING_FLOATS apart map to the same cache sets, so more than FALLING_K of
// them do not stay cached.
enum { FETCHED_ROWS = GEMM_COLS + 1, FORMS };
enum {
    FETCHED_SOME_ROWS = 24,
    FETCHED_MOST_ROWS = 96,
    NEAR_FLOATS = 128 << 10,
    NEAR_FLOATS_OF_MORE = 384 << 10
};
enum { SHALLOW_K = 128, FALLING_FLOATS = 1024, FALLING_K = 256 };

// ---- Micro-kernel -----------------------------------------------------------------------------

#if defined(TSRI_SIMD_SCALAR) && defined(__GNUC__) && !defined(__clang__)
// gcc 12 would vectorize two steps of k, and the last one reads beyond b.
#pragma GCC push_options
#pragma GCC optimize("no-tree-loop-vectorize")
#endif

// One step of k.
SIMD_INLINE void tile_step(int rows, int vectors, bool has_tail, int a_form, const float *a,
                           int64_t a_stride, const float *b, int64_t tail, float *panel,
                           vf acc[TALL_ROWS][NV]) {
    vf row[NV];
#pragma GCC unroll 8
    for (int j = 0; j < vectors; j++) {
        row[j] = has_tail && j == vectors - 1 ? vf_load_n(b + j * VL, tail) : vf_load(b + j * VL);
        if (panel != NULL) vf_store(panel + j * VL, row[j]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        vf x = vf_set1(a_form == GEMM_ROWS ? a[i * a_stride] : a[i]);
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) acc[i][j] = vf_fma(x, row[j], acc[i][j]);
    }
}

// A tile of rows x vectors, the last vector masked to `tail` lanes with has_tail. All arguments but the strides are
// constants at each use, so that acc stays in registers; gcc keeps it in memory if the loops are not unrolled early.
// `panel`: where to keep the rows of B, or NULL.
SIMD_INLINE void tile(int rows, int vectors, bool has_tail, int form, int64_t k, const float *a,
                      int64_t a_stride, const float *b, int64_t b_row, float *panel, float *c,
                      int64_t c_stride, int64_t tail, bool is_accumulating) {
    int a_form = form == FETCHED_ROWS ? GEMM_ROWS : form;
    int64_t a_step = a_form == GEMM_ROWS ? 1 : a_form == GEMM_COLS ? a_stride : MR, p = 0;
    vf acc[TALL_ROWS][NV];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            acc[i][j] = vf_set1(0.0f);
            if (a_form == GEMM_PANELS) simd_prefetch(c, i * c_stride + j * VL, sizeof *c);
        }
    // With cheap addresses, two steps per turn spend fewer instructions outside the products.
    if (a_form == GEMM_PANELS)
        for (; p + 2 <= k; p += 2, a += 2 * a_step, b += 2 * b_row) {
            tile_step(rows, vectors, has_tail, a_form, a, a_stride, b, tail, NULL, acc);
            tile_step(rows, vectors, has_tail, a_form, a + a_step, a_stride, b + b_row, tail, NULL,
                      acc);
        }
    for (; p < k; p++, a += a_step, b += b_row) {
        if (panel != NULL) simd_prefetch(b, PASS_AHEAD * b_row, sizeof *b);
        if (form == FETCHED_ROWS)
#pragma GCC unroll 8
            for (int j = 0; j < (vectors * VL + LINE_FLOATS - 1) / LINE_FLOATS; j++)
                simd_prefetch(b, AHEAD * b_row + j * LINE_FLOATS, sizeof *b);
        tile_step(rows, vectors, has_tail, a_form, a, a_stride, b, tail, panel, acc);
        if (panel != NULL) panel += NR;
    }
    float *to = c;
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++, to += c_stride)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j++) {
            if (has_tail && j == vectors - 1) {
                if (is_accumulating) acc[i][j] = acc[i][j] + vf_load_n(to + j * VL, tail);
                vf_store_n(to + j * VL, acc[i][j], tail);
            } else {
                if (is_accumulating) acc[i][j] = acc[i][j] + vf_load(to + j * VL);
                vf_store(to + j * VL, acc[i][j]);
            }
        }
    simd_nans nans = simd_no_nans();
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < vectors; j += 2)
            nans = simd_find_nans(nans, acc[i][j], acc[i][j + 1 < vectors ? j + 1 : j]);
    if (simd_has_nan(nans))
        simd_one_nan_tile(c, c_stride, rows, has_tail ? (vectors - 1) * VL + tail : vectors * VL);
}

typedef void tile_kernel(int64_t k, const float *a, int64_t a_stride, const float *b, int64_t b_row,
                         float *c, int64_t c_stride, int64_t tail, bool is_accumulating);

// Aligned to a cache line, so the speed does not depend on the rest of the file.
#define TILE(rows, vectors, has_tail, form)                                                        \
    __attribute__((aligned(64))) static void tile_##rows##_##vectors##_##has_tail##_##form(        \
        int64_t k, const float *a, int64_t a_stride, const float *b, int64_t b_row, float *c,      \
        int64_t c_stride, int64_t tail, bool is_accumulating) {                                    \
        tile(rows, vectors, has_tail, form, k, a, a_stride, b, b_row, NULL, c, c_stride, tail,     \
             is_accumulating);                                                                     \
    }
#define TILE_TAILS(rows, vectors, form) TILE(rows, vectors, 0, form) TILE(rows, vectors, 1, form)
#define TILE_FORMS(rows, vectors)                                                                  \
    TILE_TAILS(rows, vectors, GEMM_ROWS)                                                           \
    TILE_TAILS(rows, vectors, FETCHED_ROWS)                                                        \
    TILE_TAILS(rows, vectors, GEMM_PANELS) TILE_TAILS(rows, vectors, GEMM_COLS)
#define TILE_NAMES(rows, vectors)                                                                  \
    {                                                                                              \
        {tile_##rows##_##vectors##_0_GEMM_ROWS, tile_##rows##_##vectors##_0_GEMM_PANELS,           \
         tile_##rows##_##vectors##_0_GEMM_COLS, tile_##rows##_##vectors##_0_FETCHED_ROWS},         \
            {tile_##rows##_##vectors##_1_GEMM_ROWS, tile_##rows##_##vectors##_1_GEMM_PANELS,       \
             tile_##rows##_##vectors##_1_GEMM_COLS, tile_##rows##_##vectors##_1_FETCHED_ROWS},     \
    }

// clang-format off
#if defined(TSRI_SIMD_AVX2)
#define FOR_VECTORS(X, rows) X(rows, 1) X(rows, 2)
#define ROW_OF_NAMES(rows) {TILE_NAMES(rows, 1), TILE_NAMES(rows, 2)}
#else
#define FOR_VECTORS(X, rows) X(rows, 1) X(rows, 2) X(rows, 3) X(rows, 4)
#define ROW_OF_NAMES(rows) \
    {TILE_NAMES(rows, 1), TILE_NAMES(rows, 2), TILE_NAMES(rows, 3), TILE_NAMES(rows, 4)}
#endif
FOR_VECTORS(TILE_FORMS, 1) FOR_VECTORS(TILE_FORMS, 2) FOR_VECTORS(TILE_FORMS, 3)
FOR_VECTORS(TILE_FORMS, 4)
#if !defined(TSRI_SIMD_SCALAR)
FOR_VECTORS(TILE_FORMS, 5) FOR_VECTORS(TILE_FORMS, 6)
#endif

static tile_kernel *const tiles[MR][NV][2][FORMS] = { // rows, vectors, has_tail, form of A
    ROW_OF_NAMES(1), ROW_OF_NAMES(2), ROW_OF_NAMES(3), ROW_OF_NAMES(4),
#if !defined(TSRI_SIMD_SCALAR)
    ROW_OF_NAMES(5), ROW_OF_NAMES(6),
#endif
};
// clang-format on

static tile_kernel *tile_for(int64_t rows, int64_t vectors, int64_t tail, int form, int64_t b_row) {
#if defined(GEMM_HAS_FULL_TILE)
    static tile_kernel *const full[][2] = {{full_tile_rows_far, full_tile_rows_near},
                                           {full_tile_panels_far, full_tile_panels_near},
                                           {full_tile_cols_far, full_tile_cols_near},
                                           {full_tile_rows_fetched, full_tile_rows_fetched}};
    if (rows == MR && vectors == NV && tail == 0) return full[form][b_row == NR];
#else
    (void)b_row;
#endif
    return tiles[rows - 1][vectors - 1][tail != 0][form];
}

#if defined(GEMM_HAS_TALL_TILES)
// Tiles of up to MR + 2 rows by 32 columns, for B in place: they read B less often.
#define TALL_NAMES(rows, vectors)                                                                  \
    { tile_##rows##_##vectors##_0_FETCHED_ROWS, tile_##rows##_##vectors##_1_FETCHED_ROWS }
// clang-format off
TILE_TAILS(7, 1, FETCHED_ROWS) TILE_TAILS(7, 2, FETCHED_ROWS)
TILE_TAILS(8, 1, FETCHED_ROWS) TILE_TAILS(8, 2, FETCHED_ROWS)
static tile_kernel *const tall_tiles[][TALL_NV][2] = { // rows, vectors, has_tail
    {TALL_NAMES(7, 1), TALL_NAMES(7, 2)}, {TALL_NAMES(8, 1), TALL_NAMES(8, 2)},
};
// clang-format on

static void tall_tile(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride,
                      const float *b, int64_t b_row, float *c, int64_t c_stride,
                      bool is_accumulating) {
    for (int64_t j = 0; j < n; j += TALL_NV * VL) {
        int64_t cols = tsri_min(TALL_NV * VL, n - j), tail = cols % VL;
        tall_tiles[m - MR - 1][(cols + VL - 1) / VL - 1][tail != 0](
            k, a, a_stride, b + j, b_row, c + j, c_stride, tail, is_accumulating);
    }
}
#endif

#if defined(TSRI_SIMD_SCALAR) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

// Rows of the next tile. Because of the loads of B, a tile of two rows takes about as long as one of four. So MR + 2 or
// MR + 3 remaining rows become two tiles of equal height, up to one row.
static int64_t rows_of_tile(int64_t left) {
    return left == MR + 2 || left == MR + 3 ? (left + 1) / 2 : tsri_min(MR, left);
}

// Rows of A and B in place: each tile prefetches B, because the previous tile may not have left it in the caches. Tall
// tiles are for large k with rows of B a multiple of 4 KiB apart, which map to the same cache sets and do not stay
// cached.
static void block_fetched(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride,
                          const float *b, int64_t b_row, float *c, int64_t c_stride,
                          bool is_accumulating) {
    bool is_falling = b_row % FALLING_FLOATS == 0 && k > FALLING_K;
    int64_t most = m <= TALL_ROWS || is_falling ? TALL_ROWS : MR;
    int64_t step = tsri_ceil_div(m, tsri_ceil_div(m, most));
    for (int64_t j = 0; j < n; j += NR) {
        int64_t cols = tsri_min(NR, n - j), vectors = (cols + VL - 1) / VL, tail = cols % VL;
        for (int64_t i = 0; i < m; i += step) {
            int64_t rows = tsri_min(step, m - i);
            const float *of_a = a + i * a_stride;
            float *of_c = c + i * c_stride + j;
#if defined(GEMM_HAS_TALL_TILES)
            if (rows > MR) {
                tall_tile(rows, cols, k, of_a, a_stride, b + j, b_row, of_c, c_stride,
                          is_accumulating);
                continue;
            }
#endif
            tile_for(rows, vectors, tail, FETCHED_ROWS,
                     b_row)(k, of_a, a_stride, b + j, b_row, of_c, c_stride, tail, is_accumulating);
        }
    }
}

// No prefetch for B that stays cached between tiles: small k, a small B, and panels that many rows use.
static bool is_fetched(int64_t m, int64_t k, int64_t b_row) {
    if (m <= TALL_ROWS) return m > 1;
    if (m <= FETCHED_SOME_ROWS) return k > SHALLOW_K && k * b_row > NEAR_FLOATS;
    if (b_row % FALLING_FLOATS == 0) return k > FALLING_K;
    return m <= FETCHED_MOST_ROWS && k > SHALLOW_K && k * b_row > NEAR_FLOATS_OF_MORE;
}

// Panels outside, rows inside: a panel of B stays in the second-level cache while all of A passes. If A is packed, a
// panel of A stays in the first-level cache, and the panels of B stream from the second, prefetched.
static void block(int64_t m, int64_t n, int64_t k, enum gemm_a_form a_form, const float *a,
                  int64_t a_stride, const float *b, int64_t b_stride, bool is_b_in_place, float *c,
                  int64_t c_stride, bool is_accumulating) {
    if (is_b_in_place && a_form == GEMM_ROWS && is_fetched(m, k, b_stride)) {
        block_fetched(m, n, k, a, a_stride, b, b_stride, c, c_stride, is_accumulating);
        return;
    }
    int64_t step_m = a_form == GEMM_PANELS ? MR : tsri_max(m, 1),
            b_row = is_b_in_place ? b_stride : NR;
    for (int64_t first = 0; first < m; first += step_m)
        for (int64_t j = 0; j < n; j += NR) {
            int64_t cols = tsri_min(NR, n - j), vectors = (cols + VL - 1) / VL, tail = cols % VL;
            const float *panel = is_b_in_place ? b + j : b + j / NR * b_stride;
            for (int64_t i = first, rows; i < tsri_min(m, first + step_m); i += rows) {
                rows = a_form == GEMM_PANELS ? tsri_min(MR, m - i) : rows_of_tile(m - i);
                tile_kernel *run = tile_for(rows, vectors, tail, (int)a_form, b_row);
                // In panels too, row i (a multiple of MR) starts at i * a_stride floats.
                const float *a_row = a_form == GEMM_COLS ? a + i : a + i * a_stride;
                run(k, a_row, a_stride, panel, b_row, c + i * c_stride + j, c_stride, tail,
                    is_accumulating);
            }
        }
}

#include "cpu/gemm_pack.h"
#include "cpu/gemm_stream.h"

const struct gemm_kernels TSRI_KERNEL_TABLE(gemm) = {
    .mr = MR,
    .nr = NR,
    .block = block,
    .stream = stream,
    .pack_b = pack_b,
#if !defined(TSRI_SIMD_AVX512)
    .pack_block = pack_block,
#endif
    .widen_rows = widen_rows,
    .widen_cols = widen_cols,
    .pack_a = pack_a,
};
