// SPDX-License-Identifier: Apache-2.0
// flash3's output, from registers to memory.
#ifndef TSRI_ATTENTION_FLASH3_OUTPUT_CUH
#define TSRI_ATTENTION_FLASH3_OUTPUT_CUH

DEVICE float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The factors for the warp's 16 rows of the output; stores their lse.
DEVICE void finish_sums(float factor[2], const float max[2], const float sum[2],
                        const struct attention_flash3_params *a, const struct task *task,
                        int warp) {
    const struct attention_params *p = &a->forward.p;
    const struct attention_task *t = &task->a;
    const int i = first_row(p, t) + warp * 16;
    const float unit = HAS_BIAS ? 1.0f : has_raw_maxima(a) ? p->softmax_scale : LN_2; // of maxima
    const int lane = find_lane();
    float totals[2];
    EACH_HALF(h) totals[h] = sum_of_four(sum[h]);
    EACH_HALF(h) {
        const float total = totals[h], scale = TERMS & 4 ? p->keep_scale : 1;
        const int row = i + h * 8 + lane / 4;
        const float trouble = sink_trouble(sink_of_row(a, task, row));
        factor[h] = total == 0 ? 0 : __fdividef(scale, total) + trouble;
#if FEW
        if (a->few.num_splits > 1 && lane % 4 == 0)
            store_state(a, task, warp * 16 + h * 8 + lane / 4, max[h], total);
        if (a->few.num_splits > 1) continue;
#endif
        if (p->lse != 0 && lane % 4 == 0 && row < end_row(task))
            p->lse[attention_lse_at(p, t->batch, head_of(p, t, row),
                                    t->s.q_first + QUERY_OF(p, row))] =
                (total == 0 ? -INFINITE : max[h] * unit + log2_fast(total) * LN_2) + trouble;
    }
}

// This lane's first column of a row of the output.
DEVICE unsigned short *output_at(const struct attention_params *p, const struct attention_task *t,
                                 int row, int first) {
    return (unsigned short *)p->out.data +
           attention_at(&p->out, t->batch, t->s.q_first + QUERY_OF(p, row), head_of(p, t, row)) +
           first;
}

// Stores 16 rows from i on, in whole groups of eight columns. Four lanes exchange pairs, so that each has a group of four: one
// instruction stores 64 bytes of a row, as a store's time depends on the lines that it touches.
DEVICE void store_groups(float (*o)[4], const float factor[2],
                         const struct attention_flash3_params *a, const struct task *task, int i) {
    const struct attention_params *p = &a->forward.p;
    const int lane = find_lane(), is_odd = lane % 2, is_high = lane / 2 % 2, first = lane % 4 * 8;
    EACH_HALF(h) {
        const int row = i + h * 8 + lane / 4;
        unsigned short *to = output_at(p, &task->a, row, first);
        const int dims = row < end_row(task) ? p->head_dim_v - first : 0;
#pragma unroll
        for (int n = 0; n < HEAD_DIM_V / 8; n += 4) {
            unsigned x[4], got[2];
#pragma unroll
            for (int k = 0; k < 4; k++)
                x[k] = pair_of_floats(o[n + k][2 * h] * factor[h], o[n + k][2 * h + 1] * factor[h]);
#pragma unroll
            for (int k = 0; k < 4; k += 2) {
                got[0] = __shfl_xor_sync(ALL_LANES, is_odd ? x[k] : x[k + 1], 1);
                x[k] = is_odd ? got[0] : x[k];
                x[k + 1] = is_odd ? x[k + 1] : got[0];
            }
            EACH_HALF(k) got[k] = __shfl_xor_sync(ALL_LANES, is_high ? x[k] : x[2 + k], 2);
            EACH_HALF(k) {
                x[k] = is_high ? got[k] : x[k];
                x[2 + k] = is_high ? x[2 + k] : got[k];
            }
            if (n * 8 < dims) *(uint4 *)(to + n * 8) = make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
}

// The same for any number of columns: two lanes exchange pairs.
DEVICE void store_columns(float (*o)[4], const float factor[2],
                          const struct attention_flash3_params *a, const struct task *task, int i) {
    const struct attention_params *p = &a->forward.p;
    const int lane = find_lane(), is_odd = lane % 2, first = is_odd * 8 + lane % 4 / 2 * 4;
    EACH_HALF(h) {
        const int row = i + h * 8 + lane / 4;
        unsigned short *to = output_at(p, &task->a, row, first);
        const int dims = row < end_row(task) ? p->head_dim_v - first : 0;
#pragma unroll
        for (int n = 0; n < HEAD_DIM_V / 8; n += 2) {
            unsigned x[2];
#pragma unroll
            for (int k = 0; k < 2; k++)
                x[k] = pair_of_floats(o[n + k][2 * h] * factor[h], o[n + k][2 * h + 1] * factor[h]);
            const unsigned got = __shfl_xor_sync(ALL_LANES, is_odd ? x[0] : x[1], 1);
            x[0] = is_odd ? got : x[0];
            x[1] = is_odd ? x[1] : got;
            const int left = dims - n * 8;
            if (left >= 4) *(uint2 *)(to + n * 8) = make_uint2(x[0], x[1]);
#pragma unroll
            for (int c = 0; c < 3; c++)
                if (c < left && left < 4) to[n * 8 + c] = (unsigned short)(x[c / 2] >> c % 2 * 16);
        }
    }
}

// Stores the warp's 16 rows.
DEVICE void store_output(float (*o)[4], const float factor[2],
                         const struct attention_flash3_params *a, const struct task *task,
                         int warp) {
    const int i = first_row(&a->forward.p, &task->a) + warp * 16;
#if FEW
    if (a->few.num_splits > 1) {
        store_partial(o, a, task, warp * 16);
        return;
    }
#endif
    if (a->forward.p.head_dim_v % 8 == 0)
        store_groups(o, factor, a, task, i);
    else
        store_columns(o, factor, a, task, i);
}

#endif
