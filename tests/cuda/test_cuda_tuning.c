// SPDX-License-Identifier: Apache-2.0
// Tuning rows of matmul on CUDA without a GPU: every reported choice can be selected and is then used, promises keep
// the built-in choice, and choices that no plan can have are ignored.
#define _GNU_SOURCE
#include <math.h>
#include <unistd.h>

#include "fake_libraries.h"
#include "library/op_list.h"
#include "matmul_cuda_case.h"
#include "test_support.h"

static char folder[] = "/tmp/test_cuda_tuning_XXXXXX", path[96];

static int make_folder(void **state) {
    (void)state;
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(path, sizeof path, "%s/tuning", folder);
    setenv("TSR_CACHE_DIR", folder, 1);
    setenv("TSR_KERNEL_PACK", "/nowhere/pack", 1);
    fake_libraries_install();
    return 0;
}

static int remove_folder(void **state) {
    char command[96];
    (void)state;
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command);
}

static struct matmul_problem problem(tsr_dtype dtype, int64_t m, int64_t n, int64_t k) {
    return product_of(dtype, dtype, dtype, m, n, k);
}

static struct tsri_plan plan_of(const struct matmul_problem *p, const struct tsri_limits *limits,
                                uint32_t flags) {
    struct tsri_plan plan;
    const struct tsri_call call = {.size = sizeof call, .flags = flags};
    assert_ok(tsri_op_plan(&tsri_matmul_forward_op, p, limits, &call, &plan));
    return plan;
}

// Plans with a tuning file that has one row: device, dtype, sizes, choice.
static struct tsri_plan plan_with(const struct matmul_problem *p, const char *device,
                                  const char *sizes, const char *choice, uint32_t flags) {
    struct tsri_tuning tuning;
    struct tsri_limits limits = hopper;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "tessera-tuning 1\nmatmul_forward %s %s %s %s\n", device,
            tsr_dtype_name(p->a.dtype), sizes, choice);
    assert_int_equal(fclose(file), 0);
    tsri_tuning_open(&tuning, path, tsri_op_find, &limits);
    if (tuning.table != NULL) limits.tuning = &tuning;
    const struct tsri_plan plan = plan_of(p, &limits, flags);
    tsri_tuning_close(&tuning);
    return plan;
}

static void assert_same(const struct tsri_plan *a, const struct tsri_plan *b) {
    assert_string_equal(a->variant->name, b->variant->name);
    assert_int_equal(a->block_m, b->block_m);
    assert_int_equal(a->block_n, b->block_n);
    assert_int_equal(a->block_k, b->block_k);
    assert_int_equal(a->grain, b->grain);
    assert_int_equal(a->num_tasks, b->num_tasks);
    assert_int_equal(a->workspace_bytes, b->workspace_bytes);
}

static const struct {
    tsr_dtype dtype;
    int64_t m, n, k;
    int choices; // minimum number of choices
} shapes[] = {{TSR_BF16, 4096, 4096, 4096, 40},
              {TSR_F16, 16, 4096, 4096, 40},
              {TSR_BF16, 1, 4096, 4096, 40},
              {TSR_BF16, 1000, 1003, 997, 15},
              {TSR_F32, 512, 512, 512, 4},
              {TSR_E4M3, 512, 512, 512, 2},
              {TSR_BF16, 1, 8, 8, 2}};

