// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels of decode share: a sequence's lengths and its split into chunks of keys, rows of the cache by their pages,
// rotation, and the end of a row. It mirrors attention_decode_problem.h. Lengths and pages are read only here and are clamped,
// whatever their values.
//
// Rows of a key head are its query heads for query 0, then for query 1, ...: row r is query r / group. A tile is rows_per_tile of
// them. A sequence with at most max_chunks tiles has its keys split, so that it has at most max_chunks blocks in all. The split
// depends only on its own lengths and max_chunks.
#ifndef TSRI_ATTENTION_DECODE_DEVICE_CUH
#define TSRI_ATTENTION_DECODE_DEVICE_CUH

#include "cuda/device/any_dtype.cuh"
#include "ops/attention/cuda/attention_device.cuh"
#include "ops/attention/cuda/decode/attention_decode_params.h"

#define LN_2 0.6931471805599453f

// Kernels that read caches of e4m3 and are not compiled for them alone ask p.
#ifdef IS_E4M3
#define HAS_E4M3(p) IS_E4M3
#else
#define HAS_E4M3(p) (p)->is_e4m3
#endif

// ---- Sequences --------------------------------------------------------------------------------

// Key j lies in row k_first + j of the sequence's pages. *cache_len: keys before the new ones.
DEVICE struct attention_sequence decode_sequence_at(const struct attention_decode_params *p,
                                                    int batch, long long *cache_len) {
    struct attention_sequence s = attention_sequence_at(&p->a, batch);
    long long rows = clamp_long(p->cache_seqlens[batch * p->cache_seqlens_stride], 0, p->capacity);
    s.k_first = 0;
    if (p->leftpad_k != 0) s.k_first = clamp_long(p->leftpad_k[batch * p->leftpad_stride], 0, rows);
    *cache_len = rows - s.k_first;
    long long keys = *cache_len + (p->a.k.data != 0 ? s.len_q : 0);
    if (keys > p->capacity - s.k_first) keys = p->capacity - s.k_first;
    s.len_k = keys < p->most_keys ? (int)keys : p->most_keys;
    s.shift = s.len_k - s.len_q;
    return s;
}

// One block's share: a tile of rows against the keys [begin, end). Every row sees the keys from whole_begin to whole_end.
struct decode_item {
    struct attention_sequence s;
    int batch, head; // key head
    int first_row, num_rows;
    int begin, end, whole_begin, whole_end;
    int first_new, end_new; // new rows that this block appends, from cache_len on
    long long cache_len;
    int num_chunks;  // 1: the result is final
    int slot, chunk; // otherwise: place of the partial result; chunk of its tile
};

// Sets first_row to num_chunks. False: there is no such tile or chunk. chunk 0 always exists.
DEVICE int decode_cut(const struct attention_decode_params *p, int tile, int chunk, int num_chunks,
                      struct decode_item *item) {
    const struct attention_sequence *s = &item->s;
    int rest = p->a.group * s->len_q - tile * p->rows_per_tile;
    if (rest <= 0) return 0;
    item->first_row = tile * p->rows_per_tile;
    item->num_rows = rest < p->rows_per_tile ? rest : p->rows_per_tile;
    int query = item->first_row / p->a.group;
    int last_query = (item->first_row + item->num_rows - 1) / p->a.group;
    int begin = attention_first_key(&p->a, s, query);
    int end = attention_end_key(&p->a, s, last_query);
    if (begin > end) begin = end;
    int keys = (end - begin + num_chunks - 1) / num_chunks;
    keys = (keys + DECODE_CHUNK_STEP - 1) / DECODE_CHUNK_STEP * DECODE_CHUNK_STEP;
    if (keys < DECODE_CHUNK_LEAST) keys = DECODE_CHUNK_LEAST;
    item->num_chunks = begin == end ? 1 : (end - begin + keys - 1) / keys;
    if (chunk >= item->num_chunks) return 0;
    item->begin = begin + chunk * keys;
    item->end = end - item->begin < keys ? end : item->begin + keys;
    item->whole_begin = attention_first_key(&p->a, s, last_query);
    item->whole_end = attention_end_key(&p->a, s, query);
    if (item->whole_end > item->end) item->whole_end = item->end;
    if (p->tree_mask != 0 && item->whole_end > s->shift) item->whole_end = s->shift;
    return 1;
}

