// SPDX-License-Identifier: Apache-2.0
// Few queries against a split of the keys. All rows of a group share one pass over the cache. Each cache row is read once and
// without copies, nearly in the order of memory if heads are adjacent.
#include "ops/attention/cpu/decode/attention_decode_split.h"

#include <math.h>
#include <string.h>

static int64_t q_floats(const struct attention_problem *a) {
    return attention_lane_floats(a->head_dim);
}
static int64_t o_floats(const struct attention_problem *a) {
    return attention_lane_floats(a->head_dim_v);
}

enum { S_STRIDE = DECODE_BLOCK + 16 };

int64_t decode_split_floats(const struct attention_decode_problem *p) {
    const struct attention_problem *a = &p->a;
    int64_t rows = decode_most_few_rows(a) * tsri_max(a->num_heads_kv, 1);
    return rows * (q_floats(a) + o_floats(a) + S_STRIDE) +
           (int64_t)tsri_round_up((size_t)(2 * rows), 16) + 2 * o_floats(a) +
           (int64_t)tsri_round_up((size_t)a->head_dim, 16);
}

// A task: rows [head of the task][query][head of the group].
struct split {
    const struct decode_work *w;
    const struct decode_job *job;
    struct attention_decode_sequence seq;
    int64_t first_head, num_heads, group, rows; // rows: of one key head
    float *q, *o, *s, *max, *sum, *scratch;
    const char *k[2][DECODE_BLOCK], *v[DECODE_BLOCK]; // k: of this block and of the next
    const char *next[DECODE_BLOCK];                   // to be fetched meanwhile
};

static void open_split(struct split *t, float *memory) {
    const struct attention_decode_work *w = &t->w->base;
    const struct attention_problem *a = &w->p->a;
    int64_t num_rows = t->num_heads * t->rows;
    t->q = memory;
    t->o = t->q + num_rows * q_floats(a);
    t->s = t->o + num_rows * o_floats(a);
    t->scratch = t->s + num_rows * S_STRIDE; // two outputs, or one query
    t->max = t->scratch + 2 * o_floats(a) + tsri_round_up((size_t)a->head_dim, 16);
    t->sum = t->max + num_rows;
    memset(t->o, 0, (size_t)(num_rows * o_floats(a)) * sizeof(float));
    for (int64_t r = 0; r < num_rows; r++) {
        int64_t head = t->first_head * t->group + r / t->rows * t->group + r % t->group;
        attention_decode_load_q(w, &t->seq, r % t->rows / t->group, head, t->scratch);
        w->kernels->to_lanes(w->p->k_cache.dtype, t->scratch, a->head_dim, t->q + r * q_floats(a));
        t->max[r] = -INFINITY;
        t->sum[r] = 0;
    }
}

static int64_t head_bytes(const struct split *t, const struct attention_view *cache, int64_t h) {
    return (t->first_head + h) * cache->head * tsri_dtype_bytes(cache->dtype);
}

// The part of a block that query i sees, relative to its first key.
static struct attention_range part_of(const struct split *t, int64_t i, int64_t first, int64_t n) {
    struct attention_range keys = attention_visible(&t->w->base.p->a, &t->seq.s, i);
    int64_t begin = attention_clamp(keys.begin - first, 0, n);
    return (struct attention_range){begin, attention_clamp(keys.end - first, begin, n)};
}

static void scores_of_block(const struct split *t, const char *const *keys, int64_t n) {
    const struct attention_decode_work *w = &t->w->base;
    const struct attention_view *k = &w->p->k_cache;
    int64_t stride = q_floats(&w->p->a);
    for (int64_t j = 0; j < n; j += DECODE_RUN)
        for (int64_t h = 0; h < t->num_heads; h++)
            w->kernels->scores(k->dtype, w->p->a.head_dim, t->rows, t->q + h * t->rows * stride,
                               stride, keys + j, t->next + j, head_bytes(t, k, h),
                               tsri_min(DECODE_RUN, n - j), t->s + h * t->rows * S_STRIDE + j,
                               S_STRIDE);
}

