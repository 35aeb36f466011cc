// SPDX-License-Identifier: Apache-2.0
// flash2 for speed: keys and values of a head are packed once, then tiles of tall blocks of queries run
// against long blocks of keys.
//
// A block of 96 queries, or 192 where a head leaves the second-level cache, by 512 keys keeps its scores in that
// cache; blocks this long make the rescaling of the output and the row-by-row work between the products rare.
//
// Who packs: where heads are many and small, the thread that takes a head; of few threads each what its tiles need, of
// small heads a tile's thread; for a head's only tile its thread, block by block. Otherwise all threads pack a stripe of
// heads, then share its tiles.
#include "ops/attention/attention_mixed.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { SWEEP_BYTES = 256 << 10 }; // of keys and values that are asked for at a time
enum { TILE_BITS = 32 };

struct counter { // on a line of memory of its own
    _Alignas(64) atomic_llong next;
};

struct work {
    const struct attention_problem *p;
    const struct tsri_plan *plan;
    tsr_isa isa;
    const struct attention_steps *steps;
    const struct gemm_bf16_kernels *gemm_bf16; // NULL: steps are fp32's
    int nr, num_threads;
    struct attention_packed packed;
    float *heads;   // [slot]: panels of k, of v, and which chunks of v are not finite
    float *threads; // plan->grain floats for each
    int64_t head_stride, thread_stride;
    int64_t num_chunks, num_tiles;
    int64_t num_parts;             // of the heads of a chunk, each packed by a task of its own
    int64_t first_pair, num_pairs; // of the stripe: slot s is pair first_pair + s
    struct counter *next_tile, *next_pair, *num_begun;
};

static float *head_of(const struct work *w, int64_t slot) {
    return w->heads + slot * w->head_stride;
}

static unsigned char *flags_of(const struct work *w, int64_t slot) {
    return (unsigned char *)(head_of(w, slot) + w->packed.k_floats + w->packed.v_floats);
}

// Packs the chunk of keys from `first` on of the tile's head into a slot, at key `at` of it.
static void pack_at(const struct work *w, const struct attention_tile *t, int64_t slot,
                    int64_t first, int64_t at) {
    const struct attention_packed *m = &w->packed;
    int64_t num_keys = tsri_min(ATTENTION_CHUNK, t->seq.len_k - first);
    float *k = head_of(w, slot), *v = k + m->k_floats;
    w->steps->pack_k(t, first, num_keys, k + at * m->k_row);
    flags_of(w, slot)[at / ATTENTION_CHUNK] =
        w->steps->pack_v(t, first, num_keys, v + at * m->v_row, m->v_stride);
}

static void pack(const struct work *w, const struct attention_tile *t, int64_t slot,
                 int64_t first) {
    pack_at(w, t, slot, first, first);
}

// The keys in a slot, from `first` on.
static struct attention_head head_in(const struct work *w, int64_t slot, int64_t first) {
    const struct attention_packed *m = &w->packed;
    return (struct attention_head){.k = head_of(w, slot),
                                   .v = head_of(w, slot) + m->k_floats,
                                   .first = first,
                                   .k_row = m->k_row,
                                   .v_row = m->v_row,
                                   .k_stride = m->k_row * w->nr,
                                   .v_stride = m->v_stride,
                                   .block_n = w->plan->block_n,
                                   .is_nonfinite = flags_of(w, slot)};
}

// The blocks of keys that the tile sees.
static struct attention_range seen_blocks(const struct work *w, const struct attention_tile *t) {
    int64_t block_n = w->plan->block_n;
    return (struct attention_range){t->seen.begin / block_n * block_n, t->seen.end};
}

static void open_tile(const struct work *w, struct attention_tile *t, int64_t pair, int64_t first,
                      int64_t num_rows) {
    int64_t heads = w->p->num_heads_kv;
    attention_tile_open(t, pair / heads, pair % heads, first, num_rows);
    w->steps->load_q(t);
    attention_tile_clear(t);
}

// Rows [first, first + num_rows) of a pair whose keys are in a slot.
static void run_tile(const struct work *w, struct attention_tile *t, int64_t slot, int64_t pair,
                     int64_t first, int64_t num_rows) {
    struct attention_head head = head_in(w, slot, 0);
    open_tile(w, t, pair, first, num_rows);
    w->steps->sweep(t, &head, seen_blocks(w, t));
    attention_tile_finish(t);
}

static void carve(const struct work *w, struct attention_tile *t, int thread) {
    attention_tile_carve(t, w->p, w->isa, w->threads + thread * w->thread_stride, w->plan->block_m,
                         w->plan->block_n);
    t->gemm_bf16 = w->gemm_bf16;
}

// ---- Heads of a thread's own ------------------------------------------------------------------

