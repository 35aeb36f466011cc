// SPDX-License-Identifier: Apache-2.0
// Rows of attention between two products in bf16, sixteen at a time, so that what a row costs beside its scores is vectors too. See
// attention_simd.c for rows in fp32.
// The reference of a row need not be its maximum, only near: it moves when scores are SLACK above it, which after the first block
// is rare (as in FlashAttention-4, Zadouri et al., 2026).
// Floor: an exponential a score, 5 to 6 cycles for 16 scores, for which the products of heads of 64 take 4 on AMX.
// Limit: maxima and exponentials are 32 to 40 % of forward.
// Figures: docs/kernels/attention_cpu.md.
#include <math.h>

#include "cpu/simd.h"
#include "ops/attention/cpu/forward/attention_mixed.h"

enum { SLACK = 5, PAIR = 2 * VL };

// Two vectors in order.
SIMD_INLINE __m512i narrow(vf a, vf b) { return (__m512i)_mm512_cvtne2ps_pbh(b, a); }

static vf row_max(const float *s, int64_t n) {
    vf a = vf_load(s), b = vf_load(s + VL);
    for (int64_t j = PAIR; j < n; j += PAIR) {
        a = vf_max(vf_load(s + j), a);
        b = vf_max(vf_load(s + j + VL), b);
    }
    // The first vectors may hold NaN, which the second operand would keep.
    return vf_max(vf_max(a, vf_set1(-INFINITY)), vf_max(b, vf_set1(-INFINITY)));
}

static unsigned weigh_rows(int rows, int64_t n, float factor, float *s, uint16_t *p, int64_t stride,
                           float *max, float *sum, float *alpha) {
    const vf lowest = vf_set1(-INFINITY), far = vf_set1(ATTENTION_FAR), one = vf_set1(1.0f);
    const vf log2e = vf_set1(SIMD_LOG2E), f = vf_set1(factor * SIMD_LOG2E);
    float reference[VL];
    vf row[VL];
    for (int i = 0; i < VL; i++) row[i] = i < rows ? row_max(s + i * stride, n) : lowest;
    vf most = vf_maxima(row) * vf_set1(factor), before = vf_load_n(max, rows);
    __mmask16 is_moved =
        _mm512_cmp_ps_mask(most, before + vf_set1((float)SLACK), _CMP_GT_OQ) & simd_first_n(rows);
    vf now = _mm512_mask_mov_ps(before, is_moved, most);
    __mmask16 is_empty = _mm512_cmp_ps_mask(now, lowest, _CMP_EQ_OQ);
    __mmask16 is_far = _mm512_cmp_ps_mask(vf_abs(now), far, _CMP_NLT_UQ) & ~is_empty &
                       simd_first_n(rows); // or NaN
    now = _mm512_mask_mov_ps(now, is_far, before);
    vf r = _mm512_mask_mov_ps(now * log2e, is_empty, vf_set1(0.0f));
    vf a =
        _mm512_mask_mov_ps(one, is_moved & (__mmask16)~is_far, vf_exp2(vf_fms(before, log2e, r)));
    vf_store(reference, vf_set1(0.0f) - r);
    vf_store_n(max, now, rows);
    vf_store_n(alpha, a, rows);
    for (int i = 0; i < rows; i++) {
        if (is_far >> i & 1) {
            row[i] = vf_set1(0.0f);
            continue;
        }
        const float *x = s + i * stride;
        uint16_t *y = p + 2 * i * stride;
        vf low = vf_set1(0.0f), high = low, c = vf_set1(reference[i]);
        for (int64_t j = 0; j < n; j += PAIR) {
            vf u = vf_exp2(vf_fma(vf_load(x + j), f, c));
            vf v = vf_exp2(vf_fma(vf_load(x + j + VL), f, c));
            _mm512_storeu_si512(y + j, narrow(u, v));
            low = low + u;
            high = high + v;
        }
        row[i] = low + high;
    }
    vf_store_n(sum, vf_fma(vf_load_n(sum, rows), a, vf_sums(row)), rows);
    return is_far;
}

// ---- Backward ---------------------------------------------------------------------------------

static void scale(const uint16_t *x, int64_t n, float power, uint16_t *y) {
    const vf f = vf_set1(power);
    for (int64_t i = 0; i < n; i += PAIR) {
        int64_t left = n - i < PAIR ? n - i : PAIR;
        vf even, odd;
        vf_load_pair_bf16_n(x + i, left, &even, &odd);
        _mm512_storeu_si512(
            y + i, simd_join_halves(_mm512_castps_si512(even * f), _mm512_castps_si512(odd * f)));
    }
}

