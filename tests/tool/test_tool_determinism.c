// SPDX-License-Identifier: Apache-2.0
// Every operation that the tool describes gives the same bits for any number of threads and in every run. A row has the
// same bits alone and among other rows.
#include "tool_case.h"

static const int thread_counts[] = {1, 2, 3, 7};
enum { NUM_COUNTS = COUNT(thread_counts) };

static tsr_context *contexts[TSR_ISA_COUNT][NUM_COUNTS];

static int setup(void **state) {
    (void)state;
    for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++)
        for (int i = 0; i < NUM_COUNTS && tsr_isa_is_supported((tsr_isa)isa); i++)
            assert_ok(tsr_context_create(
                &TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa, .num_threads = thread_counts[i]),
                &contexts[isa][i]));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int isa = 0; isa < TSR_ISA_COUNT; isa++)
        for (int i = 0; i < NUM_COUNTS; i++) tsr_context_destroy(contexts[isa][i]);
    return 0;
}

static void fail_case(const struct op_case *c, const char *variant, tsr_isa isa, const char *what) {
    char text[256];
    fail_msg("%s %s, %s, variant %s, %s: %s", c->spec->op, case_text(c, text, sizeof text),
             tsr_dtype_name(c->dtype), variant != NULL ? variant : "(default)", tsr_isa_name(isa),
             what);
}

enum { NUM_NAN_CASES = 12 }; // per operation

// ---- Values that are no numbers ---------------------------------------------------------------

// Writes NaN of both signs with several payloads, and infinities that produce NaN, to one of `one_of` elements of every
// floating input. One row and one column have many of them, so that several meet in one result.
static void strew(struct tool_case *tc, struct rng *rng, int64_t one_of) {
    static const uint64_t values[] = {0x7ff8000000000000, 0xfff8000000000000, 0x7ffc800000000000,
                                      0xfffdc00000000000, 0x7ff0000000000000, 0xfff0000000000000};
    const struct op_case *c = &tc->tensors.c;
    for (int s = 0; c->spec->slots[s].name != NULL; s++) {
        const tsr_tensor *t = &c->tensor[s];
        if (!c->is_present[s] || case_role(c, s) == SLOT_OUT || t->dtype == TSR_I32) continue;
        if (strcmp(c->spec->op, "sample") == 0 && strncmp(c->spec->slots[s].name, "row_", 4) == 0)
            continue; // options, which must be numbers
        int64_t index[TSR_MAX_DIMS] = {0}, numel = tsr_tensor_numel(t);
        int64_t bad_col = t->ndim > 0 ? rng_int(rng, 0, t->shape[t->ndim - 1]) : 0;
        int64_t bad_row = t->ndim > 1 ? rng_int(rng, 0, t->shape[t->ndim - 2]) : 0;
        for (int64_t i = 0; i < numel; i++) {
            int64_t offset = 0, col = t->ndim > 0 ? index[t->ndim - 1] : 0;
            int64_t row = t->ndim > 1 ? index[t->ndim - 2] : 1;
            for (int d = 0; d < t->ndim; d++) offset += index[d] * t->stride[d];
            bool is_crowded = col == bad_col || row == bad_row;
            if (rng_int(rng, 0, is_crowded ? 3 : one_of) == 0) {
                uint64_t bits = values[rng_int(rng, 0, COUNT(values) - 1)];
                double value;
                memcpy(&value, &bits, sizeof value);
                if (t->dtype == TSR_BF16) // keeps the payload, which tsr_store drops
                    ((uint16_t *)t->data)[offset] =
                        (uint16_t)(bits >> 48 & 0x8000) | (uint16_t)(bits >> 45 & 0x7fff);
                else
                    tsr_store(t->dtype, t->data, offset, value);
            }
            for (int d = t->ndim - 1; d >= 0 && ++index[d] == t->shape[d]; d--) index[d] = 0;
        }
        memcpy(tc->before[s], tc->tensors.buffer[s].base, tc->tensors.buffer[s].bytes);
    }
}

// ---- The same for any number of threads, and in every run -------------------------------------

// Copies the bits of all outputs into one block.
static size_t gather(const struct tool_case *tc, unsigned char *out) {
    size_t used = 0;
    for (int s = 0; tc->tensors.c.spec->slots[s].name != NULL; s++) {
        if (!tool_is_output(&tc->tensors.c, s)) continue;
        const struct buffer *buffer = &tc->tensors.buffer[s];
        if (out != NULL) memcpy(out + used, buffer->base, buffer->bytes);
        used += buffer->bytes;
    }
    return used;
}