// Packs a head for the thread. Its first tile: a sequence shorter than others lacks the first ones, an empty one all.
static int64_t pack_head(const struct work *w, struct attention_tile *t, int64_t pair, int thread) {
    int64_t heads = w->p->num_heads_kv;
    attention_tile_open(t, pair / heads, pair % heads, 0, 0);
    int64_t rows = attention_group_rows(w->p, &t->seq);
    for (int64_t j = 0; rows > 0 && j < t->seq.len_k; j += ATTENTION_CHUNK) pack(w, t, thread, j);
    return w->num_tiles - tsri_ceil_div(rows, w->plan->block_m);
}

// Under a causal mask the last tiles are the heaviest: they go first.
static void nth_tile(const struct work *w, struct attention_tile *t, int64_t slot, int64_t pair,
                     int64_t index) {
    int64_t block_m = w->plan->block_m, first = (w->num_tiles - 1 - index) * block_m;
    struct attention_sequence seq = attention_sequence_at(w->p, pair / w->p->num_heads_kv);
    int64_t rows = tsri_min(block_m, attention_group_rows(w->p, &seq) - first);
    if (rows > 0) run_tile(w, t, slot, pair, first, rows);
}

static void head_task(void *arg, int64_t pair, int thread) {
    const struct work *w = arg;
    struct attention_tile t;
    carve(w, &t, thread);
    for (int64_t i = pack_head(w, &t, pair, thread); i < w->num_tiles; i++)
        nth_tile(w, &t, thread, pair, i);
}

// ---- Heads of a thread's own, and help ---------------------------------------------------------
// A thread that finds no further head takes tiles of other threads' last heads, from where they are packed: so threads need
// not be equally fast, nor heads come out even. Helpers begin when each head has been: from then on no thread packs another
// into its memory.

enum { PACKING = -1 }; // for a head and its next tile
// For heads that are being packed, some milliseconds at most: who packs may wait for the processor of who looks.
enum { MOST_LOOKS = 8192 };

// Tiles of the head that a thread has packed, as long as there are any. False: it is still packing.
static bool take_packed(const struct work *w, struct attention_tile *t, int owner) {
    const int64_t tile_mask = ((int64_t)1 << TILE_BITS) - 1;
    atomic_llong *next = &w->next_tile[owner].next;
    for (;;) {
        int64_t at = atomic_load_explicit(next, memory_order_relaxed);
        if (at == PACKING) return false;
        if ((at & tile_mask) >= w->num_tiles) return true;
        at = atomic_fetch_add_explicit(next, 1, memory_order_acquire);
        if ((at & tile_mask) >= w->num_tiles) return true;
        nth_tile(w, t, owner, at >> TILE_BITS, at & tile_mask);
    }
}

static void helped_task(void *arg, int64_t pair, int thread) {
    const struct work *w = arg;
    struct attention_tile t;
    atomic_llong *own = &w->next_tile[thread].next, *begun = &w->num_begun->next;
    carve(w, &t, thread);
    while (pair < w->num_pairs) {
        atomic_store_explicit(own, PACKING, memory_order_relaxed);
        atomic_fetch_add_explicit(begun, 1, memory_order_acq_rel);
        int64_t first = pack_head(w, &t, pair, thread);
        atomic_store_explicit(own, pair << TILE_BITS | first, memory_order_release);
        take_packed(w, &t, thread);
        pair = atomic_fetch_add_explicit(&w->next_pair->next, 1, memory_order_relaxed);
    }
    if (atomic_load_explicit(begun, memory_order_acquire) < w->num_pairs) return;
    bool is_done = false;
    for (int looks = 0; !is_done && looks < MOST_LOOKS; looks++) {
        if (looks > 0) sched_yield();
        is_done = true;
        for (int i = 1; i < w->num_threads; i++)
            is_done &= take_packed(w, &t, (thread + i) % w->num_threads);
    }
}

static void run_helped(tsr_context *ctx, struct work *w) {
    struct counter next_tile[ATTENTION_MOST_HELPED], next_pair, num_begun;
    for (int i = 0; i < w->num_threads; i++) atomic_init(&next_tile[i].next, w->num_tiles);
    atomic_init(&next_pair.next, w->num_threads);
    atomic_init(&num_begun.next, 0);
    w->next_tile = next_tile;
    w->next_pair = &next_pair;
    w->num_begun = &num_begun;
    tsri_parallel(ctx, w->num_threads, helped_task, w);
}

// ---- Blocks of a thread's own -----------------------------------------------------------------

