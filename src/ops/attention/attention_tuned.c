// SPDX-License-Identifier: Apache-2.0
// flash2 for speed: the keys and values of a stripe of heads are packed once, by all threads, then tiles of
// tall blocks of queries run against long blocks of keys.
//
// A block of 96 queries by 512 keys keeps its scores in the second-level cache; blocks this long make
// the rescaling of the output and the row-by-row work between the products rare.
#include "ops/attention/attention_tile.h"

struct work {
    const struct attention_problem *p;
    const struct tsri_plan *plan;
    tsr_isa isa;
    int nr;
    int64_t k_floats, v_floats;  // of one head
    float *stripe;               // [pair of the stripe]: k panels, v panels
    float *threads;              // plan->grain floats for each
    unsigned char *is_nonfinite; // [pair of the stripe][block of keys]: of the values
    int64_t first_pair, num_pairs, num_blocks, num_tiles;
};

static void pack_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    (void)thread;
    int64_t slot = index / w->num_blocks, pair = w->first_pair + slot;
    int64_t first = index % w->num_blocks * w->plan->block_n, heads = w->p->num_heads_kv;
    struct attention_tile t;
    t.p = w->p;
    t.gemm = gemm_kernels(w->isa);
    t.kernels = attention_kernels(w->isa);
    attention_tile_open(&t, pair / heads, pair % heads, 0, 0);
    int64_t num_keys = tsri_min(w->plan->block_n, t.seq.len_k - first);
    if (num_keys <= 0) return;
    float *k = w->stripe + slot * (w->k_floats + w->v_floats), *v = k + w->k_floats;
    attention_pack_k(&t, first, num_keys, k + first * w->p->head_dim);
    w->is_nonfinite[index] =
        attention_pack_v(&t, first, num_keys, v + first * w->nr, w->p->seqlen_k * w->nr);
}

static void tile_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    const struct attention_problem *p = w->p;
    // Under a causal mask the last tiles are the heaviest: they go first.
    int64_t slot = index / w->num_tiles, pair = w->first_pair + slot;
    int64_t first = (w->num_tiles - 1 - index % w->num_tiles) * w->plan->block_m;
    int64_t block_n = w->plan->block_n, batch = pair / p->num_heads_kv;
    struct attention_sequence seq = attention_sequence_at(p, batch);
    int64_t rows = tsri_min(w->plan->block_m, attention_group_rows(p, &seq) - first);
    if (rows <= 0) return;
    struct attention_tile t;
    attention_tile_carve(&t, p, w->isa, w->threads + thread * w->plan->grain, w->plan->block_m,
                         block_n);
    attention_tile_open(&t, batch, pair % p->num_heads_kv, first, rows);
    attention_tile_load_q(&t);
    attention_tile_clear(&t);
    const float *k = w->stripe + slot * (w->k_floats + w->v_floats), *v = k + w->k_floats;
    for (int64_t j = t.seen.begin / block_n * block_n; j < t.seen.end; j += block_n) {
        struct attention_block b = {
            .first = j,
            .num_keys = tsri_min(block_n, tsri_min(seq.len_k, t.seen.end) - j),
            .k = k + j * p->head_dim,
            .v = v + j * w->nr,
            .k_stride = p->head_dim * w->nr,
            .v_stride = p->seqlen_k * w->nr,
            .v_has_nonfinite = w->is_nonfinite[slot * w->num_blocks + j / block_n]};
        attention_tile_scores(&t, &b);
        attention_tile_softmax(&t, &b);
        attention_tile_values(&t, &b);
    }
    attention_tile_finish(&t);
}

tsr_status attention_tuned_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    const struct attention_problem *p = problem;
    tsr_isa isa = tsr_context_isa(ctx);
    struct work w = {.p = p, .plan = plan, .isa = isa, .nr = gemm_kernels(isa)->nr};
    int64_t pairs = p->num_batches * p->num_heads_kv, most_pairs = plan->block_k;
    w.k_floats = attention_k_floats(p, p->seqlen_k, w.nr);
    w.v_floats = attention_v_floats(p, p->seqlen_k, w.nr);
    w.num_blocks = tsri_ceil_div(p->seqlen_k, plan->block_n);
    w.num_tiles =
        tsri_ceil_div(p->num_heads_q / tsri_max(p->num_heads_kv, 1) * p->seqlen_q, plan->block_m);
    w.stripe = workspace;
    w.threads = w.stripe + most_pairs * (w.k_floats + w.v_floats);
    w.is_nonfinite =
        (unsigned char *)(w.threads + plan->grain * tsri_context_limits(ctx)->num_threads);
    attention_clear_gaps(p);
    for (; w.first_pair < pairs; w.first_pair += w.num_pairs) {
        w.num_pairs = tsri_min(most_pairs, pairs - w.first_pair);
        tsri_parallel(ctx, w.num_pairs * w.num_blocks, pack_task, &w);
        tsri_parallel(ctx, w.num_pairs * w.num_tiles, tile_task, &w);
    }
    return TSR_OK;
}
