// SPDX-License-Identifier: Apache-2.0
// Shared by plans and launches of matmul on CUDA: the form of operands, tiles, splits of k, workspace.
#ifndef TSRI_MATMUL_CUDA_H
#define TSRI_MATMUL_CUDA_H

#include "context/cuda_elements.h"
#include "ops/matmul/matmul_params.h"
#include "ops/matmul/matmul_problem.h"

// The kind of a variant, for the plan.
enum matmul_cuda_kind {
    MATMUL_FMA,
    MATMUL_MMA,
    MATMUL_GEMV,
    MATMUL_WGMMA, // this and all that follow use the copy engine
    MATMUL_FP8,
    MATMUL_TF32,
    MATMUL_BF16X6
};

// matmul_cuda_layout.c
// A tile of a kernel. `rate`: GFLOP/s of a fully occupied H200 multiprocessor, as the plan's cost model uses it; only
// ratios matter.
struct matmul_cuda_tile {
    int block_m, block_n, block_k, stages; // stages 0: known to the kernel only
    int num_threads, blocks_per_sm;
    int shared_bytes, sums_bytes; // of the stages; of the sums of parts of k
    int promote;                  // columns of k per part
    double rate;
    int cluster;   // blocks with adjacent rows of tiles; 0: no cluster
    bool in_turns; // two groups of warps have one tile each and alternate
    bool
        is_swapped; // of matmul_swapped_sm90.cu: blocks of a cluster have adjacent columns of tiles
};
// Whether groups cut k and steps of k come by a list: such products have kernels of their own. Rows of a do without.
static inline bool matmul_cuda_is_listed(const struct matmul_problem *p) {
    const struct matmul_groups *groups = &p->groups;
    return groups->are_depths &&
           (matmul_is_listed(&groups->of_a) || matmul_is_listed(&groups->of_b));
}
enum {
    MATMUL_FMA_FP8_TILE = 1,      // the tile of cuda-fma for fp8
    MATMUL_GEMV_ROWS = 4,         // as in matmul_gemv.cu
    MATMUL_MAX_SPLIT_K = 1 << 28, // offsets within a split are 32-bit
};
const struct matmul_cuda_tile *matmul_cuda_tiles(enum matmul_cuda_kind kind, int *num_tiles);
bool matmul_cuda_has_tile(enum matmul_cuda_kind kind, int tile, tsr_dtype dtype, bool is_listed);
// Columns of k that wgmma sums in one part for 16-bit operands and c of this dtype.
int64_t matmul_cuda_most_of_sum(tsr_dtype c);
// Whether registers suffice for a second set of accumulators of a swapped tile, which sums of fp8 in parts take.
bool matmul_cuda_swapped_has_parts(const struct matmul_cuda_tile *tile);
// Lines of a in a box of a swapped tile.
int matmul_cuda_swapped_lines(const struct matmul_cuda_tile *tile);

// An operand as a kernel reads it: in place or in a copy.
struct matmul_cuda_operand {
    bool is_mn, is_vector, is_copied;
    int64_t lines, width, line, batch[MATMUL_MAX_BATCH_DIMS],
        num_matrices; // of what the kernel reads
    size_t bytes;     // of the copy
};

// The layout of a product, without addresses. Offsets are bytes in the workspace.
struct matmul_cuda_layout {
    const struct matmul_cuda_tile *tile;
    struct matmul_cuda_operand a, b, b_up;
    size_t a_at, b_at, b_up_at, partial_at, workspace_bytes;
    int64_t tiles_m, tiles_n, num_tiles, num_splits, k_of_split, partial_row; // tiles: of clusters
    bool has_sums;
    int blocks_of_part; // wgmma: blocks of k that tensor cores sum in one part, if k is not split
    int shared_bytes;
};
struct matmul_cuda_layout matmul_cuda_layout(const struct matmul_problem *p,
                                             enum matmul_cuda_kind kind, int tile,
                                             int64_t num_splits);
// Splits of k as a batch, for kernels that do not know splits: one product per split, without epilogue, stored to
// `partial`. p has no batch.
struct matmul_problem matmul_cuda_stack_of(const struct matmul_problem *p, int64_t num_splits,
                                           char *partial);

// matmul_cuda_maps.c
struct tsri_tensor_map_args;
// Makes the map of lines of `width` elements, `line` apart, in a stack of matrices; args has data, dtype and box. False
// if there is no such map. is_batched: 1 for the batch dimensions along which matrices differ.
bool matmul_cuda_map_lines(const struct matmul_problem *p, const int64_t *batch, int64_t width,
                           int64_t lines, int64_t line, struct tsri_tensor_map_args *args,
                           int is_batched[MATMUL_MAX_BATCH_DIMS]);
