// SPDX-License-Identifier: Apache-2.0
// Shared by the files of matmul: the problem that the entries make, and the kernels of one ISA.
#ifndef TSRI_MATMUL_PROBLEM_H
#define TSRI_MATMUL_PROBLEM_H

#include <tessera/matmul.h>

#include "context/op_table.h"
#include "core/core_index.h"
#include "core/core_quant.h"
#include "cpu/cpu_isa.h"

enum {
    MATMUL_MAX_BATCH_DIMS = 3,
    MATMUL_SCALE_BLOCK = 128,
    MATMUL_SKINNY_M = 16,          // rows of a skinny task
    MATMUL_SKINNY_DEPTH = 512,     // steps of k that skinny sums before it adds the sum to others
    MATMUL_PARTS_COUNT_BYTES = 64, // each count has its own cache line
    MATMUL_CROWD = 4,              // threads: see matmul_is_crowded
    MATMUL_CROWD_TASKS = 4,        // tasks per thread then
    MATMUL_BLOCK_K = 512,          // fixes the order of sums: see matmul_plan.c
    MATMUL_TURNED_M = 64,          // rows up to which tiles may use columns of b as rows
    MATMUL_LARGE_L2 = 2 << 20,     // bytes of a second-level cache that counts as large
    MATMUL_PASSING_N = 512,        // columns of "blocked" up to which a task packs its rows of A
    MATMUL_LIST_PADDING = 16, // floats between copied rows of a list: no strides of a power of two
    MATMUL_FEW_STEPS = 8,     // of k: gradients of a group with so few rows are outer products
    MATMUL_ROWS_OF_PASS = 6,  // rows of a whose sums fit in registers during a pass over b
};

// A stack of matrices, with transpositions resolved: element (i, j) of matrix (x, y, z) is at data[i * row + j * col +
// x * batch[0] + y * batch[1] + z * batch[2]], in elements.
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

// Which of an operand's lines its rows are (if groups cut k: its steps of k): a_rows or dc_rows.
struct matmul_list {
    struct tsri_indices lines; // data NULL: line i is line i
    int64_t num_lines;         // of the operand
};
static inline bool matmul_is_listed(const struct matmul_list *list) {
    return list->lines.data != NULL;
}
static inline int64_t matmul_line(const struct matmul_list *list, int64_t i) {
    return matmul_is_listed(list) ? tsri_index_at(&list->lines, i) : i;
}

// Which rows belong to a group, as in tessera/matmul_grouped.h; all zero without groups.
struct matmul_groups {
    struct tsri_indices starts; // offsets or counts; data NULL: no groups
    bool are_counts;
    bool are_depths; // groups cut k, not m: a group's rows are columns of a and rows of b
    int64_t bias;    // from one group's bias to the next group's
    int64_t bias_up; // the same of bias_up
    struct matmul_list of_a, of_b; // in the product of one group too; of_b only if groups cut k
};

// On CUDA the multiprocessors that one product leaves idle may begin with the next one, where neither reads what the other writes.
// The first one is FOLLOWED: it lets the other start only when all before it is done. The other one, BESIDE it, does not wait for
// it before its end.
enum matmul_order { MATMUL_ALONE, MATMUL_FOLLOWED, MATMUL_BESIDE };

// c = act(alpha a b + bias) [gate(alpha a b_up + bias_up)] + residual [+ c]; see tessera/matmul.h. With groups, the innermost batch
// dimension counts them; with offsets, a and c (a and b, if groups cut k) are each one matrix, and m (or k) is the
// total number of rows. Scales of fp8 have an element for each 128 steps of k, those of b also for 128 columns: a(i, s)
// means a(i, s) a_scale(i, s / 128), b(s, j) means b(s, j) b_scale(s / 128, j / 128). A scale for the whole tensor has
// strides of 0.
struct matmul_problem {
    enum matmul_order order;
    bool has_half; // beside another product it has half of the multiprocessors
    int64_t m, n, k, num_batches;
    int64_t batch[MATMUL_MAX_BATCH_DIMS];         // shape; num_batches is its product
    struct matmul_matrix a, b, b_up, residual, c; // col is 1 in c and residual
    const void *bias, *bias_up;
    tsr_dtype bias_dtype, bias_up_dtype;
    tsr_activation activation;
    bool is_accumulating;
    float alpha;
    struct matmul_groups groups;
    struct matmul_matrix a_scale, b_scale, b_up_scale; // f32; absent: 1
    bool is_block_scaled, may_sum_fast;
    tsr_matmul_math math;
    // Columns of b and of b_up as quantised rows, in tsr_matmul_quant: their matrices then say how such columns would lie.
    struct tsri_quant_rows quant, quant_up;
};

