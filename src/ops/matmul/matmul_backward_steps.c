// SPDX-License-Identifier: Apache-2.0
// The steps of matmul backward and their workspace: two products of the forward kind, on views. With an activation, g
// is computed once into the workspace; otherwise g is dc. A gradient that is stored column-major is computed as its
// transpose, so products always write contiguous rows. The row sums for dbias use fixed groups of rows and are added in
// order, so the bits are the same for any number of threads.
#include "ops/matmul/matmul_backward.h"

#include <string.h>

enum { GRAD_ROWS_BYTES = 32 << 10 };
enum { ROWS_OF_GROUP = 512, MAX_GROUPS = 32, ROWS_OF_CUDA_GROUP = 128, MAX_CUDA_GROUPS = 4096 };

// c = a b for (m x k) (k x n), or c^T = b^T a^T if only c's columns are contiguous.
static struct matmul_problem make_product(const struct matmul_problem *like, int64_t m, int64_t n,
                                          int64_t k, struct matmul_matrix a, struct matmul_matrix b,
                                          struct matmul_matrix c) {
    struct matmul_problem p = {.m = m,
                               .n = n,
                               .k = k,
                               .num_batches = like->num_batches,
                               .a = a,
                               .b = b,
                               .c = c,
                               .alpha = 1.0f};
    memcpy(p.batch, like->batch, sizeof p.batch);
    if (c.col != 1 && n > 1) {
        p.m = n;
        p.n = m;
        p.a = matmul_transposed(b);
        p.b = matmul_transposed(a);
        p.c = matmul_transposed(c);
    }
    p.c.col = 1;
    return p;
}

bool matmul_collapses(const struct matmul_problem *p, const struct matmul_matrix *t) {
    int64_t rows = p->m;
    for (int i = MATMUL_MAX_BATCH_DIMS - 1; i >= 0; i--) {
        if (p->batch[i] > 1 && t->batch[i] != rows * t->row) return false;
        rows *= p->batch[i];
    }
    return true;
}

static size_t round_64(size_t bytes) { return tsri_round_up(bytes, 64); }

// The products share a workspace of the largest size that one of them needs.
static void make_room(struct matmul_backward_steps *s, const struct matmul_problem *p,
                      const struct tsri_limits *limits) {
    struct tsri_plan plan;
    const struct tsri_call call = {.size = sizeof call, .flags = limits->flags};
    if (tsri_op_plan(&tsri_matmul_forward_op, p, limits, &call, &plan) != TSR_OK) return;
    if (plan.workspace_bytes > s->product_bytes) s->product_bytes = plan.workspace_bytes;
}

// The copy has the rows of all batches; a's lines may run along m.
static struct matmul_matrix copy_of(const struct matmul_problem *p, const struct matmul_matrix *t,
                                    int64_t cols, char *data) {
    struct matmul_matrix copy = {data, t->dtype, 1, 1, {0}};
    if (t->col == 1)
        copy.row = (int64_t)tsri_round_up((size_t)cols, 8);
    else
        copy.col = (int64_t)tsri_round_up((size_t)(p->num_batches * p->m), 8);
    return copy;
}

static size_t copy_bytes(const struct matmul_problem *p, const struct matmul_matrix *copy,
                         int64_t cols) {
    int64_t floats = copy->col == 1 ? p->num_batches * p->m * copy->row : cols * copy->col;
    return round_64((size_t)floats * tsr_dtype_bytes(copy->dtype));
}

struct matmul_backward_steps matmul_backward_steps(const struct matmul_backward_problem *p,
                                                   const struct tsri_limits *limits,
                                                   char *workspace) {
    const struct matmul_problem *product = &p->product;
    int64_t m = product->m, n = product->n, k = product->k;
    struct matmul_backward_steps s = {.g = p->dc};
    bool is_cuda = limits->device.type == TSR_CUDA;
    if (product->activation != TSR_ACTIVATION_NONE) {
        s.g = (struct matmul_matrix){workspace, p->dc.dtype, n, 1, {0, 0, m * n}};
        s.g.batch[1] = s.g.batch[2] * product->batch[2];
        s.g.batch[0] = s.g.batch[1] * product->batch[1];
        s.g_bytes = round_64((size_t)(product->num_batches * m * n) * tsr_dtype_bytes(p->dc.dtype));
    }
    if (p->da.data != NULL) {
        s.da = make_product(product, m, k, n, s.g, matmul_transposed(product->b), p->da);
        make_room(&s, &s.da, limits);
    }
    if (p->db.data != NULL) {
        struct matmul_problem one = *product;
        if (p->is_b_shared) {
            for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++) one.batch[i] = 1;
            one.num_batches = 1;
        }
        struct matmul_matrix a = product->a, g = s.g, c = p->db;
        int64_t depth = m;
        bool is_one = product->num_batches == 0 ||
                      (matmul_collapses(product, &product->a) && matmul_collapses(product, &s.g));
        if (p->is_b_shared && is_one) {
            depth = m * product->num_batches;
        } else if (p->is_b_shared && is_cuda) {
            depth = m * product->num_batches;
            s.is_a_copied = !matmul_collapses(product, &a);
            s.is_g_copied = !matmul_collapses(product, &g);
            if (s.is_a_copied) {
                a = s.a_copy = copy_of(product, &a, k, workspace + s.g_bytes);
                s.copy_bytes = copy_bytes(product, &a, k);
            }
            if (s.is_g_copied) {
                g = s.g_copy = copy_of(product, &g, n, workspace + s.g_bytes + s.copy_bytes);
                s.copy_bytes += copy_bytes(product, &g, n);
            }
        } else if (p->is_b_shared) {
            s.is_db_summed = true;
            s.sum_bytes = round_64((size_t)(k * n) * sizeof(float));
            c = (struct matmul_matrix){workspace + s.g_bytes, TSR_F32, n, 1, {0}};
        }
        s.db = make_product(&one, k, n, depth, matmul_transposed(a), g, c);
        make_room(&s, &s.db, limits);
        if (s.is_db_summed) { // later batches accumulate and may have another plan
            struct matmul_problem more = s.db;
            more.is_accumulating = true;
            make_room(&s, &more, limits);
        }
    }
    if (p->dbias != NULL) {
        int64_t rows = product->num_batches * m;
        int64_t most = is_cuda ? MAX_CUDA_GROUPS : MAX_GROUPS;
        int64_t of_group = is_cuda ? ROWS_OF_CUDA_GROUP : ROWS_OF_GROUP;
        s.num_groups = tsri_max(tsri_min(tsri_ceil_div(rows, of_group), most), 1);
        s.rows_per_group = tsri_ceil_div(rows, s.num_groups);
        s.dbias_bytes = round_64((size_t)(s.num_groups * n) * sizeof(float));
    }
    return s;
}

void matmul_backward_plan(const void *problem, const struct tsri_limits *limits,
                          struct tsri_plan *plan) {
    const struct matmul_backward_problem *p = problem;
    char *nowhere = (char *)(uintptr_t)64; // plans look at the alignment only
    struct matmul_backward_steps s = matmul_backward_steps(p, limits, nowhere);
    plan->workspace_bytes =
        s.g_bytes + s.sum_bytes + s.copy_bytes + s.dbias_bytes + s.product_bytes;
    plan->grain = tsri_max(GRAD_ROWS_BYTES / tsri_max(4 * p->product.n, 1), 1);
    plan->num_tasks = tsri_ceil_div(p->product.num_batches * p->product.m, plan->grain);
}
