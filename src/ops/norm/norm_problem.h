// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the norms. layernorm and rmsnorm share everything but their entries: one problem, one table of
// variants per pass, one set of kernels with is_rmsnorm as a constant inside.
#ifndef TSRI_NORM_PROBLEM_H
#define TSRI_NORM_PROBLEM_H

#include "context/op_table.h"
#include "cpu/cpu_isa.h"

// A contiguous vector; data is NULL if the tensor is absent.
struct norm_vector {
    void *data;
    tsr_dtype dtype;
};

// All tsri_rows are (rows, cols); data is NULL if the tensor is absent. Unless is_mixed, they have the dtype of x and one stride
// each, and weight and bias have that dtype or f32. rmsnorm has no bias, dbias or mean.
struct norm_problem {
    bool is_rmsnorm;
    bool is_mixed;
    int64_t rows, cols;
    tsr_dtype dtype; // of x
    double eps;
    float weight_offset; // added to weight: 1 if it is centred at zero
    struct tsri_rows x;
    struct tsri_rows residual, residual_out, y; // forward
    struct tsri_rows dy, dresidual_out, dx;     // backward
    struct norm_vector weight, bias;            // (cols)
    struct norm_vector dweight, dbias;          // (cols)
    struct norm_vector mean, rstd;              // (rows), fp32, or f64 with f64
    bool is_in_place;                           // a large output is an input
};

static inline bool norm_wants_sums(const struct norm_problem *p) {
    return p->dweight.data != NULL || p->dbias.data != NULL;
}

// ---- Entry to plan: norm_check.c --------------------------------------------------------------

// A tensor of a call, for checks that go over all tensors. An output that may alias may be the very same view as any
// input that may alias. tessera/norm.h, not the shape, says which tensors may.
struct norm_field {
    const char *name;
    tsr_tensor *tensor;
    enum tsri_role role;
    bool may_alias;
};

// Checks x first, which determines rows, cols and dtype.
tsr_status norm_check_x(const char *op, tsr_tensor *x, struct norm_problem *p);
// Checks another tensor of x's shape; an absent optional tensor gives data NULL.
tsr_status norm_check_like_x(const char *op, const struct norm_field *field, const tsr_tensor *x,
                             bool is_optional, struct norm_problem *p, struct tsri_rows *rows);
// Checks residual and residual_out: both or neither.
tsr_status norm_check_residual(const char *op, const struct norm_field *residual,
                               const struct norm_field *residual_out, const tsr_tensor *x,
                               struct norm_problem *p);
// Checks weight or bias: (cols).
tsr_status norm_check_vector(const char *op, const struct norm_field *field, struct norm_problem *p,
                             struct norm_vector *vector);
// Checks dweight or dbias: (cols), f32 or of weight's dtype.
tsr_status norm_check_gradient(const char *op, const struct norm_field *field,
                               const struct norm_problem *p, const tsr_tensor *weight,
                               struct norm_vector *vector);
// Checks mean or rstd: x's shape without the last dimension, contiguous.
tsr_status norm_check_statistic(const char *op, const struct norm_field *field, const tsr_tensor *x,
                                bool is_optional, struct norm_vector *vector);
tsr_status norm_check_eps(const char *op, float eps, int32_t has_eps, struct norm_problem *p);
// Checks that no output shares memory with another tensor, except for those that may alias.
tsr_status norm_check_overlaps(const char *op, const struct norm_field *fields, int num_fields,
                               struct norm_problem *p);

// ---- Variants: norm_variants.c ----------------------------------------------------------------

enum { NORM_NUM_FORWARD = 8, NORM_NUM_BACKWARD = 7 };
extern const struct tsri_variant norm_forward_variants[NORM_NUM_FORWARD];
extern const struct tsri_variant norm_backward_variants[NORM_NUM_BACKWARD];

// ---- Plans: norm_plan.c -----------------------------------------------------------------------

void norm_plan_fused_forward(const void *, const struct tsri_limits *, struct tsri_plan *);
void norm_plan_unfused_forward(const void *, const struct tsri_limits *, struct tsri_plan *);
void norm_plan_fused_backward(const void *, const struct tsri_limits *, struct tsri_plan *);
void norm_plan_unfused_backward(const void *, const struct tsri_limits *, struct tsri_plan *);

// Offsets of the workspace's parts in bytes, multiples of 64.
struct norm_layout {
    size_t weight, bias; // fp32 (padded cols); unused if the kernels read the tensor itself
    size_t scratch;      // fused: rows of each thread; unfused: one or two fp32 (rows, cols)
    size_t scratch_per_thread, scratch_per_row;
    size_t statistics; // unfused: fp32 (3, rows)
    size_t partial;    // fp32 (groups, 2, padded cols): sums for dweight, then for dbias
    size_t total;
};
struct norm_layout norm_forward_layout(const struct norm_problem *p, bool is_fused,
                                       bool is_streaming, int num_threads);
struct norm_layout norm_backward_layout(const struct norm_problem *p, bool is_fused);

// The length of a vector in the workspace: whole pairs of SIMD vectors (simd_pairs.h).
int64_t norm_padded_cols(const struct norm_problem *p);

// Rows that the fused kernels process together: about 64 KiB of each tensor.
enum { NORM_MAX_BLOCK_ROWS = 8 };
int64_t norm_block_rows(const struct norm_problem *p);

