// SPDX-License-Identifier: Apache-2.0
// The norms' operations on vectors of a row's length, compiled once per instruction set: converts weight and bias to
// fp32 in the order that the kernels want, and makes the last sum of dweight and dbias, over groups of rows. For tensors of
// several dtypes (norm_mixed.c) it converts rows and adds the residual.
// Floor: weight and bias read once a call; for dweight and dbias 4 bytes a column and group.
// Figures of the whole calls: docs/kernels/norm.md.
#include "cpu/simd_elements.h"
#include "ops/norm/norm_moments.h"

#define BY_DTYPE(dtype, CALL)                                                                      \
    switch (dtype) {                                                                               \
    case TSR_BF16: CALL(TSR_BF16); break;                                                          \
    case TSR_F16: CALL(TSR_F16); break;                                                            \
    default: CALL(TSR_F32);                                                                        \
    }

SIMD_INLINE void widen_as(tsr_dtype dtype, const void *from, float *to, int64_t n) {
#define VALUE(access, i, n) vf_get(access, dtype, from, i, n)
    SIMD_FOR_VALUES(TSR_F32, to, n, false, VALUE);
#undef VALUE
}
static void widen(tsr_dtype dtype, const void *from, float *to, int64_t n){
#define WIDEN(dtype) widen_as(dtype, from, to, n)
    BY_DTYPE(dtype, WIDEN)
#undef WIDEN
}

SIMD_INLINE
    void narrow_as(tsr_dtype dtype, const float *from, void *to, int64_t n, bool is_streaming) {
    (void)is_streaming; // on the scalar instruction set
#define VALUE(access, i, n) vf_get(access, TSR_F32, from, i, n)
    SIMD_FOR_VALUES(dtype, to, n, is_streaming, VALUE);
#undef VALUE
}
static void narrow(tsr_dtype dtype, const float *from, void *to, int64_t n, bool is_streaming){
#define NARROW(dtype) narrow_as(dtype, from, to, n, is_streaming)
    BY_DTYPE(dtype, NARROW)
#undef NARROW
}

SIMD_INLINE void add_as(tsr_dtype dtype, tsr_dtype out_dtype, const void *x, const float *more,
                        float *sum, void *out, int64_t n, bool is_streaming) {
    float buffer[NORM_ADD_COLS] __attribute__((aligned(64)));
    void *stored = is_streaming && out_dtype != TSR_F32 ? buffer : out;
#define STEP(access, i, n)                                                                         \
    do {                                                                                           \
        vf value = vf_get(access, dtype, x, i, n) + vf_get(access, TSR_F32, more, i, n);           \
        vf_put(access, out_dtype, stored, i, value, n);                                            \
        if (out_dtype != TSR_F32) value = vf_get(access, out_dtype, stored, i, n);                 \
        vf_put(access == SIMD_STREAM ? SIMD_WHOLE : access, TSR_F32, sum, i, value, n);            \
    } while (0)
    if (is_streaming && out_dtype == TSR_F32)
        SIMD_FOR_SPAN(n, simd_stream_head(TSR_F32, out), true, STEP);
    else
        SIMD_FOR_SPAN(n, 0, false, STEP);
#undef STEP
    if (stored != out) stream_bytes((const char *)buffer, out, n * dtype_bytes(out_dtype));
}
static void add(tsr_dtype dtype, tsr_dtype out_dtype, const void *x, const float *more, float *sum,
                void *out, int64_t n, bool is_streaming) {
#define ADD_TO_F32(dtype) add_as(dtype, TSR_F32, x, more, sum, out, n, is_streaming)
#define ADD_TO_BF16(dtype) add_as(dtype, TSR_BF16, x, more, sum, out, n, is_streaming)
#define ADD_TO_F16(dtype) add_as(dtype, TSR_F16, x, more, sum, out, n, is_streaming)
    if (out_dtype == TSR_F32)
        BY_DTYPE(dtype, ADD_TO_F32)
    else if (out_dtype == TSR_BF16)
        BY_DTYPE(dtype, ADD_TO_BF16)
    else
        BY_DTYPE(dtype, ADD_TO_F16)
}

static void fence(void) { vf_stream_fence(); }

#if defined(SIMD_HAS_PAIRS)
SIMD_INLINE void split_as(tsr_dtype dtype, const void *from, float *to, int64_t n) {
    for (int64_t i = 0; i < n; i += PAIR) {
        struct vf_pair v = pair_at(dtype, from, i, n, 0.0f);
        vf_store_pair(TSR_F32, to, i, vf_is_split(dtype) ? v : vf_split(v));
    }
}
static void split(tsr_dtype dtype, const void *from, float *to, int64_t n) {
#define SPLIT(dtype) split_as(dtype, from, to, n)
    BY_DTYPE(dtype, SPLIT)
#undef SPLIT
}
#endif

static void store_vector(const struct norm_vector *v, int64_t i, vf value, int64_t n) {
    switch (v->dtype) {
    case TSR_BF16: vf_store_as_n(TSR_BF16, v->data, i, value, n); break;
    case TSR_F16: vf_store_as_n(TSR_F16, v->data, i, value, n); break;
    default: vf_store_as_n(TSR_F32, v->data, i, value, n);
    }
}

static void reduce(const struct norm_call *call, int64_t first, int64_t last, int thread) {
    (void)thread;
    const struct norm_problem *p = call->problem;
    int64_t groups = tsri_ceil_div(p->rows, norm_group_rows(p)), padded = norm_padded_cols(p);
    const struct norm_vector *out[2] = {&p->dweight, &p->dbias};
    for (int v = 0; v < 2; v++)
        for (int64_t i = first; out[v]->data != NULL && i < last; i += PAIR) {
            int64_t n = last - i < PAIR ? last - i : PAIR;
            struct vf_pair sum = {vf_set1(0.0f), vf_set1(0.0f)};
            for (int64_t g = 0; g < groups; g++) {
                const float *of_group = call->partial + (2 * g + v) * padded;
                struct vf_pair s = vf_load_pair(TSR_F32, of_group, i);
                sum.a = sum.a + s.a, sum.b = sum.b + s.b;
            }
            if (call->is_partial_split) sum = vf_join(sum);
            store_vector(out[v], i, sum.a, n < VL ? n : VL);
            if (n > VL) store_vector(out[v], i + VL, sum.b, n - VL);
        }
}

const struct norm_kernels TSRI_KERNEL_TABLE(norm) = {
    .widen = widen,
    .narrow = narrow,
    .add = add,
    .fence = fence,
#if defined(SIMD_HAS_PAIRS)
    .split = split,
#endif
    .reduce = reduce,
};
