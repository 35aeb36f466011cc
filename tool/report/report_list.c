// SPDX-License-Identifier: Apache-2.0
// The cases of the report, in this order: the shapes of the published tables of fused-kernel tutorials (softmax, layer norm,
// attention, mixture of experts), every operation's standard shapes, scaling of some, matmul and its tiles (on a GPU second),
// the 16-bit types.
#include <stdlib.h>
#include <string.h>

#include "report/report_collect.h"

// ---- Cases ------------------------------------------------------------------------------------

static bool wants(const struct collector *k, tsr_dtype dtype) {
    return k->options->dtype == NULL || tsr_dtype_from_name(k->options->dtype) == dtype;
}

// The dtype of the tutorials' row operations: f32, or that of --dtype.
static tsr_dtype row_dtype(const struct collector *k) {
    return k->options->dtype == NULL ? TSR_F32 : tsr_dtype_from_name(k->options->dtype);
}

static void add(struct collector *k, visitor *visit, int *count, const char *op, tsr_dtype dtype,
                const char *params) {
    struct report_case given = {.num_variants = 0};
    if (!collector_case(k, op, dtype, params, &given.c)) return;
    given.asked = given.c;
    if (visit != NULL)
        visit(k, &given);
    else
        ++*count;
}

// ---- The list ---------------------------------------------------------------------------------

static void walk_rows(struct collector *k, visitor *visit, int *count) {
    static const int sides[] = {1024, 2048, 4096, 8192};
    static const int hidden[] = {256, 512, 768, 1024, 2048, 4096};
    char params[96];
    for (int i = 0; i < 4; i++) {
        snprintf(params, sizeof params, "rows=%d cols=%d", sides[i], sides[i]);
        add(k, visit, count, "softmax_forward", row_dtype(k), params);
    }
    for (int i = 0; i < 6; i++) {
        snprintf(params, sizeof params, "rows=16384 cols=%d +weight +bias", hidden[i]);
        add(k, visit, count, "layernorm_forward", row_dtype(k), params);
    }
}

static void walk_matmul(struct collector *k, visitor *visit, int *count) {
    static const int sizes[] = {512, 1024, 2048, 4096, 8192};
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_F16, TSR_BF16};
    char params[96];
    for (int d = 0; d < 3; d++) {
        if (!wants(k, dtypes[d])) continue;
        for (int i = 0; i < 5; i++) {
            snprintf(params, sizeof params, "m=%d n=%d k=%d", sizes[i], sizes[i], sizes[i]);
            add(k, visit, count, "matmul_forward", dtypes[d], params);
        }
        add(k, visit, count, "matmul_forward", dtypes[d], "m=8192 n=11008 k=4096");
    }
    walk_tiles(k, visit, count);
}

static bool is_in_tutorials(const struct collector *k, const char *op, tsr_dtype dtype) {
    if (strcmp(op, "matmul_forward") == 0 || strcmp(op, "moe_forward") == 0 ||
        strcmp(op, "moe_backward") == 0)
        return true;
    return dtype == row_dtype(k) &&
           (strcmp(op, "softmax_forward") == 0 || strcmp(op, "layernorm_forward") == 0);
}

// The standard shapes of the other operations, in the dtypes from `first` up to `end`.
static void walk_others(struct collector *k, visitor *visit, int *count, int first, int end) {
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    for (int d = first; d < end; d++) {
        if (!wants(k, dtypes[d])) continue;
        for (int i = 0; op_specs[i] != NULL; i++) {
            const struct op_spec *spec = op_specs[i];
            if (spec->standard == NULL || is_in_tutorials(k, spec->op, dtypes[d])) continue;
            const char *const *standard = spec_standard(spec, k->options->device);
            int last = 0;
            while (standard[last + 1] != NULL) last++;
            for (int s = k->options->is_quick ? last : 0; s <= last; s++)
                add(k, visit, count, spec->op, dtypes[d], standard[s]);
        }
    }
}

// After the published tables every operation runs in fp32, before further sizes and 16-bit types. So if the time runs
// out, the report lacks detail but no operation. On a GPU, where large products are cheap, matmul comes early.
void walk_all(struct collector *k, visitor *visit, int *count) {
    bool is_short = k->options->is_quick && k->options->dtype == NULL; // no fp16, it is like bf16
    bool has_products_first = k->options->device.type != TSR_CPU;
    walk_rows(k, visit, count);
    if (has_products_first) walk_matmul(k, visit, count);
    walk_attention(k, visit, count);
    walk_moe(k, visit, count);
    walk_others(k, visit, count, 0, 1);
    walk_scaling(k, visit, count);
    if (!has_products_first) walk_matmul(k, visit, count);
    walk_others(k, visit, count, 1, is_short ? 2 : 3);
}
