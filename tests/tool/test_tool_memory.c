// SPDX-License-Identifier: Apache-2.0
// tessera memory: traffic counted by hand for simple shapes, rows of measured variants, and the written output.
#include "test_support.h"

#include <jansson.h>
#include <math.h>

#include "commands/command.h"
#include "measure/memory_rows.h"

static struct op_case make_case(const char *op, const char *params) {
    char error[256];
    struct op_case c = case_default(spec_find(op));
    if (!case_set(&c, params, error, sizeof error)) fail_msg("%s", error);
    return c;
}

// ---- Traffic ----------------------------------------------------------------------------------

static void expect_traffic(const struct op_case *c, const char *variant, double read, double write,
                           int num_passes) {
    struct op_traffic t;
    assert_true(traffic_of_variant(c, variant, &t));
    assert_int_equal(t.num_passes, num_passes);
    if (t.read_bytes != read || t.write_bytes != write)
        fail_msg("%s, %s: %g read and %g written, expected %g and %g", c->spec->op,
                 variant != NULL ? variant : "default", t.read_bytes, t.write_bytes, read, write);
}

static void test_traffic(void **state) {
    (void)state;
    struct op_traffic t;
    struct op_case c = make_case("softmax_forward", "rows=10 cols=100");
    expect_traffic(&c, NULL, 4000, 4000, 1);
    expect_traffic(&c, "fused", 4000, 4000, 1);
    expect_traffic(&c, "unfused", 12000, 8000, 3);

    // 2 x 4 heads of 100 tokens, 8 columns. A causal mask keeps half of the pairs and the diagonal.
    c = make_case("attention_forward",
                  "batch_size=2 num_heads=4 seqlen_q=100 seqlen_k=100 head_dim=8");
    double tensor = 2 * 4 * 100 * 8 * 4, pairs = 2 * 4 * 100 * 100 * 4;
    expect_traffic(&c, NULL, 3 * tensor, tensor, 1);
    expect_traffic(&c, "tuned", 3 * tensor, tensor, 1);
    expect_traffic(&c, "naive", 3 * tensor + 2 * pairs, tensor + 2 * pairs, 3);
    double kept =
        2 * 4 * 100 * 10 * 4; // out, maximum, denominator; one block of keys after the first
    expect_traffic(&c, "flash1", 4 * tensor + kept, tensor + kept, 1);
    assert_true(case_set(&c, "mask=causal", (char[64]){0}, 64));
    expect_traffic(&c, "naive", 3 * tensor + pairs * 1.01, tensor + pairs * 1.01, 3);
    assert_true(traffic_of(&c, true, &t) && t.num_passes == 3);
    assert_true(traffic_of(&c, false, &t) && t.num_passes == 1);

    // x, two projections and the tensors between them: 20 rows.
    c = make_case("self_attention_forward",
                  "batch_size=2 seqlen=10 embed_dim=16 num_heads=2 head_dim=8");
    double x = 20 * 16 * 4, scores = 2 * 2 * 10 * 10 * 4, weights = 4 * 16 * 16 * 4;
    expect_traffic(&c, NULL, x + weights + 3 * x + x, 3 * x + x + x, 3);
    expect_traffic(&c, "naive", 5 * x + weights + 2 * scores, 5 * x + 2 * scores, 5);

    c = make_case("matmul_forward", "m=10 n=20 k=30");
    expect_traffic(&c, NULL, 4 * (300 + 600), 800, 1);
    assert_false(traffic_of(&c, true, &t)); // its baseline is not an unfused form
}

// ---- Rows -------------------------------------------------------------------------------------

static void check_rows(const struct memory_rows *rows) {
    for (int i = 0; i < rows->count; i++) {
        const struct memory_row *row = &rows->items[i];
        assert_true(row->result.median_ms > 0 && row->floor_ms > 0 && row->num_launches >= 1);
        assert_true(row->result.predicted_bytes == row->tensor_bytes + row->workspace_bytes);
        assert_true(row->result.peak_bytes == row->result.predicted_bytes);
        assert_true(row->attainable_tflops * 1e12 <= 1.001 * rows->fma_flops);
        assert_true(row->bandwidth > 0 && row->intensity > 0);
    }
}

