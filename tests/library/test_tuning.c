// SPDX-License-Identifier: Apache-2.0
// Tuning files: a row is used if the call leaves the choice open. Nothing else in a file changes a call, however
// damaged the file is.
#define _GNU_SOURCE
#include "test_support.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HEAD "tessera-tuning 1\n"

static char folder[] = "/tmp/test_tuning_XXXXXX", path[64];

static int make_folder(void **state) {
    (void)state;
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(path, sizeof path, "%s/tuning", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

static void write_bytes(const void *bytes, size_t count) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static tsr_context *open_context(const char *tuning_file) {
    tsr_context *ctx;
    assert_int_equal(tsr_context_create(
                         &TSR_CONTEXT_OPTIONS(.num_threads = 2, .tuning_file = tuning_file), &ctx),
                     TSR_OK);
    return ctx;
}

// ---- Calls ------------------------------------------------------------------------------------

enum { MAX_M = 96, N = 64, K = 80 };
static float a[MAX_M * K], b[K * N], c[MAX_M * N], expected[MAX_M * N];

static int fill(void **state) {
    uint64_t seed = 5;
    for (int i = 0; i < MAX_M * K; i++) a[i] = test_float(&seed);
    for (int i = 0; i < K * N; i++) b[i] = test_float(&seed);
    return make_folder(state);
}

static tsr_matmul_forward_args matmul_args(int m, uint32_t flags) {
    return TSR_MATMUL_FORWARD_ARGS(.flags = flags, .a = TSR_TENSOR(a, TSR_F32, m, K),
                                   .b = TSR_TENSOR(b, TSR_F32, K, N),
                                   .c = TSR_TENSOR(c, TSR_F32, m, N));
}

static const char *matmul(tsr_context *ctx, int m, uint32_t flags) {
    tsr_matmul_forward_args args = matmul_args(m, flags);
    memset(c, 0xff, sizeof c);
    assert_int_equal(tsr_matmul_forward(ctx, &args), TSR_OK);
    return tsr_context_last_variant(ctx);
}

enum { NUM_INVARIANT = 6 };
static tsr_status invariant_call(tsr_context *ctx, int call, uint32_t flags, float *to) {
    tsr_tensor x = TSR_TENSOR(a, TSR_F32, MAX_M, N), y = TSR_TENSOR(to, TSR_F32, MAX_M, N);
    switch (call) {
    case 0:
        return tsr_softmax_forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.flags = flags, .x = x, .y = y));
    case 1:
        return tsr_softmax_backward(
            ctx, &TSR_SOFTMAX_BACKWARD_ARGS(.flags = flags, .y = x, .dy = x, .dx = y));
    case 2:
        return tsr_layernorm_forward(ctx,
                                     &TSR_LAYERNORM_FORWARD_ARGS(.flags = flags, .x = x, .y = y));
    case 3:
        return tsr_rmsnorm_forward(ctx, &TSR_RMSNORM_FORWARD_ARGS(.flags = flags, .x = x, .y = y));
    case 4:
        return tsr_activation_forward(ctx,
                                      &TSR_ACTIVATION_FORWARD_ARGS(.flags = flags, .x = x, .y = y,
                                                                   .kind = TSR_ACTIVATION_GELU));
    default:
        return tsr_matmul_forward(
            ctx, &TSR_MATMUL_FORWARD_ARGS(.flags = flags, .a = TSR_TENSOR(a, TSR_F32, MAX_M, K),
                                          .b = TSR_TENSOR(b, TSR_F32, K, N), .c = y));
    }
}

// The key of a matmul's row on this machine.
static void matmul_key(int m, char key[192]) {
    tsr_context *ctx = open_context("");
    tsr_matmul_forward_args args = matmul_args(m, 0);
    size_t bytes;
    assert_int_equal(tsr_matmul_forward_prepare(ctx, &args, &bytes), TSR_OK);
    snprintf(key, 192, "%s", tsr_context_tuning_key(ctx));
    tsr_context_destroy(ctx);
}

static tsr_context *with_row(const char *key, const char *choice) {
    char text[512];
    int length = snprintf(text, sizeof text, HEAD "%s %s\n", key, choice);
    write_bytes(text, (size_t)length);
    return open_context(path);
}

// ---- Rows -------------------------------------------------------------------------------------

