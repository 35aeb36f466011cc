// SPDX-License-Identifier: Apache-2.0
// flash2 for speed: keys and values of a head are packed once, then tiles of tall blocks of queries run against long blocks of
// keys.
//
// A block is 96 queries by 512 keys, or 192 queries if a head does not stay in the second-level cache. Its scores stay in that
// cache. Blocks this long make the rescaling of the output and the row-by-row work between the products rare.
//
// Who packs (enum attention_packing): with many small heads the thread that takes a head; with few threads, or fewer heads than
// threads, each thread what its tiles need; with small heads the thread of a tile; for the only tile of a large head its thread,
// block by block. Otherwise all threads pack a stripe of heads, then share its tiles.
#include "ops/attention/cpu/forward/attention_tuned.h"
#include "ops/attention/cpu/attention_seen.h"

#include <string.h>

enum { SWEEP_BYTES = 256 << 10 }; // of keys and values that are prefetched at a time

// ---- Heads of a thread's own ------------------------------------------------------------------

static void head_task(void *arg, int64_t pair, int thread) {
    const struct tuned_work *w = arg;
    struct attention_tile t;
    tuned_carve(w, &t, thread);
    for (int64_t i = tuned_pack_head(w, &t, pair, thread); i < w->num_tiles; i++)
        tuned_nth_tile(w, &t, thread, pair, i);
}

// ---- Tiles of a thread's own ------------------------------------------------------------------

// Packs what the tile sees of its head, for this tile only.
static void own_tile_task(void *arg, int64_t index, int thread) {
    const struct tuned_work *w = arg;
    int64_t pairs = attention_num_pairs(w->p), heads = w->p->num_heads_kv, pair = index % pairs;
    struct attention_range rows = tuned_rows_of_tile(w, pair, index / pairs);
    if (rows.begin >= rows.end) return;
    struct attention_tile t;
    tuned_carve(w, &t, thread);
    attention_tile_open(&t, pair / heads, pair % heads, rows.begin, rows.end - rows.begin);
    memset(tuned_flags_of(w, thread), 0, (size_t)w->num_chunks);
    for (int64_t j = t.seen.begin / ATTENTION_CHUNK * ATTENTION_CHUNK; j < t.seen.end;
         j += ATTENTION_CHUNK)
        tuned_pack(w, &t, thread, j);
    tuned_run_tile(w, &t, thread, pair, rows.begin, rows.end - rows.begin);
}

// ---- Heads of all threads ---------------------------------------------------------------------

// Goes in the order of memory: the heads of a key are adjacent.
static void prefetch_heads(const struct attention_view *view, int64_t batch, int64_t first,
                           int64_t num_keys, int64_t head, int64_t end, int64_t dims) {
    for (int64_t j = first; j < first + num_keys; j++)
        for (int64_t h = head; h < end; h++) attention_prefetch_row(view, batch, j, h, dims);
}

static void pack_task(void *arg, int64_t index, int thread) {
    const struct tuned_work *w = arg;
    const struct attention_problem *p = w->p;
    (void)thread;
    int64_t part = index % w->num_parts, chunk = index / w->num_parts;
    int64_t batch = w->first_pair / p->num_heads_kv + chunk / w->num_chunks;
    int64_t first = chunk % w->num_chunks * ATTENTION_CHUNK, slots = batch * p->num_heads_kv;
    struct attention_tile t;
    t.p = p;
    t.gemm = gemm_kernels(w->isa);
    t.gemm_bf16 = w->gemm_bf16;
    t.kernels = attention_kernels(w->isa);
    attention_tile_open(&t, batch, 0, 0, 0);
    int64_t num_keys = tsri_min(ATTENTION_CHUNK, t.seq.len_k - first);
    if (num_keys <= 0) return;
    int64_t bytes =
        ATTENTION_CHUNK * (p->head_dim + p->head_dim_v) * (int64_t)tsr_dtype_bytes(p->dtype);
    int64_t sweep = tsri_max(SWEEP_BYTES / tsri_max(bytes, 1), 1);
    int64_t head = tsri_max(w->first_pair - slots, 0);
    int64_t end = tsri_min(w->first_pair + w->num_pairs - slots, p->num_heads_kv);
    int64_t num_heads = tsri_max(end - head, 0), from = head;
    head = from + num_heads * part / w->num_parts;
    end = from + num_heads * (part + 1) / w->num_parts;
    for (; head < end; head += sweep) {
        int64_t last = tsri_min(head + sweep, end);
        prefetch_heads(&p->k, batch, t.seq.k_first + first, num_keys, head, last, p->head_dim);
        prefetch_heads(&p->v, batch, t.seq.k_first + first, num_keys, head, last, p->head_dim_v);
        for (t.kv_head = head; t.kv_head < last; t.kv_head++)
            tuned_pack(w, &t, slots + t.kv_head - w->first_pair, first);
    }
}

