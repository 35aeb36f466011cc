// SPDX-License-Identifier: Apache-2.0
// Decode's partial results, one of each chunk of keys, into results: a block for each row of each tile that was split. Its four
// warps go over every fourth chunk, and are added up in their order, so that bits are the same in every run.
// Floor: 4 head_dim + 8 bytes read for each chunk and row, the results written. It is a second launch; in 16 bits, tiles of few
// chunks and few rows go by attention_decode_ends.cuh instead.
// Figures: docs/kernels/attention_decode.md.
// The host defines
//     DTYPE (2: what is of another dtype is known at run time)
#include "ops/attention/cuda/decode/attention_decode_device.cuh"

#define WARPS 4
#define AHEAD 4  // chunks whose loads are in flight together
#define GROUPS 2 // of four columns, of a lane: 256 columns
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

struct shared {
    float o[WARPS][32 * GROUPS * 4], reference[WARPS], sum[WARPS];
};

// Loops over the chunks of this warp.
DEVICE void add_chunks(const struct attention_decode_params *p, long long slot, int num_chunks,
                       struct shared *shared) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, groups = p->partial_stride / 4;
    float reference = -INFINITE, sum = 0;
    float4 o[GROUPS];
    EACH(g, GROUPS) { o[g] = make_float4(0, 0, 0, 0); }
    for (int first = warp; first < num_chunks; first += WARPS * AHEAD) {
        float2 state[AHEAD];
        float4 x[AHEAD][GROUPS];
        EACH(i, AHEAD) {
            int chunk = first + i * WARPS;
            long long at = slot + (long long)chunk * p->rows_per_tile;
            state[i] = make_float2(-INFINITE, 0);
            if (chunk < num_chunks) state[i] = *(const float2 *)(p->states + 2 * at);
            EACH(g, GROUPS) {
                x[i][g] = make_float4(0, 0, 0, 0);
                if (chunk < num_chunks && lane + 32 * g < groups)
                    x[i][g] = *(const float4 *)(p->partial + at * p->partial_stride +
                                                (lane + 32 * g) * 4);
            }
        }
        EACH(i, AHEAD) {
            float top = fmaxf(reference, state[i].x);
            float before = decode_weight(reference, top), weight = decode_weight(state[i].x, top);
            reference = top;
            sum = sum * before + state[i].y * weight;
            EACH(g, GROUPS) {
                o[g].x = o[g].x * before + x[i][g].x * weight;
                o[g].y = o[g].y * before + x[i][g].y * weight;
                o[g].z = o[g].z * before + x[i][g].z * weight;
                o[g].w = o[g].w * before + x[i][g].w * weight;
            }
        }
    }
    EACH(g, GROUPS) { *(float4 *)&shared->o[warp][(lane + 32 * g) * 4] = o[g]; }
    shared->reference[warp] = reference;
    shared->sum[warp] = sum;
}

DEVICE void merge(const struct attention_decode_params *p, const struct decode_item *item, int row,
                  struct shared *shared) {
    __syncthreads(); // waits for the previous row
    add_chunks(p, (long long)item->slot * p->rows_per_tile + row, item->num_chunks, shared);
    __syncthreads();
    int head = decode_head_of(p, item, row);
    long long q_row = item->s.q_first + decode_query_of(p, item, row);
    float top = -INFINITE, sum = 0, weight[WARPS], lse;
    EACH(w, WARPS) { top = fmaxf(top, shared->reference[w]); }
    EACH(w, WARPS) {
        weight[w] = decode_weight(shared->reference[w], top);
        sum += weight[w] * shared->sum[w];
    }
    float factor = decode_finish(top, sum, decode_sink_at(p, head), &lse);
    if (threadIdx.x == 0 && p->a.lse != 0)
        p->a.lse[attention_lse_at(&p->a, item->batch, head, q_row)] = lse;
    long long out = attention_at(&p->a.out, item->batch, q_row, head);
    for (int c = threadIdx.x; c < p->a.head_dim_v; c += 32 * WARPS) {
        float x = 0;
        EACH(w, WARPS) { x += weight[w] * shared->o[w][c]; }
        store_any(p->a.out.data, out + c, x * factor, p->dtype);
    }
}

// max_chunks tiles for each sequence and key head, with rows_per_tile rows each.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    attention_decode_merge(const struct attention_decode_params p) {
    __shared__ struct shared shared;
    begin_early();
    long long cache_len;
    for (long long id = blockIdx.x; id < p.num_merged; id += gridDim.x) {
        struct decode_item item;
        int row, tile;
        int rest = decode_divide((int)id, p.rows_per_tile, &row);
        rest = decode_divide(rest, p.merged_tiles, &tile);
        item.batch = decode_divide(rest, p.a.num_heads_kv, &item.head);
        item.s = decode_sequence_at(&p, item.batch, &cache_len);
        int tiles = decode_tiles(&p, &item.s);
        if (tile >= tiles || tiles > p.max_chunks) continue;
        int chunks = p.max_chunks / tiles;
        decode_cut(&p, tile, 0, chunks, &item);
        item.slot = (item.batch * p.a.num_heads_kv + item.head) * p.max_chunks + tile * chunks;
        if (row < item.num_rows && item.num_chunks > 1) merge(&p, &item, row, &shared);
    }
}
