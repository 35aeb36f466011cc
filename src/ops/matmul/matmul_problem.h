// SPDX-License-Identifier: Apache-2.0
// Matmul between its rooms: the problem that the entries make, and the kernels of one ISA.
#ifndef TSRI_MATMUL_PROBLEM_H
#define TSRI_MATMUL_PROBLEM_H

#include <tessera/matmul.h>

#include "context/op_table.h"
#include "core/core_index.h"
#include "cpu/cpu_isa.h"

enum {
    MATMUL_MAX_BATCH_DIMS = 3,
    MATMUL_SCALE_BLOCK = 128,
    MATMUL_SKINNY_M = 16,          // rows of a task of skinny
    MATMUL_SKINNY_DEPTH = 512,     // steps of k whose sums skinny adds up before they go to others
    MATMUL_PARTS_COUNT_BYTES = 64, // a line of memory for each count
    MATMUL_CROWD = 4,              // threads: see matmul_is_crowded
    MATMUL_CROWD_TASKS = 4,        // of each of them
    MATMUL_BLOCK_K = 512,          // the order of sums: see matmul_plan.c
    MATMUL_TURNED_M = 64,          // rows beside which tiles may take columns of b as rows
    MATMUL_LARGE_L2 = 2 << 20,     // bytes of a second-level cache that is large
    MATMUL_PASSING_N = 512,        // columns of blocked, up to which a task packs its rows of A
    MATMUL_ROWS_OF_PASS = 6,       // of a, whose sums a pass over b of few rows holds in registers
};

// A stack of matrices, transpositions resolved: element (i, j) of matrix (x, y, z) at
// data[i * row + j * col + x * batch[0] + y * batch[1] + z * batch[2]], in elements.
struct matmul_matrix {
    char *data; // NULL: absent
    tsr_dtype dtype;
    int64_t row, col;
    int64_t batch[MATMUL_MAX_BATCH_DIMS];
};

static inline struct matmul_matrix matmul_transposed(struct matmul_matrix t) {
    int64_t row = t.row;
    t.row = t.col;
    t.col = row;
    return t;
}

static inline char *matmul_at(const struct matmul_matrix *t, int64_t i, int64_t j) {
    return t->data + (i * t->row + j * t->col) * (int64_t)tsr_dtype_bytes(t->dtype);
}

static inline bool matmul_is_rows_of_floats(const struct matmul_matrix *t) {
    return t->dtype == TSR_F32 && t->col == 1;
}

static inline bool matmul_is_fp8(tsr_dtype dtype) { return dtype == TSR_E4M3 || dtype == TSR_E5M2; }

// Which rows of a are a group's, of tessera/matmul_grouped.h; all zero where there are no groups.
struct matmul_groups {
    struct tsri_indices starts; // offsets, or counts; data NULL: there are no groups
    bool are_counts;
    bool are_depths; // groups cut k instead of m: rows of a group are columns of a and rows of b
    int64_t bias;    // from one group's bias to the next's
};

// c = act(alpha a b + bias) [alpha a b_up] + residual [+ c]; see tessera/matmul.h. With groups the innermost batch dimension
// counts them, all matrices of a and c (of a and b, where groups cut k) are one where there are offsets, and m (or k) is the
// number of rows that there are. Scales of fp8 have an element for each 128 steps of k, and those of b for 128 columns of
// it: a(i, s) stands for a(i, s) a_scale(i, s / 128), b(s, j) for b(s, j) b_scale(s / 128, j / 128). One for the whole
// tensor has strides of 0.
struct matmul_problem {
    int64_t m, n, k, num_batches;
    int64_t batch[MATMUL_MAX_BATCH_DIMS];         // shape; num_batches is its product
    struct matmul_matrix a, b, b_up, residual, c; // of c and residual, col is 1
    const void *bias;
    tsr_dtype bias_dtype;
    tsr_activation activation;
    bool is_accumulating;
    float alpha;
    struct matmul_groups groups;
    struct matmul_matrix a_scale, b_scale, b_up_scale; // f32; absent: 1
    bool is_block_scaled, may_sum_fast;
    tsr_matmul_math math;
};

// The matrix of batch index `index` (row-major over batch).
struct matmul_matrix matmul_batch(const struct matmul_problem *p, const struct matmul_matrix *t,
                                  int64_t index);