// A head's only tile.
static void block_task(void *arg, int64_t pair, int thread) {
    const struct work *w = arg;
    struct attention_tile t;
    struct attention_sequence seq = attention_sequence_at(w->p, pair / w->p->num_heads_kv);
    int64_t rows = attention_group_rows(w->p, &seq);
    if (rows <= 0) return;
    carve(w, &t, thread);
    open_tile(w, &t, pair, 0, rows);
    struct attention_range keys = seen_blocks(w, &t);
    for (int64_t first = keys.begin; first < keys.end; first += w->plan->block_n) {
        struct attention_range block = {first, tsri_min(first + w->plan->block_n, keys.end)};
        struct attention_head head = head_in(w, thread, first);
        for (int64_t j = first; j < block.end; j += ATTENTION_CHUNK)
            pack_at(w, &t, thread, j, j - first);
        w->steps->sweep(&t, &head, block);
    }
    attention_tile_finish(&t);
}

// ---- Tiles of a thread's own ------------------------------------------------------------------

// What the tile sees of its head, packed for it alone. Under a causal mask the last tiles are the heaviest: they go first.
static void lone_tile_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    const struct attention_problem *p = w->p;
    int64_t pairs = p->num_batches * p->num_heads_kv, heads = p->num_heads_kv;
    int64_t pair = index % pairs, block_m = w->plan->block_m;
    int64_t first = (w->num_tiles - 1 - index / pairs) * block_m;
    struct attention_tile t;
    carve(w, &t, thread);
    struct attention_sequence seq = attention_sequence_at(p, pair / heads);
    int64_t rows = tsri_min(block_m, attention_group_rows(p, &seq) - first);
    if (rows <= 0) return;
    attention_tile_open(&t, pair / heads, pair % heads, first, rows);
    memset(flags_of(w, thread), 0, (size_t)w->num_chunks);
    for (int64_t j = t.seen.begin / ATTENTION_CHUNK * ATTENTION_CHUNK; j < t.seen.end;
         j += ATTENTION_CHUNK)
        pack(w, &t, thread, j);
    run_tile(w, &t, thread, pair, first, rows);
}

// ---- Heads of a few threads -------------------------------------------------------------------
// Each thread packs a head and goes through its tiles; one that finds no further head takes tiles of another's, whose keys it
// packs once more: so threads need not be equally fast, nor heads as many as theirs, and nobody waits for what another packs.

// What a thread has packed.
struct held {
    int64_t pair; // -1: nothing
    struct attention_range keys;
};

static void pack_seen(const struct work *w, const struct attention_tile *t, int64_t pair,
                      struct held *held, int thread) {
    struct attention_range keys = {t->seen.begin / ATTENTION_CHUNK * ATTENTION_CHUNK,
                                   (int64_t)tsri_round_up((size_t)t->seen.end, ATTENTION_CHUNK)};
    if (keys.begin >= keys.end) return;
    if (held->pair != pair) memset(flags_of(w, thread), 0, (size_t)w->num_chunks);
    if (held->pair != pair || keys.begin > held->keys.end || keys.end < held->keys.begin)
        *held = (struct held){pair, {keys.begin, keys.begin}};
    for (int64_t j = keys.begin; j < held->keys.begin; j += ATTENTION_CHUNK) pack(w, t, thread, j);
    for (int64_t j = held->keys.end; j < keys.end; j += ATTENTION_CHUNK) pack(w, t, thread, j);
    held->keys.begin = tsri_min(held->keys.begin, keys.begin);
    held->keys.end = tsri_max(held->keys.end, keys.end);
}

// Tiles differ by one step of the register tile at most. Under a causal mask the last are the heaviest: they go first.
static void shared_tile(const struct work *w, int64_t pair, int64_t index, struct held *held,
                        int thread) {
    const struct attention_problem *p = w->p;
    int64_t batch = pair / p->num_heads_kv, kv_head = pair % p->num_heads_kv;
    struct attention_tile t;
    carve(w, &t, thread);
    struct attention_sequence seq = attention_sequence_at(p, batch);
    int64_t mr = t.gemm->mr, rows = attention_group_rows(p, &seq), steps = tsri_ceil_div(rows, mr);
    // A sequence shorter than others has as many tiles fewer.
    int64_t most_steps = tsri_max(tsri_ceil_div(attention_most_rows(p), mr), 1);
    int64_t tiles = tsri_ceil_div(steps * w->num_tiles, most_steps), tile = tiles - 1 - index;
    if (tile < 0) return;
    int64_t first = steps * tile / tiles * mr;
    int64_t end = tsri_min(steps * (tile + 1) / tiles * mr, rows);
    if (first >= end) return;
    attention_tile_open(&t, batch, kv_head, first, end - first);
    pack_seen(w, &t, pair, held, thread);
    run_tile(w, &t, thread, pair, first, end - first);
}

