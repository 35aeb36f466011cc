// SPDX-License-Identifier: Apache-2.0
// Attention of a few queries over a cache, out = softmax(q k^T) v, G query heads on a key head, rows of head_dim. Decode reads the
// cache at the speed of memory, and what it computes must fit beside that: so a key's elements are widened once for up to four
// rows, sums over lanes are taken for a vector of scores at a time, and outputs stay in registers over a run of keys.
// Floor: the cache read once, 4 bytes an element in f32 and 2 in 16 bits, and 2 G FLOPs an element; reading lasts longer up to a G
// of about 28 in f32 and 14 in bf16.
// Limit: a core that multiplies has fewer lines on their way.
// Figures: docs/kernels/attention_decode.md.
#include <math.h>

#include "cpu/simd_pairs.h"
#include "cpu/simd_to_fp8.h"
#include "ops/attention/cpu/decode/attention_decode_kernels.h"

enum { CHUNK = PAIR };

#define FOR_DTYPE(dtype, X)                                                                        \
    do {                                                                                           \
        if ((dtype) == TSR_BF16)                                                                   \
            X(TSR_BF16);                                                                           \
        else if ((dtype) == TSR_F16)                                                               \
            X(TSR_F16);                                                                            \
        else if ((dtype) == TSR_E4M3)                                                              \
            X(TSR_E4M3);                                                                           \
        else                                                                                       \
            X(TSR_F32);                                                                            \
    } while (0)

// ---- Chunks: two vectors of a row -------------------------------------------------------------

SIMD_INLINE void load_chunk(tsr_dtype dtype, const void *row, int64_t i, vf *a, vf *b) {
    if (dtype == TSR_E4M3) {
        *a = vf_load_wide(dtype, row, i);
        *b = vf_load_wide(dtype, row, i + VL);
        return;
    }
    struct vf_pair x = vf_load_pair(dtype, row, i);
    *a = x.a;
    *b = x.b;
}

// The first n elements of a chunk, zeros after them.
SIMD_INLINE void load_chunk_n(tsr_dtype dtype, const void *row, int64_t i, int64_t n, vf *a,
                              vf *b) {
    if (dtype == TSR_E4M3) {
        *a = vf_load_wide_n(dtype, row, i, n < VL ? n : VL);
        *b = n > VL ? vf_load_wide_n(dtype, row, i + VL, n - VL) : vf_set1(0.0f);
        return;
    }
    struct vf_pair x = vf_load_pair_n(dtype, row, i, n, 0.0f);
    *a = x.a;
    *b = x.b;
}

// Whether a chunk is loaded as its even and its odd elements.
static bool is_paired(tsr_dtype dtype) {
#if defined(SIMD_HAS_PAIRS)
    return dtype == TSR_BF16;
#else
    (void)dtype;
    return false;
#endif
}

// Prefetches the same chunk of the row that is read after all of these.
SIMD_INLINE void fetch_chunk(tsr_dtype dtype, const char *row, int64_t i) {
    const char *chunk = row + i * simd_bytes(dtype);
    __builtin_prefetch(chunk, 0, 1);
    if (dtype == TSR_F32 && CHUNK > 16) __builtin_prefetch(chunk + 64, 0, 1);
}

// ---- Rows -------------------------------------------------------------------------------------

// For squares that fp32 does not hold. The square of any float is a normal number in double.
static void normalise_wide(float *x, int64_t dims, const float *weight, float offset, float eps,
                           float factor) {
    double squares = 0;
    for (int64_t i = 0; i < dims; i++) squares += (double)x[i] * (double)x[i];
    double rstd = 1 / sqrt(squares / (double)dims + (double)eps);
    for (int64_t i = 0; i < dims; i++)
        x[i] = (float)((double)x[i] * rstd) * (weight[i] + offset) * factor;
}

static void normalise(float *x, int64_t dims, const float *weight, float offset, float eps,
                      float factor) {
    vf sum = vf_set1(0.0f);
    int64_t i = 0;
    for (; i + VL <= dims; i += VL) sum = vf_fma(vf_load(x + i), vf_load(x + i), sum);
    if (i < dims) {
        vf rest = vf_load_n(x + i, dims - i);
        sum = vf_fma(rest, rest, sum);
    }
    float variance = vf_sum_one(sum) / (float)dims + eps;
    if (!(variance >= 1e-30f && variance <= 1e37f)) {
        normalise_wide(x, dims, weight, offset, eps, factor);
        return;
    }
    vf rstd = vf_set1(1 / sqrtf(variance)), first = vf_set1(offset), scale = vf_set1(factor);
    for (i = 0; i + VL <= dims; i += VL)
        vf_store(x + i, vf_load(x + i) * rstd * (vf_load(weight + i) + first) * scale);
    if (i < dims)
        vf_store_n(x + i,
                   vf_load_n(x + i, dims - i) * rstd * (vf_load_n(weight + i, dims - i) + first) *
                       scale,
                   dims - i);
}

