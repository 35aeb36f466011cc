// SPDX-License-Identifier: Apache-2.0
// Grouped matmul on the CPU: a group's product, plans, and the oracle. The blocks of all groups are tasks of one loop,
// so threads share small and large groups alike; each task packs the part of b that it needs. Plans assume equal groups
// and never depend on the values of offsets, which may change after a prepare.
#include <string.h>

#include "ops/matmul/cpu/matmul_cpu_choice.h"
#include "ops/matmul/matmul_groups.h"

enum {
    LEAST_M = 48,  // rows of a block; unequal groups may be larger than their mean
    MOST_M = 512,  // rows for which one task packs b
    DEPTH_K = 512, // if groups cut k: every group has the same blocks of it
};

static int64_t rows_of_group(const struct matmul_groups *groups, int64_t group, int64_t *first) {
    *first = 0;
    if (groups->are_counts) return tsri_index_at(&groups->starts, group);
    *first = tsri_index_at(&groups->starts, group);
    return tsri_index_at(&groups->starts, group + 1) - *first;
}

// An operand's rows from `first` on: of its list, or of the matrix, whose lines are `line` elements apart.
static struct matmul_list from_row(struct matmul_matrix *t, int64_t line, struct matmul_list list,
                                   int64_t first) {
    if (matmul_is_listed(&list))
        list.lines.data += first * list.lines.stride;
    else
        t->data += first * line * (int64_t)tsr_dtype_bytes(t->dtype);
    return list;
}

struct matmul_problem matmul_of_group(const struct matmul_problem *p, int64_t group) {
    struct matmul_problem one = matmul_of_batch(p, group);
    int64_t first, rows = rows_of_group(&p->groups, group, &first);
    one.groups = (struct matmul_groups){.are_depths = p->groups.are_depths};
    one.num_batches = one.batch[2] = 1;
    if (p->bias != NULL)
        one.bias = (const char *)p->bias +
                   group * p->groups.bias * (int64_t)tsr_dtype_bytes(p->bias_dtype);
    if (p->bias_up != NULL)
        one.bias_up = (const char *)p->bias_up +
                      group * p->groups.bias_up * (int64_t)tsr_dtype_bytes(p->bias_up_dtype);
    if (p->groups.are_depths) {
        one.k = rows;
        one.groups.of_a = from_row(&one.a, one.a.col, p->groups.of_a, first);
        one.groups.of_b = from_row(&one.b, one.b.row, p->groups.of_b, first);
    } else {
        one.m = rows;
        one.groups.of_a = from_row(&one.a, one.a.row, p->groups.of_a, first);
        one.c.data = matmul_at(&one.c, first, 0);
        if (p->a_scale.data != NULL) one.a_scale.data = matmul_at(&one.a_scale, first, 0);
    }
    return one;
}

struct matmul_problem matmul_equal_groups(const struct matmul_problem *p) {
    struct matmul_problem equal = *p;
    int64_t rows = p->groups.are_depths ? p->k : p->m;
    if (!p->groups.are_counts) rows = tsri_ceil_div(rows, tsri_max(p->num_batches, 1));
    if (p->groups.are_depths) {
        equal.k = (int64_t)tsri_round_up((size_t)tsri_max(rows, 1), DEPTH_K);
        equal.m = tsri_min(p->m, MOST_M);
    } else {
        equal.m = tsri_min(tsri_max(rows, LEAST_M), MOST_M);
    }
    return equal;
}

// ---- Blocks -----------------------------------------------------------------------------------

static size_t table_bytes(const struct matmul_problem *p) {
    return tsri_round_up((size_t)(p->num_batches + 1) * sizeof(int64_t), 64);
}

// Floats of a block of few rows: rows of a (unless used in place), products, and products with b_up.
static int64_t few_floats(const struct matmul_problem *p, const struct tsri_limits *limits,
                          const struct tsri_plan *plan) {
    if (p->groups.are_depths || (limits->flags & TSR_BATCH_INVARIANT) != 0) return 0;
    return matmul_skinny_floats(p, tsri_min(p->m, MATMUL_SKINNY_M), plan->block_n);
}

