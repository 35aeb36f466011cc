// SPDX-License-Identifier: Apache-2.0
// Sweeps with their own tables: attention by length, by shape and by memory, and the scaling of attention and other
// operations. All members of a sweep have the batch and number of heads that fit its largest member, because otherwise
// the curve would show how its points were shrunk.
#include <math.h>
#include <string.h>

#include "measure/scaling.h"
#include "report/report_collect.h"

// The variants of attention, fastest first; the last is the unfused form.
static const char *const all_variants[] = {"tuned", "flash2", "flash1", "naive"};
static const char *const two_variants[] = {"tuned", "naive"};

static void visit_case(struct collector *k, visitor *visit, int *count, struct report_case *given,
                       const char *study, const char *const *variants, int num_variants) {
    if (visit == NULL) {
        ++*count;
        return;
    }
    given->study = study;
    given->num_variants = num_variants;
    for (int i = 0; i < num_variants; i++) given->variants[i] = variants[i];
    visit(k, given);
}

// The published dtype, or that of --dtype.
static tsr_dtype dtype_of(const struct collector *k, tsr_dtype published) {
    return k->options->dtype == NULL ? published : tsr_dtype_from_name(k->options->dtype);
}

static const char *mask(const struct collector *k) {
    return k->options->is_non_causal ? "" : " mask=causal";
}

static void copy_param(struct op_case *to, const struct op_case *from, const char *name) {
    int param = spec_param(to->spec, name);
    to->param[param] = fmin(to->param[param], from->param[param]);
}

// ---- Attention --------------------------------------------------------------------------------

enum { FIRST_LENGTH = 256 };

static int or_else(int given, int published) { return given > 0 ? given : published; }

static void name_length(const struct collector *k, int length, int heads, char *params,
                        size_t bytes) {
    snprintf(params, bytes, "batch_size=%d seqlen_q=%d seqlen_k=%d num_heads=%d head_dim=%d%s",
             or_else(k->options->batch_size, 4), length, length, heads,
             or_else(k->options->head_dim, 64), mask(k));
}

// Square attention with doubling lengths, the longest last. kv_share: query heads per head of k and v.
static void walk_lengths(struct collector *k, visitor *visit, int *count, const char *study,
                         tsr_dtype dtype, int heads, int last, const char *const *variants,
                         int num_variants, int kv_share) {
    char params[160];
    struct op_case fitted;
    heads = or_else(k->options->num_heads, heads);
    last = or_else(k->options->max_seq_len, last);
    name_length(k, last, heads, params, sizeof params);
    if (!collector_case(k, "attention_forward", dtype, params, &fitted)) return;
    if (visit != NULL) collector_fit(k, &fitted, 2 * k->longest_study_s); // for the longest member
    for (int next = FIRST_LENGTH, length = 0; length < last; next *= 2) {
        struct report_case given = {.num_variants = 0};
        length = next < last ? next : last;
        name_length(k, length, heads, params, sizeof params);
        if (!collector_case(k, "attention_forward", dtype, params, &given.asked)) return;
        given.c = given.asked;
        copy_param(&given.c, &fitted, "batch_size");
        copy_param(&given.c, &fitted, "num_heads");
        struct op_case *const both[] = {&given.asked, &given.c};
        for (int i = 0; kv_share > 1 && i < 2; i++) {
            int q_heads = spec_param(both[i]->spec, "num_heads"),
                kv_heads = spec_param(both[i]->spec, "num_kv_heads");
            bool is_divided = fmod(both[i]->param[q_heads], kv_share) == 0;
            both[i]->param[kv_heads] = is_divided ? both[i]->param[q_heads] / kv_share : 1;
        }
        visit_case(k, visit, count, &given, study, variants, num_variants);
    }
}

static void walk_shapes(struct collector *k, visitor *visit, int *count) {
    static const char *const shapes[] = {
        "batch_size=16 seqlen_q=2048 seqlen_k=2048 num_heads=16 head_dim=64",
        "batch_size=32 seqlen_q=4096 seqlen_k=4096 num_heads=32 head_dim=128"};
    static const tsr_dtype dtypes[] = {TSR_F16, TSR_F32};
    for (int i = 0; i < 2; i++)
        for (int d = 0; d < 2; d++) {
            struct report_case given = {.has_peer = true};
            if (d > 0 && k->options->dtype != NULL) continue;
            if (!collector_case(k, "attention_forward", dtype_of(k, dtypes[d]), shapes[i],
                                &given.asked))
                return;
            given.c = given.asked;
            if (visit != NULL) collector_fit(k, &given.c, k->longest_study_s);
            visit_case(k, visit, count, &given, "shapes", two_variants, 2);
        }
}