// Plans use every reported choice, and the one with the least time is the built-in choice of its variant.
static void every_choice_is_taken(void **state) {
    (void)state;
    for (int s = 0; s < COUNT(shapes); s++) {
        struct matmul_problem p = problem(shapes[s].dtype, shapes[s].m, shapes[s].n, shapes[s].k);
        if (p.a.dtype == TSR_E4M3) p.c.dtype = TSR_BF16;
        const struct tsri_plan built_in = plan_of(&p, &hopper, 0);
        struct tsri_tuning_choice choice, least = {.ns = INFINITY};
        int count = 0;
        char sizes[64], text[96];
        snprintf(sizes, sizeof sizes, "%dx%dx%dx1", (int)p.m, (int)p.n, (int)p.k);
        for (int i = 0; matmul_cuda_choice(&p, &hopper, i, &choice); i++) {
            if (isinf(choice.ns)) continue;
            assert_true(choice.ns >= 1000 && choice.ns < 1e9);
            tsri_tuning_choice_text(&choice, text, sizeof text);
            const struct tsri_plan plan = plan_with(&p, "sm_90/132", sizes, text, 0);
            assert_string_equal(plan.variant->name, choice.variant);
            if (choice.block[0] > 0) {
                assert_int_equal(plan.block_m, choice.block[0]);
                assert_int_equal(plan.block_n, choice.block[1]);
            }
            const bool has_splits = strcmp(choice.variant, "cuda-mma") == 0 ||
                                    strcmp(choice.variant, "cuda-fma") == 0 ||
                                    strcmp(choice.variant, "cuda-split") == 0;
            if (has_splits) assert_int_equal(plan.grain, choice.block[2]);
            if (strcmp(choice.variant, built_in.variant->name) == 0 && choice.ns < least.ns)
                least = choice;
            count++;
        }
        assert_true(count >= shapes[s].choices);
        tsri_tuning_choice_text(&least, text, sizeof text);
        const struct tsri_plan plan = plan_with(&p, "sm_90/132", sizes, text, 0);
        assert_same(&plan, &built_in);
    }
}

// The third number selects the cluster. Without it the cost model chooses.
static void clusters(void **state) {
    (void)state;
    const struct matmul_problem p = problem(TSR_BF16, 4096, 4096, 4096);
    int num_tiles;
    const struct matmul_cuda_tile *tiles = matmul_cuda_tiles(MATMUL_WGMMA, &num_tiles);
    for (int i = 0; i < num_tiles; i++) {
        char text[64];
        snprintf(text, sizeof text, "cuda-wgmma %dx%dx%d", tiles[i].block_m, tiles[i].block_n,
                 tiles[i].cluster > 1 ? tiles[i].cluster : 1);
        assert_int_equal(plan_with(&p, "sm_90/132", "*", text, 0).block_k, i);
    }
    const struct tsri_plan plan = plan_with(&p, "sm_90/132", "*", "cuda-wgmma 128x128", 0);
    assert_int_equal(plan.block_n, 128);
    assert_true(tiles[plan.block_k].in_turns);
}

static void promises_and_what_cannot_be(void **state) {
    (void)state;
    static const uint32_t flags[] = {TSR_BATCH_INVARIANT, TSR_DETERMINISTIC,
                                     TSR_BATCH_INVARIANT | TSR_DETERMINISTIC};
    const struct matmul_problem p = problem(TSR_BF16, 16, 4096, 4096);
    const struct tsri_plan built_in = plan_of(&p, &hopper, 0);
    for (int i = 0; i < COUNT(flags); i++) {
        const struct tsri_plan plain = plan_of(&p, &hopper, flags[i]);
        static const char *const choices[] = {"cuda-mma 32x128x8", "cuda-split 16x128x8",
                                              "cuda-wgmma 128x128x1", "cuda-fma"};
        for (int c = 0; c < COUNT(choices); c++) {
            const struct tsri_plan plan = plan_with(&p, "sm_90/132", "*", choices[c], flags[i]);
            assert_same(&plan, &plain); // also splits of its own variant
            assert_string_not_equal(plan_with(&p, "sm_90/132", "*", choices[c], 0).variant->name,
                                    c == 1 ? "cuda-mma" : "cuda-split");
        }
    }
    // Blocks that do not exist leave the variant's own choice.
    const struct tsri_plan mma = plan_with(&p, "sm_90/132", "*", "cuda-mma", 0);
    static const char *const absent[] = {"cuda-mma 48x48x1", "cuda-mma 32x128x7",
                                         "cuda-mma 4096x4096x4096", "cuda-mma 0x0"};
    for (int i = 0; i < COUNT(absent); i++) {
        const struct tsri_plan plan = plan_with(&p, "sm_90/132", "*", absent[i], 0);
        assert_same(&plan, &mma);
    }
    // A cluster needs two rows of tiles.
    const struct tsri_plan wgmma = plan_with(&p, "sm_90/132", "*", "cuda-wgmma", 0),
                           clustered = plan_with(&p, "sm_90/132", "*", "cuda-wgmma 128x256x2", 0);
    int num_tiles;
    assert_true(matmul_cuda_tiles(MATMUL_WGMMA, &num_tiles)[wgmma.block_k].cluster <= 1);
    assert_same(&clustered, &wgmma);
    // Rows for another GPU, another size or a CPU variant, and words that are no blocks, are ignored.
    static const char *const rows[][3] = {{"sm_90/114", "*", "cuda-mma"},
                                          {"sm_80/132", "*", "cuda-mma"},
                                          {"sm_90/132", "32x4096x4096x1", "cuda-mma"},
                                          {"sm_90/132", "16x4097x4096x1", "cuda-mma"},
                                          {"sm_90/132", "16x4096x4096", "cuda-mma"},
                                          {"sm_90/132", "*", "packed 96x128"},
                                          {"sm_90/132", "*", "cuda-mma 1x2x3x4"},
                                          {"sm_90/132", "*", "cuda-mma 64"},
                                          {"sm_90/132", "*", "cuda-mma x"},
                                          {"sm_90/132", "*", "reference"}};
    for (int i = 0; i < COUNT(rows); i++) {
        const struct tsri_plan plan = plan_with(&p, rows[i][0], rows[i][1], rows[i][2], 0);
        assert_same(&plan, &built_in);
    }
}