struct matmul_group_blocks matmul_group_blocks(const struct matmul_problem *p,
                                               const struct tsri_plan *plan,
                                               const struct tsri_limits *limits, void *memory,
                                               float **rest) {
    struct matmul_group_blocks blocks = {
        plan, memory, p->num_batches, tsri_ceil_div(p->n, plan->block_n), 0, limits};
    int64_t row = 0, first;
    for (int64_t group = 0; group < p->num_batches; group++) {
        int64_t rows = p->groups.are_depths ? p->m : rows_of_group(&p->groups, group, &first);
        blocks.first_row[group] = row;
        row += tsri_ceil_div(rows, plan->block_m);
    }
    blocks.first_row[p->num_batches] = row;
    blocks.num_blocks = row * blocks.cols;
    *rest = blocks.few = (float *)(void *)((char *)memory + table_bytes(p));
    if (limits == NULL) return blocks;
    blocks.few_floats = few_floats(p, limits, plan);
    blocks.is_far = matmul_is_far(p, limits);
    blocks.is_streaming =
        p->groups.are_depths && !tsri_is_slow_past_caches(limits) &&
        tsri_should_stream(limits, p->num_batches * p->m * p->n * tsri_dtype_bytes(p->c.dtype));
    *rest += limits->num_threads * blocks.few_floats;
    return blocks;
}

// Whether matmul would choose "skinny" for this product alone. Up to 16 rows only: with more, bits must not depend on
// their number.
static bool is_few(const struct matmul_problem *one, const struct tsri_limits *limits,
                   bool has_units) {
    if ((limits->flags & TSR_BATCH_INVARIANT) != 0 || one->m > MATMUL_SKINNY_M) return false;
    if (!matmul_is_skinny(one, limits)) return false;
    // Up to MATMUL_ROWS_OF_PASS rows, amx_bf16 would transpose the product, which it cannot do with groups.
    bool may_pack = one->m > MATMUL_ROWS_OF_PASS || limits->bf16.is_dot_fast;
    if (has_units && may_pack && matmul_prefer_mixed(one, limits) != NULL) return false;
    bool is_in_place = matmul_can_use_b_in_place(one, limits);
    return (is_in_place && one->m <= MATMUL_ROWS_OF_PASS) ||
           matmul_suits_skinny(one, limits, is_in_place);
}

// A block of the gradient of an empty group.
static void clear_block(const struct matmul_group_blocks *blocks, const struct matmul_problem *one,
                        struct matmul_group_block at) {
    const int64_t rows = tsri_min(blocks->plan->block_m, one->m - at.row),
                  cols = tsri_min(blocks->plan->block_n, one->n - at.col);
    const int64_t size = tsri_dtype_bytes(one->c.dtype), stride = one->c.row * size;
    char *to = matmul_at(&one->c, at.row, at.col);
    if (one->is_accumulating) return;
    if (blocks->is_streaming)
        matmul_kernels(blocks->limits->isa)->clear(to, rows, stride, cols * size);
    else
        for (int64_t i = 0; i < rows; i++) memset(to + i * stride, 0, (size_t)(cols * size));
}

// A block of the gradient of a group with few rows, which only writes.
static bool is_done_by_steps(const struct matmul_group_blocks *blocks,
                             const struct matmul_problem *one, struct matmul_group_block at) {
    const void *a[MATMUL_FEW_STEPS], *b[MATMUL_FEW_STEPS];
    const int64_t size = tsri_dtype_bytes(one->a.dtype);
    if (one->k > MATMUL_FEW_STEPS || one->a.row != 1 || one->b.col != 1 || one->alpha != 1.0f)
        return false;
    for (int64_t s = 0; s < one->k; s++) {
        const int64_t row_of_a = matmul_line(&one->groups.of_a, s);
        const int64_t row_of_b = matmul_line(&one->groups.of_b, s);
        a[s] = one->a.data + (row_of_a * one->a.col + at.row) * size;
        b[s] = one->b.data + (row_of_b * one->b.row + at.col) * size;
    }
    matmul_kernels(blocks->limits->isa)
        ->outer(one->a.dtype, tsri_min(blocks->plan->block_m, one->m - at.row),
                tsri_min(blocks->plan->block_n, one->n - at.col), one->k, a, b, one->c.dtype,
                matmul_at(&one->c, at.row, at.col), one->c.row * tsri_dtype_bytes(one->c.dtype),
                one->is_accumulating, blocks->is_streaming);
    return true;
}