static void test_a_row_is_obeyed(void **state) {
    (void)state;
    char key[192], built_in[32];
    matmul_key(64, key);
    assert_int_equal(strncmp(key, "matmul_forward ", 15), 0);
    assert_non_null(strstr(key, " f32 64x64x64x1")); // 80 is nearest to 64
    tsr_context *plain = open_context("");
    snprintf(built_in, sizeof built_in, "%s", matmul(plain, 64, 0));
    assert_string_not_equal(built_in, "packed");
    memcpy(expected, c, sizeof c);
    static const char *const choices[] = {
        "packed", "local", "direct", "packed 12x16 # why", "local 1x1", "direct 4096x4096"};
    for (int i = 0; i < COUNT(choices); i++) {
        tsr_context *ctx = with_row(key, choices[i]);
        const char *variant = matmul(ctx, 64, 0);
        assert_int_equal(strncmp(variant, choices[i], strlen(variant)), 0);
        assert_memory_equal(c, expected, sizeof(float) * 64 * N); // bitwise
        assert_string_equal(matmul(ctx, 64, TSR_DETERMINISTIC | TSR_BATCH_INVARIANT), variant);
        assert_memory_equal(c, expected, sizeof(float) * 64 * N);
        tsr_matmul_forward_args args = matmul_args(64, 0);
        args.variant = "naive"; // the caller's variant has priority
        assert_int_equal(tsr_matmul_forward(ctx, &args), TSR_OK);
        assert_string_equal(tsr_context_last_variant(ctx), "naive");
        // Another bucket: 24 is nearest to 32.
        assert_string_equal(matmul(ctx, 24, 0), matmul(plain, 24, 0));
        tsr_context_destroy(ctx);
    }
    tsr_context_destroy(plain);
}

static void test_blocks_cut_the_work(void **state) {
    (void)state;
    enum { WIDE = 1024 };
    static float wide_b[K * WIDE], wide_c[MAX_M * WIDE];
    tsr_matmul_forward_args args =
        TSR_MATMUL_FORWARD_ARGS(.a = TSR_TENSOR(a, TSR_F32, MAX_M, K),
                                .b = TSR_TENSOR(wide_b, TSR_F32, K, WIDE),
                                .c = TSR_TENSOR(wide_c, TSR_F32, MAX_M, WIDE));
    size_t bytes[2];
    char key[192];
    tsr_context *ctx = open_context("");
    assert_int_equal(tsr_matmul_forward_prepare(ctx, &args, &bytes[0]), TSR_OK);
    snprintf(key, sizeof key, "%s", tsr_context_tuning_key(ctx));
    tsr_context_destroy(ctx);
    for (int i = 0; i < 2; i++) {
        ctx = with_row(key, i == 0 ? "local 96x64" : "local 96x128");
        assert_int_equal(tsr_matmul_forward_prepare(ctx, &args, &bytes[i]), TSR_OK);
        assert_string_equal(tsr_context_last_variant(ctx), "local");
        tsr_context_destroy(ctx);
    }
    assert_int_equal(bytes[1], 2 * bytes[0]); // a thread's panels grow with a block's columns
}

static void test_a_row_that_cannot_serve_is_ignored(void **state) {
    (void)state;
    char key[192];
    matmul_key(64, key);
    tsr_context *plain = open_context("");
    const char *built_in = matmul(plain, 64, 0);
    static const char *const choices[] = {
        "skinny",    // only up to 16 rows
        "naive",     // other bits above 16 rows
        "cuda-mma",  // another device
        "reference", // the oracle
        "marvellous" // another version
    };
    for (int i = 0; i < COUNT(choices); i++) {
        tsr_context *ctx = with_row(key, choices[i]);
        assert_string_equal(matmul(ctx, 64, 0), built_in);
        tsr_context_destroy(ctx);
    }
    static const char *const keys[] = {
        "matmul_forward other/1K/1K f32 *", "matmul_forward avx512/2048K f32 64x64x64x1",
        "no_such_op avx512/1K/1K f32 64", "softmax_forward x f32 64"};
    for (int i = 0; i < COUNT(keys); i++) {
        tsr_context *ctx = with_row(keys[i], "packed");
        assert_string_equal(matmul(ctx, 64, 0), built_in);
        tsr_context_destroy(ctx);
    }
    tsr_context_destroy(plain);
}

static void test_flags_keep_the_built_in_choice(void **state) {
    (void)state;
    char key[192];
    matmul_key(4, key);
    tsr_context *plain = open_context(""), *ctx = with_row(key, "naive");
    static const uint32_t flags[] = {TSR_BATCH_INVARIANT, TSR_DETERMINISTIC,
                                     TSR_BATCH_INVARIANT | TSR_DETERMINISTIC};
    assert_string_equal(matmul(ctx, 4, 0), "naive"); // so few rows have no promise
    for (int i = 0; i < COUNT(flags); i++)
        assert_string_equal(matmul(ctx, 4, flags[i]), matmul(plain, 4, flags[i]));
    tsr_context_destroy(ctx);
    tsr_context_destroy(plain);
}

