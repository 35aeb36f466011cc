// SPDX-License-Identifier: Apache-2.0
// Embedding, compiled once per instruction set: forward copies rows of weight (vocab, hidden) to y (tokens, hidden),
// backward sums rows of dy into dweight. Rows are scattered in memory, so the hardware prefetcher restarts at each row;
// while one row is processed, software prefetches the next.
// Floor: forward each token's row read and written; backward dy read once, dweight written once, zero rows included.
// Limit: forward the cold misses at the start of each row; backward of 16 bits with several tokens a row widening and narrowing on
// one thread.
// Figures: docs/kernels/embedding.md.
#include "cpu/simd_elements.h"
#include "cpu/simd_nan.h"
#include "ops/embedding/embedding_problem.h"

enum { LINE = 64 };

// Prefetches into the second-level cache, which keeps more misses in flight than the first.
#define FETCH_AHEAD(address) __builtin_prefetch((address), 0, 2)

// ---- Forward ----------------------------------------------------------------------------------

// How many rows to prefetch ahead: enough to hide memory's latency, few enough to stay in the cache until used.
SIMD_INLINE int64_t rows_ahead(int64_t bytes) { return bytes <= 2048 ? 2 : 1; }

// Copies raw bytes from x to y with non-temporal stores, 64 at a time between the ends.
SIMD_INLINE void stream_bytes(char *y, const char *x, int64_t bytes, const char *next) {
    int64_t i = (int64_t)(-(uintptr_t)y % LINE);
    if (i > bytes) i = bytes;
    memcpy(y, x, (size_t)i);
    for (; i + LINE <= bytes; i += LINE) {
        FETCH_AHEAD(next + i);
        for (int64_t j = 0; j < LINE; j += VL * 4)
            vf_stream((float *)(void *)(y + i + j),
                      vf_load((const float *)(const void *)(x + i + j)));
    }
    memcpy(y + i, x + i, (size_t)(bytes - i));
}

SIMD_INLINE void copy_bytes(char *y, const char *x, int64_t bytes, const char *next,
                            bool is_streaming) {
    if (is_streaming && VL > 1) {
        stream_bytes(y, x, bytes, next);
    } else {
        for (int64_t i = 0; i < bytes && i < 8 * LINE; i += LINE) FETCH_AHEAD(next + i);
        memcpy(y, x, (size_t)bytes);
    }
}

static void gather(const struct embedding_problem *p, int64_t first, int64_t last,
                   bool is_streaming) {
    int64_t bytes = p->rows.cols * (int64_t)tsr_dtype_bytes(p->rows.dtype);
    int64_t ahead = rows_ahead(bytes);
    for (int64_t t = first; t < last; t++) {
        const char *x = tsri_row(&p->table, tsri_index_at(&p->ids, t));
        const char *next =
            t + ahead < last ? tsri_row(&p->table, tsri_index_at(&p->ids, t + ahead)) : x;
        copy_bytes(tsri_row(&p->rows, t), x, bytes, next, is_streaming);
    }
    if (is_streaming) vf_stream_fence();
}

// ---- Backward ---------------------------------------------------------------------------------

// One instantiation per pair of dtypes, which are constants inside.
#define BY_DTYPES(call, table_dtype, rows_dtype, ...)                                              \
    switch ((rows_dtype)) {                                                                        \
    case TSR_BF16:                                                                                 \
        if ((table_dtype) == TSR_F32)                                                              \
            call(TSR_F32, TSR_BF16, __VA_ARGS__);                                                  \
        else                                                                                       \
            call(TSR_BF16, TSR_BF16, __VA_ARGS__);                                                 \
        break;                                                                                     \
    case TSR_F16:                                                                                  \
        if ((table_dtype) == TSR_F32)                                                              \
            call(TSR_F32, TSR_F16, __VA_ARGS__);                                                   \
        else                                                                                       \
            call(TSR_F16, TSR_F16, __VA_ARGS__);                                                   \
        break;                                                                                     \
    default: call(TSR_F32, TSR_F32, __VA_ARGS__);                                                  \
    }

enum { CHUNK = 2048 }; // columns summed at once: 8 KiB of fp32, in the first-level cache
enum { NARROW = 8 * VL < 128 ? 8 * VL : 128, IN_CACHE_BYTES = 16 << 20 };
// Vectors of a row's sum in registers. More for 16 bits, whose rows have half as many lines and are prefetched some
// tokens ahead.
enum { STRIP = 4, MOST_STRIP = 8, STRIP_AHEAD = 8 };