// The problem with the matrices of one product of the batch.
static inline struct matmul_problem matmul_of_batch(const struct matmul_problem *p, int64_t index) {
    struct matmul_problem one = *p;
    one.a = matmul_batch(p, &p->a, index);
    one.b = matmul_batch(p, &p->b, index);
    one.b_up = matmul_batch(p, &p->b_up, index);
    one.residual = matmul_batch(p, &p->residual, index);
    one.c = matmul_batch(p, &p->c, index);
    one.a_scale = matmul_batch(p, &p->a_scale, index);
    one.b_scale = matmul_batch(p, &p->b_scale, index);
    one.b_up_scale = matmul_batch(p, &p->b_up_scale, index);
    return one;
}

// c is the product itself, nothing to do after it: kernels accumulate right in c.
static inline bool matmul_is_plain(const struct matmul_problem *p) {
    return p->c.dtype == TSR_F32 && p->bias == NULL && p->b_up.data == NULL &&
           p->residual.data == NULL && p->activation == TSR_ACTIVATION_NONE && p->alpha == 1.0f;
}

// Groups' rows follow each other in one matrix.
static inline bool matmul_has_packed_rows(const struct matmul_problem *p) {
    return p->groups.starts.data != NULL && !p->groups.are_counts && !p->groups.are_depths;
}

struct matmul_kernels {
    // The epilogue on a tile of m x n products: acc (and up, or NULL) with `stride` floats a row, into
    // c at (row, col). The matrices of p are those of one batch.
    void (*finish)(const struct matmul_problem *p, int64_t row, int64_t col, int64_t m, int64_t n,
                   const float *acc, const float *up, int64_t stride);

    // m rows (1 beside fp8) of fp32 a (stride k_stride) times n columns of b in its own dtype and layout, read once;
    // acc (m x n, stride floats a row) is overwritten. Element (p, j) of b at b[p * row + j * col]. is_far: matmul_is_far.
    void (*skinny)(tsr_dtype dtype, bool is_far, int64_t m, int64_t n, int64_t k, const float *a,
                   int64_t k_stride, const void *b, int64_t row, int64_t col, float *acc,
                   int64_t stride);

    // g = dc act'(preact), one row of n elements, in one dtype.
    void (*activation_grad)(tsr_dtype dtype, tsr_activation kind, const void *dc,
                            const void *preact, void *g, int64_t n);
    // sum[j] += g[j], j < n.
    void (*add_row)(tsr_dtype dtype, const void *g, float *sum, int64_t n);
};
TSRI_DECLARE_KERNELS(matmul)

extern const struct tsri_op tsri_matmul_forward_op, tsri_matmul_backward_op;

// matmul_cpu_serves.c
bool matmul_has_kernels(const void *problem, const struct tsri_limits *limits);
bool matmul_can_use_b_in_place(const void *problem, const struct tsri_limits *limits);
bool matmul_can_be_streamed(const void *problem, const struct tsri_limits *limits);
bool matmul_is_skinny(const void *problem, const struct tsri_limits *limits);
// The same by vdpbf16ps: rows of a, and b and b_up alike, where they lie.
bool matmul_has_skinny_bf16(const void *problem, const struct tsri_limits *limits);
bool matmul_has_amx_bf16(const void *problem, const struct tsri_limits *limits);
bool matmul_has_avx512_bf16(const void *problem, const struct tsri_limits *limits);
// Whether skinny multiplies along columns of b, by dot products: a lone column that is contiguous is one too.
static inline bool matmul_has_columns(const struct matmul_problem *p) {
    return p->b.col != 1 || (p->n == 1 && p->b.row == 1);
}
// The step between columns that the kernel takes, 1 where rows are contiguous: by the n of the product, not that of a task.
static inline int64_t matmul_column_step(const struct matmul_problem *p,
                                         const struct matmul_matrix *b) {
    return p->n == 1 && b->row == 1 ? 0 : b->col;
}
// A few long ones, which dot products serve best beside any number of rows.
bool matmul_has_long_columns(const struct matmul_problem *p, const struct tsri_limits *limits);

// matmul_cpu_choice.c
const char *matmul_prefer(const void *problem, const struct tsri_limits *limits);
// matmul_mixed_choice.c, for prefer: the name of the variant that serves, NULL where those in fp32 do.
const char *matmul_prefer_mixed(const struct matmul_problem *p, const struct tsri_limits *limits);

// matmul_layout.c
// Threads that share its tiles, or the columns of few rows, best; packs: b is packed first.
int matmul_threads(const struct matmul_problem *p, const struct tsri_limits *limits, bool packs);
// size cut into equal parts of at most `most`, each a multiple of `unit`.
int64_t matmul_even_block(int64_t size, int64_t most, int64_t unit);
// Steps of k that a task packs of one of `panels` shared panels: few panels are cut, so that every thread has some. A multiple
// of what any kernel or scale takes at once.
int64_t matmul_pack_depth(int64_t k, int64_t panels, int num_threads);

