// SPDX-License-Identifier: Apache-2.0
// The statistics of rows (batch, heads, seqlen_q) that backward's tiles read: lse with rows that saw nothing marked, and delta =
// dout . out. A block takes some rows of all heads, which mostly lie side by side in memory: some lanes share a row of a head, the
// next lanes have the next head, and each goes down the rows, four of them at a time.
// Floor: out, dout and lse read once, lse and delta written: 4 head_dim_v + 12 bytes a row in 16 bits. Short sequences pay for it:
// it is a kernel ahead of the products.
// Figures: docs/kernels/attention_backward_cuda.md.
#define ANY_DTYPE
#include "ops/attention/cuda/backward/attention_backward_device.cuh"

#define THREADS 256
#define AT_A_TIME 4 // rows

// This lane's part of a row's dot product; `lanes` lanes share the row. For fp32, or rows at any address.
DEVICE float dot_part(const struct attention_backward_params *b, long long dout, long long out,
                      int lane, int lanes) {
    const struct attention_params *p = &b->p;
    float sum = 0;
    if (b->is_vector) {
        for (int c = lane * 4; c < p->head_dim_v; c += lanes * 4) {
            const float4 x = *(const float4 *)((const float *)p->dout.data + dout + c);
            const float4 y = *(const float4 *)((const float *)p->out.data + out + c);
            sum += x.x * y.x;
            sum += x.y * y.y;
            sum += x.z * y.z;
            sum += x.w * y.w;
        }
        return sum;
    }
    for (int c = lane; c < p->head_dim_v; c += lanes)
        sum +=
            load_any(p->dout.data, dout + c, b->dtype) * load_any(p->out.data, out + c, b->dtype);
    return sum;
}

DEVICE float dot_piece(uint4 x, uint4 y, int is_bf16) {
    const unsigned xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (is_bf16) {
            sum += float_of_bf16(xs[i] & 0xffff) * float_of_bf16(ys[i] & 0xffff);
            sum += float_of_bf16(xs[i] >> 16) * float_of_bf16(ys[i] >> 16);
        } else {
            sum += float_of_f16(xs[i] & 0xffff) * float_of_f16(ys[i] & 0xffff);
            sum += float_of_f16(xs[i] >> 16) * float_of_f16(ys[i] >> 16);
        }
    }
    return sum;
}

// This lane's parts of the dot products of some rows of a head, from `row` on. In 16 bits a lane has one piece of a row, and all
// rows are loaded before the first is used.
DEVICE void dot_parts(float *sums, const struct attention_backward_params *b, int batch,
                      long long q_first, int head, int row, int end, int lane, int lanes) {
    const struct attention_params *p = &b->p;
    long long dout = attention_at(&p->dout, batch, q_first + row, head),
              out = attention_at(&p->out, batch, q_first + row, head);
    if (b->is_vector && b->dtype != DTYPE_F32) {
        uint4 x[AT_A_TIME], y[AT_A_TIME];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) {
            x[i] = y[i] = make_uint4(0, 0, 0, 0);
            if (row + i >= end || lane * 8 >= p->head_dim_v) continue;
            x[i] = *(const uint4 *)((const char *)p->dout.data +
                                    (dout + i * p->dout.seq + lane * 8) * 2);
            y[i] =
                *(const uint4 *)((const char *)p->out.data + (out + i * p->out.seq + lane * 8) * 2);
        }
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) sums[i] = dot_piece(x[i], y[i], b->dtype == DTYPE_BF16);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < AT_A_TIME; i++) {
        const float sum =
            row + i < end ? dot_part(b, dout + i * p->dout.seq, out + i * p->out.seq, lane, lanes)
                          : 0;
#pragma unroll
        for (int n = 0; n < AT_A_TIME; n++)
            if (n == i) sums[n] = sum;
    }
}

// Four blocks per multiprocessor: without this bound the compiler aims at more on sm_80, and spills.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    attention_backward_rows(const struct attention_backward_params b) {
    const struct attention_params *p = &b.p;
    start_dependents();
    const int lanes = p->head_dim_v <= 64 ? 8 : p->head_dim_v <= 128 ? 16 : 32;
    const int lane = threadIdx.x % lanes, groups = THREADS / lanes;
    // Groups of lanes that have no head take rows further down.
    const int heads = p->num_heads_q < groups ? p->num_heads_q : groups;
    const int own_head = threadIdx.x / lanes % heads, own_row = threadIdx.x / lanes / heads;
    const int row_groups = groups / heads;
    if (b.turns != 0 && blockIdx.x == 0 && threadIdx.x == 0) b.turns[0] = 0;
    if (b.lse_low != 0 && blockIdx.x == 0 && threadIdx.x == 0) *has_lse_low(&b) = 0;
    for (long long task = blockIdx.x; task < b.num_tasks; task += gridDim.x) {
        const int batch = (int)(task / b.num_tiles);
        const int begin = (int)(task % b.num_tiles) * ATTENTION_STATISTIC_BLOCK;
        const struct attention_sequence s = attention_sequence_at(p, batch);
        if (begin / ATTENTION_STATISTIC_ROWS * ATTENTION_STATISTIC_ROWS >= s.len_q) continue;
        for (int first = 0; first < p->num_heads_q; first += heads) {
            const int head = first + own_head;
            const int is_there = head < p->num_heads_q && own_row < row_groups;
            const long long at = statistics_at(&b, &s, batch, is_there ? head : 0);
            if (b.turns != 0 && begin % FLASH3_TURN_ROWS == 0 && is_there && lane == 0 &&
                own_row == 0)
                b.turns[FLASH3_TURNS_AT + (at + begin) / FLASH3_TURN_ROWS] = 0;
            for (int row = 0; row < ATTENTION_STATISTIC_BLOCK; row += row_groups * AT_A_TIME) {
                const int i = begin + row + own_row * AT_A_TIME;
                const int is_here = is_there && i < begin + ATTENTION_STATISTIC_BLOCK;
                float sums[AT_A_TIME], sum = 0, lse = -INFINITE;
                dot_parts(sums, &b, batch, s.q_first, is_here ? head : 0, i, is_here ? s.len_q : 0,
                          lane, lanes);
                if (is_here && lane < AT_A_TIME && i + lane < s.len_q)
                    lse = p->lse[attention_lse_at(p, batch, head, s.q_first + i + lane)];
#pragma unroll
                for (int n = 0; n < AT_A_TIME; n++) {
                    for (int far = lanes / 2; far > 0; far /= 2)
                        sums[n] += __shfl_xor_sync(0xffffffffu, sums[n], far);
                    if (lane == n) sum = sums[n];
                }
                if (is_here && lane < AT_A_TIME) {
                    b.lse[at + i + lane] = lse == -INFINITE ? INFINITE : lse;
                    // 0 for a row that saw no key, unless dout is not finite, which delta shows.
                    b.delta[at + i + lane] = lse == -INFINITE ? sum * 0 : sum;
                    if (b.lse_low != 0) b.lse_low[at + i + lane] = 0;
                }
            }
        }
    }
}