// Weighs rows [from, to) of a block that they all see. False: nothing done, these rows must go one by one.
static bool weigh_together(const struct split *t, int64_t n, int64_t from, int64_t to) {
    const struct attention_kernels *kernels = t->w->base.rows;
    const struct attention_problem *a = &t->w->base.p->a;
    int64_t begin[ATTENTION_MOST_SET], end[ATTENTION_MOST_SET], floats = o_floats(a);
    float alpha[ATTENTION_MOST_SET];
    if (a->softcap != 0 || a->slopes.data != NULL) return false;
    for (int64_t i = 0; i < to - from; i++) begin[i] = 0, end[i] = n;
    if (!kernels->weigh_rows((int)(to - from), begin, end, t->s + from * S_STRIDE, S_STRIDE,
                             t->max + from, t->sum + from, alpha))
        return false;
    for (int64_t r = from; r < to; r++)
        if (alpha[r - from] != 1) kernels->scale(t->o + r * floats, floats, alpha[r - from]);
    return true;
}

static void weigh_row(const struct split *t, int64_t first, int64_t n, int64_t r) {
    const struct attention_decode_work *w = &t->w->base;
    int64_t i = r % t->rows / t->group, floats = o_floats(&w->p->a);
    struct attention_range part = part_of(t, i, first, n);
    if (part.begin == part.end) return;
    int64_t head = (t->first_head + r / t->rows) * t->group + r % t->group;
    float before =
        attention_decode_weigh(w, &t->seq, i, head, first + part.begin, part.end - part.begin,
                               t->s + r * S_STRIDE + part.begin, &t->max[r], &t->sum[r]);
    if (before != 1) w->rows->scale(t->o + r * floats, floats, before);
}

// Returns whether every query sees all of the block.
static bool weights_of_block(const struct split *t, int64_t first, int64_t n) {
    int64_t num_rows = t->num_heads * t->rows, set = t->w->base.rows->set;
    bool is_whole = t->w->base.p->tree_mask == NULL || first + n <= t->seq.s.shift;
    for (int64_t i = 0; i < t->rows / t->group; i++) {
        struct attention_range part = part_of(t, i, first, n);
        is_whole &= part.begin == 0 && part.end == n;
    }
    for (int64_t r = 0; r < num_rows; r += set) {
        int64_t end = tsri_min(r + set, num_rows);
        if (is_whole && weigh_together(t, n, r, end)) continue;
        for (int64_t i = r; i < end; i++)
            if (!is_whole || !weigh_together(t, n, i, i + 1)) weigh_row(t, first, n, i);
    }
    return is_whole;
}

// Adds the values of keys [begin, end) of the block to rows [r, r + num_rows) of one head.
static void add_values(const struct split *t, const char *const *next, int64_t h, int64_t r,
                       int64_t num_rows, int64_t begin, int64_t end) {
    const struct attention_decode_work *w = &t->w->base;
    const struct attention_view *v = &w->p->v_cache;
    int64_t row = h * t->rows + r, floats = o_floats(&w->p->a);
    if (begin < end)
        w->kernels->values(v->dtype, w->p->a.head_dim_v, num_rows, t->s + row * S_STRIDE + begin,
                           S_STRIDE, t->v + begin, next != NULL ? next + begin : NULL,
                           head_bytes(t, v, h), end - begin, t->o + row * floats, floats);
}

static void values_of_block(const struct split *t, const char *const *next, int64_t first,
                            int64_t n, bool is_whole) {
    for (int64_t j = 0; j < n; j += DECODE_RUN) {
        int64_t end = tsri_min(j + DECODE_RUN, n);
        for (int64_t h = 0; h < t->num_heads; h++) {
            if (is_whole) {
                add_values(t, next, h, 0, t->rows, j, end);
                continue;
            }
            // As 0 times NaN is NaN, a query must not touch values that it does not see.
            for (int64_t i = 0; i < t->rows / t->group; i++) {
                struct attention_range part = part_of(t, i, first, n);
                struct attention_range keys = {first + tsri_max(part.begin, j),
                                               first + tsri_min(part.end, end)};
                for (struct attention_range run; keys.begin < keys.end; keys.begin = run.end) {
                    run = attention_decode_run(t->w->base.p, &t->seq, i, keys);
                    add_values(t, NULL, h, i * t->group, t->group, run.begin - first,
                               run.end - first);
                }
            }
        }
    }
}