static void rotate(float *x, const float *cosine, const float *sine, int64_t half,
                   bool is_interleaved) {
    int64_t step = is_interleaved ? 2 : 1, apart = is_interleaved ? 1 : half;
    int64_t i = 0;
    for (; !is_interleaved && i + VL <= half; i += VL) {
        vf a = vf_load(x + i), b = vf_load(x + half + i);
        vf c = vf_load(cosine + i), s = vf_load(sine + i);
        vf_store(x + i, vf_fms(a, c, b * s));
        vf_store(x + half + i, vf_fma(b, c, a * s));
    }
    for (; i < half; i++) {
        float a = x[i * step], b = x[i * step + apart];
        x[i * step] = simd_fma(a, cosine[i], -(b * sine[i]));
        x[i * step + apart] = simd_fma(b, cosine[i], a * sine[i]);
    }
}

// Divides, so that an exact quotient is exact here too.
static void store_e4m3(const float *x, int64_t n, float scale, uint8_t *y) {
    enum { STEP = 4 * VL };
    float some[STEP];
    for (int64_t i = 0; i < n; i += STEP) {
        int64_t num = n - i < STEP ? n - i : STEP, k = 0;
        for (; k + VL <= num; k += VL) vf_store(some + k, vf_load(x + i + k) / vf_set1(scale));
        if (k < num) vf_store_n(some + k, vf_load_n(x + i + k, num - k) / vf_set1(scale), num - k);
        simd_floats_to_fp8(TSR_E4M3, some, y + i, num, 1.0f);
    }
}

static void to_lanes(tsr_dtype dtype, const float *x, int64_t dims, float *lanes) {
    int64_t padded = attention_lane_floats(dims);
    memset(lanes, 0, (size_t)padded * sizeof *lanes);
    for (int64_t i = 0; i < dims; i += CHUNK) {
        vf a, b;
        int64_t n = dims - i < CHUNK ? dims - i : CHUNK;
        a = vf_load_n(x + i, n < VL ? n : VL);
        b = n > VL ? vf_load_n(x + i + VL, n - VL) : vf_set1(0.0f);
        if (is_paired(dtype)) vf_unzip(a, b, &a, &b);
        vf_store(lanes + i, a);
        vf_store(lanes + i + VL, b);
    }
}

static void from_lanes(tsr_dtype dtype, const float *lanes, int64_t dims, float *x) {
    for (int64_t i = 0; i < dims; i += CHUNK) {
        int64_t n = dims - i < CHUNK ? dims - i : CHUNK;
        vf a = vf_load(lanes + i), b = vf_load(lanes + i + VL);
        if (is_paired(dtype)) vf_zip(a, b, &a, &b);
        vf_store_n(x + i, a, n < VL ? n : VL);
        if (n > VL) vf_store_n(x + i + VL, b, n - VL);
    }
}

// ---- Scores -----------------------------------------------------------------------------------

// A tile of ROWS x KEYS scores, VL in all (for one row, all on its lanes): one vector of sums.
SIMD_INLINE void score_chunk(int rows, int keys, const vf *a, const vf *b, const float *q,
                             int64_t q_stride, vf *sum) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        vf qa = vf_load(q + r * q_stride), qb = vf_load(q + r * q_stride + VL);
#pragma GCC unroll 16
        for (int j = 0; j < keys; j++) {
            vf *s = &sum[r * keys + j];
            *s = vf_fma(qb, b[j], vf_fma(qa, a[j], *s));
        }
    }
}

