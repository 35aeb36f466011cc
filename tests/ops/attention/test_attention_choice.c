// SPDX-License-Identifier: Apache-2.0
// Boundaries of the choice in forward with few rows: decode's splits on one side, tiles on the other.
#include "context/op_table.h"
#include "ops/attention/attention_problem.h"
#include "test_support.h"

#include <string.h>

enum side { HEADS, SEQLEN, KEYS, DIMS };
enum unit { FMA, DOT, TILES };

// The variant that serves a problem, and the one that serves it if `side` is one less.
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

static const char *choice(struct machine machine, int num_threads, uint32_t flags,
                          const struct boundary *b, bool is_below) {
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
        .isa = machine.isa, .num_threads = num_threads, .l2_bytes = 1 << 20, .flags = flags};
    limits.bf16.has_dot = machine.unit != FMA;
    limits.bf16.is_dot_fast = machine.unit == DOT;
    limits.bf16.has_tiles = machine.unit == TILES;
    return attention_prefer_forward(&p, &limits);
}

// Checks a choice for any number of threads, because bits follow the variant.
static void check(struct machine machine, const struct boundary *cases, int num_cases) {
    static const char *const sides[] = {"heads", "rows", "keys", "dims"};
    static const int threads[] = {1, 2, 3, 16};
    for (int i = 0; i < 4 * num_cases; i++) {
        const struct boundary *b = &cases[i / 4];
        int num_threads = threads[i % 4];
        if (machine.isa != TSR_ISA_AVX512 && num_threads > 1 && num_threads < 16)
            continue; // these share heads, with the same bits
        const char *below = choice(machine, num_threads, 0, b, true);
        const char *from = choice(machine, num_threads, 0, b, false);
        if (strcmp(below, b->below) != 0 || strcmp(from, b->from) != 0)
            fail_msg(
                "%d heads, %d rows, %d keys, %d dims by %s: %s, then %s instead of %s, then %s",
                (int)b->heads, (int)b->rows, (int)b->keys, (int)b->dims, sides[b->side], below,
                from, b->below, b->from);
        // With the flag, one row is served like many. For one block of keys flash2 has the same bits as tuned.
        struct boundary many = *b;
        many.rows = 4096;
        const char *alone = choice(machine, num_threads, TSR_BATCH_INVARIANT, b, false);
        assert_string_equal(strcmp(alone, "flash2") == 0 && b->keys <= 64 ? "tuned" : alone,
                            choice(machine, num_threads, TSR_BATCH_INVARIANT, &many, false));
    }
}

// Few rows on machines with bf16 tiles; vdpbf16ps serves a row or two with small dims.
static void few_rows_beside_tiles(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {1, 1, 12, 96, KEYS, "flash2", "few"},
        {1, 3, 24, 128, SEQLEN, "few", "avx512_bf16"},
        {1, 3, 12, 192, KEYS, "flash2", "few"},
        {1, 4, 12, 192, SEQLEN, "few", "flash2"},
        {2, 3, 32, 64, SEQLEN, "few", "avx512_bf16"},
        {2, 1, 256, 64, KEYS, "few", "avx512_bf16"},
        {2, 3, 512, 192, SEQLEN, "few", "amx_bf16"},
        {2, 2, 100, 96, HEADS, "amx_bf16", "few"},
        {4, 4, 2000, 96, KEYS, "amx_bf16", "few"},
        {4, 4, 2000, 96, DIMS, "amx_bf16", "few"},
        {4, 5, 64, 192, SEQLEN, "few", "amx_bf16"},
        {4, 2, 2000, 64, KEYS, "avx512_bf16", "few"},
        {1, 2, 24, 64, KEYS, "flash2", "avx512_bf16"},
        {1, 3, 256, 64, SEQLEN, "avx512_bf16", "amx_bf16"},
        {1, 4, 64, 128, KEYS, "avx512_bf16", "amx_bf16"},
    };
    if (!tsri_can_use_tiles(tsri_bf16_units())) skip();
    check(tiles, cases, COUNT(cases));
}

