// SPDX-License-Identifier: Apache-2.0
// The runs of keys of cuda-few put together: as many threads as there are fours of columns for each row, the runs in their order.
// Floor: 4 dims + 8 bytes read for each run and row, the results written. With one query this kernel is what limits cuda-few.
// Figures: docs/kernels/attention_cuda_small.md.
// The host defines
//     DTYPE (2: what is of another dtype is known at run time)
#include "cuda/device/any_dtype.cuh"
#include "ops/attention/cuda/attention_device.cuh"
#include "ops/attention/cuda/forward/attention_flash3_params.h"

#define THREADS 128
#define AHEAD 8
#define LN_2 0.6931471805599453f

// A row's runs so far, merged.
struct merged {
    float top, sum, x[4];
};

DEVICE float weight_of(float top, float of_all) {
    return top == -INFINITE ? 0 : exp2f(top - of_all);
}

// Adds `num` runs, `step` rows apart, with AHEAD of them in flight together. A run without keys has not stored its columns.
DEVICE void add_runs(struct merged *m, const float *states, const float *partial, long long step,
                     int dims, int num) {
#pragma unroll 1
    for (int first = 0; first < num; first += AHEAD) {
        float2 state[AHEAD];
        float4 x[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            state[i] = make_float2(-INFINITE, 0);
            x[i] = make_float4(0, 0, 0, 0);
            if (first + i >= num) continue;
            state[i] = *(const float2 *)(states + (first + i) * step * 2);
            x[i] = *(const float4 *)(partial + (first + i) * step * dims);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const float top = fmaxf(m->top, state[i].x), before = weight_of(m->top, top),
                        weight = weight_of(state[i].x, top);
            const int is_there = state[i].y != 0;
            m->top = top;
            m->sum = m->sum * before + (is_there ? state[i].y * weight : 0);
            m->x[0] = m->x[0] * before + (is_there ? x[i].x * weight : 0);
            m->x[1] = m->x[1] * before + (is_there ? x[i].y * weight : 0);
            m->x[2] = m->x[2] * before + (is_there ? x[i].z * weight : 0);
            m->x[3] = m->x[3] * before + (is_there ? x[i].w * weight : 0);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_few_merge(const __grid_constant__ struct attention_few_merge_params a) {
    start_dependents();
    const struct attention_params *p = &a.p;
    const unsigned fours = (unsigned)a.few.dims / 4, rows = THREADS / fours,
                   tiles = (unsigned)a.num_tiles,
                   blocks = ((unsigned)a.num_rows + rows - 1) / rows, // of a tile
        number = blockIdx.x / blocks, run = number / tiles, tile = number % tiles,
                   block_m = (unsigned)a.few.block_m;
    const int row = (int)(blockIdx.x % blocks * rows + threadIdx.x / fours),
              c = (int)(threadIdx.x % fours * 4), batch = (int)(run / (unsigned)p->num_heads_kv),
              head = (int)(run % (unsigned)p->num_heads_kv) * p->group + row % p->group,
              query = (int)tile * a.few.queries + row / p->group;
    wait_for_primary();
    const struct attention_sequence q = attention_sequence_at(p, batch);
    if (row >= a.num_rows || query >= q.len_q) return;

    const long long first = ((long long)run * a.few.num_splits * tiles + tile) * block_m + row,
                    step = (long long)tiles * block_m;
    const struct attention_head_values *sinks = &p->sinks;
    float sink = -INFINITE;
    if (sinks->data != 0)
        sink = usable_sink(load_any(sinks->data, batch * sinks->batch + head * sinks->head,
                                    sinks->is_f32 ? DTYPE_F32 : a.dtype));
    struct merged m = {sink_maximum(sink) * LOG2_E, sink_sum(sink), {0, 0, 0, 0}};
    add_runs(&m, a.few.states + first * 2, a.few.partial + first * a.few.dims + c, step, a.few.dims,
             a.few.num_splits);
    const float factor = m.sum == 0 ? 0 : 1 / m.sum + sink_trouble(sink),
                x[4] = {m.x[0] * factor, m.x[1] * factor, m.x[2] * factor, m.x[3] * factor};
    const long long to = attention_at(&p->out, batch, q.q_first + query, head) + c;
    if (c + 4 <= p->head_dim_v)
        store_four_any(p->out.data, to, x, a.dtype);
    else
        for (int i = 0; c + i < p->head_dim_v; i++) store_any(p->out.data, to + i, x[i], a.dtype);
    if (c == 0 && p->lse != 0)
        p->lse[attention_lse_at(p, batch, head, q.q_first + query)] =
            (m.sum == 0 ? -INFINITE : (m.top + log2f(m.sum)) * LN_2) + sink_trouble(sink);
}
