// SPDX-License-Identifier: Apache-2.0
// Shared by the files of RoPE: the problems that the entries make, and the kernels of one ISA.
#ifndef TSRI_ROPE_PROBLEM_H
#define TSRI_ROPE_PROBLEM_H

#include <tessera/rope.h>

#include "context/op_table.h"
#include "cpu/cpu_isa.h"

// ---- Rotation ---------------------------------------------------------------------------------

// A head has head_dim elements, from data + (b * stride[0] + s * stride[1] + h * stride[2]) elements on.
struct rope_heads {
    char *data;
    int64_t stride[3];
};

// Forward: x, y. Backward: dy, dx. A token is a pair (b, s), numbered b * seqlen + s.
struct rope_problem {
    struct rope_heads x, y;
    tsr_dtype dtype;
    int64_t tokens; // batch * seqlen; 0 if there is nothing to do
    int64_t seqlen, num_heads, head_dim, rotary_dim;
    struct tsri_rows cos, sin; // (num_positions, rotary_dim / 2)
    const int32_t *positions;  // element b * stride[0] + s * stride[1]; NULL: s
    int64_t positions_stride[2];
    bool is_interleaved, is_backward;
};

static inline int64_t rope_position(const struct rope_problem *p, int64_t b, int64_t s) {
    return p->positions != NULL
               ? p->positions[b * p->positions_stride[0] + s * p->positions_stride[1]]
               : s;
}

// Whether memory has the order (batch, num_heads, seqlen, head_dim).
static inline bool rope_is_heads_first(const struct rope_problem *p) {
    return p->x.stride[2] > p->x.stride[1];
}

static inline void *rope_head(const struct rope_problem *p, const struct rope_heads *t, int64_t b,
                              int64_t s, int64_t h) {
    int64_t offset = b * t->stride[0] + s * t->stride[1] + h * t->stride[2];
    return t->data + offset * (int64_t)tsr_dtype_bytes(p->dtype);
}

// Tokens [first, last) of one pass. rotated: (tokens, num_heads, rotary_dim) floats of the unfused variant.
typedef void rope_kernel(const struct rope_problem *problem, int64_t first, int64_t last,
                         float *rotated, bool is_streaming);

// ---- Tables -----------------------------------------------------------------------------------

enum { ROPE_ANCHOR = 64 }; // every so many positions, the angle is exact

struct rope_table_problem {
    struct tsri_rows cos, sin; // (num_positions, half)
    const void *inv_freq;      // f32, or f64 with f64 tables; NULL: computed from base
    double base, attention_factor;
    bool has_scaling;
    tsr_rope_scaling scaling;
};

// f_i of tessera/rope.h, computed in rope_frequency.c.
double rope_frequency(const struct rope_table_problem *problem, int64_t i);

// Fills rows [first, last) of both tables: `half` pairs (c, s) start at the angle of row `first` and rotate by (step_c,
// step_s) from row to row, in double.
typedef void rope_table_kernel(const struct rope_table_problem *problem, int64_t first,
                               int64_t last, double *c, double *s, const double *step_c,
                               const double *step_s);

struct rope_kernels {
    rope_kernel *fused;
    rope_kernel *rotate_half_pass, *multiply_add_pass; // unfused
    rope_table_kernel *table;
};
TSRI_DECLARE_KERNELS(rope)

// rope_cpu.c
tsr_status rope_fused_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status rope_unfused_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status rope_table_anchored_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// rope_cuda.c
bool rope_cuda_fits(const void *, const struct tsri_limits *);
tsr_status rope_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status rope_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool rope_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *);
bool rope_table_cuda_fits(const void *, const struct tsri_limits *);
tsr_status rope_table_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status rope_table_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool rope_table_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *);

// rope_ref.c
tsr_status rope_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status rope_table_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);

#endif
