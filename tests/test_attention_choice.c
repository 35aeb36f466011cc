// SPDX-License-Identifier: Apache-2.0
// Where few rows of forward go by decode's splits and where by tiles: either side of each boundary.
#include "context/op_table.h"
#include "ops/attention/attention_problem.h"
#include "test_support.h"

#include <string.h>

enum side { HEADS, SEQLEN, KEYS, DIMS };
enum unit { FMA, DOT, TILES };

// What serves a problem, and what serves it where one of its sides is one less.
struct boundary {
    int64_t heads, rows, keys, dims; // of keys and values
    enum side side;
    const char *below, *from;
};

struct machine {
    tsr_isa isa;
    tsr_dtype dtype;
    enum unit unit;
};

static const struct machine intel = {TSR_ISA_AVX512, TSR_F32, FMA},
                            tiles = {TSR_ISA_AVX512, TSR_BF16, TILES},
                            amd = {TSR_ISA_AVX512, TSR_F32, DOT},
                            dots = {TSR_ISA_AVX512, TSR_BF16, DOT},
                            halves = {TSR_ISA_AVX512, TSR_BF16, FMA},
                            avx2 = {TSR_ISA_AVX2, TSR_F32, FMA};

static const char *choice(struct machine machine, int num_threads, const struct boundary *b,
                          bool is_below) {
    int64_t sides[] = {b->heads, b->rows, b->keys, b->dims};
    sides[b->side] -= is_below;
    struct attention_problem p = {.dtype = machine.dtype,
                                  .num_batches = 1,
                                  .num_heads_q = sides[HEADS],
                                  .num_heads_kv = sides[HEADS],
                                  .seqlen_q = sides[SEQLEN],
                                  .seqlen_k = sides[KEYS],
                                  .total_k = sides[KEYS],
                                  .head_dim = sides[DIMS] / 2,
                                  .head_dim_v = sides[DIMS] - sides[DIMS] / 2};
    struct tsri_limits limits = {
        .isa = machine.isa, .num_threads = num_threads, .l2_bytes = 1 << 20};
    limits.bf16.has_dot = machine.unit != FMA;
    limits.bf16.is_dot_fast = machine.unit == DOT;
    limits.bf16.has_tiles = machine.unit == TILES;
    return attention_prefer_forward(&p, &limits);
}

// For any number of threads: bits follow the variant.
static void check(struct machine machine, const struct boundary *cases, int num_cases) {
    static const char *const sides[] = {"heads", "rows", "keys", "dims"};
    for (int i = 0; i < 2 * num_cases; i++) {
        const struct boundary *b = &cases[i / 2];
        int num_threads = i % 2 ? 16 : 1;
        const char *below = choice(machine, num_threads, b, true);
        const char *from = choice(machine, num_threads, b, false);
        if (strcmp(below, b->below) != 0 || strcmp(from, b->from) != 0)
            fail_msg(
                "%d heads, %d rows, %d keys, %d dims by %s: %s, then %s instead of %s, then %s",
                (int)b->heads, (int)b->rows, (int)b->keys, (int)b->dims, sides[b->side], below,
                from, b->below, b->from);
    }
}

// Tiles of bf16 serve most, but less of long sequences of some heads, whose rows are read together.
static void few_rows_beside_tiles(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {4, 4, 1024, 80, HEADS, "amx_bf16", "few"}, {4, 4, 1024, 80, KEYS, "amx_bf16", "few"},
        {4, 4, 1024, 80, DIMS, "amx_bf16", "few"},  {4, 5, 1024, 100, SEQLEN, "few", "amx_bf16"},
        {4, 5, 1024, 200, DIMS, "amx_bf16", "few"}, {4, 1, 64, 90, KEYS, "few", "flash2"},
        {4, 1, 512, 96, DIMS, "amx_bf16", "few"},   {4, 2, 512, 128, HEADS, "amx_bf16", "few"},
        {4, 2, 512, 128, DIMS, "amx_bf16", "few"},  {3, 2, 512, 192, DIMS, "amx_bf16", "few"},
    };
    if (!tsri_can_use_tiles(tsri_bf16_units())) skip();
    check(tiles, cases, COUNT(cases));
}