static void close_split(const struct split *t, int64_t split) {
    const struct decode_work *w = t->w;
    const struct attention_problem *a = &w->base.p->a;
    int64_t floats = o_floats(a);
    for (int64_t r = 0; r < t->num_heads * t->rows; r++) {
        int64_t i = r % t->rows / t->group;
        int64_t head = (t->first_head + r / t->rows) * t->group + r % t->group;
        struct attention_decode_state state = {t->o + r * floats, t->max[r], t->sum[r]};
        if (t->job->num_splits == 1) {
            attention_decode_finish(&w->base, &t->seq, i, head, &state, 1, w->base.p->v_cache.dtype,
                                    t->scratch);
            continue;
        }
        int64_t at = ((t->job->first_row + i) * a->num_heads_q + head) * w->most_splits + split;
        state.o = memcpy(w->partial + at * floats, state.o, (size_t)floats * sizeof(float));
        w->states[at] = state;
    }
}

// Puts rows into the order in which they are fetched. A core prefetches one stream in each page of memory, so more pages mean more
// lines in flight. Rows of the same page are therefore far apart in the order.
static void fetch_order(const struct attention_view *cache, const char *const *rows, int64_t n,
                        const char **order) {
    enum { PAGE = 4096 };
    int64_t bytes = cache->seq * tsri_dtype_bytes(cache->dtype), of_page = 1;
    while (2 * of_page * bytes <= PAGE && n % (2 * of_page) == 0) of_page *= 2;
    for (int64_t i = 0, next = 0; i < of_page; i++)
        for (int64_t j = i; j < n; j += of_page) order[next++] = rows[j];
}

// Prefetches all rows at once, as there are no earlier products during which to fetch them.
static void fetch_rows(const struct split *t, const struct attention_view *cache, int64_t dims,
                       const char *const *rows, int64_t n) {
    int64_t bytes = dims * tsri_dtype_bytes(cache->dtype);
    for (int64_t j = 0; j < n; j += DECODE_RUN)
        for (int64_t h = 0; h < t->num_heads; h++)
            for (int64_t i = 0; i < bytes; i += 64)
                for (int64_t r = j; r < tsri_min(j + DECODE_RUN, n); r++)
                    __builtin_prefetch(rows[r] + head_bytes(t, cache, h) + i, 0, 1);
}

void decode_split_task(const struct decode_work *w, const struct decode_job *job, int64_t index,
                       float *memory) {
    const struct attention_decode_problem *p = w->base.p;
    int64_t pieces = tsri_ceil_div(p->a.num_heads_kv, w->heads_per_task);
    int64_t split = index / pieces, keys = w->base.plan->block_k;
    struct split t; // its arrays are not cleared: that costs as much as some keys
    t.w = w;
    t.job = job;
    t.seq = attention_decode_sequence_at(p, job->batch);
    t.first_head = index % pieces * w->heads_per_task;
    t.num_heads = tsri_min(w->heads_per_task, p->a.num_heads_kv - t.first_head);
    t.group = p->a.num_heads_q / p->a.num_heads_kv;
    if (t.group == 0) return; // keys that no head reads
    t.rows = t.group * t.seq.s.len_q;
    open_split(&t, memory);
    int64_t begin = job->seen.begin, end = job->seen.end;
    if (job->num_splits > 1) {
        begin = tsri_max(begin, (job->first_split + split) * keys);
        end = tsri_min(end, (job->first_split + split + 1) * keys);
    }
    int64_t n = tsri_min(DECODE_BLOCK, end - begin);
    if (n > 0) attention_decode_rows(p, &p->k_cache, &t.seq, begin, n, t.k[0]);
    if (n == DECODE_BLOCK) {
        fetch_order(&p->k_cache, t.k[0], n, t.next);
        fetch_rows(&t, &p->k_cache, p->a.head_dim, t.next, n);
    }
    for (int64_t first = begin, side = 0; first < end; side = 1 - side) {
        // This block's values are fetched during its scores, the next block's keys during its values.
        int64_t next_n = tsri_min(DECODE_BLOCK, end - first - n);
        attention_decode_rows(p, &p->v_cache, &t.seq, first, n, t.v);
        if (next_n > 0)
            attention_decode_rows(p, &p->k_cache, &t.seq, first + n, next_n, t.k[1 - side]);
        fetch_order(&p->v_cache, t.v, n, t.next);
        scores_of_block(&t, t.k[side], n);
        bool is_whole = weights_of_block(&t, first, n);
        if (next_n == n) fetch_order(&p->k_cache, t.k[1 - side], n, t.next);
        values_of_block(&t, next_n == n ? t.next : NULL, first, n, is_whole);
        first += n;
        n = next_n;
    }
    close_split(&t, split);
}