// The lanes of columns [j, j + VL) that row i sees.
SIMD_INLINE __mmask16 lanes_of(const struct attention_range *seen, int64_t j) {
    int64_t begin = seen->begin - j, end = seen->end - j;
    __mmask16 below = simd_first_n(begin < 0 ? 0 : begin > VL ? VL : begin);
    return simd_first_n(end < 0 ? 0 : end > VL ? VL : end) & ~below;
}

// Weights and gradients of VL columns of row i. A polynomial of degree 4 is enough, as both are rounded to bf16.
SIMD_INLINE void grad_vector(const struct attention_grad_strip *t, int i, int64_t j, bool is_masked,
                             bool is_done, vf *p, vf *ds) {
    vf s = vf_load(t->s + i * t->stride + j), dp = vf_load(t->dp + i * t->stride + j);
    if (is_done) {
        *p = s;
        *ds = dp * vf_set1(t->factor);
    } else {
        *p = vf_exp2_for_16_bits(vf_fma(s, vf_set1(t->exponent), vf_set1(t->reference[i])));
        *ds = *p * vf_fma(dp, vf_set1(t->factor), vf_set1(t->delta[i]));
    }
    if (is_masked) {
        __mmask16 lanes = lanes_of(&t->seen[i], j);
        *p = _mm512_maskz_mov_ps(lanes, *p);
        *ds = _mm512_maskz_mov_ps(lanes, *ds);
    }
}

// Rows i and i + 1, columns [begin, end).
SIMD_INLINE void grad_rows(const struct attention_grad_strip *t, int i, int64_t begin, int64_t end,
                           bool is_masked, unsigned done) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(VL));
    for (int64_t j = begin; j < end; j += PAIR) {
        vf p[2][2], ds[2][2]; // [row][vector]
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++)
                grad_vector(t, i + r, j + v * VL, is_masked, done >> r & 1, &p[r][v], &ds[r][v]);
        __m512i upper = narrow(p[0][0], p[0][1]), lower = narrow(p[1][0], p[1][1]);
        int64_t at = j / GEMM_BF16_NR * t->panel + (int64_t)i * GEMM_BF16_NR + j % GEMM_BF16_NR * 2;
        _mm512_storeu_si512(t->p + at, _mm512_permutex2var_epi16(upper, low, lower));
        _mm512_storeu_si512(t->p + at + PAIR, _mm512_permutex2var_epi16(upper, high, lower));
        upper = narrow(ds[0][0], ds[0][1]), lower = narrow(ds[1][0], ds[1][1]);
        _mm512_storeu_si512(t->ds + at, _mm512_permutex2var_epi16(upper, low, lower));
        _mm512_storeu_si512(t->ds + at + PAIR, _mm512_permutex2var_epi16(upper, high, lower));
        _mm512_storeu_si512(t->ds_rows + i * t->ds_stride + j, upper);
        _mm512_storeu_si512(t->ds_rows + (i + 1) * t->ds_stride + j, lower);
    }
}

static void grad_strip(const struct attention_grad_strip *given) {
    const struct attention_grad_strip strip = *given, *t = &strip; // local: no store can change it
    for (int i = 0; i < ATTENTION_STRIP; i += 2) {
        const struct attention_range *a = &t->seen[i], *b = a + 1;
        // Whole steps of columns that both rows see need no masks.
        int64_t begin = (tsri_max(a->begin, b->begin) + PAIR - 1) / PAIR * PAIR;
        int64_t end = tsri_min(tsri_min(a->end, b->end), t->n) / PAIR * PAIR;
        if (begin >= end) begin = end = 0;
        if (t->done >> i & 3) {
            grad_rows(t, i, 0, t->n, true, t->done >> i & 3);
            continue;
        }
        grad_rows(t, i, 0, begin, true, 0);
        grad_rows(t, i, begin, end, false, 0);
        grad_rows(t, i, end, t->n, true, 0);
    }
}

static void transpose(const float *from, int64_t from_stride, int64_t rows, int64_t cols, float *to,
                      int64_t to_stride) {
    for (int64_t j = 0; j < cols; j += VL)
        for (int64_t i = 0; i < rows; i += VL) {
            vf x[VL];
            for (int r = 0; r < VL; r++) x[r] = vf_load(from + (i + r) * from_stride + j);
            vf_transpose(x);
            for (int r = 0; r < VL; r++) vf_store(to + (j + r) * to_stride + i, x[r]);
        }
}

const struct attention_bf16_kernels tsri_attention_bf16_kernels = {
    .weigh_rows = weigh_rows,
    .scale = scale,
    .grad_strip = grad_strip,
    .transpose = transpose,
};
