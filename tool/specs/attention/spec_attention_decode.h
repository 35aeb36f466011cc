// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the decode spec: its slots and parameters, the sizes of a case, and where the rows of
// a sequence are. The rules are written anew from tessera/attention_decode.h, because the library's own rules
// are under test.
#ifndef TOOL_SPEC_ATTENTION_DECODE_H
#define TOOL_SPEC_ATTENTION_DECODE_H

#include "specs/spec.h"

// Metadata is filled first, because the content of the caches depends on it.
enum decode_slot {
    DEC_CU_SEQLENS_Q,
    DEC_CACHE_SEQLENS,
    DEC_LEFTPAD_K,
    DEC_PAGE_TABLE,
    DEC_CACHE_BATCH_IDX,
    DEC_TREE_MASK,
    DEC_Q,
    DEC_K_NEW,
    DEC_V_NEW,
    DEC_COS,
    DEC_SIN,
    DEC_Q_NORM,
    DEC_K_NORM,
    DEC_K_SCALE,
    DEC_V_SCALE,
    DEC_SLOPES,
    DEC_SINKS,
    DEC_K_CACHE,
    DEC_V_CACHE,
    DEC_OUT,
    DEC_LSE
};

enum decode_param {
    DEC_BATCH,
    DEC_SEQLEN_Q, // packed: of the longest sequence
    DEC_SEQLEN_K, // including the new keys
    DEC_HEADS,
    DEC_KV_HEADS,
    DEC_HEAD_DIM,
    DEC_HEAD_DIM_V,    // 0: as head_dim
    DEC_CAPACITY,      // 0: as seqlen_k
    DEC_PAGE_SIZE,     // paged
    DEC_NUM_PAGES,     // or slots; 0: as many as the sequences need
    DEC_TOTAL_Q,       // packed: rows; 0: batch times seqlen
    DEC_ROTARY_DIM,    // 0: head_dim
    DEC_NUM_POSITIONS, // 0: enough for the capacity
    DEC_ALIBI_BATCH,   // slopes for every batch
    DEC_TREE_BATCH,    // tree_mask for every batch
    DEC_E4M3,          // caches of e4m3
    DEC_SCALE_DIMS,    // of their scales: 0 to 2
    DEC_RAGGED,        // 1: random lengths, NaN wherever no query looks; 2: and bad metadata
    DEC_MASK,
    DEC_INTERLEAVED,
    DEC_WINDOW_LEFT, // -1: none
    DEC_WINDOW_RIGHT,
    DEC_SOFTMAX_SCALE,
    DEC_SOFTCAP,
    DEC_MAX_SEQLEN_Q, // 0: seqlen_q
    DEC_MAX_SEQLEN_K, // 0: all keys
    DEC_NORM_EPS,
    DEC_ZERO_CENTERED
};

struct decode_sizes {
    int64_t batch, seqlen_q, total_q, heads, kv_heads, head_dim, head_dim_v;
    int64_t capacity, page_size, max_pages,
        num_pages; // contiguous: one page for each sequence or slot
    int64_t rotary_dim, num_positions;
    bool is_packed, is_paged, has_slots, has_new, has_rope;
};
struct decode_sizes decode_sizes_of(const struct op_case *c);

// One sequence, by the metadata of the case if it has data. Key j lies in row leftpad + j of its cache.
struct decode_rows {
    int64_t batch, q_first, len_q, leftpad, cache_len, num_new, len_k;
};
struct decode_rows decode_rows_of(const struct op_case *c, int64_t batch);

bool decode_sees(const struct op_case *c, const struct decode_rows *rows, int64_t i, int64_t j);
// The row of the caches (page times page_size plus the offset in the page) of key j.
int64_t decode_cache_row(const struct op_case *c, int64_t batch, int64_t j);
// Whether new key t is appended.
bool decode_is_appended(const struct op_case *c, const struct decode_rows *rows, int64_t batch,
                        int64_t t);
// Row of q, k_new, v_new or out.
int64_t decode_row(const struct decode_sizes *n, const struct decode_rows *rows, int64_t batch,
                   int64_t i);

void decode_randomize(struct rng *rng, struct op_case *c);
bool decode_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values);
void decode_bound(const struct op_case *c, int slot, double *bound);
extern const struct edge_case decode_edges[];

#endif
