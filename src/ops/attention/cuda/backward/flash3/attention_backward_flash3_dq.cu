// SPDX-License-Identifier: Apache-2.0
// dq (batch, seqlen_q, heads, head_dim) of flash3's sums: scaled, rounded and in its rows. A block takes a tile of 32 KiB of sums
// (192 columns: 48), which lies there in the order of the accumulators of two warpgroups: the second one's columns lie beside the
// first one's, or with 64 columns its rows below them; with 192 each has 64 columns from its end and half of those in the middle.
// Floor: sums read and dq written once, 6 bytes an element. Short sequences pay for it: it is a kernel behind the products.
// Figures: docs/kernels/attention_backward_cuda.md.
#define ANY_DTYPE
#include "ops/attention/cuda/backward/attention_backward_device.cuh"
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_params.h"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS) attention_backward_flash3_dq(
    const __grid_constant__ struct attention_backward_flash3_params f) {
    const struct attention_backward_params *b = &f.b;
    const struct attention_params *p = &b->p;
    __shared__ __align__(16) unsigned char memory[THREADS * 96];
    const int dims = f.tile_dims, rows = FLASH3_PASSING(dims), row_bytes = dims * 2;
    wait_for_primary();
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128;
    const int first = threadIdx.x % 128 / 32 * 16 + lane / 4 + (dims == 64 ? group * 64 : 0);
    const int groups = dims == 192 ? 12 : 8; // of 8 columns
    for (long long index = blockIdx.x; index < b->num_tasks; index += gridDim.x) {
        const int query = (int)(index % b->num_tiles) * rows;
        const int head = (int)(index / b->num_tiles % p->num_heads_q);
        const int batch = (int)(index / b->num_tiles / p->num_heads_q);
        const struct attention_sequence s = attention_sequence_at(p, batch);
        if (query >= s.len_q) continue;
        const long long at = statistics_at(b, &s, batch, head) + query;
        const int is_there = b->turns[FLASH3_TURNS_AT + at / FLASH3_TURN_ROWS] > 0;
        const float4 *from =
            (const float4 *)(f.dq + at * dims) + group * (groups * 128) + threadIdx.x % 128;
#pragma unroll
        for (int n = 0; n < 12; n++) {
            if (n >= groups) break;
            const int piece = dims == 64    ? n
                              : dims == 128 ? n + group * 8
                              : n < 8       ? n + group * 16
                                            : n + group * 4;
            float4 x = is_there ? from[n * 128] : make_float4(0, 0, 0, 0);
            const float values[4] = {x.x * p->softmax_scale, x.y * p->softmax_scale,
                                     x.z * p->softmax_scale, x.w * p->softmax_scale};
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = first + half * 8;
                *(unsigned *)(memory + row * row_bytes + ((piece ^ row % 8) * 16) + lane % 4 * 4) =
                    b->dtype == DTYPE_BF16 ? pair_to_bf16(values[2 * half], values[2 * half + 1])
                                           : pair_to_f16(values[2 * half], values[2 * half + 1]);
            }
        }
        __syncthreads();
        const int pieces = dims / 8;
        for (int n = threadIdx.x; n < rows * pieces; n += THREADS) {
            const int row = n / pieces, piece = n % pieces;
            if (query + row >= s.len_q || piece * 8 >= p->head_dim) continue;
            const unsigned char *x = memory + row * row_bytes + ((piece ^ row % 8) * 16);
            unsigned short *to = (unsigned short *)p->dq.data +
                                 attention_at(&p->dq, batch, s.q_first + query + row, head) +
                                 piece * 8;
            if (piece * 8 + 8 <= p->head_dim)
                *(uint4 *)to = *(const uint4 *)x;
            else
                for (int c = 0; piece * 8 + c < p->head_dim; c++)
                    to[c] = ((const unsigned short *)x)[c];
        }
        __syncthreads();
    }
}
