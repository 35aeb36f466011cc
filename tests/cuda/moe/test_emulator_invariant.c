// SPDX-License-Identifier: Apache-2.0
// Grouped products and the layer on the emulated device under TSR_BATCH_INVARIANT: rows have the same bits for any rows and
// groups, so one variant serves them all. Without the flag few rows choose cuda-skinny.
#include "emulator_case.h"

enum { MOST_ROWS = 330, MOST_GROUPS = 5, MOST_K = 272, MOST_N = 144, FIRST = 12 };

struct shape {
    tsr_dtype dtype;
    int k, n;
    bool is_transposed, has_up, has_list;
    char scale, up_scale; // of b: 't' the tensor's, 'g' groups', 'b' blocks'; 0: none
};

static tsr_context *ctx;
static uint16_t a[MOST_ROWS * MOST_K], b[MOST_GROUPS * MOST_N * MOST_K];
static float c[MOST_ROWS * MOST_N], kept[FIRST * MOST_N];
static float scales[MOST_ROWS * MOST_GROUPS * 8];

static void *copied(const void *data, size_t bytes) {
    void *memory;
    assert_ok(tsr_memory_alloc(ctx, bytes, &memory));
    assert_ok(tsr_memory_copy(ctx, memory, data, bytes));
    return memory;
}

static void fill(tsr_dtype dtype) {
    uint64_t random = test_number("TESSERA_TEST_SEED", 20261201);
    for (int i = 0; i < COUNT(a); i++) tsr_store(dtype, a, i, (double)test_float(&random));
    for (int i = 0; i < COUNT(b); i++) tsr_store(dtype, b, i, (double)test_float(&random));
    for (int i = 0; i < COUNT(scales); i++) scales[i] = 0.37f;
}

#define GPU(data, dtype, ...) on_cuda(TSR_TENSOR(copied(data, sizeof(data)), dtype, __VA_ARGS__))

static tsr_tensor scale_of_tensor(void) {
    const int64_t no_sizes[] = {0};
    return on_cuda(tsr_tensor_contiguous(copied(scales, sizeof scales), TSR_F32, 0, no_sizes));
}

static tsr_tensor scale_of_b(char kind, int groups, int k, int n) {
    const tsr_tensor none = {0};
    switch (kind) {
    case 't': return scale_of_tensor();
    case 'g': return GPU(scales, TSR_F32, groups);
    case 'b': return GPU(scales, TSR_F32, groups, (n + 127) / 128, (k + 127) / 128);
    default: return none;
    }
}

// Groups after the first, which has FIRST rows, share the rest.
static void multiply(const struct shape *s, int groups, int rows, uint32_t flags) {
    int32_t offsets[MOST_GROUPS + 1] = {0, FIRST}, list[MOST_ROWS];
    for (int g = 2; g <= groups; g++) offsets[g] = FIRST + (rows - FIRST) * (g - 1) / (groups - 1);
    for (int r = 0; r < rows; r++) list[r] = (r * 7 + 3) % FIRST;
    tsr_matmul_grouped_forward_args args =
        TSR_MATMUL_GROUPED_FORWARD_ARGS(.flags = flags, .transpose_b = s->is_transposed,
                                        .a = GPU(a, s->dtype, rows, s->k),
                                        .offsets = GPU(offsets, TSR_I32, groups + 1),
                                        .c = GPU(c, TSR_F32, rows, s->n));
    args.b = s->is_transposed ? GPU(b, s->dtype, groups, s->n, s->k)
                              : GPU(b, s->dtype, groups, s->k, s->n);
    if (s->has_up) args.b_up = args.b;
    if (s->has_list) args.a_rows = GPU(list, TSR_I32, rows);
    args.b_scale = scale_of_b(s->scale, groups, s->k, s->n);
    args.b_up_scale = scale_of_b(s->up_scale, groups, s->k, s->n);
    if (s->scale == 'b') args.a_scale = GPU(scales, TSR_F32, rows, (s->k + 127) / 128);
    if (s->scale == 't' || s->scale == 'g') args.a_scale = scale_of_tensor();
    assert_ok(tsr_matmul_grouped_forward(ctx, &args));
    assert_ok(tsr_memory_copy(ctx, c, args.c.data, sizeof c));
    assert_ok(tsr_context_synchronize(ctx));
}