// Few rows on AMD with vdpbf16ps: short sequences, and long ones with large dims.
static void few_rows_beside_dots(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {1, 1, 12, 128, KEYS, "flash2", "few"},
        {1, 5, 12, 192, SEQLEN, "few", "flash2"},
        {1, 2, 2000, 192, KEYS, "avx512_bf16", "few"},
        {2, 4, 12, 128, KEYS, "few", "flash2"},
        {2, 2, 256, 192, KEYS, "avx512_bf16", "few"},
        {2, 1, 1000, 96, DIMS, "avx512_bf16", "few"},
        {2, 1, 768, 96, KEYS, "avx512_bf16", "few"},
        {4, 3, 24, 64, KEYS, "few", "avx512_bf16"},
        {4, 3, 12, 64, HEADS, "flash2", "few"},
        {4, 4, 24, 128, KEYS, "few", "avx512_bf16"},
        {4, 5, 16, 100, SEQLEN, "few", "flash2"},
        {4, 2, 2000, 128, KEYS, "avx512_bf16", "few"},
        {4, 4, 768, 192, KEYS, "avx512_bf16", "few"},
        {4, 12, 2000, 192, KEYS, "avx512_bf16", "few"},
        {4, 13, 2000, 192, SEQLEN, "few", "avx512_bf16"},
        {4, 3, 100, 192, DIMS, "avx512_bf16", "few"},
        // More rows: boundaries in keys. Heads that do not fill steps of 32, and small dims, need more keys.
        {1, 40, 17, 64, KEYS, "flash2", "avx512_bf16"},
        {1, 40, 48, 48, KEYS, "flash2", "avx512_bf16"},
        {1, 40, 128, 32, KEYS, "tuned", "avx512_bf16"},
        {1, 40, 129, 32, KEYS, "avx512_bf16", "tuned"},
    };
    check(dots, cases, COUNT(cases));
}