// The map of c or residual for the copy engine; false if it cannot move them.
bool matmul_cuda_map_rows(const struct matmul_problem *p, const struct matmul_matrix *t,
                          struct tsri_tensor_map_args *args);
// Whether the branch-free ends have this kind; the others take the general one.
static inline bool matmul_cuda_has_short_end(tsr_activation kind) {
    return kind <= TSR_ACTIVATION_RELU;
}
// The end of a wgmma product whose c has such a map: MATMUL_END_PLAIN and the others.
int matmul_cuda_wgmma_end(const struct matmul_problem *p);
// Whether its end has code of its own: at most a bias and an activation, and the copy engine stores c in 16 bits.
bool matmul_cuda_wgmma_is_short(const struct matmul_problem *p);

// matmul_cuda_operands.c
// The operation's name in messages.
const char *matmul_cuda_op_of(const struct matmul_problem *p);
// DTYPE of a product's kernels: that of a; for fp8, the 16-bit dtype among c, bias and residual.
tsr_dtype matmul_cuda_dtype(const struct matmul_problem *p);
// A stack of matrices, with element (line, x) at data + line * `line` + x * `step`, copied to lines of `destination`.
struct matmul_cuda_copy {
    const void *source;
    int64_t line, step, batch[MATMUL_MAX_BATCH_DIMS];
    void *destination;
    int64_t destination_line, destination_batch;
    int64_t lines, width, filled; // of the destination's lines, with padding
    const int64_t *shape;         // of the batch, MATMUL_MAX_BATCH_DIMS sizes
    bool is_widening;             // of 16 bits to f32
};
struct tsri_cuda_program matmul_cuda_copy_program(tsr_dtype dtype);
struct tsri_cuda_program matmul_cuda_widening_program(tsr_dtype from);
struct tsri_cuda_program matmul_cuda_lines8_program(void);
tsr_status matmul_cuda_copy(tsr_context *ctx, const char *op, tsr_dtype dtype,
                            const struct matmul_cuda_copy *copy);
// Places an operand for a kernel; copies it to `copy` first if necessary. Steps: between elements along m or n, and
// along k.
tsr_status matmul_cuda_place(tsr_context *ctx, const struct matmul_problem *p,
                             const struct matmul_matrix *t, int64_t step_mn, int64_t step_k,
                             const struct matmul_cuda_operand *o, char *copy,
                             struct matmul_operand *operand);
// Fills the parameters for c, residual, bias, sizes and epilogue.
void matmul_cuda_set_output(const struct matmul_problem *p, struct matmul_params *params);
// Adds the partial sums of splits, in the workspace, and applies the epilogue.
struct tsri_cuda_program matmul_cuda_reduce_program(tsr_dtype dtype);
tsr_status matmul_cuda_reduce(tsr_context *ctx, const struct matmul_problem *p,
                              const struct matmul_cuda_layout *l, void *workspace);

