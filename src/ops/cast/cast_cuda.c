// SPDX-License-Identifier: Apache-2.0
// The launches of cast on CUDA: three kernels serve all pairs of formats, chosen by the wider format, and one kernel
// copies.
#include "context/cuda_elements.h"
#include "ops/cast/cast_params.h"
#include "ops/cast/cast_problem.h"

static struct tsri_cuda_program cast_program(int unit, bool has_groups) {
    return (struct tsri_cuda_program){
        "ops/cast/cast.cu", "cast", 1 + has_groups, {{"UNIT", unit}, {"HAS_GROUPS", 1}}};
}
static struct tsri_cuda_program copy_program(bool has_groups) {
    return (struct tsri_cuda_program){
        "ops/cast/cast_copy.cu", "cast_copy", has_groups, {{"HAS_GROUPS", 1}}};
}

static bool has_groups(const struct cast_problem *p) { return p->x.group > 0 || p->y.group > 0; }

static int unit_of(const struct cast_problem *p) {
    int64_t wider =
        tsri_max((int64_t)tsr_dtype_bytes(p->x.dtype), (int64_t)tsr_dtype_bytes(p->y.dtype));
    return 16 / (int)tsri_max(wider, 2);
}

tsr_status cast_cuda_prepare(tsr_context *ctx, const void *problem, const struct tsri_plan *plan) {
    const struct cast_problem *p = problem;
    const struct tsri_cuda_program program =
        p->is_copy ? copy_program(has_groups(p)) : cast_program(unit_of(p), has_groups(p));
    (void)plan;
    return tsri_cuda_prepare("cast", tsri_context_queue(ctx), &program);
}

static struct tsri_rows bytes_of(const struct tsri_rows *t) {
    int64_t bytes = (int64_t)tsr_dtype_bytes(t->dtype);
    return (struct tsri_rows){t->data,
                              TSR_E4M3,
                              t->rows,
                              t->cols * bytes,
                              t->stride * bytes,
                              t->group,
                              t->group_stride * bytes};
}

// Copies bytes if both addresses agree modulo 16, else elements.
static tsr_status copy(tsr_context *ctx, const struct cast_problem *p) {
    struct tsri_rows x = bytes_of(&p->x), y = bytes_of(&p->y);
    const struct tsri_rows *const bytes[] = {&y, &x}, *const elements[] = {&p->y, &p->x};
    struct cast_params params = {.from = 1};
    tsri_cuda_elements_grid(&params.grid, bytes, 2, CAST_COPY_UNIT, CAST_COPY_AT_ONCE);
    if (params.grid.is_apart) {
        tsri_cuda_elements_grid(&params.grid, elements, 2, CAST_COPY_UNIT, CAST_COPY_AT_ONCE);
        params.grid.is_apart = 1;
        params.from = (int)tsr_dtype_bytes(p->y.dtype);
        x = p->x;
        y = p->y;
    }
    params.x = tsri_elements_view(&x);
    params.y = tsri_elements_view(&y);
    const struct tsri_cuda_program program = copy_program(has_groups(p));
    return tsri_cuda_elements_launch(ctx, "cast", &program, &params.grid, &params);
}

tsr_status cast_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                         void *workspace) {
    const struct cast_problem *p = problem;
    const struct tsri_rows *const views[] = {&p->y, &p->x};
    (void)plan, (void)workspace;
    if (p->is_copy) return p->is_in_place ? TSR_OK : copy(ctx, p);
    const struct tsri_cuda_program program = cast_program(unit_of(p), has_groups(p));
    struct cast_params params = {
        .x = tsri_elements_view(&p->x),
        .y = tsri_elements_view(&p->y),
        .from = (int)p->x.dtype,
        .to = (int)p->y.dtype,
        .has_scale = p->has_scale,
        .scale = p->scale,
    };
    tsri_cuda_elements_grid(&params.grid, views, 2, unit_of(p), CAST_AT_ONCE);
    return tsri_cuda_elements_launch(ctx, "cast", &program, &params.grid, &params);
}

bool cast_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    static const int units[] = {2, 4, 8};
    enum { OF_ONE_FORM = TSRI_COUNT(units) + 1 };
    (void)cuda_arch;
    if (index >= 2 * OF_ONE_FORM) return false;
    const bool is_grouped = index >= OF_ONE_FORM;
    index %= OF_ONE_FORM;
    *program = index == TSRI_COUNT(units) ? copy_program(is_grouped)
                                          : cast_program(units[index], is_grouped);
    program->is_rare = is_grouped;
    return true;
}