// ---- Of a context -------------------------------------------------------------------------------

enum { M = 16, N = 256, K = 512 };
static _Alignas(16) uint16_t a[M * K], b[N * K], c[M * N];

static tsr_tensor matrix(void *data, int rows, int cols) {
    tsr_tensor t = TSR_TENSOR(data, TSR_BF16, rows, cols);
    t.device = (tsr_device){TSR_CUDA, 0};
    return t;
}

static void a_context_tells(void **state) {
    (void)state;
    tsr_context *ctx;
    size_t bytes;
    double ns = 0;
    char key[192], text[64], word[32];
    assert_ok(
        tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}, .tuning_file = ""), &ctx));
    assert_string_equal(tsr_context_tuning_key(ctx), ""); // nothing was prepared
    assert_null(tsr_context_tuning_choice(ctx, 0, &ns));
    tsr_matmul_forward_args args =
        TSR_MATMUL_FORWARD_ARGS(.a = matrix(a, M, K), .b = matrix(b, N, K), .c = matrix(c, M, N),
                                .transpose_b = 1);
    assert_ok(tsr_matmul_forward_prepare(ctx, &args, &bytes));
    snprintf(key, sizeof key, "%s", tsr_context_tuning_key(ctx));
    assert_string_equal(key, "matmul_forward sm_90/4 bf16 16x256x512x1");
    int count = 0;
    for (const char *choice; (choice = tsr_context_tuning_choice(ctx, count, &ns)) != NULL;
         count++) {
        assert_int_equal(sscanf(choice, "%31s", word), 1);
        assert_int_equal(strncmp(word, "cuda-", 5), 0);
        assert_true(isfinite(ns) && ns > 0);
        snprintf(text, sizeof text, "%s", choice);
    }
    assert_true(count > 10);
    assert_non_null(tsr_context_tuning_choice(ctx, count - 1, NULL));
    assert_null(tsr_context_tuning_choice(ctx, -1, NULL));
    assert_string_equal(tsr_context_tuning_key(ctx), key); // a second request
    args.flags = TSR_DETERMINISTIC;
    assert_ok(tsr_matmul_forward_prepare(ctx, &args, &bytes));
    assert_null(tsr_context_tuning_choice(ctx, 0, &ns)); // no row is used
    // Operations without tuning have no key.
    assert_ok(
        tsr_cast_prepare(ctx, &TSR_CAST_ARGS(.x = matrix(a, M, K), .y = matrix(b, M, K)), &bytes));
    assert_string_equal(tsr_context_tuning_key(ctx), "");
    assert_null(tsr_context_tuning_choice(ctx, 0, &ns));
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_choice_is_taken),
        cmocka_unit_test(clusters),
        cmocka_unit_test(promises_and_what_cannot_be),
        cmocka_unit_test(a_context_tells),
    };
    return cmocka_run_group_tests_name("tuning on CUDA", tests, make_folder, remove_folder);
}