// matmul_cuda_plan.c
void matmul_cuda_plan_fma(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_cuda_plan_mma(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_cuda_plan_gemv(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_cuda_plan_wgmma(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_cuda_plan_fp8(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_cuda_plan_tf32(const void *problem, const struct tsri_limits *, struct tsri_plan *);
void matmul_cuda_plan_bf16x6(const void *problem, const struct tsri_limits *, struct tsri_plan *);
// A tile, and the number of parts of k or, for tiles with clusters, of blocks per cluster; with its estimated time.
struct matmul_cuda_choice {
    int tile;
    int64_t num_splits;
    int64_t block[3]; // rows, columns, parts: as in rows of tuning files
    double ns;        // estimated time; INFINITY: the plan may not use it
};
// The i-th choice of a variant; false after the last.
bool matmul_cuda_choice_of(const struct matmul_problem *p, enum matmul_cuda_kind kind,
                           const struct tsri_limits *limits, int index,
                           struct matmul_cuda_choice *choice);
// Whether a tuning row, if there is one, allows this choice.
bool matmul_cuda_is_asked(const struct tsri_limits *limits, const int64_t block[3]);
// The variant's best estimated time.
double matmul_cuda_ns(const struct matmul_problem *p, enum matmul_cuda_kind kind,
                      const struct tsri_limits *limits);

// matmul_cuda_choice.c
bool matmul_cuda_fma_serves(const void *problem, const struct tsri_limits *limits);
bool matmul_cuda_mma_serves(const void *problem, const struct tsri_limits *limits);
bool matmul_cuda_gemv_serves(const void *problem, const struct tsri_limits *limits);
const char *matmul_cuda_prefer(const struct matmul_problem *p, const struct tsri_limits *limits);
// For tsri_op_tuning.
bool matmul_cuda_choice(const void *problem, const struct tsri_limits *limits, int index,
                        struct tsri_tuning_choice *choice);

// matmul_cuda.c
tsr_status matmul_cuda_fma_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_cuda_mma_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_cuda_gemv_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_cuda_fma_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status matmul_cuda_mma_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status matmul_cuda_gemv_run(tsr_context *, const void *, const struct tsri_plan *, void *);
// The program of one of their tiles. is_listed: groups cut k, and steps of k of an operand come by a list.
struct tsri_cuda_program matmul_cuda_tile_program(enum matmul_cuda_kind kind,
                                                  const struct matmul_cuda_tile *tile,
                                                  tsr_dtype dtype, bool is_fp8, bool is_listed);

// matmul_cuda_wgmma.c
enum { MATMUL_WGMMA_SHARED_BYTES = 232448 }; // most shared memory of a Hopper block
bool matmul_cuda_wgmma_serves(const void *problem, const struct tsri_limits *limits);
tsr_status matmul_cuda_wgmma_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_cuda_wgmma_run(tsr_context *, const void *, const struct tsri_plan *, void *);
// The i-th of its kernels for a dtype; after the last, false, and *index is reduced by their number.
bool matmul_cuda_wgmma_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program);
// The program of a swapped tile, which takes b for wgmma's a; fp8 adds macros of its own.
struct tsri_cuda_program matmul_cuda_swapped_program(const struct matmul_cuda_tile *tile,
                                                     tsr_dtype dtype, bool b_is_mn);
enum { MATMUL_CUDA_MEMORY_BYTES_PER_NS = 4200 }; // H200

// The limits of a product that may have half of the multiprocessors only.
struct tsri_limits matmul_cuda_limits(const struct matmul_problem *p,
                                      const struct tsri_limits *limits);

struct tensor_map;
struct tsri_tensor_map_args;
struct matmul_wgmma_params;
// If c's last row of tiles is not whole and lines of a run along k: its rows, and the map of a whose boxes end with c. Two blocks
// of a swapped tile copy half of its eights each.
tsr_status matmul_cuda_map_last(tsr_context *ctx, const struct matmul_problem *p,
                                const struct matmul_cuda_layout *l,
                                const struct tsri_tensor_map_args *of_a, struct tensor_map *a_last,
                                int *last_rows);
// Everything except operands and c's map.
struct matmul_wgmma_params matmul_cuda_wgmma_params(const struct matmul_problem *p,
                                                    const struct matmul_cuda_layout *l,
                                                    char *workspace);
tsr_status matmul_cuda_wgmma_launch(tsr_context *ctx, const struct tsri_cuda_program *program,
                                    const struct tsri_plan *plan,
                                    const struct matmul_cuda_layout *l,
                                    const struct matmul_wgmma_params *params);

// matmul_cuda_f32.c
bool matmul_cuda_tf32_serves(const void *problem, const struct tsri_limits *limits);
bool matmul_cuda_bf16x6_serves(const void *problem, const struct tsri_limits *limits);
tsr_status matmul_cuda_tf32_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_cuda_bf16x6_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_cuda_tf32_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status matmul_cuda_bf16x6_run(tsr_context *, const void *, const struct tsri_plan *, void *);
bool matmul_cuda_f32_kernel(int *index, struct tsri_cuda_program *program);

// matmul_cuda_split.c
bool matmul_cuda_split_serves(const void *problem, const struct tsri_limits *limits);
void matmul_cuda_plan_split(const void *problem, const struct tsri_limits *, struct tsri_plan *);
tsr_status matmul_cuda_split_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_cuda_split_run(tsr_context *, const void *, const struct tsri_plan *, void *);
bool matmul_cuda_split_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program);
// The i-th of its tiles and splits; false after the last.
bool matmul_cuda_split_choice(const struct matmul_problem *p, const struct tsri_limits *limits,
                              int index, struct matmul_cuda_choice *choice);
// Whether it is the fastest variant; `other` is the best estimate of the others in nanoseconds.
bool matmul_cuda_split_is_best(const struct matmul_problem *p, const struct tsri_limits *limits,
                               double other);

// matmul_cuda_fp8.c
bool matmul_cuda_fp8_serves(const void *problem, const struct tsri_limits *limits);
tsr_status matmul_cuda_fp8_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status matmul_cuda_fp8_run(tsr_context *, const void *, const struct tsri_plan *, void *);
bool matmul_cuda_fp8_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program);

// matmul_cuda_kernels.c
bool matmul_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program);
// The kernels of grouped gradients with lists.
bool matmul_cuda_listed_kernel(int index, int cuda_arch, struct tsri_cuda_program *program);

#endif
