// SPDX-License-Identifier: Apache-2.0
// Merges decode's partial results in the block that ends a tile, so that few chunks need no merge kernel.
//
// A block writes its chunk's results and a mark, and then looks for the marks of the tile's other chunks. Between the two is a
// fence, and all blocks agree on the order of fences: the last block sees all marks. It merges all chunks in order, whichever
// block it is, so every run gives the same bits. If two blocks see all marks, both write the same results. Blocks that have seen
// all marks remove them, so that a graph that is launched again finds none. Old memory holds no valid mark, as each call has its
// own number of 64 bits.
#ifndef TSRI_ATTENTION_DECODE_ENDS_CUH
#define TSRI_ATTENTION_DECODE_ENDS_CUH

#define MERGE_AHEAD                                                                                \
    (BLOCKS > 3                                                                                    \
         ? 8                                                                                       \
         : 16) // chunks whose loads are on their way together: registers are fewer with more blocks

// Whether all chunks of the tile are finished; the same for all threads.
DEVICE int ends_tile(const struct attention_decode_params *p, const struct decode_item *item) {
    volatile unsigned long long *marks = p->marks + item->slot - item->chunk;
    int is_whole = 1;
    __syncthreads(); // this block's results have been written
    if (threadIdx.x < 32) {
        __threadfence();
        if (threadIdx.x == 0) marks[item->chunk] = p->mark;
        __syncwarp();
        __threadfence();
        __syncwarp(); // all lanes pass the fence before any looks: the last block to do so sees every mark
        for (int i = threadIdx.x; i < item->num_chunks; i += 32) is_whole &= marks[i] == p->mark;
        __threadfence();
    }
    return __syncthreads_and(is_whole);
}

// Merges a row of the tile by one warp; a lane has four or eight columns.
DEVICE void merge_row(const struct attention_decode_params *p, const struct decode_item *item,
                      int row) {
    const int lane = threadIdx.x % 32, num = item->num_chunks, fours = p->partial_stride / 4;
    const long long step = p->rows_per_tile,
                    slot = (long long)(item->slot - item->chunk) * step + row;
    float2 state[2];
    for (int i = 0; i < 2; i++) {
        state[i] = make_float2(-INFINITE, 0);
        if (lane + 32 * i < num)
            state[i] = __ldcg((const float2 *)(p->states + 2 * (slot + (lane + 32 * i) * step)));
    }
    float top = fmaxf(state[0].x, state[1].x);
    for (int i = 16; i > 0; i /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
    const float weight[2] = {decode_weight(state[0].x, top), decode_weight(state[1].x, top)};
    float sum = state[0].y * weight[0] + state[1].y * weight[1];
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    const int head = decode_head_of(p, item, row);
    const long long q_row = item->s.q_first + decode_query_of(p, item, row),
                    out = attention_at(&p->a.out, item->batch, q_row, head);
    float lse;
    const float factor = decode_finish(top, sum, decode_sink_at(p, head), &lse);
    if (lane == 0 && p->a.lse != 0)
        p->a.lse[attention_lse_at(&p->a, item->batch, head, q_row)] = lse;
    for (int four = lane; four - lane < fours; four += 32) {
        float x[4] = {0, 0, 0, 0};
        for (int first = 0; first < num; first += MERGE_AHEAD) {
            float4 part[MERGE_AHEAD];
#pragma unroll
            for (int i = 0; i < MERGE_AHEAD; i++) {
                part[i] = make_float4(0, 0, 0, 0);
                if (first + i < num && four < fours)
                    part[i] = __ldcg((const float4 *)(p->partial + (slot + (first + i) * step) *
                                                                       p->partial_stride) +
                                     four);
            }
#pragma unroll
            for (int i = 0; i < MERGE_AHEAD; i++) {
                const float w =
                    __shfl_sync(0xffffffffu, first < 32 ? weight[0] : weight[1], (first + i) % 32);
                x[0] += part[i].x * w;
                x[1] += part[i].y * w;
                x[2] += part[i].z * w;
                x[3] += part[i].w * w;
            }
        }
        for (int i = 0; i < 4; i++)
            if (four * 4 + i < p->a.head_dim_v)
                decode_store(p, p->a.out.data, out + four * 4 + i, x[i] * factor);
    }
}

// Called after combine, by all threads of the block.
DEVICE void merge_if_last(const struct attention_decode_params *p, const struct decode_item *item) {
    if (p->marks == 0 || item->num_chunks == 1 || !ends_tile(p, item)) return;
    for (int i = threadIdx.x; i < item->num_chunks; i += 32 * WARPS)
        p->marks[item->slot - item->chunk + i] = 0;
    for (int row = threadIdx.x / 32; row < item->num_rows; row += WARPS) merge_row(p, item, row);
}

#endif
