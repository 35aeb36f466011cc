// SPDX-License-Identifier: Apache-2.0
// The statistics of rows that backward's tiles read: lse with rows that saw nothing marked, and delta = dout . out. A
// block takes ATTENTION_STATISTIC_ROWS rows of a head, a warp one row, or several short ones, at a time.
#define ANY_DTYPE
#include "ops/attention/attention_backward_device.cuh"

#define THREADS 256

// The part of a row's dot product that this lane has, of `lanes` that share the row.
DEVICE float dot_part(const struct attention_backward_params *b, long long dout, long long out,
                      int lane, int lanes) {
    const struct attention_params *p = &b->p;
    float sum = 0;
    if (b->is_vector) {
        int group = b->dtype == DTYPE_F32 ? 4 : 8, bytes = b->dtype == DTYPE_F32 ? 4 : 2;
        for (int c = lane * group; c < p->head_dim_v; c += lanes * group) {
            uint4 x = *(const uint4 *)((const char *)p->dout.data + (dout + c) * bytes);
            uint4 y = *(const uint4 *)((const char *)p->out.data + (out + c) * bytes);
            const unsigned xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (b->dtype == DTYPE_F32) {
                    sum += __uint_as_float(xs[i]) * __uint_as_float(ys[i]);
                } else if (b->dtype == DTYPE_BF16) {
                    sum += float_of_bf16(xs[i] & 0xffff) * float_of_bf16(ys[i] & 0xffff);
                    sum += float_of_bf16(xs[i] >> 16) * float_of_bf16(ys[i] >> 16);
                } else {
                    sum += float_of_f16(xs[i] & 0xffff) * float_of_f16(ys[i] & 0xffff);
                    sum += float_of_f16(xs[i] >> 16) * float_of_f16(ys[i] >> 16);
                }
            }
        }
        return sum;
    }
    for (int c = lane; c < p->head_dim_v; c += lanes)
        sum +=
            load_any(p->dout.data, dout + c, b->dtype) * load_any(p->out.data, out + c, b->dtype);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_rows(const struct attention_backward_params b) {
    const struct attention_params *p = &b.p;
    start_dependents();
    int lanes = p->head_dim_v <= 64 ? 8 : p->head_dim_v <= 128 ? 16 : 32;
    int lane = threadIdx.x % lanes, first = threadIdx.x / lanes;
    if (b.turns != 0 && blockIdx.x == 0 && threadIdx.x == 0) b.turns[0] = 0;
    for (long long task = blockIdx.x; task < b.num_tasks; task += gridDim.x) {
        int head = (int)(task % p->num_heads_q);
        int tile = (int)(task / p->num_heads_q % b.num_tiles);
        int batch = (int)(task / p->num_heads_q / b.num_tiles);
        struct attention_sequence s = attention_sequence_at(p, batch);
        int begin = tile * ATTENTION_STATISTIC_ROWS;
        if (begin >= s.len_q) continue;
        long long at = statistics_at(&b, &s, batch, head) + begin;
        if (b.turns != 0 && threadIdx.x < ATTENTION_STATISTIC_ROWS / FLASH3_TURN_ROWS)
            b.turns[FLASH3_TURNS_AT + at / FLASH3_TURN_ROWS + threadIdx.x] = 0;
        for (int row = first; row < ATTENTION_STATISTIC_ROWS; row += THREADS / lanes) {
            int i = begin + row;
            float sum = 0, lse = -INFINITE;
            if (i < s.len_q) {
                sum = dot_part(&b, attention_at(&p->dout, batch, s.q_first + i, head),
                               attention_at(&p->out, batch, s.q_first + i, head), lane, lanes);
                lse = p->lse[attention_lse_at(p, batch, head, s.q_first + i)];
            }
            for (int far = lanes / 2; far > 0; far /= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, far);
            if (lane == 0) {
                b.lse[at + row] = lse == -INFINITE ? INFINITE : lse;
                b.delta[at + row] = lse == -INFINITE ? 0 : sum;
            }
        }
    }
}