// Calls whose results must not depend on the rest of a batch keep their bits with any file: softmax, the norms and
// activations, and matmul above 16 rows.
static void test_batch_invariant_calls_keep_their_bits(void **state) {
    (void)state;
    char key[192], device[64];
    matmul_key(64, key);
    assert_int_equal(sscanf(key, "%*s %63s", device), 1);
    tsr_context *plain = open_context("");
    for (int op = 0; op < tsr_op_count(); op++)
        for (int v = 0; v < tsr_variant_count(tsr_op_name(op)); v++) {
            tsr_variant_info info;
            assert_int_equal(tsr_variant_info_get(tsr_op_name(op), v, &info), TSR_OK);
            char row[192];
            snprintf(row, sizeof row, "%s %s f32 *", tsr_op_name(op), device);
            tsr_context *ctx = with_row(row, info.name);
            for (int call = 0; call < NUM_INVARIANT; call++)
                for (uint32_t flags = 0; flags < 4; flags++) {
                    memset(c, 0, sizeof c);
                    memset(expected, 0, sizeof expected);
                    assert_int_equal(invariant_call(plain, call, flags, expected), TSR_OK);
                    assert_int_equal(invariant_call(ctx, call, flags, c), TSR_OK);
                    assert_memory_equal(c, expected, sizeof c);
                }
            tsr_context_destroy(ctx);
        }
    tsr_context_destroy(plain);
}

// A row is found at any place among very many others, and these do not slow a call down.
static void test_many_rows(void **state) {
    (void)state;
    enum { ROWS = 15000, CALLS = 200, TRIES = 60 };
    char key[192];
    matmul_key(64, key);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(HEAD, file);
    for (int i = 0; i < ROWS; i++) {
        if (i == ROWS / 2) fprintf(file, "%s packed\n%s local\n", key, key);
        fprintf(file, "matmul_forward avx512/9K/9K f32 %dx%dx1x1 local\n", 1 << i % 20, i);
    }
    assert_int_equal(fclose(file), 0);
    tsr_context *contexts[] = {open_context(""), open_context(path)};
    double best[2] = {1e9, 1e9};
    assert_string_equal(matmul(contexts[1], 64, 0), "packed"); // the first of two
    tsr_matmul_forward_args args = TSR_MATMUL_FORWARD_ARGS(.a = TSR_TENSOR(a, TSR_F32, 2, 2),
                                                           .b = TSR_TENSOR(b, TSR_F32, 2, 2),
                                                           .c = TSR_TENSOR(c, TSR_F32, 2, 2));
    for (int i = 0; i < 2 * TRIES; i++) {
        struct timespec start, end;
        clock_gettime(CLOCK_MONOTONIC, &start);
        for (int n = 0; n < CALLS; n++) tsr_matmul_forward(contexts[i % 2], &args);
        clock_gettime(CLOCK_MONOTONIC, &end);
        double took = (double)(end.tv_sec - start.tv_sec) * 1e9;
        took += (double)(end.tv_nsec - start.tv_nsec);
        if (took < best[i % 2]) best[i % 2] = took;
    }
    assert_true(best[1] < 2 * best[0]);
    for (int i = 0; i < 2; i++) tsr_context_destroy(contexts[i]);
}

static void test_any_size_and_the_first_row(void **state) {
    (void)state;
    char key[192], device[64], text[512];
    matmul_key(64, key);
    assert_int_equal(sscanf(key, "%*s %63s", device), 1);
    snprintf(text, sizeof text, "%s local\n# of all sizes\n\nmatmul_forward\t%s  fp32 *", key,
             device);
    tsr_context *ctx = with_row(text, "packed");
    assert_string_equal(matmul(ctx, 64, 0), "local");
    assert_string_equal(matmul(ctx, 24, 0), "packed");
    tsr_context_destroy(ctx);
}

// ---- Files ------------------------------------------------------------------------------------

static void expect_built_in(const char *file) {
    tsr_context *plain = open_context(""), *ctx = open_context(file);
    assert_string_equal(matmul(ctx, 64, 0), matmul(plain, 64, 0));
    tsr_context_destroy(ctx);
    tsr_context_destroy(plain);
}

