// SPDX-License-Identifier: Apache-2.0
// The gradients inside an expert, with their errors.
#ifndef TOOL_SPEC_MOE_INNER_H
#define TOOL_SPEC_MOE_INNER_H

#include <stdlib.h>

#include "specs/moe/spec_moe_error.h"

// A matrix of values with their errors.
struct mix_matrix {
    int64_t rows, cols;
    double *value, *error;
};

static inline struct mix_matrix mix_matrix_of(int64_t rows, int64_t cols) {
    return (struct mix_matrix){rows, cols, mix_doubles(rows * cols), mix_doubles(rows * cols)};
}
static inline void mix_matrix_release(struct mix_matrix *m) { free(m->value), free(m->error); }
static inline void mix_put(struct mix_matrix *m, int64_t row, int64_t col, struct mix_value v) {
    m->value[row * m->cols + col] = v.value;
    m->error[row * m->cols + col] = v.error;
}
static inline void mix_add_product(struct mix_sum *sum, const struct mix_matrix *m, int64_t row,
                                   int64_t col, double factor, double e_factor) {
    mix_add(sum, m->value[row * m->cols + col], m->error[row * m->cols + col], factor, e_factor);
}

// The gradients inside an expert, or inside the shared one.
struct mix_inner {
    struct mix_matrix dh;       // gate in the first half
    struct mix_matrix a;        // weighted
    struct mix_matrix dweights; // one column: of the rows' weights
};

void mix_inner_create(struct mix_inner *in, int64_t rows, int64_t cols, int64_t inter);
void mix_inner_release(struct mix_inner *in);
// One row: preact h, the gradient dy of its output, w_down (hidden, inter), and the row's weight.
void mix_inner_row(const struct op_case *c, struct mix_inner *in, int64_t row, const double *h,
                   const double *dy, const double *w_down, int64_t hidden, struct mix_value weight);

// A case of backward.
struct mix_backward {
    const struct op_case *c;
    struct moe_sizes n;
    struct mix_rows rows;
    const double *x, *dy, *weights;
    bool is_on_input;
};

// The shared expert's.
struct mix_shared {
    struct mix_inner in;
    struct mix_matrix dlogit; // of its gate, one column
};

void mix_shared_create(const struct mix_backward *b, struct mix_shared *s);
void mix_shared_release(struct mix_shared *s);
// Its part of dx in row t, stored after each product that adds to it.
struct mix_value mix_shared_input(const struct mix_backward *b, const struct mix_shared *s,
                                  int64_t t, int64_t h);

#endif