bool matmul_group_is_done_as_few(const struct matmul_group_blocks *blocks,
                                 const struct matmul_problem *one, struct matmul_group_block at,
                                 bool has_units, int thread) {
    const struct tsri_plan *plan = blocks->plan;
    const struct tsri_limits *limits = blocks->limits;
    if (one->groups.are_depths && one->k == 0) {
        clear_block(blocks, one, at);
        return true;
    }
    if (one->groups.are_depths && is_done_by_steps(blocks, one, at)) return true;
    if (blocks->few_floats == 0) return false;
    bool by_units = has_units && one->m <= MATMUL_SKINNY_M && matmul_suits_skinny_bf16(one, limits);
    if (!by_units && !is_few(one, limits, has_units)) return false;
    // Intel: for a single product, `skinny` competes with transposing tiles and with steps as tasks; groups have neither.
    by_units =
        by_units || (has_units && !limits->bf16.is_dot_fast && matmul_has_skinny_bf16(one, limits));
    matmul_skinny_block(limits, one, by_units, blocks->is_far, at.row, at.col,
                        tsri_min(plan->block_m, one->m - at.row),
                        tsri_min(plan->block_n, one->n - at.col),
                        blocks->few + thread * blocks->few_floats);
    return true;
}

struct matmul_group_block matmul_group_block(const struct matmul_group_blocks *blocks,
                                             int64_t index) {
    int64_t low = 0, high = blocks->num_groups; // the last group that begins at or before index
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (blocks->first_row[middle] * blocks->cols <= index)
            low = middle;
        else
            high = middle;
    }
    int64_t rows = blocks->first_row[low + 1] - blocks->first_row[low];
    index -= blocks->first_row[low] * blocks->cols;
    return (struct matmul_group_block){low, index % rows * blocks->plan->block_m,
                                       index / rows * blocks->plan->block_n};
}

// ---- Plans ------------------------------------------------------------------------------------

static size_t more_bytes(const struct matmul_problem *p, const struct tsri_limits *limits,
                         const struct tsri_plan *plan) {
    return table_bytes(p) +
           (size_t)(limits->num_threads * few_floats(p, limits, plan)) * sizeof(float);
}

void matmul_grouped_plan_tiled(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    const struct matmul_problem *p = problem, equal = matmul_equal_groups(p);
    matmul_plan_local(&equal, limits, plan);
    plan->workspace_bytes += more_bytes(p, limits, plan);
}

void matmul_grouped_plan_mixed(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    const struct matmul_problem *p = problem, equal = matmul_equal_groups(p);
    matmul_plan_mixed(&equal, limits, plan);
    plan->workspace_bytes += more_bytes(p, limits, plan);
}

// A block has as many whole rows as a task of matmul.
void matmul_grouped_plan_naive(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    const struct matmul_problem *p = problem;
    matmul_plan_naive(p, limits, plan);
    plan->block_m = plan->grain;
    plan->workspace_bytes +=
        table_bytes(p) + (size_t)(limits->num_threads * matmul_naive_floats(p)) * sizeof(float);
}

const char *matmul_grouped_prefer(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    if (limits->device.type == TSR_CUDA) return matmul_grouped_cuda_prefer(p, limits);
    const struct matmul_problem equal = matmul_equal_groups(p);
    const char *mixed = matmul_prefer_mixed(&equal, limits);
    return mixed != NULL ? mixed : "tiled";
}

// ---- The oracle -------------------------------------------------------------------------------

tsr_status matmul_grouped_reference_run(tsr_context *ctx, const void *problem,
                                        const struct tsri_plan *plan, void *workspace) {
    const struct matmul_problem *p = problem;
    for (int64_t group = 0; group < p->num_batches; group++) {
        const struct matmul_problem one = matmul_of_group(p, group);
        TSRI_TRY(matmul_reference_run(ctx, &one, plan, workspace));
    }
    return TSR_OK;
}
