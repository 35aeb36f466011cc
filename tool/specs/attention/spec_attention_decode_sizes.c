// SPDX-License-Identifier: Apache-2.0
// A case of decode in numbers: its sizes, the rows of each sequence, which query sees which key, and where the rows of a
// sequence lie in the cache.
#include "specs/attention/spec_attention_decode.h"

// ---- Sizes ------------------------------------------------------------------------------------

static int64_t or_else(double value, int64_t standard) {
    return value != 0 ? (int64_t)value : standard;
}

struct decode_sizes decode_sizes_of(const struct op_case *c) {
    const double *p = c->param;
    struct decode_sizes n = {.is_packed = c->is_present[DEC_CU_SEQLENS_Q],
                             .is_paged = c->is_present[DEC_PAGE_TABLE],
                             .has_slots = c->is_present[DEC_CACHE_BATCH_IDX],
                             .has_new = c->is_present[DEC_K_NEW],
                             .has_rope = c->is_present[DEC_COS]};
    n.batch = (int64_t)p[DEC_BATCH];
    n.seqlen_q = n.total_q = (int64_t)p[DEC_SEQLEN_Q];
    n.heads = (int64_t)p[DEC_HEADS];
    n.kv_heads = (int64_t)p[DEC_KV_HEADS];
    n.head_dim = (int64_t)p[DEC_HEAD_DIM];
    n.head_dim_v = or_else(p[DEC_HEAD_DIM_V], n.head_dim);
    if (n.is_packed) {
        n.total_q = or_else(p[DEC_TOTAL_Q], n.batch * n.seqlen_q);
        if (n.seqlen_q == 0 || n.seqlen_q > n.total_q) n.seqlen_q = n.total_q;
    }
    n.page_size = n.capacity = or_else(p[DEC_CAPACITY], (int64_t)p[DEC_SEQLEN_K]);
    n.max_pages = 1;
    n.num_pages = n.has_slots ? or_else(p[DEC_NUM_PAGES], n.batch) : n.batch;
    if (n.is_paged) {
        n.page_size = (int64_t)p[DEC_PAGE_SIZE];
        n.max_pages = n.page_size > 0 ? (n.capacity + n.page_size - 1) / n.page_size : 0;
        n.capacity = n.max_pages * n.page_size;
        n.num_pages = or_else(p[DEC_NUM_PAGES], n.batch * n.max_pages);
    }
    if (n.num_pages == 0) n.capacity = 0;
    n.rotary_dim = or_else(p[DEC_ROTARY_DIM], n.head_dim) / 2 * 2;
    n.num_positions = or_else(p[DEC_NUM_POSITIONS], n.capacity + 1);
    return n;
}

// ---- Sequences --------------------------------------------------------------------------------

static int64_t clamp(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

// False if the case has no data (yet), or if it lies on a device, where the host cannot read it.
static bool has_data(const struct op_case *c, int slot) {
    const tsr_tensor *t = &c->tensor[slot];
    return c->is_present[slot] && t->data != NULL && t->device.type == TSR_CPU;
}

static int64_t index_at(const struct op_case *c, int slot, int64_t i) {
    return (int64_t)tsr_load(TSR_I32, c->tensor[slot].data, i);
}

struct decode_rows decode_rows_of(const struct op_case *c, int64_t batch) {
    struct decode_sizes n = decode_sizes_of(c);
    struct decode_rows rows = {.batch = batch, .q_first = 0, .len_q = n.seqlen_q};
    if (n.is_packed) rows.q_first = clamp(batch * n.seqlen_q, 0, n.total_q);
    if (has_data(c, DEC_CU_SEQLENS_Q)) {
        rows.q_first = clamp(index_at(c, DEC_CU_SEQLENS_Q, batch), 0, n.total_q);
        int64_t end = index_at(c, DEC_CU_SEQLENS_Q, batch + 1);
        rows.len_q = clamp(clamp(end, rows.q_first, n.total_q) - rows.q_first, 0, n.seqlen_q);
    }
    rows.num_new = n.has_new ? rows.len_q : 0;
    rows.cache_len = clamp((int64_t)c->param[DEC_SEQLEN_K] - rows.num_new, 0, n.capacity);
    if (has_data(c, DEC_CACHE_SEQLENS))
        rows.cache_len = clamp(index_at(c, DEC_CACHE_SEQLENS, batch), 0, n.capacity);
    if (has_data(c, DEC_LEFTPAD_K))
        rows.leftpad = clamp(index_at(c, DEC_LEFTPAD_K, batch), 0, rows.cache_len);
    rows.cache_len -= rows.leftpad;
    rows.len_k = clamp(rows.cache_len + rows.num_new, 0, n.capacity - rows.leftpad);
    return rows;
}

bool decode_sees(const struct op_case *c, const struct decode_rows *rows, int64_t i, int64_t j) {
    const double *p = c->param;
    int64_t d = i + rows->len_k - rows->len_q, t = j - (rows->len_k - rows->len_q);
    if (has_data(c, DEC_TREE_MASK) && t >= 0) {
        int64_t n = (int64_t)p[DEC_SEQLEN_Q], of = p[DEC_TREE_BATCH] != 0 ? rows->batch : 0;
        if (tsr_load(TSR_U8, c->tensor[DEC_TREE_MASK].data, (of * n + i) * n + t) == 0)
            return false;
    }
    if (p[DEC_MASK] != TSR_MASK_NONE && j > d) return false;
    if (p[DEC_WINDOW_LEFT] >= 0 && j < d - (int64_t)p[DEC_WINDOW_LEFT]) return false;
    return p[DEC_WINDOW_RIGHT] < 0 || j <= d + (int64_t)p[DEC_WINDOW_RIGHT];
}

// The page or slot of a row of a sequence, as the tensors of the case have it.
static int64_t page_of(const struct op_case *c, const struct decode_sizes *n, int64_t batch,
                       int64_t row) {
    if (n->is_paged) return index_at(c, DEC_PAGE_TABLE, batch * n->max_pages + row / n->page_size);
    return n->has_slots ? index_at(c, DEC_CACHE_BATCH_IDX, batch) : batch;
}

int64_t decode_cache_row(const struct op_case *c, int64_t batch, int64_t j) {
    struct decode_sizes n = decode_sizes_of(c);
    int64_t row = decode_rows_of(c, batch).leftpad + j;
    return clamp(page_of(c, &n, batch, row), 0, n.num_pages - 1) * n.page_size + row % n.page_size;
}

bool decode_is_appended(const struct op_case *c, const struct decode_rows *rows, int64_t batch,
                        int64_t t) {
    struct decode_sizes n = decode_sizes_of(c);
    int64_t row = rows->leftpad + rows->cache_len + t;
    if (t >= rows->num_new || row >= n.capacity) return false;
    int64_t page = page_of(c, &n, batch, row);
    return page >= 0 && page < n.num_pages;
}

int64_t decode_row(const struct decode_sizes *n, const struct decode_rows *rows, int64_t batch,
                   int64_t i) {
    return (n->is_packed ? 0 : batch * n->total_q) + rows->q_first + i;
}