static const struct shape shapes[] = {
    {TSR_BF16, 272, 136, true, false, false, 0, 0},
    {TSR_BF16, 272, 136, false, false, false, 0, 0},
    {TSR_F16, 264, 72, true, true, false, 0, 0},
    {TSR_BF16, 272, 136, true, true, true, 0, 0},
    {TSR_BF16, 140, 68, true, false, false, 0, 0},
    {TSR_F16, 140, 68, false, true, true, 0, 0},
    {TSR_E4M3, 272, 136, true, false, false, 't', 0},
    {TSR_E4M3, 272, 136, true, true, false, 't', 'g'},
    {TSR_E4M3, 272, 136, true, true, false, 'g', 'g'},
    {TSR_E4M3, 272, 136, true, true, false, 'b', 'b'},
    {TSR_E4M3, 264, 136, true, false, false, 't', 0},
    {TSR_BF16, 140, 72, false, false, false, 0, 0}, // a's second row would not begin at 16 bytes
};

static void rows_do_not_depend_on_others(void **state) {
    static const int rows[] = {FIRST, 13, 40, 170, MOST_ROWS};
    (void)state;
    for (int i = 0; i < COUNT(shapes); i++) {
        const struct shape *s = &shapes[i];
        const size_t bytes = (size_t)(FIRST * s->n) * sizeof(float);
        char variant[32] = "";
        fill(s->dtype);
        for (int groups = 1; groups <= MOST_GROUPS; groups += 2)
            for (int r = 0; r < (groups == 1 ? 1 : COUNT(rows)); r++) {
                multiply(s, groups, rows[r], TSR_BATCH_INVARIANT);
                const char *served = tsr_context_last_variant(ctx);
                if (*variant == '\0') {
                    snprintf(variant, sizeof variant, "%s", served);
                    memcpy(kept, c, bytes);
                }
                if (strcmp(served, variant) != 0 || memcmp(kept, c, bytes) != 0)
                    fail_msg("shape %d, %d groups, %d rows: other bits by %s than by %s", i, groups,
                             rows[r], served, variant);
            }
    }
}

static void one_row_chooses_as_many_do(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(shapes); i++) {
        fill(shapes[i].dtype);
        multiply(&shapes[i], 1, FIRST, TSR_BATCH_INVARIANT);
        const char *variant = tsr_context_last_variant(ctx);
        multiply(&shapes[i], 1, 1, TSR_BATCH_INVARIANT);
        assert_string_equal(tsr_context_last_variant(ctx), variant);
    }
}

// Memory decides: with at most 8 rows a group on average.
static void few_rows_are_skinny(void **state) {
    static const struct {
        int groups, rows;
        bool is_transposed;
        const char *variant;
    } cases[] = {{5, 40, true, "cuda-skinny"}, {5, 45, true, "cuda-mma"},
                 {5, 40, false, "cuda-mma"},   {2, 13, true, "cuda-skinny"},
                 {1, FIRST, true, "cuda-mma"}, {5, FIRST, true, "cuda-skinny"}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        const struct shape s = {TSR_BF16, 272, 136, cases[i].is_transposed, false, false, 0, 0};
        fill(TSR_BF16);
        multiply(&s, cases[i].groups, cases[i].rows, 0);
        assert_string_equal(tsr_context_last_variant(ctx), cases[i].variant);
    }
}

// ---- The layer ----------------------------------------------------------------------------------

enum { TOKENS = 40, MOST_HIDDEN = 264, MOST_INNER = 136, EXPERTS = 2 };