// vdpbf16ps on AMD: few rows of short sequences, and where keys and values of all heads are past the caches.
static void few_rows_beside_dots(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {2, 1, 1000, 96, DIMS, "avx512_bf16", "few"},
        {4, 1, 128, 80, KEYS, "few", "avx512_bf16"},
        {4, 1, 100, 80, HEADS, "avx512_bf16", "few"},
        {2, 2, 1000, 128, DIMS, "avx512_bf16", "few"},
        {4, 2, 64, 80, KEYS, "few", "avx512_bf16"},
        {1, 2, 64, 256, DIMS, "avx512_bf16", "few"},
        {1, 2, 24, 128, KEYS, "few", "avx512_bf16"},
        {2, 3, 100, 256, HEADS, "avx512_bf16", "few"},
        {4, 4, 17, 80, KEYS, "few", "flash2"},
        {2, 4, 17, 128, KEYS, "few", "avx512_bf16"},
        {4, 4, 8192, 128, KEYS, "avx512_bf16", "few"},
        {1, 8, 17, 256, KEYS, "few", "avx512_bf16"},
        {1, 9, 16, 256, SEQLEN, "few", "flash2"},
        {4, 8, 4096, 256, KEYS, "avx512_bf16", "few"},
        {4, 9, 4096, 256, SEQLEN, "few", "avx512_bf16"},
        {4, 16, 8192, 256, KEYS, "avx512_bf16", "few"},
        {4, 17, 8192, 256, SEQLEN, "few", "avx512_bf16"},
        // More rows: keys, more of heads that do not fill steps of 32, and of a few dims.
        {1, 40, 17, 64, KEYS, "flash2", "avx512_bf16"},
        {1, 40, 48, 48, KEYS, "flash2", "avx512_bf16"},
        {1, 40, 128, 32, KEYS, "tuned", "avx512_bf16"},
        {1, 40, 129, 32, KEYS, "avx512_bf16", "tuned"},
    };
    check(dots, cases, COUNT(cases));
}

// Backward by vdpbf16ps wants rows and keys that fill steps of 32.
static void gradients_by_dots(void **state) {
    (void)state;
    static const struct {
        int64_t rows, keys, dim;
        const char *choice;
    } cases[] = {
        {56, 56, 64, "avx512_bf16"},  {55, 64, 64, NULL},
        {64, 65, 64, NULL},           {500, 65, 64, NULL},
        {500, 63, 64, "avx512_bf16"}, {500, 56, 16, NULL},
        {127, 127, 40, NULL},         {128, 128, 40, "avx512_bf16"},
        {64, 64, 24, "avx512_bf16"},
    };
    struct tsri_limits limits = {.isa = TSR_ISA_AVX512, .num_threads = 1, .l2_bytes = 1 << 20};
    limits.bf16.has_dot = limits.bf16.is_dot_fast = true;
    for (int i = 0; i < COUNT(cases); i++) {
        struct attention_problem p = {.dtype = TSR_BF16,
                                      .num_batches = 1,
                                      .num_heads_q = 2,
                                      .num_heads_kv = 2,
                                      .seqlen_q = cases[i].rows,
                                      .seqlen_k = cases[i].keys,
                                      .head_dim = cases[i].dim,
                                      .head_dim_v = cases[i].dim};
        const char *chosen = attention_prefer_backward(&p, &limits);
        if ((chosen == NULL) != (cases[i].choice == NULL) ||
            (chosen != NULL && strcmp(chosen, cases[i].choice) != 0))
            fail_msg("%d rows, %d keys, %d dims: %s", (int)cases[i].rows, (int)cases[i].keys,
                     (int)cases[i].dim, chosen == NULL ? "none" : chosen);
    }
}

// A row or two of one head, which tiles of AVX-512 have packed soon.
static void lone_heads(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {1, 1, 16, 256, DIMS, "flash2", "few"},  {1, 2, 256, 16, KEYS, "tuned", "few"},
        {1, 1, 64, 128, DIMS, "flash2", "few"},  {1, 2, 64, 128, KEYS, "flash2", "few"},
        {1, 3, 256, 16, SEQLEN, "few", "tuned"}, {2, 2, 16, 80, HEADS, "flash2", "few"},
    };
    static const struct boundary narrow[] = {
        {1, 2, 16, 80, DIMS, "flash2", "few"},
        {1, 2, 128, 16, KEYS, "tuned", "few"},
    };
    check(intel, cases, COUNT(cases));
    check(avx2, narrow, COUNT(narrow));
}

