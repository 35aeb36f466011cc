// SPDX-License-Identifier: Apache-2.0
// Counts the sequences of a decode whose lengths, offsets, positions or pages are not what the contract has them be: the twin of
// attention_decode_metadata.c, where nobody can refuse the call. One block, a warp for each sequence in turn.
// Floor: those integers read once. No page has figures.
// The host defines
//     DTYPE (2: the tensors' own does not matter)
#include "ops/attention/cuda/decode/attention_decode_device.cuh"

#define WARPS 8

// Among rows [begin, end) of a sequence.
DEVICE int has_bad_page(const struct attention_decode_params *p, int batch, long long begin,
                        long long end, int lane) {
    int is_bad = 0;
    if (begin < end)
        for (long long place = begin / p->page_size + lane; place * p->page_size < end;
             place += 32) {
            long long page =
                p->page_table[batch * p->page_table_stride[0] + place * p->page_table_stride[1]];
            is_bad |= page < 0 || page >= p->num_pages;
        }
    return __any_sync(0xffffffffu, is_bad);
}

DEVICE int has_bad_offsets(const struct attention_params *p, int batch) {
    if (!p->is_packed) return 0;
    long long begin = p->cu_seqlens_q[batch * p->cu_stride_q];
    long long end = p->cu_seqlens_q[(batch + 1ll) * p->cu_stride_q];
    return begin < 0 || end < begin || end > p->total_q;
}

DEVICE int has_bad_position(const struct attention_decode_params *p,
                            const struct attention_sequence *s, long long end_new) {
    int before = s->len_q < -s->shift ? s->len_q : -s->shift; // queries at negative positions
    if (p->cos == 0) return 0;
    if (end_new > p->num_angles || (s->len_q > 0 && s->len_k > p->num_angles)) return 1;
    return before > 0 &&
           attention_first_key(&p->a, s, before - 1) < attention_end_key(&p->a, s, before - 1);
}

// The result is the same in all lanes.
DEVICE int is_bad_sequence(const struct attention_decode_params *p, int batch, int lane) {
    long long cache_len, given = p->cache_seqlens[batch * p->cache_seqlens_stride];
    struct attention_sequence s = decode_sequence_at(p, batch, &cache_len);
    int num_new = p->a.k.data != 0 ? s.len_q : 0, is_bad = has_bad_offsets(&p->a, batch);
    is_bad |= given < 0 || given + num_new > p->capacity;
    if (p->leftpad_k != 0) {
        long long leftpad = p->leftpad_k[batch * p->leftpad_stride];
        is_bad |= leftpad < 0 || leftpad > given;
    }
    is_bad |= has_bad_position(p, &s, num_new > 0 ? cache_len + num_new : 0);
    if (p->page_table == 0) return is_bad;
    long long first_new = s.k_first + cache_len, end_new = first_new + num_new;
    if (end_new > p->capacity) end_new = p->capacity;
    int begin = 0, end = 0;
    if (s.len_q > 0) {
        end = attention_end_key(&p->a, &s, s.len_q - 1);
        begin = attention_first_key(&p->a, &s, 0);
    }
    is_bad |= has_bad_page(p, batch, s.k_first + begin, s.k_first + end, lane);
    return is_bad | has_bad_page(p, batch, first_new, end_new, lane);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    attention_decode_check(const struct attention_decode_check_params c) {
    __shared__ int found[WARPS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = 0;
    for (int batch = warp; batch < c.p.a.num_batches; batch += WARPS)
        count += is_bad_sequence(&c.p, batch, lane);
    if (lane == 0) found[warp] = count;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < WARPS; w++) count += found[w];
    *c.num_errors = count;
}