SIMD_INLINE void score_tile(tsr_dtype dtype, int rows, int keys, int64_t dims, const float *q,
                            int64_t q_stride, const char *const *key, const char *const *next,
                            int64_t offset, float *sums) {
    vf sum[16], a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < rows * keys; i++) sum[i] = vf_set1(0.0f);
    int64_t i = 0;
    for (; i + CHUNK <= dims; i += CHUNK) {
        if (rows == 1) { // keys are operands of the products, not held
#pragma GCC unroll 16
            for (int j = 0; j < keys; j++) {
                if (next != NULL) fetch_chunk(dtype, next[j] + offset, i);
                load_chunk(dtype, key[j] + offset, i, &a[0], &b[0]);
                score_chunk(1, 1, a, b, q + i, q_stride, &sum[j]);
            }
            continue;
        }
#pragma GCC unroll 16
        for (int j = 0; j < keys; j++) {
            if (next != NULL) fetch_chunk(dtype, next[j] + offset, i);
            load_chunk(dtype, key[j] + offset, i, &a[j], &b[j]);
        }
        score_chunk(rows, keys, a, b, q + i, q_stride, sum);
    }
    if (i < dims) {
        for (int j = 0; j < keys; j++)
            load_chunk_n(dtype, key[j] + offset, i, dims - i, &a[j], &b[j]);
        score_chunk(rows, keys, a, b, q + i, q_stride, sum);
    }
    vf_store(sums, vf_sums(sum));
}

// All keys for `rows` rows, VL / rows keys at a time. The last tile repeats its last key.
SIMD_INLINE void score_rows(tsr_dtype dtype, int rows, int64_t dims, const float *q,
                            int64_t q_stride, const char *const *keys, const char *const *next,
                            int64_t offset, int64_t num_keys, float *s, int64_t s_stride) {
    enum { MOST = VL };
    const int step = MOST / rows;
    float sums[VL];
    for (int64_t j = 0; j < num_keys; j += step) {
        const char *few[MOST];
        int64_t n = num_keys - j;
        if (n >= step) {
            if (next != NULL)
                score_tile(dtype, rows, step, dims, q, q_stride, keys + j, next + j, offset, sums);
            else
                score_tile(dtype, rows, step, dims, q, q_stride, keys + j, NULL, offset, sums);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                memcpy(s + r * s_stride + j, sums + r * step, (size_t)step * sizeof *s);
            continue;
        }
        for (int i = 0; i < step; i++) few[i] = keys[i < n ? j + i : num_keys - 1];
        score_tile(dtype, rows, step, dims, q, q_stride, few, NULL, offset, sums);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < n; i++) s[r * s_stride + j + i] = sums[r * step + i];
    }
}

SIMD_INLINE void scores_as(tsr_dtype dtype, int64_t dims, int64_t num_rows, const float *q,
                           int64_t q_stride, const char *const *keys, const char *const *next,
                           int64_t offset, int64_t num_keys, float *s, int64_t s_stride) {
    int64_t r = 0;
#define SCORE_ROWS(n)                                                                              \
    for (; VL >= (n) && r + (n) <= num_rows; r += (n))                                             \
    score_rows(dtype, n, dims, q + r * q_stride, q_stride, keys, r == 0 ? next : NULL, offset,     \
               num_keys, s + r * s_stride, s_stride)
#if !defined(TSRI_SIMD_SCALAR)
    SCORE_ROWS(4);
    SCORE_ROWS(2);
#endif
    SCORE_ROWS(1);
#undef SCORE_ROWS
}

static void scores(tsr_dtype dtype, int64_t dims, int64_t num_rows, const float *q,
                   int64_t q_stride, const char *const *keys, const char *const *next,
                   int64_t offset, int64_t num_keys, float *s, int64_t s_stride) {
#define SCORES(T)                                                                                  \
    scores_as(T, dims, num_rows, q, q_stride, keys, next, offset, num_keys, s, s_stride)
    FOR_DTYPE(dtype, SCORES);
#undef SCORES
}

// ---- Values -----------------------------------------------------------------------------------

