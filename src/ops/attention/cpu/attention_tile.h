// SPDX-License-Identifier: Apache-2.0
// A tile: some query rows of one key/value head against a block of keys. Every CPU variant is a loop over these steps. Variants
// differ in the order of the loops and in what they keep between two steps.
//
// Rows of a group: the queries of all heads that share a key/value head, so that the same keys serve them together. Row r is query
// r mod len_q of the group's head r / len_q.
#ifndef TSRI_ATTENTION_TILE_H
#define TSRI_ATTENTION_TILE_H

#include "cpu/gemm.h"
#include "cpu/gemm_bf16.h"
#include "ops/attention/attention_problem.h"
#include "ops/attention/cpu/attention_kernels.h"

enum {
    ATTENTION_MAX_ROWS = 192,
    ATTENTION_CHUNK = 64, // keys that are packed at a time: whole panels
    ATTENTION_ASK =
        8, // rows that are asked for before they are used: they lie a stride apart, which no
           // hardware prefetcher follows
};

struct attention_row {
    int64_t head, i;                // query i of a head of q
    struct attention_range visible; // keys
};

struct attention_tile {
    const struct attention_problem *p;
    const struct gemm_kernels *gemm;
    const struct attention_kernels *kernels;
    const struct gemm_bf16_kernels *gemm_bf16; // of attention_mixed.h; NULL: products in fp32
    int64_t batch, kv_head;
    struct attention_sequence seq;
    int64_t num_rows;
    struct attention_row row[ATTENTION_MAX_ROWS];
    struct attention_range seen;   // by any row
    struct attention_range common; // by every row
    float *q;                      // [num_rows][q_stride], times softmax_scale
    float *s;         // [num_rows][s_stride]: scores, then weights, of the block's keys
    float *o;         // [num_rows][o_stride], not yet divided by sum
    float *max, *sum; // of each row so far: maximum, and denominator relative to it
    int64_t q_stride, s_stride, o_stride;
    float alpha[ATTENTION_MAX_ROWS]; // factor of o before the next product
};

// A block of keys with its values, in panels as in cpu/gemm.h, or as in cpu/gemm_bf16.h; in these a float holds a pair of
// elements.
struct attention_block {
    int64_t first, num_keys;
    const float *k,
        *v; // k: [panel of keys][head_dim][nr]; v: [panel of dims][key][nr], at key first
    int64_t k_stride, v_stride; // floats from panel to panel
    bool v_has_nonfinite;
    const unsigned char
        *is_nonfinite; // [chunk of keys], of an attention_head: where v has what is not finite
};

// Floats of q, s, o, max and sum for block_m rows and block_n keys. carve lays them out in memory.
int64_t attention_tile_floats(const struct attention_problem *p, int64_t block_m, int64_t block_n);
// Floats of o, max and sum only.
int64_t attention_state_floats(const struct attention_problem *p, int64_t rows);
void attention_tile_carve(struct attention_tile *t, const struct attention_problem *p, tsr_isa isa,
                          float *memory, int64_t block_m, int64_t block_n);

// The number of rows of the group of (batch, kv_head).
int64_t attention_group_rows(const struct attention_problem *p,
                             const struct attention_sequence *seq);

// Sets the tile's rows to [first, first + num_rows) of a group, and the keys that they see.
void attention_tile_open(struct attention_tile *t, int64_t batch, int64_t kv_head, int64_t first,
                         int64_t num_rows);
// Prefetches the tile's row r, if it has one, of q, out or their gradients.
void attention_tile_ask(const struct attention_tile *t, const struct attention_view *view,
                        int64_t r, int64_t dims);
// The tile's rows of q or dout, times scale, as rows of y.
void attention_tile_load_rows(const struct attention_tile *t, const struct attention_view *view,
                              int64_t dims, float scale, float *y, int64_t stride);
// Loads q; clears o, max and sum. A sink is in max and sum from the start.
void attention_tile_load_q(struct attention_tile *t);
void attention_tile_clear(struct attention_tile *t);

// c[row][key] = a b, depth deep, if a row of the register tile sees the key. c has s_stride; b is in panels of keys.
void attention_tile_product(const struct attention_tile *t, const struct attention_block *b,
                            const float *a, int64_t a_stride, int64_t depth, const float *panels,
                            int64_t panel_stride, float *c);
