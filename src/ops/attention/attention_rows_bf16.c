// SPDX-License-Identifier: Apache-2.0
// Rows of attention between two products in bf16, sixteen at a time, so that what a row costs beside its
// scores is vectors too. See attention_simd.c for rows in fp32.
//
// The reference of a row need not be its maximum, only near: it moves when scores are SLACK above it,
// which after the first block is rare (as in FlashAttention-4, Zadouri et al., 2026).
#include <math.h>

#include "cpu/simd.h"
#include "ops/attention/attention_mixed.h"

enum { SLACK = 5, PAIR = 2 * VL };

// Two vectors in order.
SIMD_INLINE __m512i narrow(vf a, vf b) { return (__m512i)_mm512_cvtne2ps_pbh(b, a); }

// Lane i is the largest lane of r[i], as vf_sums.
SIMD_INLINE vf vf_maxima(const vf *r) {
    vf t[8], u[4];
    for (int i = 0; i < 8; i++)
        t[i] = vf_max(_mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]),
                      _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]));
    for (int i = 0; i < 4; i++)
        u[i] = vf_max(_mm512_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44),
                      _mm512_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee));
    for (int i = 0; i < 2; i++)
        t[i] = vf_max(_mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0x88),
                      _mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0xdd));
    return vf_max(_mm512_shuffle_f32x4(t[0], t[1], 0x88), _mm512_shuffle_f32x4(t[0], t[1], 0xdd));
}

static vf row_max(const float *s, int64_t n) {
    vf a = vf_load(s), b = vf_load(s + VL);
    for (int64_t j = PAIR; j < n; j += PAIR) {
        a = vf_max(vf_load(s + j), a);
        b = vf_max(vf_load(s + j + VL), b);
    }
    // The first vectors may hold NaN, which the second operand would keep.
    return vf_max(vf_max(a, vf_set1(-INFINITY)), vf_max(b, vf_set1(-INFINITY)));
}

static bool weigh_rows(int rows, int64_t n, float factor, float *s, uint16_t *p, int64_t stride,
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
    if (_mm512_cmp_ps_mask(vf_abs(now), far, _CMP_GT_OQ) & ~is_empty) return false;
    vf r = _mm512_mask_mov_ps(now * log2e, is_empty, vf_set1(0.0f));
    vf a = _mm512_mask_mov_ps(one, is_moved, vf_exp2(before * log2e - r));
    vf_store(reference, vf_set1(0.0f) - r);
    vf_store_n(max, now, rows);
    vf_store_n(alpha, a, rows);
    for (int i = 0; i < rows; i++) {
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
    vf_store_n(sum, vf_load_n(sum, rows) * a + vf_sums(row), rows);
    return true;
}

const struct attention_bf16_kernels tsri_attention_bf16_kernels = {.weigh_rows = weigh_rows};