// Tiles of the head that `next` counts, as long as there are any.
static void take_tiles(const struct work *w, atomic_llong *next, bool is_own, struct held *held,
                       int thread) {
    const int64_t tile_mask = ((int64_t)1 << TILE_BITS) - 1;
    for (;;) {
        int64_t at = atomic_load_explicit(next, memory_order_relaxed);
        int64_t left = w->num_tiles - (at & tile_mask);
        if (left <= 0) return;
        // A single tile of many is not worth packing its keys for.
        bool is_held = is_own || held->pair == at >> TILE_BITS;
        if (!is_held && left < 2 && w->num_tiles > w->num_threads) return;
        at = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        if ((at & tile_mask) >= w->num_tiles) return;
        shared_tile(w, at >> TILE_BITS, at & tile_mask, held, thread);
    }
}

static void few_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    int64_t pairs = w->p->num_batches * w->p->num_heads_kv;
    atomic_llong *own = &w->next_tile[index].next;
    struct held held = {.pair = -1};
    take_tiles(w, own, true, &held, thread);
    while (pairs > w->num_threads) {
        int64_t pair = atomic_fetch_add_explicit(&w->next_pair->next, 1, memory_order_relaxed);
        if (pair >= pairs) break;
        atomic_store_explicit(own, pair << TILE_BITS, memory_order_relaxed);
        take_tiles(w, own, true, &held, thread);
    }
    for (int i = 1; i < w->num_threads && w->num_tiles > 1; i++)
        take_tiles(w, &w->next_tile[(index + i) % w->num_threads].next, false, &held, thread);
}

static void run_few(tsr_context *ctx, struct work *w) {
    struct counter next_tile[ATTENTION_FEW_THREADS], next_pair; // tile: head << TILE_BITS | tile
    int64_t pairs = w->p->num_batches * w->p->num_heads_kv;
    w->num_tiles = w->plan->num_tasks / tsri_max(pairs, 1);
    for (int i = 0; i < w->num_threads; i++)
        atomic_init(&next_tile[i].next, i < pairs ? (int64_t)i << TILE_BITS : w->num_tiles);
    atomic_init(&next_pair.next, w->num_threads);
    w->next_tile = next_tile;
    w->next_pair = &next_pair;
    tsri_parallel(ctx, w->num_threads, few_task, w);
}

// ---- Heads of all threads ---------------------------------------------------------------------

// In the order of memory, where the heads of a key lie next to each other.
static void prefetch_heads(const struct attention_view *view, int64_t batch, int64_t first,
                           int64_t num_keys, int64_t head, int64_t end, int64_t dims) {
    for (int64_t j = first; j < first + num_keys; j++)
        for (int64_t h = head; h < end; h++) attention_prefetch_row(view, batch, j, h, dims);
}

static void pack_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
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
            pack(w, &t, slots + t.kv_head - w->first_pair, first);
    }
}

static void tile_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    int64_t slot = index / w->num_tiles;
    struct attention_tile t;
    carve(w, &t, thread);
    nth_tile(w, &t, slot, w->first_pair + slot, index % w->num_tiles);
}

// gemm_bf16 NULL: in fp32.
static tsr_status run(tsr_context *ctx, const struct attention_problem *p,
                      const struct tsri_plan *plan, void *workspace,
                      const struct gemm_bf16_kernels *gemm_bf16) {
    const struct tsri_limits *limits = tsri_context_limits(ctx);
    struct work w = {.p = p, .plan = plan, .isa = limits->isa, .gemm_bf16 = gemm_bf16};
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
    if (packing != ATTENTION_PACKS_STRIPES) {
        // A thread's head behind its tile: what another thread's processor fetches ahead at the end of its own is not keys
        // that are being packed.
        w.threads = workspace;
        w.heads = w.threads + plan->grain;
        w.head_stride = w.thread_stride = w.head_stride + plan->grain;
    }
    switch (packing) {
    case ATTENTION_PACKS_SHARED: run_few(ctx, &w); return TSR_OK;
    case ATTENTION_PACKS_HELPED: run_helped(ctx, &w); return TSR_OK;
    case ATTENTION_PACKS_HEADS: tsri_parallel(ctx, pairs, head_task, &w); return TSR_OK;
    case ATTENTION_PACKS_BLOCKS: tsri_parallel(ctx, pairs, block_task, &w); return TSR_OK;
    case ATTENTION_PACKS_TILES:
        tsri_parallel(ctx, pairs * w.num_tiles, lone_tile_task, &w);
        return TSR_OK;
    case ATTENTION_PACKS_STRIPES: break;
    }
    w.heads = workspace;
    w.threads = w.heads + plan->block_k * w.head_stride;
    for (; w.first_pair < pairs; w.first_pair += w.num_pairs) {
        w.num_pairs = tsri_min(plan->block_k, pairs - w.first_pair);
        int64_t last_batch = (w.first_pair + w.num_pairs - 1) / p->num_heads_kv;
        int64_t num_batches = last_batch - w.first_pair / p->num_heads_kv + 1;
        // Where chunks are fewer than threads their heads are shared out.
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