// `chunks` chunks of `rows` rows from element i on. The last chunk has n elements; the others are whole.
SIMD_INLINE void value_tile(tsr_dtype dtype, int rows, int chunks, int64_t i, int64_t n,
                            const float *p, int64_t p_stride, const char *const *values,
                            const char *const *next, int64_t offset, int64_t num_keys, float *o,
                            int64_t o_stride) {
    vf sum[16];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int c = 0; c < 2 * chunks; c++)
            sum[r * 2 * chunks + c] = vf_load(o + r * o_stride + i + c * VL);
    for (int64_t j = 0; j < num_keys; j++) {
        const char *value = values[j] + offset, *later = next != NULL ? next[j] + offset : NULL;
#pragma GCC unroll 8
        for (int c = 0; c < chunks; c++) {
            vf a, b;
            if (next != NULL) fetch_chunk(dtype, later, i + c * CHUNK);
            if (n < CHUNK)
                load_chunk_n(dtype, value, i + c * CHUNK, n, &a, &b);
            else
                load_chunk(dtype, value, i + c * CHUNK, &a, &b);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                vf weight = vf_set1(p[r * p_stride + j]), *s = &sum[(r * chunks + c) * 2];
                s[0] = vf_fma(weight, a, s[0]);
                s[1] = vf_fma(weight, b, s[1]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (int c = 0; c < 2 * chunks; c++)
            vf_store(o + r * o_stride + i + c * VL, sum[r * 2 * chunks + c]);
}

// Holds 16 vectors of sums with 32 registers, 8 with 16.
SIMD_INLINE void value_rows(tsr_dtype dtype, int rows, int64_t dims, const float *p,
                            int64_t p_stride, const char *const *values, const char *const *next,
                            int64_t offset, int64_t num_keys, float *o, int64_t o_stride) {
    const int most = (VL > 8 ? 8 : 4) / rows; // chunks
    int64_t i = 0;
#define TILE(chunks, n, next)                                                                      \
    value_tile(dtype, rows, chunks, i, n, p, p_stride, values, next, offset, num_keys, o, o_stride)
#define TILES(chunks)                                                                              \
    for (; (chunks) <= most && i + (chunks)*CHUNK <= dims; i += (chunks)*CHUNK) {                  \
        if (next != NULL)                                                                          \
            TILE(chunks, CHUNK, next);                                                             \
        else                                                                                       \
            TILE(chunks, CHUNK, NULL);                                                             \
    }
    TILES(8)
    TILES(4)
    TILES(2)
    TILES(1)
    if (i < dims) TILE(1, dims - i, NULL);
#undef TILES
#undef TILE
}

SIMD_INLINE void values_as(tsr_dtype dtype, int64_t dims, int64_t num_rows, const float *p,
                           int64_t p_stride, const char *const *values, const char *const *next,
                           int64_t offset, int64_t num_keys, float *o, int64_t o_stride) {
    int64_t r = 0;
#define VALUE_ROWS(n)                                                                              \
    for (; r + (n) <= num_rows; r += (n))                                                          \
    value_rows(dtype, n, dims, p + r * p_stride, p_stride, values, r == 0 ? next : NULL, offset,   \
               num_keys, o + r * o_stride, o_stride)
#if defined(TSRI_SIMD_AVX512)
    VALUE_ROWS(8);
#endif
    VALUE_ROWS(4);
    VALUE_ROWS(2);
    VALUE_ROWS(1);
#undef VALUE_ROWS
}

static void values(tsr_dtype dtype, int64_t dims, int64_t num_rows, const float *p,
                   int64_t p_stride, const char *const *values, const char *const *next,
                   int64_t offset, int64_t num_keys, float *o, int64_t o_stride) {
#define VALUES(T)                                                                                  \
    values_as(T, dims, num_rows, p, p_stride, values, next, offset, num_keys, o, o_stride)
    FOR_DTYPE(dtype, VALUES);
#undef VALUES
}

// ---- Merging ----------------------------------------------------------------------------------

SIMD_INLINE void add_scaled_as(tsr_dtype dtype, const void *x, int64_t n, float factor,
                               float *sum) {
    vf f = vf_set1(factor);
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(sum + i, vf_fma(vf_load_wide(dtype, x, i), f, vf_load(sum + i)));
    if (i < n)
        vf_store_n(sum + i,
                   vf_fma(vf_load_wide_n(dtype, x, i, n - i), f, vf_load_n(sum + i, n - i)), n - i);
}

static void add_scaled(tsr_dtype dtype, const void *x, int64_t n, float factor, float *sum) {
#define ADD_SCALED(T) add_scaled_as(T, x, n, factor, sum)
    FOR_DTYPE(dtype, ADD_SCALED);
#undef ADD_SCALED
}

const struct attention_decode_kernels TSRI_KERNEL_TABLE(attention_decode) = {
    .normalise = normalise,
    .rotate = rotate,
    .store_e4m3 = store_e4m3,
    .to_lanes = to_lanes,
    .from_lanes = from_lanes,
    .scores = scores,
    .values = values,
    .add_scaled = add_scaled,
};