static void test_damaged_files_are_ignored(void **state) {
    (void)state;
    char key[192], good[256], text[1024];
    matmul_key(64, key);
    snprintf(good, sizeof good, "%s packed\n", key);
    static const char *const bad[] = {"matmul_forward\n",
                                      "matmul_forward x f32\n",
                                      "matmul_forward x f32 64\n",
                                      "matmul_forward x f32 64x packed\n",
                                      "matmul_forward x f32 x64 packed\n",
                                      "matmul_forward x f32 -1 packed\n",
                                      "matmul_forward x f32 99999999999999999999 packed\n",
                                      "matmul_forward x f32 9223372036854775807 packed\n",
                                      "matmul_forward x f32 1x1x1x1x1 packed\n",
                                      "matmul_forward x f32 1 packed 8\n",
                                      "matmul_forward x f32 1 packed 8x8x8x8\n",
                                      "matmul_forward x f32 1 packed 8x99999\n",
                                      "matmul_forward x f32 1 packed 8x8 more\n",
                                      "a b c d e f g h i j k l m n\n",
                                      "\x01\x02\xff\xfe\n"};
    for (int i = 0; i < COUNT(bad); i++) {
        int length = snprintf(text, sizeof text, HEAD "%s%s", good, bad[i]);
        write_bytes(text, (size_t)length);
        expect_built_in(path);
    }
    static const char *const heads[] = {"",
                                        "\n",
                                        "tessera-tuning 2\n",
                                        "tessera-tuning 10\n",
                                        " tessera-tuning 1\n",
                                        "{\"schema\": 1}\n"};
    for (int i = 0; i < COUNT(heads); i++) {
        int length = snprintf(text, sizeof text, "%s%s", heads[i], good);
        write_bytes(text, (size_t)length);
        expect_built_in(path);
    }
    // A truncated file is read or ignored, and no partial word is used.
    int length = snprintf(text, sizeof text, HEAD "%s", good);
    for (int cut = 0; cut < length - 1; cut++) {
        write_bytes(text, (size_t)cut);
        expect_built_in(path);
    }
    write_bytes(HEAD "matmul\0forward", sizeof HEAD + 14);
    expect_built_in(path);
}

static void test_what_is_no_file_is_ignored(void **state) {
    (void)state;
    char key[192], row[256], missing[96];
    expect_built_in(folder);
    snprintf(missing, sizeof missing, "%s/none/tuning", folder);
    expect_built_in(missing);
    (void)unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_built_in(path); // does not wait for a writer
    assert_int_equal(unlink(path), 0);

    matmul_key(64, key);
    int length = snprintf(row, sizeof row, "%s packed\n", key);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(HEAD, file);
    for (int written = 0; written <= 1 << 20; written += length) fputs(row, file);
    assert_int_equal(fclose(file), 0);
    expect_built_in(path); // larger than tune writes
    if (geteuid() != 0) {  // root reads everything
        tsr_context_destroy(with_row(key, "packed"));
        assert_int_equal(chmod(path, 0), 0);
        expect_built_in(path);
    }
}

static void test_path(void **state) {
    (void)state;
    char got[64];
    assert_int_equal(setenv("TSR_TUNING_FILE", "/a/b", 1), 0);
    assert_int_equal(setenv("TSR_CACHE_DIR", "/cache", 1), 0);
    assert_int_equal(tsr_tuning_path(got, sizeof got), TSR_OK);
    assert_string_equal(got, "/a/b");
    assert_int_equal(unsetenv("TSR_TUNING_FILE"), 0);
    assert_int_equal(tsr_tuning_path(got, sizeof got), TSR_OK);
    assert_string_equal(got, "/cache/tuning");
    assert_int_equal(tsr_tuning_path(got, 14), TSR_OK);
    assert_int_equal(tsr_tuning_path(got, 13), TSR_INVALID_ARGUMENT);
    assert_int_equal(tsr_tuning_path(NULL, 99), TSR_INVALID_ARGUMENT);
    assert_int_equal(setenv("TSR_CACHE_DIR", "", 1), 0);
    assert_int_equal(setenv("XDG_CACHE_HOME", "relative", 1), 0);
    assert_int_equal(setenv("HOME", "/home/me", 1), 0);
    assert_int_equal(tsr_tuning_path(got, sizeof got), TSR_OK);
    assert_string_equal(got, "/home/me/.cache/tessera/tuning");
    assert_int_equal(unsetenv("HOME"), 0);
    assert_int_equal(tsr_tuning_path(got, sizeof got), TSR_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_row_is_obeyed),
        cmocka_unit_test(test_blocks_cut_the_work),
        cmocka_unit_test(test_a_row_that_cannot_serve_is_ignored),
        cmocka_unit_test(test_flags_keep_the_built_in_choice),
        cmocka_unit_test(test_batch_invariant_calls_keep_their_bits),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_any_size_and_the_first_row),
        cmocka_unit_test(test_damaged_files_are_ignored),
        cmocka_unit_test(test_what_is_no_file_is_ignored),
        cmocka_unit_test(test_path),
    };
    return cmocka_run_group_tests(tests, fill, remove_folder);
}