static void check_threads(struct tool_case *tc, const char *variant, tsr_isa isa, int repeats) {
    size_t bytes = gather(tc, NULL);
    unsigned char *expected = malloc(bytes), *got = malloc(bytes);
    bool is_first = true;
    for (int repeat = 0; repeat < repeats; repeat++)
        for (int i = 0; i < NUM_COUNTS; i++) {
            tool_case_reset(tc);
            tsr_status status = tool_call(contexts[isa][i], &tc->tensors.c, variant);
            if (status == TSR_UNSUPPORTED && variant != NULL) goto done;
            assert_ok(status);
            gather(tc, is_first ? expected : got);
            if (!is_first && memcmp(got, expected, bytes) != 0)
                fail_case(&tc->tensors.c, variant, isa, "other bits with other threads");
            is_first = false;
        }
done:
    free(expected);
    free(got);
}

static void check_threads_of_spec(const struct op_spec *spec, struct rng *rng) {
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    int num_cases = TEST_HAS_TSAN ? 3 : 9;
    for (int i = 0; i < num_cases; i++) {
        struct op_case c = tool_draw(spec, dtypes[i % 3], rng);
        struct tool_case tc;
        tool_case_create(&tc, &c, LAYOUT_RANDOM, rng);
        for (int v = -1; v < tsr_variant_count(spec->op); v++) {
            tsr_variant_info info = {.name = NULL};
            if (v >= 0) assert_ok(tsr_variant_info_get(spec->op, v, &info));
            if (info.flags & TSR_VARIANT_CUDA) continue;
            if (info.flags & TSR_VARIANT_REFERENCE) continue;
            for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++)
                if (contexts[isa][0] != NULL) check_threads(&tc, info.name, (tsr_isa)isa, 1);
        }
        tool_case_release(&tc);
    }
    // Repeats it a hundred times.
    tsr_isa best = tsr_context_isa(contexts[TSR_ISA_SCALAR][0]);
    for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++)
        if (contexts[isa][0] != NULL) best = (tsr_isa)isa;
    struct op_case c = tool_draw(spec, TSR_F32, rng);
    struct tool_case tc;
    tool_case_create(&tc, &c, LAYOUT_CONTIGUOUS, rng);
    check_threads(&tc, NULL, best, TEST_IS_SLOW ? 10 : 100);
    tool_case_release(&tc);
}

static void same_bits_for_any_number_of_threads(void **state) {
    (void)state;
    struct rng rng = {20260101};
    for (int i = 0; op_specs[i] != NULL; i++) check_threads_of_spec(op_specs[i], &rng);
}

// Draws a random case. Operations that cut tasks within groups of rows or tiles also get a case with several of these.
static void draw_with_nan(struct op_case *c, int n, struct rng *rng) {
    static const struct {
        const char *op, *large;
    } cases[] = {
        {"softmax_forward", "rows=300 cols=64"},
        {"softmax_backward", "rows=300 cols=64"},
        {"layernorm_forward", "rows=300 cols=64"},
        {"layernorm_backward", "rows=300 cols=64 +weight +dweight +dbias"},
        {"rmsnorm_backward", "rows=300 cols=64 +weight +dweight"},
        {"cross_entropy_backward", "rows=300 vocab=130"},
        {"matmul_forward", "m=300 n=257 k=60"},
        {"attention_forward",
         "batch_size=3 num_heads=4 num_kv_heads=2 seqlen_q=130 seqlen_k=150 head_dim=64"},
        {"attention_backward", "batch_size=3 num_heads=4 num_kv_heads=2 seqlen_q=130 seqlen_k=150 "
                               "head_dim=64 +dq +dk +dv"},
    };
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    char error[256];
    *c = tool_draw(op_specs[n / NUM_NAN_CASES], dtypes[n % 3], rng);
    for (int i = 0; n % NUM_NAN_CASES < 3 && i < COUNT(cases); i++) {
        if (strcmp(cases[i].op, c->spec->op) != 0) continue;
        tsr_dtype dtype = c->dtype;
        *c = case_default(c->spec);
        c->dtype = c->small_dtype = dtype;
        if (!case_set(c, cases[i].large, error, sizeof error)) fail_msg("%s", error);
    }
}

static void the_same_nan_for_any_number_of_threads(void **state) {
    (void)state;
    static const int64_t one_of[] = {10, 60, 1000};
    struct rng rng = {20260105};
    for (int i = 0; op_specs[i] != NULL; i++)
        for (int n = 0; n < (TEST_IS_SLOW ? 3 : NUM_NAN_CASES); n++) {
            struct op_case c;
            struct tool_case tc;
            draw_with_nan(&c, i * NUM_NAN_CASES + n, &rng);
            tool_case_create(&tc, &c, LAYOUT_RANDOM, &rng);
            strew(&tc, &rng, one_of[n % 4 % 3]);
            for (int v = -1; v < tsr_variant_count(c.spec->op); v++) {
                tsr_variant_info info = {.name = NULL};
                if (v >= 0) assert_ok(tsr_variant_info_get(c.spec->op, v, &info));
                if (info.flags & (TSR_VARIANT_CUDA | TSR_VARIANT_REFERENCE)) continue;
                for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++)
                    if (contexts[isa][0] != NULL) check_threads(&tc, info.name, (tsr_isa)isa, 1);
            }
            tool_case_release(&tc);
        }
}