// A row or two of several heads; more where each has dims enough, fewer of long sequences of some heads. In bf16 without a unit of
// its own too.
static void rows_of_floats(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {4, 2, 16, 16, HEADS, "flash2", "few"},  {2, 2, 16, 80, DIMS, "flash2", "few"},
        {2, 2, 128, 16, KEYS, "tuned", "few"},   {4, 3, 16, 16, SEQLEN, "few", "flash2"},
        {1, 5, 128, 256, KEYS, "tuned", "few"},  {2, 3, 128, 72, DIMS, "tuned", "few"},
        {4, 3, 1024, 48, HEADS, "tuned", "few"}, {4, 3, 1024, 48, KEYS, "tuned", "few"},
        {4, 3, 1024, 48, DIMS, "tuned", "few"},  {4, 17, 1024, 512, SEQLEN, "few", "tuned"},
    };
    static const struct boundary narrow[] = {
        {4, 3, 1024, 96, DIMS, "tuned", "few"},
        {2, 3, 128, 96, DIMS, "tuned", "few"},
    };
    check(intel, cases, COUNT(cases));
    check(halves, cases, COUNT(cases));
    check(avx2, narrow, COUNT(narrow));
}

// AMD's with registers of 16 floats.
static void rows_of_floats_on_amd(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {2, 2, 16, 16, HEADS, "flash2", "few"},   {2, 3, 16, 96, DIMS, "flash2", "few"},
        {4, 4, 16, 16, HEADS, "flash2", "few"},   {4, 5, 16, 100, SEQLEN, "few", "flash2"},
        {2, 8, 16, 129, DIMS, "flash2", "few"},   {5, 8, 16, 128, HEADS, "flash2", "few"},
        {2, 9, 100, 200, SEQLEN, "few", "tuned"}, {2, 16, 100, 256, DIMS, "tuned", "few"},
        {2, 16, 64, 256, KEYS, "flash2", "few"},  {2, 16, 2048, 128, KEYS, "tuned", "few"},
        {2, 24, 32, 256, KEYS, "flash2", "few"},  {2, 25, 32, 256, SEQLEN, "few", "flash2"},
        {1, 2, 16, 256, DIMS, "flash2", "few"},   {1, 2, 32, 96, KEYS, "flash2", "few"},
        {1, 2, 32, 96, DIMS, "flash2", "few"},    {1, 4, 16, 256, DIMS, "flash2", "few"},
        {1, 4, 65, 128, KEYS, "flash2", "few"},   {1, 8, 65, 256, KEYS, "flash2", "few"},
        {1, 9, 65, 256, SEQLEN, "few", "tuned"},
    };
    check(amd, cases, COUNT(cases));
}

// Up to four rows of many dims: on Intel of any keys.
static void wide_rows(void **state) {
    (void)state;
    static const struct boundary of_intel[] = {
        {1, 4, 16, 256, DIMS, "flash2", "few"},
        {1, 5, 16, 256, SEQLEN, "few", "flash2"},
        {1, 3, 63, 256, KEYS, "few", "few"},
    };
    static const struct boundary of_all[] = {
        {1, 4, 64, 256, DIMS, "flash2", "few"},
        {1, 5, 64, 256, SEQLEN, "few", "flash2"},
        {2, 5, 127, 256, SEQLEN, "few", "tuned"},
    };
    static const struct boundary of_others[] = {
        {1, 4, 16, 256, DIMS, "flash2", "flash2"},
        {1, 4, 64, 256, KEYS, "flash2", "few"},
    };
    check(intel, of_intel, COUNT(of_intel));
    check(intel, of_all, COUNT(of_all));
    check(avx2, of_all, COUNT(of_all));
    check(avx2, of_others, COUNT(of_others));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_rows_beside_tiles),
        cmocka_unit_test(few_rows_beside_dots),
        cmocka_unit_test(gradients_by_dots),
        cmocka_unit_test(lone_heads),
        cmocka_unit_test(rows_of_floats),
        cmocka_unit_test(rows_of_floats_on_amd),
        cmocka_unit_test(wide_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
