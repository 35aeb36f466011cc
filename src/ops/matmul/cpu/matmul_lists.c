// SPDX-License-Identifier: Apache-2.0
// Operands whose rows come by a list. A few rows at a time are copied to the stack and packed from there by the kernels that
// pack rows in place, so that panels, and so results, are the same. The copies stay in the first-level cache.
#include <string.h>

#include "cpu/gemm.h"
#include "cpu/gemm_bf16.h"
#include "ops/matmul/matmul_groups.h"

enum {
    LINES = 32,  // of a copy,
    WIDTH = 64,  // and their elements: no less than nr
    ROWS = 8,    // of a in a copy: no less than mr
    STEPS = 256, // and their elements
};

void matmul_gather(const struct matmul_matrix *t, int64_t line, const struct matmul_list *list,
                   int64_t first, int64_t count, int64_t at, int64_t width, void *to,
                   int64_t to_stride) {
    const int64_t bytes = (int64_t)tsr_dtype_bytes(t->dtype);
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)to + i * to_stride * bytes,
               t->data + (matmul_line(list, first + i) * line + at) * bytes,
               (size_t)(width * bytes));
}

int64_t matmul_naive_floats(const struct matmul_problem *p) {
    if (!p->groups.are_depths) return 0;
    int64_t k = (int64_t)tsri_round_up((size_t)p->k, 16);
    int64_t of_b = p->n == 1 ? k : MATMUL_SKINNY_DEPTH * MATMUL_NAIVE_COLS;
    return (matmul_is_listed(&p->groups.of_a) ? k : 0) +
           (matmul_is_listed(&p->groups.of_b) ? of_b : 0);
}

void matmul_pack_listed_a(const struct gemm_kernels *gemm, const struct matmul_problem *p,
                          int64_t row, int64_t m, int64_t step, int64_t depth, float *panels) {
    const struct matmul_matrix *a = &p->a;
    const struct matmul_list *list = &p->groups.of_a;
    const int64_t mr = gemm->mr, width = LINES / mr * mr;
    _Alignas(64) float copy[ROWS * STEPS];
    if (!p->groups.are_depths) {
        for (int64_t i = 0; i < m; i += mr)
            for (int64_t k = 0; k < depth; k += STEPS) {
                int64_t rows = tsri_min(mr, m - i), steps = tsri_min(STEPS, depth - k);
                matmul_gather(a, a->row, list, row + i, rows, step + k, steps, copy, STEPS);
                gemm->pack_a(a->dtype, copy, STEPS, 1, rows, steps, panels + i * depth + k * mr);
            }
        return;
    }
    for (int64_t i = 0; i < m; i += width)
        for (int64_t k = 0; k < depth; k += LINES) {
            int64_t rows = tsri_min(width, m - i), steps = tsri_min(LINES, depth - k);
            matmul_gather(a, a->col, list, step + k, steps, row + i, rows, copy, LINES);
            for (int64_t r = 0; r < rows; r += mr)
                gemm->pack_a(a->dtype, (char *)copy + r * (int64_t)tsr_dtype_bytes(a->dtype), 1,
                             LINES, tsri_min(mr, rows - r), steps,
                             panels + (i + r) * depth + k * mr);
        }
}

void matmul_pack_listed_b(const struct gemm_kernels *gemm, const struct matmul_problem *p,
                          int64_t step, int64_t depth, int64_t col, int64_t n, float *panel) {
    const struct matmul_matrix *b = &p->b;
    _Alignas(64) float copy[LINES * WIDTH];
    for (int64_t k = 0; k < depth; k += LINES) {
        int64_t steps = tsri_min(LINES, depth - k);
        matmul_gather(b, b->row, &p->groups.of_b, step + k, steps, col, n, copy, WIDTH);
        gemm->pack_b(b->dtype, copy, WIDTH, 1, steps, n, panel + k * gemm->nr);
    }
}

// ---- For bf16 units -----------------------------------------------------------------------------

void matmul_pack_listed_strip(const struct gemm_bf16_kernels *gemm, const struct matmul_problem *p,
                              int64_t row, int64_t m, int64_t step, int64_t depth, uint16_t *to,
                              int64_t to_stride) {
    const struct matmul_matrix *a = &p->a;
    const struct matmul_list *list = &p->groups.of_a;
    if (p->groups.are_depths) {
        _Alignas(64) uint16_t copy[GEMM_BF16_DEPTH * LINES];
        for (int64_t k = 0; k < depth; k += GEMM_BF16_DEPTH) {
            int64_t steps = tsri_min(GEMM_BF16_DEPTH, depth - k);
            matmul_gather(a, a->col, list, step + k, steps, row, m, copy, LINES);
            gemm->pack_a(copy, LINES, true, m, steps, to + k, to_stride);
        }
        return;
    }
    // As pack_a does: zero from row m up to 16 or 32, and from step `depth` up to a whole depth.
    const int64_t filled = (int64_t)tsri_round_up((size_t)depth, GEMM_BF16_DEPTH);
    matmul_gather(a, a->row, list, row, m, step, depth, to, to_stride);
    for (int64_t i = 0; i < (m <= LINES / 2 ? LINES / 2 : LINES); i++) {
        const int64_t from = i < m ? depth : 0;
        memset(to + i * to_stride + from, 0, (size_t)(filled - from) * sizeof *to);
    }
}

void matmul_pack_listed_panel(const struct gemm_bf16_kernels *gemm, const struct matmul_problem *p,
                              int64_t step, int64_t depth, int64_t col, int64_t n, int64_t width,
                              uint16_t *panel) {
    const struct matmul_matrix *b = &p->b;
    _Alignas(64) uint16_t copy[GEMM_BF16_DEPTH * GEMM_BF16_NR];
    for (int64_t k = 0; k < depth; k += GEMM_BF16_DEPTH) {
        int64_t steps = tsri_min(GEMM_BF16_DEPTH, depth - k);
        matmul_gather(b, b->row, &p->groups.of_b, step + k, steps, col, n, copy, GEMM_BF16_NR);
        gemm->pack_rows(copy, GEMM_BF16_NR, steps, n, width, panel + k * GEMM_BF16_NR, NULL);
    }
}