// One head of up to 64 rows and keys. One thread takes it whole up to 128 dims. Two and three threads share its rows
// from 48 rows on. The bits are the same.
static void lone_heads(void **state) {
    (void)state;
    static const struct {
        int num_threads;
        int64_t rows, dims;
        const char *choice;
    } cases[] = {
        {1, 64, 128, "flash2"}, {1, 65, 128, "tuned"},   {1, 64, 130, "tuned"},
        {1, 47, 256, "flash2"}, {2, 64, 32, "tuned"},    {3, 48, 32, "tuned"},
        {2, 47, 32, "flash2"},  {4, 64, 48, "flash2"},   {16, 64, 48, "flash2"},
        {16, 64, 50, "tuned"},  {16, 47, 128, "flash2"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        struct boundary b = {1, cases[i].rows, 64, cases[i].dims, SEQLEN, "", ""};
        const char *chosen = choice(intel, cases[i].num_threads, 0, &b, false);
        if (strcmp(chosen, cases[i].choice) != 0)
            fail_msg("%d threads, %d rows, %d dims: %s instead of %s", cases[i].num_threads,
                     (int)b.rows, (int)b.dims, chosen, cases[i].choice);
    }
}

// Backward with vdpbf16ps requires that rows and keys nearly fill steps of 32.
static void gradients_by_dots(void **state) {
    (void)state;
    static const struct {
        int64_t rows, keys, dim;
        const char *choice;
        tsr_mask mask;
    } cases[] = {
        {56, 56, 64, "avx512_bf16"},
        {55, 64, 64, NULL},
        {64, 65, 64, NULL},
        {500, 65, 64, NULL},
        {500, 63, 64, "avx512_bf16"},
        {500, 56, 16, NULL},
        {58, 58, 40, NULL},
        {60, 60, 40, "avx512_bf16"},
        {200, 200, 40, NULL},
        {64, 64, 24, "avx512_bf16"},
        {63, 63, 64, NULL, TSR_MASK_CAUSAL},
        {64, 64, 64, "avx512_bf16", TSR_MASK_CAUSAL},
        {127, 127, 40, NULL, TSR_MASK_CAUSAL},
        {128, 128, 40, "avx512_bf16", TSR_MASK_CAUSAL},
    };
    struct tsri_limits limits = {.isa = TSR_ISA_AVX512, .num_threads = 1, .l2_bytes = 1 << 20};
    limits.bf16.has_dot = limits.bf16.is_dot_fast = true;
    for (int i = 0; i < COUNT(cases); i++) {
        struct attention_problem p = {.dtype = TSR_BF16,
                                      .mask = cases[i].mask,
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

// Tiles of fp32, also for bf16 without its own unit: more heads and larger dims allow more rows.
static void rows_of_floats(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {1, 1, 768, 64, KEYS, "tuned", "few"},      {1, 2, 256, 96, KEYS, "tuned", "few"},
        {1, 5, 256, 96, SEQLEN, "few", "tuned"},    {1, 3, 12, 192, KEYS, "flash2", "few"},
        {1, 6, 48, 192, KEYS, "flash2", "few"},     {1, 12, 2000, 192, KEYS, "tuned", "few"},
        {1, 13, 2000, 192, SEQLEN, "few", "tuned"}, {2, 2, 96, 64, KEYS, "tuned", "few"},
        {2, 4, 8, 96, DIMS, "flash2", "few"},       {2, 1, 8, 48, HEADS, "flash2", "few"},
        {2, 9, 8, 192, SEQLEN, "few", "flash2"},    {2, 8, 256, 192, KEYS, "tuned", "few"},
        {4, 3, 768, 64, KEYS, "tuned", "few"},      {4, 5, 100, 100, SEQLEN, "few", "tuned"},
        {4, 8, 768, 96, KEYS, "tuned", "few"},      {4, 12, 256, 192, HEADS, "tuned", "few"},
        {4, 17, 4096, 512, SEQLEN, "few", "tuned"}, {4, 2, 16, 16, HEADS, "flash2", "few"},
        {2, 2, 128, 16, KEYS, "tuned", "few"},      {4, 3, 16, 16, SEQLEN, "few", "flash2"},
    };
    static const struct boundary narrow[] = {
        {1, 2, 16, 80, DIMS, "flash2", "few"},    {1, 2, 128, 16, KEYS, "tuned", "few"},
        {4, 3, 1024, 96, DIMS, "tuned", "few"},   {2, 3, 128, 96, DIMS, "tuned", "few"},
        {1, 4, 64, 256, DIMS, "flash2", "few"},   {1, 5, 64, 256, SEQLEN, "few", "flash2"},
        {2, 5, 127, 256, SEQLEN, "few", "tuned"}, {1, 4, 16, 256, DIMS, "flash2", "flash2"},
        {1, 4, 64, 256, KEYS, "flash2", "few"},
    };
    check(intel, cases, COUNT(cases));
    check(halves, cases, COUNT(cases));
    check(avx2, narrow, COUNT(narrow));
}

// The same on AMD with AVX-512.
static void rows_of_floats_on_amd(void **state) {
    (void)state;
    static const struct boundary cases[] = {
        {1, 1, 2000, 64, KEYS, "tuned", "few"},   {1, 4, 96, 96, KEYS, "tuned", "few"},
        {1, 6, 256, 128, KEYS, "tuned", "few"},   {1, 3, 12, 192, KEYS, "flash2", "few"},
        {1, 6, 24, 192, KEYS, "flash2", "few"},   {1, 8, 48, 192, KEYS, "flash2", "few"},
        {1, 12, 96, 192, KEYS, "tuned", "few"},   {1, 16, 2000, 192, KEYS, "tuned", "few"},
        {2, 1, 8, 64, HEADS, "flash2", "few"},    {2, 3, 12, 96, KEYS, "flash2", "few"},
        {2, 6, 768, 96, KEYS, "tuned", "few"},    {2, 16, 2000, 192, KEYS, "tuned", "few"},
        {4, 3, 24, 64, KEYS, "flash2", "few"},    {4, 4, 96, 64, KEYS, "tuned", "few"},
        {4, 8, 48, 96, KEYS, "flash2", "few"},    {4, 8, 48, 96, DIMS, "flash2", "few"},
        {4, 12, 24, 192, HEADS, "flash2", "few"}, {4, 13, 24, 192, SEQLEN, "few", "flash2"},
        {4, 16, 96, 192, KEYS, "tuned", "few"},
    };
    check(amd, cases, COUNT(cases));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_rows_beside_tiles), cmocka_unit_test(few_rows_beside_dots),
        cmocka_unit_test(gradients_by_dots),     cmocka_unit_test(lone_heads),
        cmocka_unit_test(rows_of_floats),        cmocka_unit_test(rows_of_floats_on_amd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