// Tiles of a sequence.
DEVICE int decode_tiles(const struct attention_decode_params *p,
                        const struct attention_sequence *s) {
    return (p->a.group * s->len_q + p->rows_per_tile - 1) / p->rows_per_tile;
}

// ---- Items ------------------------------------------------------------------------------------

DEVICE int decode_divide(int x, int by, int *rest) {
    int whole = (int)((unsigned)x / (unsigned)by);
    *rest = x - whole * by;
    return whole;
}

struct decode_cursor {
    int id;    // of the one item; else the tile, counted from sequence `batch`
    int batch; // of the one item: 1 after it was given
};

// Each new row belongs to the chunk of its position, or to the first or last chunk if no chunk has that position.
DEVICE void decode_take_new(const struct attention_decode_params *p, int chunk, long long cache_len,
                            struct decode_item *item) {
    long long room = p->capacity - item->s.k_first - cache_len;
    int end = room < item->s.len_q ? (int)room : item->s.len_q;
    item->cache_len = cache_len;
    item->first_new = item->end_new = 0;
    if (!p->is_appending) return;
    item->end_new = end;
    if (chunk > 0) item->first_new = (int)clamp_long(item->begin - cache_len, 0, end);
    if (chunk < item->num_chunks - 1)
        item->end_new = (int)clamp_long(item->end - cache_len, 0, end);
}

DEVICE struct decode_cursor decode_first(const struct attention_decode_params *p) {
    struct decode_cursor at = {(int)blockIdx.x, 0};
    if (at.id >= p->num_items) at.id -= p->num_items;
    return at;
}

// The next item of this block, the same for all of its threads; false after the last. Neighbours in the grid read neighbouring
// heads, which are adjacent in memory.
DEVICE int decode_next(const struct attention_decode_params *p, struct decode_cursor *at,
                       struct decode_item *item) {
    int heads = p->a.num_heads_kv;
    long long cache_len;
    if ((int)blockIdx.x < p->num_items) {
        int part, rest = decode_divide(at->id, heads, &item->head);
        if (at->batch++ > 0) return 0;
        item->batch = decode_divide(rest, p->max_chunks, &part);
        item->s = decode_sequence_at(p, item->batch, &cache_len);
        int tiles = decode_tiles(p, &item->s);
        if (tiles == 0 || tiles > p->max_chunks) return 0;
        int chunks = p->max_chunks / tiles;
        item->slot = (item->batch * heads + item->head) * p->max_chunks + part;
        item->chunk = part % chunks;
        if (!decode_cut(p, part / chunks, part % chunks, chunks, item)) return 0;
        decode_take_new(p, part % chunks, cache_len, item);
        return 1;
    }
    for (; at->batch < p->a.num_batches; at->batch++) {
        item->s = decode_sequence_at(p, at->batch, &cache_len);
        int tiles = decode_tiles(p, &item->s);
        if (tiles <= p->max_chunks) continue;
        if (at->id >= tiles * heads) {
            at->id -= tiles * heads;
            continue;
        }
        int tile;
        item->batch = at->batch;
        item->head = decode_divide(at->id, tiles, &tile);
        decode_cut(p, tile, 0, 1, item);
        item->first_new = item->end_new = 0;
        at->id += (int)gridDim.x - p->num_items;
        return 1;
    }
    return 0;
}

DEVICE int decode_query_of(const struct attention_decode_params *p, const struct decode_item *item,
                           int row) {
    return (item->first_row + row) / p->a.group;
}
// The byte of tree_mask for a query and key 0, which is before the mask's first if there are older keys; 0: there is no mask.
DEVICE const unsigned char *decode_tree_of(const struct attention_decode_params *p,
                                           const struct attention_sequence *s, int batch,
                                           int query) {
    if (p->tree_mask == 0) return 0;
    return p->tree_mask + batch * p->tree_stride[0] + query * p->tree_stride[1] -
           s->shift * p->tree_stride[2];
}

