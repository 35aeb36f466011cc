// SPDX-License-Identifier: Apache-2.0
// Writes new rows into the caches, by a whole block: keys are normalised, rotated and rounded. Rows that do not fit, or have no
// page, are dropped.
#ifndef TSRI_ATTENTION_DECODE_APPEND_CUH
#define TSRI_ATTENTION_DECODE_APPEND_CUH

#include "cuda/device/fp8.cuh"
#include "ops/attention/cuda/decode/attention_decode_device.cuh"

// The page of a row of a sequence, which may be beyond the attended keys, and the row there; -1: none.
DEVICE long long append_page(const struct attention_decode_params *p, int batch, long long *row) {
    unsigned size = p->page_size > 0xffffffffll ? 0xffffffffu : (unsigned)p->page_size;
    long long place = (unsigned)*row / size;
    *row -= place * size;
    if (p->page_table == 0) return batch;
    long long page =
        p->page_table[batch * p->page_table_stride[0] + place * p->page_table_stride[1]];
    return page < 0 || page >= p->num_pages ? -1 : page;
}

// Stores element c of a new row of a cache; scale: of that cache, if it is of e4m3.
DEVICE void append_element(const struct attention_decode_params *p, void *row, int c, float x,
                           float scale) {
    if (HAS_E4M3(p))
        ((unsigned char *)row)[c] = (unsigned char)pair_to_e4m3(__fdiv_rn(x, scale), 0.0f);
    else
        store_any(row, c, x, p->dtype);
}

// Writes new row t of a sequence, its heads from first_head on. position: that of its key, whose row is below the capacity.
DEVICE void append_row(const struct attention_decode_params *p, const struct attention_sequence *s,
                       int batch, int t, long long position, int first_head, int num_heads) {
    long long row = s->k_first + position, page = append_page(p, batch, &row);
    long long angle = p->cos != 0 ? decode_angle(p, position) : 0;
    int dims = p->a.head_dim, dims_v = p->a.head_dim_v;
    if (page < 0) return;
    for (int head = first_head; head < first_head + num_heads; head++) {
        long long from = attention_at(&p->a.k, batch, s->q_first + t, head);
        void *to = (void *)decode_place(&p->k_cache, page, row, head);
        float scale = decode_scale_at(p, &p->k_scale, batch, head);
        const struct decode_norm norm = decode_norm_of(p, &p->k_norm, p->a.k.data, from);
        for (int c = threadIdx.x; c < dims; c += blockDim.x) {
            int partner = decode_partner(p, c);
            float x = decode_normed(p, &norm, c, load_any(p->a.k.data, from + c, p->dtype));
            if (partner != c) {
                float other = load_any(p->a.k.data, from + partner, p->dtype);
                x = decode_turned(p, c, x, decode_normed(p, &norm, partner, other), angle);
            }
            append_element(p, to, c, x, scale);
        }
        from = attention_at(&p->a.v, batch, s->q_first + t, head);
        to = (void *)decode_place(&p->v_cache, page, row, head);
        scale = decode_scale_at(p, &p->v_scale, batch, head);
        for (int c = threadIdx.x; c < dims_v; c += blockDim.x)
            append_element(p, to, c, load_any(p->a.v.data, from + c, p->dtype), scale);
    }
}

// Appends the new rows among an item's keys, for its head, before the item reads them. The block's other threads see them after
// the barrier. No other item reads them, if a sequence has one tile of rows.
DEVICE void append_of_item(const struct attention_decode_params *p,
                           const struct decode_item *item) {
    for (int t = item->first_new; t < item->end_new; t++)
        append_row(p, &item->s, item->batch, t, item->cache_len + t, item->head, 1);
    if (item->first_new < item->end_new) __syncthreads();
}

#endif