// With few heads under a mask the heaviest tiles of all heads come first: a heavy tile that begins late ends last. Otherwise head
// by head, so that a head's keys stay in the caches.
static void tile_task(void *arg, int64_t index, int thread) {
    const struct tuned_work *w = arg;
    bool is_by_weight = w->p->mask != TSR_MASK_NONE && w->num_pairs <= w->num_threads &&
                        w->num_pairs * w->num_tiles > 2 * w->num_threads;
    int64_t slot = is_by_weight ? index % w->num_pairs : index / w->num_tiles;
    int64_t tile = is_by_weight ? index / w->num_pairs : index % w->num_tiles;
    struct attention_tile t;
    tuned_carve(w, &t, thread);
    tuned_nth_tile(w, &t, slot, w->first_pair + slot, tile);
}

// gemm_bf16 NULL: products in fp32.
static tsr_status run(tsr_context *ctx, const struct attention_problem *whole,
                      const struct tsri_plan *plan, void *workspace,
                      const struct gemm_bf16_kernels *gemm_bf16) {
    struct attention_problem part;
    const struct attention_problem *p = attention_seen_part(whole, plan->flags, &part);
    struct tsri_limits with_flags = *tsri_context_limits(ctx), *limits = &with_flags;
    limits->flags = plan->flags;
    struct tuned_work w = {.p = p, .plan = plan, .isa = limits->isa, .gemm_bf16 = gemm_bf16};
    bool is_mixed = gemm_bf16 != NULL;
    int64_t pairs = p->num_batches * p->num_heads_kv;
    w.nr = gemm_kernels(w.isa)->nr;
    w.num_threads = limits->num_threads;
    w.steps = is_mixed ? &attention_mixed_steps : &attention_fp32_steps;
    enum attention_packing packing = attention_packing(p, limits, plan->block_m, is_mixed);
    int64_t keys = packing == ATTENTION_PACKS_BLOCKS ? plan->block_n : p->seqlen_k;
    w.packed = is_mixed ? attention_mixed_packed(p, keys) : attention_packed(p, keys, w.nr);
    w.num_chunks = tsri_ceil_div(p->seqlen_k, ATTENTION_CHUNK);
    w.num_tiles = tsri_ceil_div(attention_most_rows(p), plan->block_m);
    w.head_stride = attention_slot_floats(&w.packed);
    w.thread_stride = plan->grain;
    w.num_pairs = pairs;
    attention_clear_gaps(p);
    attention_clear_unseen(ctx, whole, plan->flags);
    if (packing != ATTENTION_PACKS_STRIPES) {
        // A thread's head lies behind its tile. So what another thread's processor prefetches beyond its own memory is not a head
        // that is being packed.
        w.threads = workspace;
        w.heads = w.threads + plan->grain;
        w.head_stride = w.thread_stride = w.head_stride + plan->grain;
        w.partial = w.threads + w.num_threads * w.thread_stride;
    }
    switch (packing) {
    case ATTENTION_PACKS_SHARED: tuned_run_shared(ctx, &w); return TSR_OK;
    case ATTENTION_PACKS_HELPED: tuned_run_helped(ctx, &w); return TSR_OK;
    case ATTENTION_PACKS_HEADS: tsri_parallel(ctx, pairs, head_task, &w); return TSR_OK;
    case ATTENTION_PACKS_BLOCKS: tuned_run_blocks(ctx, &w); return TSR_OK;
    case ATTENTION_PACKS_TILES:
        tsri_parallel(ctx, pairs * w.num_tiles, own_tile_task, &w);
        return TSR_OK;
    case ATTENTION_PACKS_STRIPES: break;
    }
    w.heads = workspace;
    w.threads = w.heads + plan->block_k * w.head_stride;
    for (; w.first_pair < pairs; w.first_pair += w.num_pairs) {
        w.num_pairs = tsri_min(plan->block_k, pairs - w.first_pair);
        int64_t last_batch = (w.first_pair + w.num_pairs - 1) / p->num_heads_kv;
        int64_t num_batches = last_batch - w.first_pair / p->num_heads_kv + 1;
        // If there are fewer chunks than threads, the heads of a chunk are divided too.
        int64_t chunks = tsri_max(num_batches * w.num_chunks, 1);
        w.num_parts = tsri_min(tsri_ceil_div(w.num_threads, chunks), p->num_heads_kv);
        tsri_parallel(ctx, num_batches * w.num_chunks * w.num_parts, pack_task, &w);
        tsri_parallel(ctx, w.num_pairs * w.num_tiles, tile_task, &w);
    }
    return TSR_OK;
}

tsr_status attention_tuned_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    return run(ctx, problem, plan, workspace, NULL);
}

tsr_status attention_amx_bf16_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    return run(ctx, problem, plan, workspace, gemm_bf16_kernels(true));
}

tsr_status attention_avx512_bf16_run(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan, void *workspace) {
    return run(ctx, problem, plan, workspace, gemm_bf16_kernels(false));
}
