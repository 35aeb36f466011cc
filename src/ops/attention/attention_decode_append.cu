// SPDX-License-Identifier: Apache-2.0
// Decode's new keys and values into the caches, keys rotated and rounded: a block for each new row of each sequence. A phase
// of its own, since a sequence may share a page that another one appends to. What does not fit is dropped, and what has
// no page. The host defines
//     DTYPE (2: the tensors' own is known at run time)
#include "cuda/device/any_dtype.cuh"
#include "ops/attention/attention_decode_device.cuh"

// The page of a key to come, which may be beyond what is attended to; -1: there is none.
DEVICE long long append_page(const struct attention_decode_params *p, int batch, long long j,
                             long long *row) {
    // Neither is beyond 2^32: lengths are 32 bits, and a longer page has all of them.
    unsigned size = p->page_size > 0xffffffffll ? 0xffffffffu : (unsigned)p->page_size;
    long long place = (unsigned)j / size;
    *row = j - place * size;
    if (p->page_table == 0) return batch;
    long long page =
        p->page_table[batch * p->page_table_stride[0] + place * p->page_table_stride[1]];
    return page < 0 || page >= p->num_pages ? -1 : page;
}

extern "C" __global__ void __launch_bounds__(128)
    attention_decode_append(const struct attention_decode_params p) {
    long long cache_len;
    int num_rows = p.a.num_batches * p.a.seqlen_q;
    int heads = p.a.num_heads_kv, dims = p.a.head_dim, dims_v = p.a.head_dim_v;
    for (int id = blockIdx.x; id < num_rows; id += gridDim.x) {
        int t, batch = decode_divide(id, p.a.seqlen_q, &t);
        struct attention_sequence s = decode_sequence_at(&p, batch, &cache_len);
        long long position = cache_len + t, row;
        if (t >= s.len_q || position >= p.capacity) continue;
        long long page = append_page(&p, batch, position, &row);
        if (page < 0) continue;
        long long angle = p.cos != 0 ? decode_angle(&p, position) : 0;
        for (int i = threadIdx.x; i < heads * dims; i += blockDim.x) {
            int c, head = decode_divide(i, dims, &c), partner = decode_partner(&p, c);
            long long from = attention_at(&p.a.k, batch, s.q_first + t, head);
            long long to = page * p.k_cache.batch + row * p.k_cache.seq + head * p.k_cache.head;
            float x = load_any(p.a.k.data, from + c, p.dtype);
            if (partner != c)
                x = decode_turned(&p, c, x, load_any(p.a.k.data, from + partner, p.dtype), angle);
            store_any(p.k_cache.data, to + c, x, p.dtype);
        }
        for (int i = threadIdx.x; i < heads * dims_v; i += blockDim.x) {
            int c, head = decode_divide(i, dims_v, &c);
            long long from = attention_at(&p.a.v, batch, s.q_first + t, head);
            long long to = page * p.v_cache.batch + row * p.v_cache.seq + head * p.v_cache.head;
            store_any(p.v_cache.data, to + c, load_any(p.a.v.data, from + c, p.dtype), p.dtype);
        }
    }
}