static void check_formats(const struct memory_rows *rows) {
    for (int format = FORMAT_MD; format <= FORMAT_JSON; format++) {
        static char text[65536];
        FILE *file = tmpfile();
        assert_non_null(file);
        assert_true(memory_rows_write(file, rows, (enum result_format)format));
        rewind(file);
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
        assert_non_null(strstr(text, "attention_forward"));
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "inf,"));
        if (format != FORMAT_JSON) continue;
        json_t *document = json_loads(text, 0, NULL);
        assert_non_null(document);
        const json_t *results = json_object_get(document, "results");
        assert_int_equal(json_array_size(results), rows->count);
        const json_t *first = json_array_get(results, 0);
        assert_string_equal(json_string_value(json_object_get(first, "form")), "unfused");
        assert_true(json_is_null(json_object_get(first, "bytes_saved")));
        assert_true(json_real_value(json_object_get(json_array_get(results, 1), "bytes_saved")) >
                    0);
        json_decref(document);
    }
}

static void test_rows(void **state) {
    (void)state;
    char error[256];
    struct measure_session *session =
        measure_open(&(struct measure_options){.num_rep = 2, .is_unproved = true, .seed = 1}, error,
                     sizeof error);
    assert_non_null(session);
    struct memory_rows rows = {0};
    enum measure_outcome outcomes[4];
    struct op_case c = make_case("attention_forward",
                                 "batch_size=1 num_heads=2 seqlen_q=700 seqlen_k=700 head_dim=16");
    memory_rows_add(&rows, session, &c, (const char *[]){"flash2", NULL, "naive", "nonsense"}, 4,
                    outcomes);
    assert_int_equal(outcomes[3], MEASURE_INVALID);
    assert_int_equal(rows.count, 3);
    assert_true(rows.items[0].is_baseline && !rows.items[1].is_baseline);
    assert_true(isnan(rows.items[0].traffic_saved));
    for (int i = 1; i < 3; i++) {
        assert_true(rows.items[i].bytes_saved > 0.5 && rows.items[i].bytes_saved < 1);
        assert_true(rows.items[i].traffic_saved > 0.9 && rows.items[i].traffic_saved < 1);
    }
    check_rows(&rows);
    check_formats(&rows);
    memory_rows_free(&rows);

    // The library's own estimate replaces prepare's bytes and is what the module uses.
    static const char *const modules[] = {"self_attention_forward", "self_attention_backward",
                                          "moe_forward", "moe_backward"};
    static const char *const params[][2] = {
        {"batch_size=2 seqlen=65 embed_dim=48 num_heads=4 num_kv_heads=2 head_dim=12",
         "batch_size=2 seqlen=65 embed_dim=48 num_heads=4 num_kv_heads=2 head_dim=12 +cos +sin"},
        {"tokens=70 hidden=48 intermediate=20 experts=5 top_k=2 +router",
         "tokens=70 hidden=48 intermediate=20 experts=5 top_k=2 capacity_factor=1 "
         "shared_intermediate=9 +router +w_gate +shared_w_gate +shared_w_up +shared_w_down"}};
    static const char *const extras[][2] = {
        {"+b_qkv +b_out +qkv +attention +lse", "+dx +dw_qkv +dw_out +db_qkv +db_out"},
        {"+topk_ids +topk_weights +preact", "+dx +drouter +dw_up +dw_down"}};
    static const char *const of_gates[] = {
        "+shared_preact", "+shared_preact +dw_gate +dshared_w_gate +dshared_w_up +dshared_w_down"};
    for (int i = 0; i < 16; i++) {
        const int module = i / 8, at = i % 8;
        c = make_case(modules[2 * module + at % 2], params[module][at / 2 % 2]);
        const bool has_extras = at >= 4 || at % 2 == 1;
        if (has_extras) assert_true(case_set(&c, extras[module][at % 2], error, sizeof error));
        if (has_extras && module == 1 && at / 2 % 2 == 1)
            assert_true(case_set(&c, of_gates[at % 2], error, sizeof error));
        tsr_context *ctx = test_context(2);
        assert_true(c.spec->predict(ctx, &c, NULL) > 0);
        tsr_context_destroy(ctx);
        memory_rows_add(&rows, session, &c, (const char *[]){NULL, "naive"}, 2 - module, outcomes);
    }
    assert_int_equal(rows.count, 24);
    check_rows(&rows);
    memory_rows_free(&rows);
    measure_close(session);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traffic),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
