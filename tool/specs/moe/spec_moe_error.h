// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the layer's error bounds. u = 2^-24, U the unit roundoff of x's dtype.
//
//   product    c = sum a b: own error (8 + 4 sqrt(k)) u sum|a b| + 3 u |c|, passed on sum (e_a |b| + |a| e_b)
//   stored     U (|c| + e) where a value between the parts is rounded to x's dtype
//   activation a = act(gate) up: own error as in tessera/activation.h, passed on |act'| |up| e_gate + |act| e_up, with the
//              steepest act' within the error
//
// A sum of terms with errors e has an error of 4 sqrt(sum e^2), and never more than sum e, because the signs are
// independent (Higham, Mary).
#ifndef TOOL_SPEC_MOE_ERROR_H
#define TOOL_SPEC_MOE_ERROR_H

#include <math.h>

#include "specs/moe/spec_moe.h"
#include "system/heap.h"

#define mix_u32 0x1p-24
#define mix_tiny 0x1p-126

static inline double *mix_doubles(int64_t count) {
    return heap_get((size_t)count + 1, sizeof(double));
}

// The rounding that storing a value with the error e in a dtype adds.
static inline double mix_stored(tsr_dtype dtype, double value, double e) {
    const double roundoff = dtype == TSR_BF16 ? 0x1p-8 : dtype == TSR_F16 ? 0x1p-11 : mix_u32;
    return roundoff * (fabs(value) + e) + (dtype == TSR_F16 ? 0x1p-25 : mix_tiny);
}

// A value with its error.
struct mix_value {
    double value, error;
};

static inline struct mix_value mix_store(tsr_dtype dtype, struct mix_value v) {
    v.error += mix_stored(dtype, v.value, v.error);
    return v;
}

// The sum of products: magnitudes, and the terms' errors with their squares.
struct mix_sum {
    double value, magnitude, errors, squares, count;
};

static inline void mix_add(struct mix_sum *s, double a, double e_a, double b, double e_b) {
    const double e = e_a * fabs(b) + (fabs(a) + e_a) * e_b;
    s->value += a * b;
    s->magnitude += fabs(a * b);
    s->errors += e;
    s->squares += e * e;
    s->count++;
}

static inline double mix_carried(const struct mix_sum *s) {
    return fmin(s->errors, 4 * sqrt(s->squares));
}

// bf16 units count numbers below 2^-126 as 0, hence the last term.
static inline struct mix_value mix_result(const struct mix_sum *s) {
    const double carried = mix_carried(s);
    return (struct mix_value){
        s->value, (8 + 4 * sqrt(s->count)) * mix_u32 * (s->magnitude + carried) + carried +
                      3 * mix_u32 * fabs(s->value) + (1 + 2 * s->count) * mix_tiny};
}

// ---- Activations: spec_moe_act.c --------------------------------------------------------------

// act(gate) up and its derivatives; without a gate up is 1. f and slope: of the gate alone, for the errors of evaluation;
// tail: the part of f that is a product of small numbers.
struct mix_act {
    double value, by_gate, by_up, f, slope, factor, tail;
};
struct mix_act mix_act_of(const struct op_case *c, double gate, double up);
// The steepest slope within an error of the gate.
double mix_steepest(const struct op_case *c, double gate, double e);

// ---- Rows: spec_moe_bound.c -------------------------------------------------------------------

// Where the assignments of a case go, by tessera/moe.h.
struct mix_rows {
    int64_t count;  // of assignments with a row
    int64_t *row;   // of each assignment, -1: none
    int64_t *token; // of each row
    int64_t *expert, *choice;
};
struct mix_rows mix_rows_of(const struct op_case *c, const int32_t *ids);
void mix_rows_release(struct mix_rows *rows);

#endif