// Where the tiled variants have B: in panels that all threads packed, or the task; where it is, to go through tiles, or to
// pass by.
enum matmul_b_source {
    MATMUL_SHARED_PANELS,
    MATMUL_PRIVATE_PANELS,
    MATMUL_IN_PLACE,
    MATMUL_STREAMED
};

// The workspace of the tiled variants, in this order: packed panels of B (all that a stripe needs, or
// of b_up too), then for each thread private panels, or sums where B passes by, rows of A, and a tile of C (two when gated).
struct matmul_layout {
    int64_t stripe_floats; // shared panels of one matrix
    int64_t panels_floats; // of a thread
    int64_t sums_stride;   // of those that take the place of panels
    int64_t a_floats, tile_floats;
    int64_t thread_floats;                       // all of a thread's
    int64_t stripe_cols;                         // columns of b in a stripe
    int64_t stripe_batches;                      // batches in a stripe
    int64_t stripe_rows;                         // of a, whose panels are shared at once
    bool is_a_packed, is_a_shared, is_a_passing; // passing: a panel at a time, into one place
};
struct matmul_layout matmul_layout(const struct matmul_problem *p, const struct tsri_plan *plan,
                                   enum matmul_b_source source, bool is_blocked);
size_t matmul_layout_bytes(const struct matmul_problem *p, const struct matmul_layout *l,
                           const struct tsri_limits *limits);