// Rows whose dweight and dbias are summed together. Depends on the shape only, so the order of additions is the same
// for any number of threads.
int64_t norm_group_rows(const struct norm_problem *p);
// The same of a few rows.
int64_t norm_least_group_rows(const struct norm_problem *p);

// ---- Kernels: norm_*simd.c ------------------------------------------------

// A call as a kernel sees it.
struct norm_call {
    const struct norm_problem *problem;
    const float *weight, *bias; // (cols); absent: ones, zeros
    bool is_split;              // weight and bias are in vf_split's order, in whole pairs
    bool is_partial_split;      // partial is too
    bool is_streaming;
    char *scratch; // see norm_layout
    size_t scratch_per_thread, scratch_per_row;
    float *statistics, *partial;
};

// Rows [first, last) of one pass.
typedef void norm_kernel(const struct norm_call *call, int64_t first, int64_t last, int thread);

struct norm_forward_kernels {
    norm_kernel *run;
};
TSRI_DECLARE_KERNELS(norm_forward)

struct norm_backward_kernels {
    // With dweight or dbias, first is a multiple of norm_group_rows and last is at most that much larger.
    norm_kernel *run;
};
TSRI_DECLARE_KERNELS(norm_backward)

enum { NORM_ADD_COLS = 1024 };

struct norm_kernels {
    void (*widen)(tsr_dtype dtype, const void *from, float *to, int64_t n);
    // With is_streaming, past the caches; then a fence before the task ends.
    void (*narrow)(tsr_dtype dtype, const float *from, void *to, int64_t n, bool is_streaming);
    // out = x + more, and sum the same in fp32, after the rounding. At most NORM_ADD_COLS numbers.
    void (*add)(tsr_dtype dtype, tsr_dtype out_dtype, const void *x, const float *more, float *sum,
                void *out, int64_t n, bool is_streaming);
    void (*fence)(void);
    // widen in vf_split's order, in whole pairs, as the fused bf16 kernels want it; NULL if that is the order of the
    // columns.
    void (*split)(tsr_dtype dtype, const void *from, float *to, int64_t n);
    // Adds the groups' sums to columns [first, last) of dweight and dbias.
    norm_kernel *reduce;
};
TSRI_DECLARE_KERNELS(norm)

struct norm_unfused_kernels {
    norm_kernel *add, *mean, *variance, *normalise, *scale;   // forward
    norm_kernel *product, *centre, *sums, *columns, *combine; // backward
};
TSRI_DECLARE_KERNELS(norm_unfused)

// norm_wide.c: a row of forward in double, for rows that overflow or underflow fp32. s is the row to normalise, in the
// problem's dtype.
void norm_forward_wide_row(const struct norm_call *call, int64_t row, const void *s);

// norm_cpu.c
struct norm_call norm_make_call(tsr_context *ctx, const struct norm_problem *p, bool is_fused,
                                bool is_streaming, const struct norm_layout *layout,
                                char *workspace);
// dweight and dbias from the sums of the groups.
void norm_reduce_columns(tsr_context *ctx, const struct norm_call *call);
tsr_status norm_fused_forward_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status norm_fused_backward_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status norm_unfused_forward_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status norm_unfused_backward_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// norm_mixed.c
void norm_plan_mixed_forward(const void *, const struct tsri_limits *, struct tsri_plan *);
void norm_plan_mixed_backward(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status norm_mixed_forward_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status norm_mixed_backward_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// norm_mixed_cuda.c
bool norm_cuda_mixed_fits(const void *, const struct tsri_limits *);
void norm_cuda_plan_mixed_forward(const void *, const struct tsri_limits *, struct tsri_plan *);
void norm_cuda_plan_mixed_backward(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status norm_cuda_mixed_prepare_forward(tsr_context *, const void *, const struct tsri_plan *);
tsr_status norm_cuda_mixed_prepare_backward(tsr_context *, const void *, const struct tsri_plan *);
tsr_status norm_cuda_mixed_forward(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status norm_cuda_mixed_backward(tsr_context *, const void *, const struct tsri_plan *, void *);
bool norm_cuda_mixed_kernel(int index, bool is_backward, struct tsri_cuda_program *);

// norm_forward_cuda.c, norm_backward_cuda.c
bool norm_cuda_forward_fits(const void *, const struct tsri_limits *);
bool norm_cuda_backward_fits(const void *, const struct tsri_limits *);
bool norm_cuda_forward_clusters_fit(const void *, const struct tsri_limits *);
bool norm_cuda_backward_stages_fit(const void *, const struct tsri_limits *);
bool norm_cuda_fits(const void *, const struct tsri_limits *);
void norm_cuda_plan_forward(const void *, const struct tsri_limits *, struct tsri_plan *);
void norm_cuda_plan_forward_clusters(const void *, const struct tsri_limits *, struct tsri_plan *);
void norm_cuda_plan_forward_stages(const void *, const struct tsri_limits *, struct tsri_plan *);
void norm_cuda_plan_backward(const void *, const struct tsri_limits *, struct tsri_plan *);
void norm_cuda_plan_backward_stages(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status norm_cuda_forward_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status norm_cuda_backward_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status norm_cuda_forward_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status norm_cuda_backward_run(tsr_context *, const void *, const struct tsri_plan *, void *);
bool norm_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *);
bool norm_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *);

// norm_ref.c
tsr_status norm_reference_forward_run(tsr_context *, const void *, const struct tsri_plan *,
                                      void *);
tsr_status norm_reference_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                       void *);

#endif