// The grid of shapes for forward and backward. The backward call takes longer, so it determines the size.
static void walk_grid(struct collector *k, visitor *visit, int *count) {
    static const int grid[][4] = {{1, 32, 4, 16},      {1, 64, 8, 32},     {2, 128, 8, 32},
                                  {4, 256, 16, 64},    {8, 512, 16, 64},   {16, 512, 32, 64},
                                  {32, 1024, 32, 128}, {64, 1024, 64, 128}};
    static const char *const ops[] = {"attention_forward", "attention_backward"};
    for (size_t i = 0; i < sizeof grid / sizeof *grid; i++)
        for (int pass = 0; pass < 2; pass++) {
            struct report_case given = {.num_variants = 0};
            struct op_case fitted;
            char params[160];
            tsr_dtype dtype = dtype_of(k, TSR_F16);
            snprintf(params, sizeof params,
                     "batch_size=%d seqlen_q=%d seqlen_k=%d num_heads=%d head_dim=%d", grid[i][0],
                     grid[i][1], grid[i][1], grid[i][2], grid[i][3]);
            size_t used = strlen(params);
            if (pass == 0 && !collector_case(k, ops[0], dtype, params, &given.asked)) return;
            snprintf(params + used, sizeof params - used, " +dq +dk +dv");
            if (!collector_case(k, ops[1], dtype, params, &fitted)) return;
            if (pass == 1) given.asked = fitted;
            given.c = given.asked;
            if (visit != NULL) collector_fit(k, &fitted, k->longest_study_s / 2);
            copy_param(&given.c, &fitted, "batch_size");
            copy_param(&given.c, &fitted, "num_heads");
            visit_case(k, visit, count, &given, "grid", two_variants, 2);
        }
}

void walk_attention(struct collector *k, visitor *visit, int *count) {
    walk_lengths(k, visit, count, "length", dtype_of(k, TSR_F32), 12, 8192, all_variants, 4, 1);
    walk_lengths(k, visit, count, "length-gqa", dtype_of(k, TSR_F32), 12, 8192, all_variants, 1, 3);
    walk_lengths(k, visit, count, "sweep", dtype_of(k, TSR_F16), 8, 4096, two_variants, 2, 1);
    walk_grid(k, visit, count);
    walk_shapes(k, visit, count);
}

// ---- Tiles ------------------------------------------------------------------------------------

// Products by tile. Each tile is verified for each shape, so the quick report has only two shapes.
void walk_tiles(struct collector *k, visitor *visit, int *count) {
    static const char *const shapes[] = {"m=1024 n=1024 k=1024", "m=4096 n=4096 k=4096",
                                         "m=512 n=512 k=512",    "m=2048 n=2048 k=2048",
                                         "m=8192 n=8192 k=8192", "m=8192 n=11008 k=4096"};
    if (k->options->device.type == TSR_CPU) return;
    for (int i = 0; i < (k->options->is_quick ? 2 : 6); i++) {
        struct report_case given = {.has_tiles = true};
        if (!collector_case(k, "matmul_forward", dtype_of(k, TSR_F16), shapes[i], &given.asked))
            return;
        given.c = given.asked;
        visit_case(k, visit, count, &given, "tiles", NULL, 0);
    }
}

// ---- Scaling ----------------------------------------------------------------------------------

static void walk_times(struct collector *k, visitor *visit, int *count, const char *study,
                       const char *op, const char *params, enum scaling_study axis, int most) {
    static const char *const chosen[] = {NULL};
    struct op_case first;
    if (!collector_case(k, op, dtype_of(k, TSR_F32), params, &first)) return;
    for (int times = 1; times <= most; times *= 2) {
        struct report_case given = {.num_variants = 0};
        scaling_case(&first, axis, times, &given.asked);
        given.c = given.asked;
        visit_case(k, visit, count, &given, study, chosen, 1);
    }
}

static void walk_one(struct collector *k, visitor *visit, int *count, const char *study,
                     const char *op, const char *params) {
    walk_times(k, visit, count, study, op, params, SCALING_THREADS, 1);
}

static void walk_sizes(struct collector *k, visitor *visit, int *count, enum scaling_study study,
                       int most) {
    char params[160];
    snprintf(params, sizeof params, "%s%s", scaling_base(spec_find("attention_forward")), mask(k));
    walk_times(k, visit, count, scaling_names[study], "attention_forward", params, study, most);
}

static void walk_threads(struct collector *k, visitor *visit, int *count) {
    walk_one(k, visit, count, "threads", "attention_forward",
             "batch_size=1 seqlen_q=1024 seqlen_k=1024 num_heads=8 head_dim=64");
    walk_one(k, visit, count, "threads", "matmul_forward", "m=1024 n=1024 k=1024");
    walk_one(k, visit, count, "threads", "layernorm_forward", "rows=4096 cols=1024 +weight +bias");
    walk_one(k, visit, count, "threads", "softmax_forward", "rows=2048 cols=2048");
}

void walk_scaling(struct collector *k, visitor *visit, int *count) {
    walk_sizes(k, visit, count, SCALING_BATCH, 16);
    walk_sizes(k, visit, count, SCALING_PROBLEM, 8);
    // A call of one element is all overhead.
    walk_one(k, visit, count, "overhead", "softmax_forward", "rows=1 cols=1");
    if (k->options->device.type == TSR_CPU) walk_threads(k, visit, count);
}

int count_fewer_threads(struct collector *k) {
    int all = measure_machine(k->session)->num_threads, count = 0;
    for (int threads = 1; threads < all; threads = scaling_next_threads(threads, all))
        walk_threads(k, NULL, &count);
    return count;
}

void collect_fewer_threads(struct collector *k, const struct measure_options *options) {
    int all = k->report->machine.num_threads;
    for (int threads = 1; threads < all; threads = scaling_next_threads(threads, all)) {
        struct measure_options fewer = *options;
        char error[256];
        fewer.num_threads = threads;
        k->session = measure_open(&fewer, error, sizeof error);
        if (k->session == NULL) return;
        int count = 0;
        walk_threads(k, NULL, &count);
        k->num_cases = k->num_done + count;
        walk_threads(k, collector_measure, NULL);
        measure_close(k->session);
    }
    k->session = NULL;
}