// Which of the keys [j, j + num), at most 16, are in [begin, end) and not hidden by a row's tree; in bits.
DEVICE unsigned decode_seen(const struct attention_decode_params *p,
                            const struct attention_sequence *s, const unsigned char *tree,
                            int begin, int end, int j, int num) {
    int low = min(max(begin - j, 0), num), high = min(max(end - j, low), num);
    unsigned seen = (1u << high) - (1u << low);
    if (tree == 0) return seen;
#pragma unroll 1
    for (int i = max(low, s->shift - j); i < high; i++)
        if (tree[(j + i) * p->tree_stride[2]] == 0) seen &= ~(1u << i);
    return seen;
}
DEVICE int decode_head_of(const struct attention_decode_params *p, const struct decode_item *item,
                          int row) {
    return item->head * p->a.group + (item->first_row + row) % p->a.group;
}

// ---- Rows of the cache ------------------------------------------------------------------------

// Addresses of a head of a key in both caches. An invalid page is clamped.
struct decode_row {
    long long k, v;
};

// The address of a head of a row of a page, which exists.
DEVICE long long decode_place(const struct attention_tensor *cache, long long page, long long row,
                              int head) {
    return (long long)cache->data + page * cache->batch + row * cache->seq + head * cache->head;
}

// Starts a load of 16 bytes without using it. If is_there is 0, nothing is read and *group stays. It is one instruction, as
// branches would keep the compiler from starting all loads of a tile together.
DEVICE void fetch_group(uint4 *group, const char *from, int is_there) {
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "setp.ne.s32 p, %5, 0;\n\t"
                 "@p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
                 "}"
                 : "+r"(group->x), "+r"(group->y), "+r"(group->z), "+r"(group->w)
                 : "l"(from), "r"(is_there)
                 : "memory");
}

// row: of the sequence. Neither it nor what counts of a page's size exceeds 2^32, as lengths have 32 bits.
DEVICE struct decode_row decode_row_at(const struct attention_decode_params *p, int batch, int head,
                                       unsigned row) {
    long long page = batch;
    if (p->page_table != 0) {
        unsigned page_size = p->page_size > 0xffffffffll ? 0xffffffffu : (unsigned)p->page_size;
        unsigned place = row / page_size;
        row -= place * page_size;
        page = p->page_table[batch * p->page_table_stride[0] + place * p->page_table_stride[1]];
        page = clamp_long(page, 0, p->num_pages - 1);
    }
    struct decode_row at = {decode_place(&p->k_cache, page, row, head),
                            decode_place(&p->v_cache, page, row, head)};
    return at;
}

// ---- Elements of q's dtype ----------------------------------------------------------------------
// The kernel of e4m3 and 16 bits computes in f16, whatever q's dtype.

#if defined(IS_E4M3) && IS_E4M3
#define decode_load(p, data, at) load_any(data, at, (p)->dtype)
#define decode_store(p, data, at, x) store_any(data, at, x, (p)->dtype)
#else
#define decode_load(p, data, at) load(data, at)
#define decode_store(p, data, at, x) store(data, at, x)
#endif

// A slope, a sink, the scale of a cache, the weight of a norm.
DEVICE float decode_value(const struct attention_decode_params *p,
                          const struct attention_head_values *t, int batch, int head) {
    return load_any(t->data, batch * t->batch + head * t->head, t->is_f32 ? DTYPE_F32 : p->dtype);
}
DEVICE float decode_sink_at(const struct attention_decode_params *p, int head) {
    return p->a.sinks.data == 0 ? -INFINITE : usable_sink(decode_value(p, &p->a.sinks, 0, head));
}
DEVICE float decode_scale_at(const struct attention_decode_params *p,
                             const struct attention_head_values *scale, int batch, int kv_head) {
    return HAS_E4M3(p) ? decode_value(p, scale, batch, kv_head) : 1;
}

// ---- Norm and rotation ------------------------------------------------------------------------

DEVICE long long decode_angle(const struct attention_decode_params *p, long long position) {
    return clamp_long(position, 0, p->num_angles - 1);
}

// The column that is rotated together with c; c itself if it is not rotated.
DEVICE int decode_partner(const struct attention_decode_params *p, int c) {
    int half = p->rotary_dim / 2;
    if (p->cos == 0 || c >= p->rotary_dim) return c;
    if (p->is_interleaved) return c ^ 1;
    return c < half ? c + half : c - half;
}