struct layer {
    tsr_dtype weights;
    int hidden, inner, x_stride;
};

static void forward(const struct layer *l, int first, int tokens, void *y) {
    uint64_t random = 7;
    static uint16_t x[TOKENS * MOST_HIDDEN], w[EXPERTS * MOST_HIDDEN * MOST_INNER];
    static float logits[TOKENS * EXPERTS], ones[EXPERTS];
    for (int i = 0; i < COUNT(x); i++) x[i] = test_bf16(test_float(&random));
    for (int i = 0; i < COUNT(logits); i++) logits[i] = test_float(&random);
    for (int i = 0; i < COUNT(w); i++) tsr_store(l->weights, w, i, (double)test_float(&random) / 8);
    for (int i = 0; i < COUNT(ones); i++) ones[i] = 1;
    const tsr_tensor up = GPU(w, l->weights, EXPERTS, l->inner, l->hidden),
                     scale = GPU(ones, TSR_F32, EXPERTS), none = {0};
    char *on_x = copied(x, sizeof x), *on_logits = copied(logits, sizeof logits);
    tsr_moe_forward_args args = TSR_MOE_FORWARD_ARGS(
            .flags = TSR_BATCH_INVARIANT,
            .x = on_cuda(TSR_TENSOR(on_x + first * l->x_stride * 2, TSR_BF16, tokens, l->hidden)),
            .logits = on_cuda(TSR_TENSOR(on_logits + first * EXPERTS * (int)sizeof(float), TSR_F32,
                                         tokens, EXPERTS)),
            .w_gate = up, .w_up = up, .w_down = GPU(w, l->weights, EXPERTS, l->hidden, l->inner),
            .top_k = EXPERTS,
            .y = on_cuda(TSR_TENSOR(copied(x, sizeof x), TSR_BF16, tokens, l->hidden)));
    const bool is_fp8 = l->weights == TSR_E4M3;
    args.x.stride[0] = l->x_stride;
    args.w_gate_scale = args.w_up_scale = args.w_down_scale = is_fp8 ? scale : none;
    assert_ok(tsr_moe_forward(ctx, &args));
    assert_ok(tsr_memory_copy(ctx, y, args.y.data, (size_t)(tokens * l->hidden) * 2));
    assert_ok(tsr_context_synchronize(ctx));
}

static void tokens_do_not_depend_on_others(void **state) {
    static const struct layer layers[] = {{TSR_BF16, 264, 136, 264},
                                          {TSR_BF16, 260, 132, 264},
                                          {TSR_E4M3, 256, 136, 256},
                                          {TSR_E4M3, 264, 136, 264},
                                          {TSR_E4M3, 264, 132, 264}};
    static uint16_t all[TOKENS * MOST_HIDDEN], alone[MOST_HIDDEN];
    (void)state;
    for (int i = 0; i < COUNT(layers); i++) {
        const int hidden = layers[i].hidden;
        forward(&layers[i], 0, TOKENS, all);
        for (int t = 0; t < TOKENS; t += 13) {
            forward(&layers[i], t, 1, alone);
            if (memcmp(alone, all + t * hidden, (size_t)hidden * 2) != 0)
                fail_msg("layer %d: token %d has other bits alone", i, t);
        }
    }
}

static int setup(void **state) {
    (void)state;
    ctx = emulator_context(NULL, false);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    tsr_context_destroy(ctx);
    return 0;
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_do_not_depend_on_others, setup, teardown),
        cmocka_unit_test_setup_teardown(one_row_chooses_as_many_do, setup, teardown),
        cmocka_unit_test_setup_teardown(few_rows_are_skinny, setup, teardown),
        cmocka_unit_test_setup_teardown(tokens_do_not_depend_on_others, setup, teardown),
    };
    int skip = emulator_start("test_emulator_invariant.log");
    return skip != 0 ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