// ---- A row alone and among others -------------------------------------------------------------

// The batch-invariant operations, the parameter that counts rows, the least number of rows for which the promise holds,
// and a case larger than the random ones.
static const struct invariant {
    const char *op, *param;
    int64_t least;
    const char *large;
    uint32_t flags;
    bool has_no_others; // no random cases: theirs may have outputs with rows of another kind
} invariants[] = {
    {"softmax_forward", "rows", 1, "rows=70 cols=20011"},
    {"softmax_backward", "rows", 1, "rows=300 cols=3001"},
    {"layernorm_forward", "rows", 1, "rows=300 cols=3001"},
    {"layernorm_backward", "rows", 1, "rows=300 cols=3001 +weight +dweight +dbias"},
    {"rmsnorm_forward", "rows", 1, "rows=300 cols=3001"},
    {"rmsnorm_backward", "rows", 1, "rows=300 cols=3001 +weight +dweight"},
    {"activation_forward", "rows", 1, "rows=300 cols=3001"},
    {"activation_backward", "rows", 1, "rows=300 cols=3001"},
    {"activation_backward", "rows", 1, "rows=300 cols=3001 +row_weights +weighted_y +drow_weights"},
    {"cast", "rows", 1, "rows=300 cols=3001"},
    {"rope_forward", "batch", 1, "batch=7 seqlen=99 num_heads=9 head_dim=96"},
    {"rope_backward", "batch", 1, "batch=7 seqlen=99 num_heads=9 head_dim=96"},
    {"embedding_forward", "tokens", 1, "tokens=3000 vocab=777 hidden=301"},
    {"cross_entropy_forward", "rows", 1, "rows=70 vocab=20011"},
    {"cross_entropy_backward", "rows", 1, "rows=70 vocab=20011"},
    {"sample", "rows", 1, "rows=5 vocab=20000 temperature=1 top_k=50 top_p=0.9 +row_seed", 0, true},
    {"moe_route_forward", "tokens", 1, "tokens=300 num_experts=130 top_k=5"},
    {"moe_combine_forward", "tokens", 1,
     "tokens=300 top_k=5 hidden=1001 num_rows=1400 +weights +shared +shared_gate +residual"},
    {"moe_combine_backward", "tokens", 1,
     "tokens=300 top_k=5 hidden=1001 num_rows=1400 +token_rows +rows +weights +shared +shared_gate "
     "+drows +dweights +dshared +dshared_gate"},
    {"moe_forward", "tokens", 1,
     "tokens=90 hidden=130 intermediate=40 experts=9 top_k=3 shared_intermediate=20 +router "
     "+w_gate "
     "+shared_w_gate +shared_w_up +shared_w_down +shared_gate",
     TSR_BATCH_INVARIANT, true},
    {"matmul_forward", "m", 17, "m=300 n=257 k=1100"},
    {"matmul_forward", "m", 17, "m=1500 n=33 k=515 +bias"},
    {"matmul_forward", "m", 17, "m=40 n=1500 k=130"},
    {"matmul_forward", "batch", 2, "batch=9 m=33 n=65 k=1030"},
    {"matmul_forward", "m", 1, "m=300 n=257 k=1100", TSR_BATCH_INVARIANT},
    {"matmul_forward", "m", 1, "m=1500 n=33 k=515 +bias", TSR_BATCH_INVARIANT},
    {"matmul_backward", "m", 1, "m=300 n=257 k=300 +da +db", TSR_BATCH_INVARIANT},
};

// The dimension of a slot that the parameter counts; -1: none, -2: its size does not match.
static int sliced_dim(const struct op_case *all, const struct op_case *few, int s) {
    int64_t shape[TSR_MAX_DIMS], few_shape[TSR_MAX_DIMS];
    int ndim = all->spec->shape(all, s, shape), sliced = -1;
    if (ndim != all->spec->shape(few, s, few_shape)) return -2;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] == few_shape[d]) continue;
        if (sliced != -1) return -2;
        sliced = d;
    }
    return sliced;
}

// Returns whether the elements of a view equal those at the same offsets in another buffer.
static bool same_elements(const tsr_tensor *t, const void *base, const void *other_base) {
    int64_t index[TSR_MAX_DIMS] = {0};
    size_t bytes = tsr_dtype_bytes(t->dtype);
    if (tsr_tensor_numel(t) == 0) return true;
    for (;;) {
        int64_t offset = 0;
        for (int d = 0; d < t->ndim; d++) offset += index[d] * t->stride[d];
        const char *element = (const char *)t->data + offset * (int64_t)bytes;
        ptrdiff_t at = element - (const char *)base;
        if (memcmp(element, (const char *)other_base + at, bytes) != 0) return false;
        int d = t->ndim - 1;
        while (d >= 0 && ++index[d] == t->shape[d]) index[d--] = 0;
        if (d < 0) return true;
    }
}

