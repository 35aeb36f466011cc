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

// vdpbf16ps, until keys and values leave the second-level cache; no less of long sequences.
static void few_rows_beside_dots(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {4, 1, 64, 90, KEYS, "few", "avx512_bf16"},
        {4, 1, 1024, 96, DIMS, "avx512_bf16", "few"},
        {4, 4, 1024, 80, HEADS, "avx512_bf16", "avx512_bf16"},
        {4, 3, 4096, 128, KEYS, "avx512_bf16", "few"},
        {4, 3, 4096, 128, DIMS, "avx512_bf16", "few"},
    };
    check(dots, cases, COUNT(cases));
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
    check(amd, cases, COUNT(cases));
    check(avx2, narrow, COUNT(narrow));
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
    check(amd, of_all, COUNT(of_all));
    check(amd, of_others, COUNT(of_others));
    check(avx2, of_all, COUNT(of_all));
    check(avx2, of_others, COUNT(of_others));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_rows_beside_tiles),
        cmocka_unit_test(few_rows_beside_dots),
        cmocka_unit_test(lone_heads),
        cmocka_unit_test(rows_of_floats),
        cmocka_unit_test(wide_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