// The matrix with batch index `index` (row-major over batch).
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

// Whether c is the product itself, without an epilogue: kernels then accumulate directly in c.
static inline bool matmul_is_plain(const struct matmul_problem *p) {
    return p->c.dtype == TSR_F32 && p->bias == NULL && p->b_up.data == NULL &&
           p->residual.data == NULL && p->activation == TSR_ACTIVATION_NONE && p->alpha == 1.0f;
}

// Whether b has 16 bits and a is f32.
static inline bool matmul_has_narrow_b(const struct matmul_problem *p) {
    return p->a.dtype == TSR_F32 && p->b.dtype != TSR_F32;
}

// Whether the groups' rows are consecutive in one matrix.
static inline bool matmul_has_packed_rows(const struct matmul_problem *p) {
    return p->groups.starts.data != NULL && !p->groups.are_counts && !p->groups.are_depths;
}

struct matmul_kernels {
    // Applies the epilogue to a tile of m x n products, acc (and up, or NULL) with `stride` floats per row, and stores
    // it in c at (row, col). The matrices of p are those of one batch.
    void (*finish)(const struct matmul_problem *p, int64_t row, int64_t col, int64_t m, int64_t n,
                   const float *acc, const float *up, int64_t stride);

    // Multiplies m rows (1 with fp8) of fp32 a (stride k_stride) by n columns of b in its own dtype and layout, reading
    // b once; overwrites acc (m x n, `stride` floats per row). Element (p, j) of b is at b[p * row + j * col]. is_far:
    // matmul_is_far.
    void (*skinny)(tsr_dtype dtype, bool is_far, int64_t m, int64_t n, int64_t k, const float *a,
                   int64_t k_stride, const void *b, int64_t row, int64_t col, float *acc,
                   int64_t stride);

    // g = dc act'(preact) for one row of n elements of one dtype.
    void (*activation_grad)(tsr_dtype dtype, tsr_activation kind, const void *dc,
                            const void *preact, void *g, int64_t n);
    // sum[j] += g[j], j < n.
    void (*add_row)(tsr_dtype dtype, const void *g, float *sum, int64_t n);
    // c = a^T b [+ c] for few steps k: of step s element i of a is at a[s] + i, element j of b at b[s] + j. c's rows are `stride`
    // bytes apart, f32 if it accumulates.
    void (*outer)(tsr_dtype dtype, int64_t m, int64_t n, int64_t k, const void *const a[],
                  const void *const b[], tsr_dtype c_dtype, char *c, int64_t stride,
                  bool is_accumulating, bool is_streaming);
    // Zeros, past the caches: rows of so many bytes, `stride` bytes apart.
    void (*clear)(char *to, int64_t rows, int64_t stride, int64_t bytes);
};
TSRI_DECLARE_KERNELS(matmul)

extern const struct tsri_op tsri_matmul_forward_op, tsri_matmul_backward_op;

// matmul_cpu_serves.c
bool matmul_has_kernels(const void *problem, const struct tsri_limits *limits);
bool matmul_can_use_b_in_place(const void *problem, const struct tsri_limits *limits);
bool matmul_can_be_streamed(const void *problem, const struct tsri_limits *limits);
bool matmul_is_skinny(const void *problem, const struct tsri_limits *limits);
// Whether vdpbf16ps can do the same: rows of a, and b and b_up alike, must be usable in place.
bool matmul_has_skinny_bf16(const void *problem, const struct tsri_limits *limits);
bool matmul_has_amx_bf16(const void *problem, const struct tsri_limits *limits);
bool matmul_has_avx512_bf16(const void *problem, const struct tsri_limits *limits);
// Whether skinny multiplies along columns of b, by dot products. A single contiguous column counts too.
static inline bool matmul_has_columns(const struct matmul_problem *p) {
    return p->b.col != 1 || (p->n == 1 && p->b.row == 1);
}
// The step between columns that the kernel takes, 1 if rows are contiguous. It depends on the product's n, not a
// task's.
static inline int64_t matmul_column_step(const struct matmul_problem *p,
                                         const struct matmul_matrix *b) {
    return p->n == 1 && b->row == 1 ? 0 : b->col;
}
// Whether b has a few long columns, for which dot products are best with any number of rows.
bool matmul_has_long_columns(const struct matmul_problem *p, const struct tsri_limits *limits);

