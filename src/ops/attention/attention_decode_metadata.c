// SPDX-License-Identifier: Apache-2.0
// Checks decode's lengths, offsets, pages and tables before anything is written. attention_decode_check.cu does the same on the
// device and counts the sequences with errors.
#include "ops/attention/attention_decode_problem.h"

static const char op[] = "attention_decode";

// Offsets lie within the rows of q and do not fall.
static tsr_status check_offsets(const struct attention_problem *a) {
    int64_t least = 0;
    for (int64_t i = 0; a->is_packed && i <= a->num_batches; i++) {
        int64_t value = a->cu_seqlens_q[i * a->cu_stride_q];
        if (value < least || value > a->total_q)
            return tsri_fail(
                TSR_INVALID_ARGUMENT, "%s: cu_seqlens_q[%lld] is %lld, expected %lld to %lld", op,
                (long long)i, (long long)value, (long long)least, (long long)a->total_q);
        least = value;
    }
    return TSR_OK;
}

static tsr_status check_length(const struct attention_decode_problem *p,
                               const struct attention_decode_sequence *seq) {
    int64_t length = p->cache_seqlens[seq->batch * p->cache_seqlens_stride];
    if (length < 0 || length > p->capacity)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: cache_seqlens[%lld] is %lld, expected 0 to %lld, the capacity", op,
                         (long long)seq->batch, (long long)length, (long long)p->capacity);
    if (length + seq->num_new > p->capacity)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: cache_seqlens[%lld] is %lld, expected room for %lld more of k_new in "
                         "a capacity of %lld",
                         op, (long long)seq->batch, (long long)length, (long long)seq->num_new,
                         (long long)p->capacity);
    int64_t leftpad = p->leftpad_k != NULL ? p->leftpad_k[seq->batch * p->leftpad_stride] : 0;
    if (leftpad < 0 || leftpad > length)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: leftpad_k[%lld] is %lld, expected 0 to %lld, its cache_seqlens", op,
                         (long long)seq->batch, (long long)leftpad, (long long)length);
    return TSR_OK;
}

// The tables have a row for every position that a query or key is rotated by. Queries before the first key have no such row; this
// is an error only if they see keys after them.
static tsr_status check_positions(const struct attention_decode_problem *p,
                                  const struct attention_decode_sequence *seq) {
    if (p->cos.data == NULL) return TSR_OK;
    int64_t end = seq->num_new > 0 ? seq->cache_len + seq->num_new : 0;
    if (seq->s.len_q > 0) end = tsri_max(end, seq->s.len_k);
    if (end > p->cos.rows)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: cos has %lld positions, expected at least the %lld of sequence %lld",
                         op, (long long)p->cos.rows, (long long)end, (long long)seq->batch);
    int64_t before = tsri_min(-seq->s.shift, seq->s.len_q); // queries at negative positions
    if (before <= 0) return TSR_OK;
    struct attention_range seen = attention_visible(&p->a, &seq->s, before - 1);
    if (seen.begin == seen.end) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "%s: cache_seqlens[%lld] makes %lld keys for %lld queries, expected as many: "
                     "the position of the first query is negative",
                     op, (long long)seq->batch, (long long)seq->s.len_k, (long long)seq->s.len_q);
}

// The pages of keys [begin, end) of a sequence.
static tsr_status check_pages(const struct attention_decode_problem *p,
                              const struct attention_decode_sequence *seq, int64_t begin,
                              int64_t end) {
    const int64_t b = seq->batch, first = seq->s.k_first;
    for (int64_t row = first + begin; row < first + end; row += p->page_size - row % p->page_size) {
        int64_t page = attention_decode_page(p, b, row);
        if (page >= 0 && page < p->num_pages) continue;
        if (p->has_slots)
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: cache_batch_idx[%lld] is %lld, expected 0 to %lld", op,
                             (long long)b, (long long)page, (long long)p->num_pages - 1);
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: page_table[%lld][%lld] is %lld, expected 0 to %lld", op, (long long)b,
                         (long long)(row / p->page_size), (long long)page,
                         (long long)p->num_pages - 1);
    }
    return TSR_OK;
}

tsr_status attention_decode_check_metadata(const struct attention_decode_problem *p) {
    TSRI_TRY(check_offsets(&p->a));
    for (int64_t b = 0; b < p->a.num_batches; b++) {
        struct attention_decode_sequence seq = attention_decode_sequence_at(p, b);
        struct attention_range seen = attention_decode_seen(&p->a, &seq.s);
        TSRI_TRY(check_length(p, &seq));
        TSRI_TRY(check_positions(p, &seq));
        // Entries of the table that are not read may hold anything: ids of pages that are not given out yet, or that a window has
        // passed.
        if (p->page_table == NULL) continue;
        TSRI_TRY(check_pages(p, &seq, seen.begin, seen.end));
        TSRI_TRY(check_pages(p, &seq, seq.cache_len, seq.cache_len + seq.num_new));
    }
    return TSR_OK;
}
