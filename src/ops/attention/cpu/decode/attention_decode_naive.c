// SPDX-License-Identifier: Apache-2.0
// The baseline: the keys and values of a sequence's head are copied to fp32, then each query passes over them alone.
#include <math.h>
#include <string.h>

#include "ops/attention/cpu/attention_tile.h"
#include "ops/attention/cpu/decode/attention_decode_steps.h"

struct work {
    struct attention_decode_work base; // must be first: the shared steps use it
    float *threads;                    // plan->grain floats for each
};

static void gather(const struct attention_decode_work *w, const struct attention_view *cache,
                   const struct attention_decode_sequence *seq, int64_t head, int64_t dims,
                   float *copy) {
    int64_t offset = head * cache->head * (int64_t)tsr_dtype_bytes(cache->dtype);
    for (int64_t j = 0; j < seq->s.len_k; j++)
        w->rows->load(cache->dtype,
                      attention_decode_row(w->p, cache, seq->batch, seq->s.k_first + j) + offset,
                      dims, 1.0f, copy + j * dims);
}

static void task(void *arg, int64_t index, int thread) {
    const struct work *work = arg;
    const struct attention_decode_work *w = &work->base;
    const struct attention_problem *a = &w->p->a;
    int64_t batch = index / a->num_heads_kv, kv_head = index % a->num_heads_kv;
    int64_t group = a->num_heads_q / a->num_heads_kv, dims = a->head_dim, dims_v = a->head_dim_v;
    struct attention_decode_sequence seq = attention_decode_sequence_at(w->p, batch);
    float *q = work->threads + thread * w->plan->grain, *o = q + attention_lane_floats(dims);
    float *scratch = o + attention_lane_floats(dims_v);
    float *k = scratch + 2 * attention_lane_floats(dims_v), *v = k + seq.s.len_k * dims;
    float *s = v + seq.s.len_k * dims_v;
    if (seq.s.len_q == 0) return;
    gather(w, &w->p->k_cache, &seq, kv_head, dims, k);
    gather(w, &w->p->v_cache, &seq, kv_head, dims_v, v);
    for (int64_t r = 0; r < group * seq.s.len_q; r++) {
        int64_t i = r / group, head = kv_head * group + r % group;
        struct attention_range keys = attention_visible(a, &seq.s, i);
        int64_t n = keys.end - keys.begin;
        struct attention_decode_state state = {.o = o, .max = -INFINITY};
        attention_decode_load_q(w, &seq, i, head, q);
        w->rows->dots(TSR_F32, q, 0, k + keys.begin * dims, dims, n, dims, s);
        if (n > 0)
            attention_decode_weigh(w, &seq, i, head, keys.begin, n, s, &state.max, &state.sum);
        memset(o, 0, (size_t)attention_lane_floats(dims_v) * sizeof *o);
        for (int64_t j = 0; j < n; j++)
            if (attention_decode_sees(w->p, &seq, i, keys.begin + j))
                w->kernels->add_scaled(TSR_F32, v + (keys.begin + j) * dims_v, dims_v, s[j], o);
        attention_decode_finish(w, &seq, i, head, &state, 1, TSR_F32, scratch);
    }
}

tsr_status attention_decode_naive_run(tsr_context *ctx, const void *problem,
                                      const struct tsri_plan *plan, void *workspace) {
    const struct attention_decode_problem *p = problem;
    struct work w = {attention_decode_work_of(ctx, p, plan), workspace};
    attention_decode_append(ctx, &w.base);
    attention_clear_gaps(&p->a);
    tsri_parallel_on(ctx, attention_decode_threads(p, tsri_context_limits(ctx)), plan->num_tasks,
                     task, &w);
    return TSR_OK;
}
