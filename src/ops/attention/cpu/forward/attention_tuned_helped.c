// SPDX-License-Identifier: Apache-2.0
// Threads that help each other with the tiles of their heads. So threads need not be equally fast, and heads need not divide
// evenly.
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "ops/attention/cpu/forward/attention_tuned.h"

enum { TILE_BITS = 32 };

struct counter { // on a line of memory of its own
    _Alignas(64) atomic_llong next;
};

// ---- Heads of a thread's own, and help ---------------------------------------------------------
// A thread that finds no further head helps: it takes tiles of other threads' last heads and reads their packed keys. Helpers
// start only when all heads have been begun: from then on no thread packs another head into its memory.

enum { PACKING = -1 }; // the value while a head is packed; else head << TILE_BITS | tile
// How often a helper looks for heads that are still being packed, some milliseconds at most: the packing thread may wait for the
// helper's processor.
enum { MOST_LOOKS = 8192 };

// Takes tiles of the head that a thread has packed until there are none. False: the head is still being packed.
static bool take_packed(const struct tuned_work *w, struct attention_tile *t, int owner) {
    const int64_t tile_mask = ((int64_t)1 << TILE_BITS) - 1;
    atomic_llong *next = &w->next_tile[owner].next;
    for (;;) {
        int64_t at = atomic_load_explicit(next, memory_order_relaxed);
        if (at == PACKING) return false;
        if ((at & tile_mask) >= w->num_tiles) return true;
        at = atomic_fetch_add_explicit(next, 1, memory_order_acquire);
        if ((at & tile_mask) >= w->num_tiles) return true;
        tuned_nth_tile(w, t, owner, at >> TILE_BITS, at & tile_mask);
    }
}