// sums = or += a row of dy. Prefetches the next token's row, `next`, at the same pace.
SIMD_INLINE void add_row(tsr_dtype dtype, const void *dy, float *sums, int64_t cols, bool is_first,
                         const char *next) {
    int64_t bytes = dtype == TSR_F32 ? 4 : 2, i = 0;
    for (; i + VL <= cols; i += VL) {
        if (i * bytes % LINE == 0) FETCH_AHEAD(next + i * bytes);
        vf value = vf_load_as(dtype, dy, i);
        if (!is_first) value = vf_load(sums + i) + value;
        vf_store(sums + i, value);
    }
    if (i < cols) {
        vf value = vf_load_as_n(dtype, dy, i, cols - i);
        if (!is_first) value = vf_load_n(sums + i, cols - i) + value;
        vf_store_n(sums + i, value, cols - i);
    }
}

// sums = `width` vectors, from column i on, of the tokens' rows, added in order in registers.
SIMD_INLINE void sum_strip(tsr_dtype dtype, const struct embedding_problem *p, const int64_t *token,
                           int64_t num, int64_t i, int width, float *sums) {
    vf total[MOST_STRIP];
    for (int j = 0; j < width; j++) total[j] = vf_set1(-0.0f); // adding -0 changes nothing
    for (int64_t k = 0; k < num; k++) {
        const void *dy = tsri_row(&p->rows, token[k]);
        if (width == MOST_STRIP) {
            const char *next =
                tsri_row(&p->rows, token[k + STRIP_AHEAD < num ? k + STRIP_AHEAD : k]);
            for (int j = 0; j < width * VL * 2; j += LINE) FETCH_AHEAD(next + i * 2 + j);
        }
        for (int j = 0; j < width; j++) total[j] = total[j] + vf_load_as(dtype, dy, i + j * VL);
    }
    for (int j = 0; j < width; j++) vf_store(sums + j * VL, total[j]);
}

// sums = the tokens' rows in order, for few columns or rows in the cache: some vectors at a time in registers.
SIMD_INLINE void sum_narrow(tsr_dtype dtype, const struct embedding_problem *p,
                            const int64_t *token, int64_t num, int64_t begin, int64_t cols,
                            float *sums) {
    int64_t i = 0;
    for (; VL > 1 && dtype != TSR_F32 && i + MOST_STRIP * VL <= cols; i += MOST_STRIP * VL)
        sum_strip(dtype, p, token, num, begin + i, MOST_STRIP, sums + i);
    for (; VL > 1 && i + STRIP * VL <= cols; i += STRIP * VL)
        sum_strip(dtype, p, token, num, begin + i, STRIP, sums + i);
    for (; i < cols; i += VL) {
        int64_t n = cols - i < VL ? cols - i : VL;
        vf total = vf_set1(-0.0f);
        for (int64_t k = 0; k < num; k++) {
            const void *dy = tsri_row(&p->rows, token[k]);
            if (n == VL)
                total = total + vf_load_as(dtype, dy, begin + i);
            else
                total = total + vf_load_as_n(dtype, dy, begin + i, n);
        }
        vf_store(sums + i, total);
    }
}

// Writes zeros; in every dtype, 0 has all bits zero.
SIMD_INLINE void write_zeros(char *dw, int64_t bytes, bool is_streaming) {
    int64_t i = is_streaming && VL > 1 ? (int64_t)(-(uintptr_t)dw % LINE) : bytes;
    if (i > bytes) i = bytes;
    memset(dw, 0, (size_t)i);
    for (; i + LINE <= bytes; i += LINE)
        for (int64_t j = 0; j < LINE; j += VL * 4)
            vf_stream((float *)(void *)(dw + i + j), vf_set1(0.0f));
    memset(dw + i, 0, (size_t)(bytes - i));
}

// dw = sums, or dw + sums, with one NaN: the loops above, which tasks choose by their columns, add in another order of
// operands. Non-temporal stores write whole lines.
SIMD_INLINE void write_row(tsr_dtype dtype, const float *sums, void *dw, int64_t cols,
                           bool is_accumulating, bool is_streaming) {
    int64_t i = 0;
    if (is_streaming) {
#define VALUE(access, i, n)                                                                        \
    vf_one_nan(vf_get(access == SIMD_PART ? SIMD_PART : SIMD_WHOLE, TSR_F32, sums, i, n))
        SIMD_FOR_VALUES(dtype, dw, cols, true, VALUE);
#undef VALUE
        return;
    }
    for (; i + VL <= cols; i += VL) {
        vf value = vf_load(sums + i);
        if (is_accumulating) value = vf_load_as(dtype, dw, i) + value;
        vf_store_as(dtype, dw, i, vf_one_nan(value));
    }
    if (i < cols) {
        vf value = vf_load_n(sums + i, cols - i);
        if (is_accumulating) value = vf_load_as_n(dtype, dw, i, cols - i) + value;
        vf_store_as_n(dtype, dw, i, vf_one_nan(value), cols - i);
    }
}