// Runs `count` rows from `first` on with views of the same tensors, and compares the results.
static bool check_slice(struct tool_case *tc, const struct invariant *invariant, int64_t first,
                        int64_t count, void *const *full, tsr_context *ctx) {
    const struct op_case *all = &tc->tensors.c;
    struct op_case few = *all;
    int param = spec_param(all->spec, invariant->param), num_compared = 0;
    few.param[param] = (double)count;
    int dims[SPEC_MAX_SLOTS];
    for (int s = 0; all->spec->slots[s].name != NULL; s++) {
        if (!all->is_present[s]) continue;
        dims[s] = sliced_dim(all, &few, s);
        if (dims[s] == -2) return false;
        if (dims[s] < 0) continue;
        tsr_tensor *t = &few.tensor[s];
        t->data = (char *)t->data + first * t->stride[dims[s]] * (int64_t)tsr_dtype_bytes(t->dtype);
        t->shape[dims[s]] = count;
    }
    tool_case_reset(tc);
    assert_ok(tool_call(ctx, &few, NULL));
    for (int s = 0; all->spec->slots[s].name != NULL; s++) {
        if (!tool_is_output(all, s) || dims[s] < 0) continue;
        num_compared++;
        if (!same_elements(&few.tensor[s], tc->tensors.buffer[s].base, full[s]))
            fail_case(all, NULL, tsr_context_isa(ctx), all->spec->slots[s].name);
    }
    return num_compared > 0;
}

static bool check_invariance(struct tool_case *tc, const struct invariant *invariant,
                             struct rng *rng, tsr_isa isa) {
    const struct op_case *c = &tc->tensors.c;
    int64_t rows = (int64_t)c->param[spec_param(c->spec, invariant->param)];
    void *full[SPEC_MAX_SLOTS] = {NULL};
    tool_case_reset(tc);
    assert_ok(tool_call(contexts[isa][2], c, NULL));
    for (int s = 0; c->spec->slots[s].name != NULL; s++)
        if (tool_is_output(c, s)) {
            full[s] = malloc(tc->tensors.buffer[s].bytes);
            memcpy(full[s], tc->tensors.buffer[s].base, tc->tensors.buffer[s].bytes);
        }
    bool is_compared = true;
    for (int i = 0; i < 6 && is_compared; i++) {
        int64_t count = i < 3 ? invariant->least : rng_int(rng, invariant->least, rows);
        int64_t first = i == 0 ? 0 : rng_int(rng, 0, rows - count);
        is_compared = check_slice(tc, invariant, first, count, full, contexts[isa][i % NUM_COUNTS]);
    }
    for (int s = 0; s < SPEC_MAX_SLOTS; s++) free(full[s]);
    return is_compared;
}

static void rows_do_not_depend_on_each_other(void **state) {
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    struct rng rng = {20260202};
    for (int i = 0; i < COUNT(invariants); i++) {
        const struct invariant *invariant = &invariants[i];
        const struct op_spec *spec = spec_find(invariant->op);
        assert_non_null(spec);
        int num_compared = 0, num_tries = TEST_IS_SLOW ? 9 : 24;
        for (int tries = 0, draws = 0; tries < num_tries && draws < 20 * num_tries; draws++) {
            struct op_case c = tool_draw(spec, dtypes[draws % 3], &rng);
            char error[256];
            if ((draws < 2 && !TEST_HAS_TSAN) || invariant->has_no_others) {
                c = case_default(spec);
                c.dtype = c.small_dtype = dtypes[draws % 3];
                if (!case_set(&c, invariant->large, error, sizeof error)) fail_msg("%s", error);
            }
            if ((int64_t)c.param[spec_param(spec, invariant->param)] < invariant->least + 1)
                continue; // drawn too small
            tries++;
            c.flags = invariant->flags;
            struct tool_case tc;
            tool_case_create(&tc, &c, LAYOUT_RANDOM, &rng);
            for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++)
                if (contexts[isa][0] != NULL)
                    num_compared += check_invariance(&tc, invariant, &rng, (tsr_isa)isa);
            tool_case_release(&tc);
        }
        if (num_compared == 0) fail_msg("%s: nothing was compared", invariant->op);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_for_any_number_of_threads),
        cmocka_unit_test(the_same_nan_for_any_number_of_threads),
        cmocka_unit_test(rows_do_not_depend_on_each_other),
    };
    return cmocka_run_group_tests_name("determinism", tests, setup, teardown);
}