static void helped_task(void *arg, int64_t pair, int thread) {
    const struct tuned_work *w = arg;
    struct attention_tile t;
    atomic_llong *own = &w->next_tile[thread].next, *begun = &w->num_begun->next;
    tuned_carve(w, &t, thread);
    while (pair < w->num_pairs) {
        atomic_store_explicit(own, PACKING, memory_order_relaxed);
        atomic_fetch_add_explicit(begun, 1, memory_order_acq_rel);
        int64_t first = tuned_pack_head(w, &t, pair, thread);
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

void tuned_run_helped(tsr_context *ctx, struct tuned_work *w) {
    struct counter next_tile[ATTENTION_MOST_HELPED], next_pair, num_begun;
    for (int i = 0; i < w->num_threads; i++) atomic_init(&next_tile[i].next, w->num_tiles);
    atomic_init(&next_pair.next, w->num_threads);
    atomic_init(&num_begun.next, 0);
    w->next_tile = next_tile;
    w->next_pair = &next_pair;
    w->num_begun = &num_begun;
    tsri_parallel(ctx, w->num_threads, helped_task, w);
}

// ---- Heads of a few threads, and few heads ------------------------------------------------------
// Each thread packs a head and takes its tiles; if there are fewer heads than threads, several threads do so with one head. A
// thread that finds no further head takes tiles of another thread's head and packs the keys again. So threads need not be equally
// fast, heads need not divide evenly, and no thread waits for another's packing or reads from another's caches.

// The keys that a thread has packed.
struct held {
    int64_t pair; // -1: nothing
    struct attention_range keys;
};

static void pack_seen(const struct tuned_work *w, const struct attention_tile *t, int64_t pair,
                      struct held *held, int thread) {
    struct attention_range keys = {t->seen.begin / ATTENTION_CHUNK * ATTENTION_CHUNK,
                                   (int64_t)tsri_round_up((size_t)t->seen.end, ATTENTION_CHUNK)};
    if (keys.begin >= keys.end) return;
    if (held->pair != pair) memset(tuned_flags_of(w, thread), 0, (size_t)w->num_chunks);
    if (held->pair != pair || keys.begin > held->keys.end || keys.end < held->keys.begin)
        *held = (struct held){pair, {keys.begin, keys.begin}};
    for (int64_t j = keys.begin; j < held->keys.begin; j += ATTENTION_CHUNK)
        tuned_pack(w, t, thread, j);
    for (int64_t j = held->keys.end; j < keys.end; j += ATTENTION_CHUNK)
        tuned_pack(w, t, thread, j);
    held->keys.begin = tsri_min(held->keys.begin, keys.begin);
    held->keys.end = tsri_max(held->keys.end, keys.end);
}

// Tiles differ by at most one step of the register tile. Under a causal mask the last tiles are the heaviest, so they come first.
static void shared_tile(const struct tuned_work *w, int64_t pair, int64_t index, struct held *held,
                        int thread) {
    const struct attention_problem *p = w->p;
    int64_t batch = pair / p->num_heads_kv, kv_head = pair % p->num_heads_kv;
    struct attention_tile t;
    tuned_carve(w, &t, thread);
    struct attention_sequence seq = attention_sequence_at(p, batch);
    int64_t mr = w->gemm_bf16 != NULL ? w->gemm_bf16->mr : t.gemm->mr; // as in the plan
    int64_t rows = attention_group_rows(p, &seq), steps = tsri_ceil_div(rows, mr);
    // A shorter sequence has fewer tiles in proportion.
    int64_t most_steps = tsri_max(tsri_ceil_div(attention_most_rows(p), mr), 1);
    int64_t tiles = tsri_ceil_div(steps * w->num_tiles, most_steps), tile = tiles - 1 - index;
    if (tile < 0) return;
    int64_t first = steps * tile / tiles * mr;
    int64_t end = tsri_min(steps * (tile + 1) / tiles * mr, rows);
    if (first >= end) return;
    attention_tile_open(&t, batch, kv_head, first, end - first);
    pack_seen(w, &t, pair, held, thread);
    tuned_run_tile(w, &t, thread, pair, first, end - first);
}

// Takes tiles of the head that `next` counts until there are none.
static void take_tiles(const struct tuned_work *w, atomic_llong *next, bool is_own,
                       struct held *held, int thread) {
    const int64_t tile_mask = ((int64_t)1 << TILE_BITS) - 1;
    for (;;) {
        int64_t at = atomic_load_explicit(next, memory_order_relaxed);
        int64_t left = w->num_tiles - (at & tile_mask);
        if (left <= 0) return;
        // A single tile out of many is not worth packing its keys.
        bool is_held = is_own || held->pair == at >> TILE_BITS;
        if (!is_held && left < 2 && w->num_tiles > w->num_threads) return;
        at = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        if ((at & tile_mask) >= w->num_tiles) return;
        shared_tile(w, at >> TILE_BITS, at & tile_mask, held, thread);
    }
}

static void shared_task(void *arg, int64_t index, int thread) {
    const struct tuned_work *w = arg;
    int64_t pairs = w->p->num_batches * w->p->num_heads_kv;
    int64_t first = index % tsri_max(tsri_min(pairs, w->num_threads), 1);
    atomic_llong *own = &w->next_tile[first].next;
    struct held held = {.pair = -1};
    take_tiles(w, own, true, &held, thread);
    while (pairs > w->num_threads) {
        int64_t pair = atomic_fetch_add_explicit(&w->next_pair->next, 1, memory_order_relaxed);
        if (pair >= pairs) break;
        atomic_store_explicit(own, pair << TILE_BITS, memory_order_relaxed);
        take_tiles(w, own, true, &held, thread);
    }
    for (int i = 1; i < w->num_threads && w->num_tiles > 1; i++)
        take_tiles(w, &w->next_tile[(first + i) % w->num_threads].next, false, &held, thread);
}

void tuned_run_shared(tsr_context *ctx, struct tuned_work *w) {
    struct counter next_tile[ATTENTION_MOST_HELPED], next_pair; // tile: head << TILE_BITS | tile
    int64_t pairs = w->p->num_batches * w->p->num_heads_kv;
    w->num_tiles = w->plan->num_tasks / tsri_max(pairs, 1);
    for (int i = 0; i < w->num_threads; i++)
        atomic_init(&next_tile[i].next, i < pairs ? (int64_t)i << TILE_BITS : w->num_tiles);
    atomic_init(&next_pair.next, w->num_threads);
    w->next_tile = next_tile;
    w->next_pair = &next_pair;
    tsri_parallel(ctx, w->num_threads, shared_task, w);
}