SIMD_INLINE void sum_as(tsr_dtype table_dtype, tsr_dtype rows_dtype,
                        const struct embedding_problem *p, const int64_t *start,
                        const int64_t *token, int64_t first, int64_t last, int64_t begin,
                        int64_t end, bool is_streaming) {
    float sums[CHUNK];
    int64_t table_bytes = table_dtype == TSR_F32 ? 4 : 2, bytes = rows_dtype == TSR_F32 ? 4 : 2;
    int64_t num_tokens = start[p->table.rows], ahead = rows_ahead((end - begin) * bytes);
    bool is_dense = end - begin == p->table.stride;
    bool is_in_cache = p->ids.count * p->rows.cols * bytes <= IN_CACHE_BYTES;
    for (int64_t v = first; v < last; v++) {
        int64_t from = start[v], to = v == p->padding_id ? start[v] : start[v + 1];
        if (from == to) { // contiguous rows without tokens are one span of zeros
            int64_t empty = v;
            while (is_dense && v + 1 < last && start[v + 1] == start[v + 2]) v++;
            if (!p->is_accumulating)
                write_zeros((char *)tsri_row(&p->table, empty) + begin * table_bytes,
                            (end - begin) * (v - empty + 1) * table_bytes, is_streaming);
            continue;
        }
        if (to - from == 1 && table_dtype == rows_dtype && !p->is_accumulating) { // a copy
            int64_t next = from + ahead < num_tokens ? token[from + ahead] : token[from];
            copy_bytes((char *)tsri_row(&p->table, v) + begin * bytes,
                       (char *)tsri_row(&p->rows, token[from]) + begin * bytes,
                       (end - begin) * bytes, (char *)tsri_row(&p->rows, next) + begin * bytes,
                       is_streaming);
            continue;
        }
        if (end - begin <= NARROW || (is_in_cache && end - begin <= CHUNK - VL)) {
            sum_narrow(rows_dtype, p, token + from, to - from, begin, end - begin, sums);
            write_row(table_dtype, sums, (char *)tsri_row(&p->table, v) + begin * table_bytes,
                      end - begin, p->is_accumulating, is_streaming);
            continue;
        }
        for (int64_t c = begin; c < end; c += CHUNK) {
            int64_t cols = end - c < CHUNK ? end - c : CHUNK;
            char *dw = (char *)tsri_row(&p->table, v) + c * table_bytes;
            for (int64_t k = from; k < to; k++) {
                const char *dy = (char *)tsri_row(&p->rows, token[k]) + c * bytes;
                const char *next =
                    k + ahead < num_tokens ? tsri_row(&p->rows, token[k + ahead]) : dy;
                add_row(rows_dtype, dy, sums, cols, k == from, next + c * bytes);
            }
            write_row(table_dtype, sums, dw, cols, p->is_accumulating, is_streaming);
        }
    }
}

static void sum(const struct embedding_problem *p, const int64_t *start, const int64_t *token,
                int64_t first, int64_t last, int64_t begin, int64_t end, bool is_streaming) {
    bool streams = is_streaming && !p->is_accumulating;
    BY_DTYPES(sum_as, p->table.dtype, p->rows.dtype, p, start, token, first, last, begin, end,
              streams)
    if (streams) vf_stream_fence();
}

// ---- Unfused passes ---------------------------------------------------------------------------

SIMD_INLINE void scatter_as(tsr_dtype table_dtype, tsr_dtype rows_dtype,
                            const struct embedding_problem *p, float *sums) {
    (void)table_dtype;
    for (int64_t t = 0; t < p->ids.count; t++) {
        int64_t v = tsri_index_at(&p->ids, t);
        const char *dy = tsri_row(&p->rows, t);
        if (v != p->padding_id)
            add_row(rows_dtype, dy, sums + v * p->table.cols, p->table.cols, false, dy);
    }
}

static void scatter(const struct embedding_problem *p,
                    float *sums){BY_DTYPES(scatter_as, p->table.dtype, p->rows.dtype, p, sums)}

SIMD_INLINE
    void convert_as(tsr_dtype table_dtype, tsr_dtype rows_dtype, const struct embedding_problem *p,
                    const float *sums, int64_t first, int64_t last) {
    (void)rows_dtype;
    for (int64_t v = first; v < last; v++)
        write_row(table_dtype, sums + v * p->table.cols, tsri_row(&p->table, v), p->table.cols,
                  p->is_accumulating, false);
}

static void convert(const struct embedding_problem *p, const float *sums, int64_t first,
                    int64_t last) {
    BY_DTYPES(convert_as, p->table.dtype, p->rows.dtype, p, sums, first, last)
}

const struct embedding_kernels TSRI_KERNEL_TABLE(embedding) = {
    .gather = gather,
    .sum = sum,
    .scatter = scatter,
    .convert = convert,
};