// s = softmax_scale q k^T.
void attention_tile_scores(struct attention_tile *t, const struct attention_block *b);
// Scores become weights relative to the new maximum; alpha is the factor of earlier results.
void attention_tile_softmax(struct attention_tile *t, const struct attention_block *b);
// c += s b over the keys that each row sees, dims wide. b is in panels of dims. Sets s to 0 for keys that a row does not see.
void attention_tile_accumulate(const struct attention_tile *t, const struct attention_block *b,
                               float *s, const float *panels, int64_t panel_stride, int64_t dims,
                               bool is_exact, float *c, int64_t c_stride);
// o = alpha o + s v.
void attention_tile_values(struct attention_tile *t, const struct attention_block *b);
// The kernels' parameters of row r.
struct attention_terms attention_row_terms(const struct attention_tile *t, int64_t r);
struct attention_dropout attention_row_dropout(const struct attention_tile *t, int64_t r);
// out = o / sum, and lse.
void attention_tile_finish(const struct attention_tile *t);

// Packs keys [first, first + num_keys) of k or v. pack_keys: panels of nr keys, [dim][nr], the right side of a product over dims.
// pack_dims: panels of nr dims, [key][nr], the right side of a product over keys. True: something is not finite.
void attention_pack_keys(const struct attention_tile *t, const struct attention_view *view,
                         int64_t dims, int64_t first, int64_t num_keys, float *panels);
bool attention_pack_dims(const struct attention_tile *t, const struct attention_view *view,
                         int64_t dims, int64_t first, int64_t num_keys, float *panels,
                         int64_t panel_stride);
// The two that forward needs, and their number of floats.
void attention_pack_k(const struct attention_tile *t, int64_t first, int64_t num_keys, float *k);
bool attention_pack_v(const struct attention_tile *t, int64_t first, int64_t num_keys, float *v,
                      int64_t v_stride);
// The packed keys and values of a head from key `first` on. k_row and v_row: floats from key to key.
struct attention_head {
    const float *k, *v;
    int64_t first, k_row, v_row, k_stride, v_stride, block_n;
    const unsigned char *is_nonfinite; // [chunk of keys from first on]: chunks of v
};
// The block that starts at key j, cut at the last key that the tile sees.
struct attention_block attention_block_at(const struct attention_tile *t,
                                          const struct attention_head *head, int64_t j);

// Forward in one arithmetic (fp32 or bf16). Its pack_k and pack_v define the layout of b->k and b->v.
struct attention_steps {
    void (*load_q)(struct attention_tile *t);
    // Runs all blocks of a range of keys; the range begins at a block.
    void (*sweep)(struct attention_tile *t, const struct attention_head *head,
                  struct attention_range keys);
    void (*pack_k)(const struct attention_tile *t, int64_t first, int64_t num_keys, float *k);
    bool (*pack_v)(const struct attention_tile *t, int64_t first, int64_t num_keys, float *v,
                   int64_t v_stride);
};
extern const struct attention_steps attention_fp32_steps;

// The layout of packed keys and values of a head or a block, in floats: per key, from panel to panel of values, in all.
struct attention_packed {
    int64_t num_keys, k_row, v_row, v_stride, k_floats, v_floats;
};
struct attention_packed attention_packed(const struct attention_problem *p, int64_t num_keys,
                                         int nr); // in fp32
// With the flags that follow, one for each chunk of keys, as tuned packs them.
int64_t attention_slot_floats(const struct attention_packed *packed);

int64_t attention_k_floats(const struct attention_problem *p, int64_t num_keys, int nr);
int64_t attention_v_floats(const struct attention_problem *p, int64_t num_keys, int nr);

// The part of a block that a row sees, relative to the block's first key; begin >= end if it sees none.
static inline struct attention_range attention_row_part(const struct attention_row *row,
                                                        const struct attention_block *b) {
    return (struct attention_range){tsri_max(row->visible.begin - b->first, 0),
                                    tsri_min(row->visible.end - b->first, b->num_keys)};
}

// Whether every row sees all of the block.
static inline bool attention_is_common(const struct attention_tile *t,
                                       const struct attention_block *b) {
    return t->common.begin <= b->first && t->common.end >= b->first + b->num_keys;
}

// Sets rows of out and lse that belong to no sequence to 0 and -inf.
void attention_clear_gaps(const struct attention_problem *p);

#endif