// matmul_cpu_choice.c
const char *matmul_prefer(const void *problem, const struct tsri_limits *limits);
// matmul_mixed_choice.c, for prefer: the variant that serves best, NULL if that is one in fp32.
const char *matmul_prefer_mixed(const struct matmul_problem *p, const struct tsri_limits *limits);

// matmul_layout.c
// The number of threads that should share its tiles, or its columns for small m. packs: b is packed first.
int matmul_threads(const struct matmul_problem *p, const struct tsri_limits *limits, bool packs);
// The size of equal parts of at most `most`, rounded up to a multiple of `unit`.
int64_t matmul_even_block(int64_t size, int64_t most, int64_t unit);
// Steps of k per packing task, for one of `panels` shared panels. Few panels are cut, so that every thread has some. A
// multiple of what any kernel or scale takes at once.
int64_t matmul_pack_depth(int64_t k, int64_t panels, int num_threads);

// Where the tiled variants read B: in panels that all threads packed, in panels that the task packed, in place by
// tiles, or streamed in place.
enum matmul_b_source {
    MATMUL_SHARED_PANELS,
    MATMUL_PRIVATE_PANELS,
    MATMUL_IN_PLACE,
    MATMUL_STREAMED
};

// The workspace of the tiled variants, in this order: packed panels of B (all for a stripe, also of b_up); then for
// each thread private panels (or sums, if B is streamed), rows of A, and a tile of C (two with a gate).
struct matmul_layout {
    int64_t stripe_floats; // shared panels of one matrix
    int64_t panels_floats; // per thread
    int64_t sums_stride;   // of the sums that replace panels
    int64_t a_floats, tile_floats;
    int64_t thread_floats;                       // total per thread
    int64_t stripe_cols;                         // columns of b in a stripe
    int64_t stripe_batches;                      // batches in a stripe
    int64_t stripe_rows;                         // rows of a whose panels are shared at a time
    bool is_a_packed, is_a_shared, is_a_passing; // passing: one panel at a time, in one place
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
// For products that mostly store c: tasks of whole lines of c, which adjacent tasks would otherwise share, with rows
// such that there are num_tasks tasks, but at most most_m rows.
void matmul_cut_by_rows(const struct matmul_problem *p, int64_t num_tasks, int64_t most_m,
                        int64_t unit_m, int64_t unit_n, struct tsri_plan *plan);
// matmul_rows_plan.c
void matmul_plan_streamed(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_plan_skinny(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_plan_skinny_bf16(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_plan_naive(const void *problem, const struct tsri_limits *, struct tsri_plan *);
int matmul_skinny_threads(const struct matmul_problem *p, const struct tsri_limits *limits,
                          bool by_units);
// Whether skinny, streamed and direct also cut k.
bool matmul_splits_depth(const struct matmul_problem *p, int num_threads);
bool matmul_streams_parts(const struct matmul_problem *p, int num_threads);
bool matmul_cuts_depth(const struct matmul_problem *p, const struct tsri_limits *limits);
// So many threads that data written by one is slow to read for others, and threads run at different speeds: each task
// has its own panels of B, and each thread several tasks.
static inline bool matmul_has_given_blocks(const struct tsri_limits *limits) { // by a tuning row
    return limits->block[0] > 0 || limits->block[1] > 0;
}
static inline bool matmul_is_crowded(const struct tsri_limits *limits) {
    return limits->num_threads >= MATMUL_CROWD;
}
// One thread of Intel's AVX-512 with a large second-level cache, where panels of B that all rows pass are good.
static inline bool matmul_is_alone_on_intel(const struct tsri_limits *limits) {
    return tsri_is_intel_avx512(limits) && limits->num_threads == 1 &&
           limits->l2_bytes >= MATMUL_LARGE_L2;
}
// One to three threads of AVX2, or one on Intel, with a small f32 A in place: in "local", all rows of A pass each
// task's columns of B, which no other task packs.
bool matmul_is_passing(const struct matmul_problem *p, const struct tsri_limits *limits);

// matmul_rows_plan.c: blocks of k as separate tasks, by the kernel of skinny, streamed or direct. Their workspace: for
// each block of columns, the count of finished blocks; rows_floats per thread; and the sums.
enum matmul_parts_kernel { MATMUL_PARTS_SKINNY, MATMUL_PARTS_STREAMED, MATMUL_PARTS_TILES };
struct matmul_parts_layout {
    int64_t num_parts, rows_floats, sums_stride;
};
struct matmul_parts_layout matmul_parts_layout(const struct matmul_problem *p,
                                               const struct tsri_plan *plan,
                                               enum matmul_parts_kernel kernel);
void matmul_plan_parts(const struct matmul_problem *p, const struct tsri_limits *limits,
                       enum matmul_parts_kernel kernel, struct tsri_plan *plan);
// Whether the plan is of this kind: it has more tasks than blocks of c.
static inline bool matmul_has_parts(const struct matmul_problem *p, const struct tsri_plan *plan) {
    return plan->num_tasks >
           p->num_batches * tsri_ceil_div(p->m, plan->block_m) * tsri_ceil_div(p->n, plan->block_n);
}

// matmul_skinny_block.c: a block of the single product in p, by the kernel of skinny or (by_units) skinny_bf16, in
// memory of matmul_skinny_floats for its size.
int64_t matmul_skinny_floats(const struct matmul_problem *p, int64_t m, int64_t n);
void matmul_skinny_block(const struct tsri_limits *limits, const struct matmul_problem *p,
                         bool by_units, bool is_far, int64_t row, int64_t col, int64_t m, int64_t n,
                         float *own);
// Whether b, of all products, has short columns outside the second-level cache: skinny then prefetches them.
bool matmul_is_far(const struct matmul_problem *p, const struct tsri_limits *limits);
struct gemm_kernels;
// m rows and k steps of a from `from` on, in fp32: in place if they are fp32, else widened into `own`.
const float *matmul_rows_of_a(const struct gemm_kernels *gemm, const struct matmul_matrix *a,
                              const void *from, int64_t m, int64_t k, float *own,
                              int64_t own_stride, int64_t *stride);

// matmul_parts_cpu.c
tsr_status matmul_parts_run(tsr_context *, const struct matmul_problem *, const struct tsri_plan *,
                            void *workspace, enum matmul_parts_kernel kernel);

// matmul_scales.c: one element of a scale (1 if absent); multiplies packed panels of widened fp8 operands by their
// scales (nothing if absent). The scales are those of one batch.
float matmul_scale_at(const struct matmul_matrix *scale, int64_t i, int64_t j);
// Rows [row, row + m) of a from step `step` on, in panels of mr rows and `depth` steps.
void matmul_scale_a(const struct matmul_matrix *scale, int64_t row, int64_t m, int64_t step,
                    int64_t depth, int64_t mr, float *panels);
// `depth` steps of nr columns of b from (step, col) on; the valid columns are in one block of 128.
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

// matmul_mixed_plan.c: products in bf16, by the units that have them. A bf16 element of a thread's workspace counts as
// half a float.
struct matmul_mixed_layout {
    int64_t panel_floats; // a panel of b: all of k if shared, one block of k if private
    int64_t stripe_cols, stripe_batches; // of b, whose panels are shared at a time
    int64_t stripe_floats;               // shared panels of one matrix; 0: private panels
    int64_t private_floats, a_floats, tile_floats, thread_floats; // per thread
    int64_t a_stride, tile_stride;                                // bf16; floats
    int64_t part_floats; // per thread, if blocks of k are summed separately, else 0
    int64_t num_parts;   // parts of k that are separate tasks
    int64_t sums_floats; // per such part
};
struct matmul_mixed_layout matmul_mixed_layout(const struct matmul_problem *p,
                                               const struct tsri_plan *plan);
void matmul_plan_mixed(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_plan_tiles(const void *problem, const struct tsri_limits *, struct tsri_plan *);
// Whether tiles multiply the transposed matrices, and that problem: b_up then belongs to a's side; c and its addends
// keep their layout.
bool matmul_is_turned(const struct matmul_problem *p, uint32_t flags, int num_threads);
struct matmul_problem matmul_turned(const struct matmul_problem *p);
// Whether tiles read rows of a in place.
bool matmul_has_a_in_place(const struct matmul_problem *p, int num_threads);
int matmul_mixed_threads(const struct matmul_problem *p, const struct tsri_limits *limits);

// matmul_mixed.c
tsr_status matmul_amx_bf16_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status matmul_avx512_bf16_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// matmul_ref.c
tsr_status matmul_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);

#endif
