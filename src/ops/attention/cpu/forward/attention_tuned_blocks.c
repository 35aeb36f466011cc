// SPDX-License-Identifier: Apache-2.0
// Heads of a single tile. Each block of keys is packed right before its use, and neither leaves the second-level cache. If heads
// are few, long runs of blocks are tasks of their own, and their results are merged in order. The number of runs depends only on
// the problem, so any number of threads gives the same bits.
#include <math.h>
#include <string.h>

#include "ops/attention/cpu/decode/attention_decode_kernels.h"
#include "ops/attention/cpu/forward/attention_tuned.h"

// The result of a run for the tile: o, then maxima and sums, for block_m rows, as products write up to a multiple of their rows.
static float *partial_of(const struct tuned_work *w, int64_t pair, int64_t run) {
    return w->partial + (pair * w->num_runs + run) * attention_state_floats(w->p, w->plan->block_m);
}

static void run_task(void *arg, int64_t index, int thread) {
    const struct tuned_work *w = arg;
    int64_t block_n = w->plan->block_n, pair = index / w->num_runs, run = index % w->num_runs;
    int64_t rows = tuned_rows(w, pair);
    if (rows <= 0) return;
    struct attention_tile t;
    tuned_carve(w, &t, thread);
    if (w->num_runs > 1) {
        t.o = partial_of(w, pair, run);
        t.max = t.o + w->plan->block_m * t.o_stride;
        t.sum = t.max + w->plan->block_m;
    }
    tuned_open_tile(w, &t, pair, 0, rows);
    for (int64_t r = 0; run > 0 && r < rows; r++) { // only run 0 counts the sink
        t.max[r] = -INFINITY;
        t.sum[r] = 0;
    }
    struct attention_range keys = tuned_seen_blocks(w, &t);
    if (w->num_runs > 1) {
        keys.begin = tsri_max(keys.begin, run * w->run_keys);
        keys.end = tsri_min(keys.end, (run + 1) * w->run_keys);
    }
    for (int64_t first = keys.begin; first < keys.end; first += block_n) {
        struct attention_range block = {first, tsri_min(first + block_n, keys.end)};
        struct attention_head head = tuned_head_in(w, thread, first);
        for (int64_t j = first; j < block.end; j += ATTENTION_CHUNK)
            tuned_pack_at(w, &t, thread, j, j - first);
        w->steps->sweep(&t, &head, block);
    }
    if (w->num_runs == 1) attention_tile_finish(&t);
}

// Merges the runs of a pair's rows, in order. NaN stays NaN with any weight.
static void merge_task(void *arg, int64_t pair, int thread) {
    const struct tuned_work *w = arg;
    int64_t rows = tuned_rows(w, pair), block_m = w->plan->block_m;
    if (rows <= 0) return;
    struct attention_tile t;
    void (*add_scaled)(tsr_dtype, const void *, int64_t, float, float *) =
        attention_decode_kernels(w->isa)->add_scaled;
    tuned_carve(w, &t, thread);
    attention_tile_open(&t, pair / w->p->num_heads_kv, pair % w->p->num_heads_kv, 0, rows);
    for (int64_t r = 0; r < rows; r++) {
        float *o = t.o + r * t.o_stride, top = -INFINITY, sum = 0, sink = -INFINITY;
        memset(o, 0, (size_t)w->p->head_dim_v * sizeof *o);
        for (int64_t run = 0; run < w->num_runs; run++)
            top = fmaxf(top, partial_of(w, pair, run)[block_m * t.o_stride + r]);
        for (int64_t run = 0; run < w->num_runs; run++) {
            const float *of_run = partial_of(w, pair, run), *max = of_run + block_m * t.o_stride;
            bool is_sink = isnan(max[r]) && top == -INFINITY; // NaN of a sink; no key has weight
            float weight = max[r] == -INFINITY || is_sink ? 0.0f : expf(max[r] - top);
            sum += is_sink ? max[block_m + r] : weight * max[block_m + r];
            if (is_sink) sink = max[r];
            add_scaled(TSR_F32, of_run + r * t.o_stride, w->p->head_dim_v, weight, o);
        }
        t.max[r] = isnan(sink) ? sink : top;
        t.sum[r] = sum;
    }
    attention_tile_finish(&t);
}

void tuned_run_blocks(tsr_context *ctx, struct tuned_work *w) {
    int64_t pairs = attention_num_pairs(w->p), block_n = w->plan->block_n;
    w->num_runs = w->plan->num_tasks / tsri_max(pairs, 1);
    w->run_keys = (int64_t)tsri_round_up(
        (size_t)tsri_ceil_div(w->p->seqlen_k, tsri_max(w->num_runs, 1)), (size_t)block_n);
    tsri_parallel(ctx, w->plan->num_tasks, run_task, w);
    if (w->num_runs > 1) tsri_parallel(ctx, pairs, merge_task, w);
}
