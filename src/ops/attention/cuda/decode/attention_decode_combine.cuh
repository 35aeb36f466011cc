// SPDX-License-Identifier: Apache-2.0
// What the kernels of all dtypes do alike: they note which keys rows see, and add up the warps' results of an item in order, as a
// final or a partial result. Include it after `struct shared` with o[WARPS][ROWS][], reference, sum and seen [WARPS][ROWS], and
// begin, end and tree [ROWS].
#ifndef TSRI_ATTENTION_DECODE_COMBINE_CUH
#define TSRI_ATTENTION_DECODE_COMBINE_CUH

// Notes which of the warp's keys from j on each row sees.
DEVICE void note_seen(const struct attention_decode_params *p, struct shared *shared, int j) {
    const int row = threadIdx.x % 32;
    __syncwarp(); // all lanes have used what was noted before
    if (row < ROWS)
        shared->seen[threadIdx.x / 32][row] = decode_seen(
            p, &shared->item.s, shared->tree[row], shared->begin[row], shared->end[row], j, KEYS);
    __syncwarp();
}

DEVICE void combine(const struct attention_decode_params *p, const struct decode_item *item,
                    const struct shared *shared) {
    int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < item->num_rows; row += WARPS) {
        float top = -INFINITE, sum = 0, weight[WARPS];
        EACH(w, WARPS) { top = fmaxf(top, shared->reference[w][row]); }
        EACH(w, WARPS) {
            weight[w] = decode_weight(shared->reference[w][row], top);
            sum += weight[w] * shared->sum[w][row];
        }
        int head = decode_head_of(p, item, row);
        long long q_row = item->s.q_first + decode_query_of(p, item, row);
        long long out = attention_at(&p->a.out, item->batch, q_row, head);
        long long slot = (long long)item->slot * p->rows_per_tile + row;
        int is_final = item->num_chunks == 1;
        float factor = 1, lse;
        if (is_final) {
            factor = decode_finish(top, sum, decode_sink_at(p, head), &lse);
            if (lane == 0 && p->a.lse != 0)
                p->a.lse[attention_lse_at(&p->a, item->batch, head, q_row)] = lse;
        } else { // zeros after the columns, which are read in fours
            if (lane == 0) *(float2 *)(p->states + 2 * slot) = make_float2(top, sum);
            if (p->a.head_dim_v + lane < p->partial_stride)
                p->partial[slot * p->partial_stride + p->a.head_dim_v + lane] = 0;
        }
        factor *= decode_scale_at(p, &p->v_scale, item->batch, item->head);
        for (int c = lane; c < p->a.head_dim_v; c += 32) {
            float x = 0;
            EACH(w, WARPS) {
                if (weight[w] != 0) x += weight[w] * shared->o[w][row][c];
            }
            if (is_final)
                decode_store(p, p->a.out.data, out + c, x * factor);
            else
                p->partial[slot * p->partial_stride + c] = HAS_E4M3(p) ? x * factor : x;
        }
    }
}

#endif