// Column c after rotation; partner: the element of decode_partner, which is not c.
DEVICE float decode_turned(const struct attention_decode_params *p, int c, float own, float partner,
                           long long angle) {
    int half = p->rotary_dim / 2, is_second = p->is_interleaved ? c & 1 : c >= half;
    int pair = p->is_interleaved ? c / 2 : is_second ? c - half : c;
    float cosine = p->cos[angle * p->cos_stride + pair];
    float sine = p->sin[angle * p->sin_stride + pair];
    return own * cosine + (is_second ? partner * sine : -partner * sine);
}

// What normalises a row of head_dim elements of q or k_new, as two factors: their product alone may exceed fp32. For a whole warp.
struct decode_norm {
    const struct attention_head_values *weight; // its data 0: there is no norm
    float first, second;
};

DEVICE struct decode_norm decode_norm_of(const struct attention_decode_params *p,
                                         const struct attention_head_values *weight,
                                         const void *data, long long at) {
    struct decode_norm norm = {weight, 1, 1};
    float squares = 0;
    if (weight->data == 0) return norm;
    for (int c = threadIdx.x % 32; c < p->a.head_dim; c += 32) {
        float x = load_any(data, at + c, p->dtype);
        squares = fmaf(x, x, squares);
    }
    for (int i = 16; i > 0; i /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, i);
    float variance = squares / p->a.head_dim + p->norm_eps;
    norm.first = 1 / sqrtf(variance);
    if (variance >= 1e-30f && variance <= 1e37f) return norm;
    double wide = 0; // rare: squares that fp32 does not hold
    for (int c = 0; c < p->a.head_dim; c++) {
        double x = load_any(data, at + c, p->dtype);
        wide += x * x;
    }
    double rstd = rsqrt(wide / p->a.head_dim + p->norm_eps);
    norm.second = rstd > 1 ? 0x1p64f : 0x1p-64f;
    norm.first = (float)(rstd / norm.second);
    return norm;
}

// Column c, whose element is x.
DEVICE float decode_normed(const struct attention_decode_params *p, const struct decode_norm *norm,
                           int c, float x) {
    if (norm->weight->data == 0) return x;
    float weight = decode_value(p, norm->weight, 0, c);
    return x * norm->first * norm->second * (weight + p->norm_offset);
}

// Column c of a query row whose first element is at `at`: normalised and rotated, not rounded.
DEVICE float decode_query_element(const struct attention_decode_params *p,
                                  const struct decode_norm *norm, long long at, int c,
                                  long long angle) {
    int partner = decode_partner(p, c);
    float x = decode_normed(p, norm, c, decode_load(p, p->a.q.data, at + c));
    if (partner == c) return x;
    float other = decode_normed(p, norm, partner, decode_load(p, p->a.q.data, at + partner));
    return decode_turned(p, c, x, other, angle);
}

// ---- Scores -----------------------------------------------------------------------------------

// A score in units of log2, from q k times softmax_scale. Only needed with has_terms.
DEVICE float decode_score(const struct attention_decode_params *p, float slope, int distance,
                          float s) {
    if (p->a.softcap > 0) s = p->a.softcap * tanhf(s / p->a.softcap);
    if (p->a.slopes.data != 0) s -= slope * fabsf((float)distance);
    return s * LOG2_E;
}

// ---- Results ----------------------------------------------------------------------------------

// exp2(from - to), the weight of sums relative to 2^from among sums relative to 2^to; 0 if `from` has seen nothing.
DEVICE float decode_weight(float from, float to) {
    return from == -INFINITE ? 0 : exp2_fast(from - to);
}

// The factor for o of a row, and its lse, after the sink (-inf: none) is added.
DEVICE float decode_finish(float reference, float sum, float sink, float *lse) {
    const float start = sink_maximum(sink) * LOG2_E, top = fmaxf(reference, start),
                weight = decode_weight(reference, top);
    sum = sum * weight + sink_sum(sink) * (start == top ? 1 : decode_weight(start, top));
    *lse = (sum == 0 ? -INFINITE : (top + log2f(sum)) * LN_2) + sink_trouble(sink);
    return sum == 0 ? 0 : weight / sum + sink_trouble(sink);
}

#endif