// matmul_plan.c
void matmul_plan_packed(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_plan_local(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_plan_blocked(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_plan_direct(const void *problem, const struct tsri_limits *, struct tsri_plan *);
// Where storing c is most of the work: tasks of whole lines of it, which tasks side by side would share, and of so many rows that
// there are num_tasks, but at most most_m.
void matmul_cut_by_rows(const struct matmul_problem *p, int64_t num_tasks, int64_t most_m,
                        int64_t unit_m, int64_t unit_n, struct tsri_plan *plan);
// matmul_rows_plan.c
void matmul_plan_streamed(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_plan_skinny(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_plan_skinny_bf16(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_plan_naive(const void *problem, const struct tsri_limits *, struct tsri_plan *);
int matmul_skinny_threads(const struct matmul_problem *p, const struct tsri_limits *limits,
                          bool by_units);
// Whether skinny, streamed and direct cut k too.
bool matmul_splits_depth(const struct matmul_problem *p, int num_threads);
bool matmul_streams_parts(const struct matmul_problem *p, int num_threads);
bool matmul_cuts_depth(const struct matmul_problem *p, const struct tsri_limits *limits);
// So many threads that what one wrote comes slowly to the others, which also run at different speeds: panels of B are each
// task's own, and there are several tasks for each thread.
static inline bool matmul_has_given_blocks(const struct tsri_limits *limits) { // by a tuning row
    return limits->block[0] > 0 || limits->block[1] > 0;
}
static inline bool matmul_is_crowded(const struct tsri_limits *limits) {
    return limits->num_threads >= MATMUL_CROWD;
}
// One thread of Intel's AVX-512 and a large second-level cache, where panels of B that all rows pass by serve well.
static inline bool matmul_is_alone_on_intel(const struct tsri_limits *limits) {
    return tsri_is_intel_avx512(limits) && limits->num_threads == 1 &&
           limits->l2_bytes >= MATMUL_LARGE_L2;
}
// One to three threads of AVX2 or one on Intel, and a small A of floats in place: in local all of its rows pass by each task's
// columns of B, which no other task packs.
bool matmul_is_passing(const struct matmul_problem *p, const struct tsri_limits *limits);

// matmul_rows_plan.c: blocks of k as tasks of their own, by the kernel of skinny, streamed or direct. Their workspace is counts
// of blocks that are done, for each block of columns, rows_floats for each thread, and the sums.
enum matmul_parts_kernel { MATMUL_PARTS_SKINNY, MATMUL_PARTS_STREAMED, MATMUL_PARTS_TILES };
struct matmul_parts_layout {
    int64_t num_parts, rows_floats, sums_stride;
};
struct matmul_parts_layout matmul_parts_layout(const struct matmul_problem *p,
                                               const struct tsri_plan *plan,
                                               enum matmul_parts_kernel kernel);
void matmul_plan_parts(const struct matmul_problem *p, const struct tsri_limits *limits,
                       enum matmul_parts_kernel kernel, struct tsri_plan *plan);
// Whether a plan is such a one: it has more tasks than blocks of c.
static inline bool matmul_has_parts(const struct matmul_problem *p, const struct tsri_plan *plan) {
    return plan->num_tasks >
           p->num_batches * tsri_ceil_div(p->m, plan->block_m) * tsri_ceil_div(p->n, plan->block_n);
}

// matmul_skinny_block.c: a block of the one product of p by skinny's kernel, or skinny_bf16's (by_units), in memory of
// matmul_skinny_floats for its sizes.
int64_t matmul_skinny_floats(const struct matmul_problem *p, int64_t m, int64_t n);
void matmul_skinny_block(const struct tsri_limits *limits, const struct matmul_problem *p,
                         bool by_units, bool is_far, int64_t row, int64_t col, int64_t m, int64_t n,
                         float *own);
// Columns of b, of all products, from beyond the second-level cache, and short: skinny asks for them ahead.
bool matmul_is_far(const struct matmul_problem *p, const struct tsri_limits *limits);
struct gemm_kernels;
// m rows and k steps of a from `from` on, in fp32: in place where they are that, else widened into own.
const float *matmul_rows_of_a(const struct gemm_kernels *gemm, const struct matmul_matrix *a,
                              const void *from, int64_t m, int64_t k, float *own,
                              int64_t own_stride, int64_t *stride);

// matmul_parts_cpu.c
tsr_status matmul_parts_run(tsr_context *, const struct matmul_problem *, const struct tsri_plan *,
                            void *workspace, enum matmul_parts_kernel kernel);

// matmul_scales.c: one of a scale's elements; packed panels of fp8 operands, widened, times their scales; those of one
// batch. Nothing, or 1, where there are none.
float matmul_scale_at(const struct matmul_matrix *scale, int64_t i, int64_t j);
// Rows [row, row + m) of a from step `step` on, in panels of mr rows, `depth` steps deep.
void matmul_scale_a(const struct matmul_matrix *scale, int64_t row, int64_t m, int64_t step,
                    int64_t depth, int64_t mr, float *panels);
// `depth` steps of nr columns of b from (step, col) on; those that count lie in one block of 128.
void matmul_scale_b(const struct matmul_matrix *scale, int64_t step, int64_t depth, int64_t col,
                    int64_t nr, float *panel);

// matmul_cpu.c
tsr_status matmul_packed_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status matmul_local_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status matmul_blocked_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status matmul_streamed_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status matmul_direct_run(tsr_context *, const void *, const struct tsri_plan *, void *);
// matmul_rows_cpu.c
tsr_status matmul_skinny_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status matmul_skinny_bf16_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status matmul_naive_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// matmul_mixed_plan.c: products in bf16, by the units that have them. What of a thread's workspace is bf16 counts
// half a float each.
struct matmul_mixed_layout {
    int64_t
        panel_floats; // a panel of b, all of k where panels are shared, a block where they are private
    int64_t stripe_cols, stripe_batches; // of b, whose panels are shared at once
    int64_t stripe_floats;               // shared panels of one matrix; 0: panels are private
    int64_t private_floats, a_floats, tile_floats, thread_floats; // of a thread
    int64_t a_stride, tile_stride;                                // bf16; floats
    int64_t part_floats; // of a thread, where blocks of k are summed apart, or 0
    int64_t num_parts;   // of k that are tasks of their own
    int64_t sums_floats; // of each of those
};
struct matmul_mixed_layout matmul_mixed_layout(const struct matmul_problem *p,
                                               const struct tsri_plan *plan);
void matmul_plan_mixed(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_plan_tiles(const void *problem, const struct tsri_limits *, struct tsri_plan *);
// Whether tiles multiply the transposed matrices, and that problem: b_up stands beside a there, c and what is added to it are
// as they were.
bool matmul_is_turned(const struct matmul_problem *p, uint32_t flags, int num_threads);
struct matmul_problem matmul_turned(const struct matmul_problem *p);
// Whether tiles take rows of a where they are.
bool matmul_has_a_in_place(const struct matmul_problem *p, int num_threads);
int matmul_mixed_threads(const struct matmul_problem *p, const struct tsri_limits *limits);

// matmul_mixed.c
tsr_status matmul_amx_bf16_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status matmul_avx512_bf16_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// matmul_ref.c
tsr_status matmul_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);

#endif
