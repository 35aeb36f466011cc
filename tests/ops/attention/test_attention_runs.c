// SPDX-License-Identifier: Apache-2.0
// Attention with few heads: the number of threads changes how keys and queries are divided, but not the bits.
#include "cpu/gemm.h"
#include "ops/attention/attention_problem.h"
#include "test_support.h"

#include <math.h>
#include <string.h>

enum {
    MOST_SEQ = 600,
    MOST_HEADS = 64,
    NUMEL = MOST_SEQ * MOST_HEADS * 8, // or fewer heads with larger dims
    LONG_WORK = 1 << 20                // for all heads, under slow sanitizers
};
enum { Q, K, V, OUT, DOUT, DQ, DK, DV, NUM_TENSORS };

static float tensors[NUM_TENSORS][NUMEL], expected[NUM_TENSORS][NUMEL];
static float lse[MOST_HEADS * MOST_SEQ], expected_lse[MOST_HEADS * MOST_SEQ];

struct shape {
    int64_t seqlen, heads, dim;
    tsr_mask mask;
    bool has_nan; // in a key that the first queries do not see under a causal mask
    int64_t window_left,
        missing; // window_left: 0 is none; missing: how many fewer keys than queries
};

static tsr_dtype dtype;

// In bf16 the 16-bit data start at the tensor's first byte. NAN stays NaN there.
static void fill_tensor(float *x, int64_t numel, int64_t nan_at, uint64_t *seed) {
    for (int64_t i = 0; i < numel; i++) {
        float value = i == nan_at ? NAN : (float)(test_bits(seed) % 2001) / 1000 - 1;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (dtype == TSR_BF16)
            ((uint16_t *)(void *)x)[i] = (uint16_t)(bits >> 16);
        else
            x[i] = value;
    }
}

static void fill(const struct shape *s) {
    static const int inputs[] = {Q, K, V, DOUT};
    uint64_t seed = 7;
    int64_t numel = s->seqlen * s->heads * s->dim;
    for (int i = 0; i < COUNT(inputs); i++) {
        bool has_nan = inputs[i] == K && s->has_nan;
        int64_t nan_at = has_nan ? (s->seqlen - 3) * s->heads * s->dim : -1;
        fill_tensor(tensors[inputs[i]], numel, nan_at, &seed);
    }
}

// A caller's parallel_for that runs the tasks one by one, the last first.
static void run_backwards(void *user, int num_tasks, void (*task)(void *arg, int index),
                          void *arg) {
    (void)user;
    while (num_tasks-- > 0) task(arg, num_tasks);
}

static void run(const struct shape *s, tsr_isa isa, int threads, tsr_parallel_for parallel_for) {
    tsr_context *ctx;
    assert_ok(tsr_context_create(
        &TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = threads, .parallel_for = parallel_for),
        &ctx));
#define OF_ROWS(index, rows) TSR_TENSOR(tensors[index], dtype, 1, rows, s->heads, s->dim)
#define OF(index) OF_ROWS(index, s->seqlen)
#define OF_KEYS(index) OF_ROWS(index, s->seqlen - s->missing)
#define WINDOW .has_window_left = s->window_left > 0, .window_left = s->window_left
    tsr_tensor l = TSR_TENSOR(lse, TSR_F32, 1, s->heads, s->seqlen);
    memset(tensors[OUT], 0x7f, sizeof tensors[OUT]);
    memset(lse, 0x7f, sizeof lse);
    assert_ok(tsr_attention_forward(
        ctx, &TSR_ATTENTION_FORWARD_ARGS(.q = OF(Q), .k = OF_KEYS(K), .v = OF_KEYS(V),
                                         .out = OF(OUT), .lse = l, .mask = s->mask, WINDOW)));
    for (int t = DQ; t <= DV; t++) memset(tensors[t], 0x7f, sizeof tensors[t]);
    assert_ok(tsr_attention_backward(
        ctx,
        &TSR_ATTENTION_BACKWARD_ARGS(.q = OF(Q), .k = OF_KEYS(K), .v = OF_KEYS(V), .out = OF(OUT),
                                     .lse = l, .dout = OF(DOUT), .dq = OF(DQ), .dk = OF_KEYS(DK),
                                     .dv = OF_KEYS(DV), .mask = s->mask, WINDOW)));
    tsr_context_destroy(ctx);
}

static void same_bits_for_any_number_of_threads(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {66, 1, 16, TSR_MASK_NONE},
        {100, 1, 40, TSR_MASK_CAUSAL},
        {200, 1, 40, TSR_MASK_NONE},
        {200, 3, 24, TSR_MASK_CAUSAL},
        {257, 2, 16, TSR_MASK_NONE},
        {530, 1, 40, TSR_MASK_CAUSAL},
        {530, 3, 8, TSR_MASK_NONE},
        {MOST_SEQ, TEST_IS_SLOW ? 6 : MOST_HEADS, 8, TSR_MASK_NONE}, // runs of several blocks
        {200, 1, 16, TSR_MASK_CAUSAL, true},
        {40, 3, 16, TSR_MASK_NONE},
        {300, 2, 16, TSR_MASK_CAUSAL, false, 37},
        {300, 2, 16, TSR_MASK_CAUSAL, true, 70},
        {120, 2, 16, TSR_MASK_CAUSAL, false, 0, 75},
        // One block of keys: one thread uses flash2, and few threads use tuned except with a window.
        {40, 1, 128, TSR_MASK_NONE},
        {47, 3, 64, TSR_MASK_CAUSAL},
        {47, 1, 64, TSR_MASK_CAUSAL, true},
        {47, 3, 64, TSR_MASK_CAUSAL, false, 9},
        // Two threads with equally many heads, in several tiles.
        {130, 4, 16, TSR_MASK_CAUSAL, true},
        {200, 2, 16, TSR_MASK_CAUSAL, false, 20},
        {330, 1, 64, TSR_MASK_CAUSAL},
        {330, 1, 64, TSR_MASK_CAUSAL, true},
        {190, 12, 128, TSR_MASK_NONE}, // in bf16 two runs, which fill no block
        {300, 8, 64, TSR_MASK_NONE},
        {590, 1, 64, TSR_MASK_NONE}, // groups of several runs
        {590, 2, 64, TSR_MASK_CAUSAL, true},
        // Five threads: heads that do not divide evenly, or that do and whose last tiles other threads take.
        {140, 7, 64, TSR_MASK_NONE},
        {200, 10, 64, TSR_MASK_CAUSAL, true},
        {200, 9, 64, TSR_MASK_CAUSAL, false, 0, 60},
        // Many queries on few keys. Backward works on spans of queries, and all shapes but the last have several runs
        // of keys.
        {600, 1, 24, TSR_MASK_NONE, false, 0, 590},
        {500, 2, 64, TSR_MASK_CAUSAL, false, 0, 481},
        {590, 1, 40, TSR_MASK_NONE, false, 0, 300},
        {2100, 1, 40, TSR_MASK_NONE, false, 0, 2030}, // in bf16 too
    };
    static const int threads[] = {2, 3, 16, 5}; // long shapes use only the last
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16};
    for (int i = 0; i < 2 * COUNT(shapes); i++) {
        const struct shape *shape = &shapes[i / 2];
        int64_t work = shape->seqlen * shape->seqlen * shape->heads * shape->dim;
        bool is_long = TEST_IS_SLOW && work > LONG_WORK;
        dtype = dtypes[i % 2];
        fill(shape);
        for (int isa = TSR_ISA_AUTO + 1; isa < TSR_ISA_COUNT; isa++) {
            bool is_left_out = (is_long || TEST_HAS_TSAN) && isa == TSR_ISA_SCALAR;
            if (!tsr_isa_is_supported((tsr_isa)isa) || is_left_out) continue;
            run(shape, (tsr_isa)isa, 1, NULL);
            memcpy(expected, tensors, sizeof expected);
            memcpy(expected_lse, lse, sizeof lse);
            for (int t = is_long ? COUNT(threads) - 1 : 0; t <= COUNT(threads); t++) {
                bool is_in_turn = t == COUNT(threads);
                int num_threads = is_in_turn ? 5 : threads[t];
                run(shape, (tsr_isa)isa, num_threads, is_in_turn ? run_backwards : NULL);
                if (memcmp(expected, tensors, sizeof expected) != 0 ||
                    memcmp(expected_lse, lse, sizeof lse) != 0)
                    fail_msg("%d keys, %d heads, %s, %s: other bits with %d threads%s",
                             (int)shape->seqlen, (int)shape->heads, tsr_dtype_name(dtype),
                             tsr_isa_name((tsr_isa)isa), num_threads, is_in_turn ? " in turn" : "");
            }
        }
    }
}

static struct attention_problem problem_of(int64_t heads, int64_t seqlen, int64_t dim) {
    return (struct attention_problem){.dtype = TSR_F32,
                                      .num_batches = 1,
                                      .num_heads_q = heads,
                                      .num_heads_kv = heads,
                                      .seqlen_q = seqlen,
                                      .seqlen_k = seqlen,
                                      .head_dim = dim,
                                      .head_dim_v = dim};
}

// Tasks of backward: runs of at least 128 keys for many threads, whole heads for few or one, and at most as many runs
// as may have their own sum of dq. For many rows on few keys the tasks are spans of rows if these are enough.
static void tasks_of_backward(void **state) {
    (void)state;
    static char dq;
    static const struct {
        int64_t heads, seqlen, dim, num_threads, num_tasks, missing; // keys fewer than queries
    } cases[] = {
        {32, 512, 64, 16, 128},     {32, 512, 64, 1, 32},       {32, 512, 64, 4, 32},
        {64, 256, 64, 16, 64},      {8, 2048, 128, 16, 128},    {8, 2048, 128, 2, 8},
        {8, 16384, 128, 16, 16},    {128, 512, 64, 16, 128},    {32, 2048, 64, 16, 128},
        {4, 128, 64, 16, 8},        {1, 1180, 64, 16, 7, 1170}, {1, 1180, 64, 1, 1, 1170},
        {2, 768, 64, 16, 36, 384},  {2, 767, 64, 16, 12, 383},  {1, 4096, 64, 16, 22, 4019},
        {1, 4096, 64, 3, 22, 4019}, {1, 4096, 64, 2, 22, 4019}, {40, 512, 64, 16, 80, 256},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        struct attention_problem p = problem_of(cases[i].heads, cases[i].seqlen, cases[i].dim);
        p.dq.data = &dq;
        p.seqlen_k -= cases[i].missing;
        struct tsri_limits limits = {
            .isa = TSR_ISA_AVX512, .num_threads = (int)cases[i].num_threads, .l2_bytes = 2 << 20};
        struct tsri_plan plan = {0};
        attention_plan_tuned_backward(&p, &limits, &plan);
        assert_int_equal(plan.num_tasks, cases[i].num_tasks);
    }
}

// A head's only tile: keys are cut into runs of whole blocks. The number of runs does not depend on a partial last
// block or on the number of threads.
static void runs_of_a_lone_tile(void **state) {
    (void)state;
    static const struct {
        int64_t heads, keys, dim;
        bool is_mixed;
        int64_t num_tasks;
    } cases[] = {
        {1, 8192, 64, false, 16}, {1, 8191, 64, false, 16}, {1, 8193, 64, false, 17},
        {1, 8192, 64, true, 16},  {1, 8191, 64, true, 16},  {1, 768, 64, true, 1},
        {1, 769, 64, true, 2},    {1, 1024, 16, false, 1},  {1, 1025, 16, false, 2},
        {1, 2048, 16, true, 1},   {1, 2049, 16, true, 2},   {4, 8191, 64, true, 64},
        {8, 8192, 64, false, 64}, {9, 8192, 64, false, 54}, {64, 8192, 64, false, 64},
        {65, 8192, 64, true, 65},
    };
    for (int i = 0; i < 2 * COUNT(cases); i++) {
        struct attention_problem p = problem_of(cases[i / 2].heads, 40, cases[i / 2].dim);
        p.seqlen_k = p.total_k = cases[i / 2].keys;
        p.dtype = cases[i / 2].is_mixed ? TSR_BF16 : TSR_F32;
        struct tsri_limits limits = {
            .isa = TSR_ISA_AVX512, .num_threads = i % 2 ? 16 : 1, .l2_bytes = 2 << 20};
        struct tsri_plan plan = {0};
        if (cases[i / 2].is_mixed)
            attention_plan_avx512_bf16(&p, &limits, &plan);
        else
            attention_plan_tuned(&p, &limits, &plan);
        assert_int_equal(plan.num_tasks, cases[i / 2].num_tasks);
        limits.flags = TSR_BATCH_INVARIANT;
        attention_plan_tuned(&p, &limits, &plan);
        assert_int_equal(plan.num_tasks, cases[i / 2].heads);
    }
}

// Few threads without AVX-512. Heads that do not divide evenly, or that have several tiles, are taken tile by tile. If
// threads share a head, it has an even number of tiles per thread.
static void heads_of_a_few_threads(void **state) {
    (void)state;
    static const struct {
        int64_t heads, seqlen, dim;
        int threads;
        tsr_isa isa;
        bool is_shared;
        int64_t num_tasks; // of tuned
        const char *choice;
    } cases[] = {
        {1, 200, 64, 2, TSR_ISA_AVX2, true, 8, "tuned"},
        {1, 128, 64, 2, TSR_ISA_AVX2, true, 4, "tuned"},
        {1, 128, 64, 3, TSR_ISA_AVX2, true, 6, "tuned"},
        {1, 1024, 16, 2, TSR_ISA_SCALAR, true, 12, "tuned"},
        {3, 40, 128, 2, TSR_ISA_AVX2, true, 6, "tuned"},
        {1, 64, 64, 2, TSR_ISA_AVX2, true, 2, "tuned"},
        {1, 40, 40, 2, TSR_ISA_AVX2, false, 1, "flash2"}, // not worth two threads
        {1, 16, 128, 2, TSR_ISA_AVX2, false, 1, "flash2"},
        {4, 64, 64, 2, TSR_ISA_AVX2, false, 4, "tuned"}, // whole heads
        {4, 40, 128, 2, TSR_ISA_AVX2, false, 4, "flash2"},
        {4, 200, 64, 2, TSR_ISA_AVX2, true, 16, "tuned"},
        {8, 1024, 64, 2, TSR_ISA_AVX2, true, 88, "tuned"},
        // More than half of each thread's L2 cache, and more than each thread can keep.
        {8, 1024, 128, 2, TSR_ISA_AVX2, false, 8, "tuned"},
        {8, 1032, 128, 2, TSR_ISA_AVX2, false, 48, "tuned"},
        {1, 200, 64, 1, TSR_ISA_AVX2, false, 1, "tuned"},
        {1, 200, 64, 4, TSR_ISA_AVX2, false, 4, "tuned"},
        {1, 200, 64, 2, TSR_ISA_AVX512, false, 4, "tuned"},
        {1, 40, 128, 2, TSR_ISA_AVX512, false, 1, "flash2"},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        struct attention_problem p = problem_of(cases[i].heads, cases[i].seqlen, cases[i].dim);
        struct tsri_limits limits = {
            .isa = cases[i].isa, .num_threads = cases[i].threads, .l2_bytes = 512 << 10};
        struct tsri_plan plan = {0};
        attention_plan_tuned(&p, &limits, &plan);
        assert_int_equal(attention_packing(&p, &limits, plan.block_m, false) ==
                             ATTENTION_PACKS_SHARED,
                         cases[i].is_shared);
        assert_int_equal(plan.num_tasks, cases[i].num_tasks);
        assert_string_equal(attention_prefer_forward(&p, &limits), cases[i].choice);
        // If a tile's first visible key is not the first of all, the order of sums depends on the variant.
        if (cases[i].seqlen >= 48 || !cases[i].is_shared) continue;
        p.has_window_left = true;
        assert_string_equal(attention_prefer_forward(&p, &limits), "flash2");
    }
}

// Threads that each have a head also take tiles of the others' last heads if that pays, for any number of heads.
static void heads_of_threads_that_help(void **state) {
    (void)state;
    static const struct {
        int64_t heads, seqlen, dim;
        int threads;
        bool is_mixed;
        enum attention_packing packing;
    } cases[] = {
        {32, 512, 64, 16, false, ATTENTION_PACKS_HELPED},
        {24, 512, 64, 16, false, ATTENTION_PACKS_HELPED},
        {17, 256, 64, 16, true, ATTENTION_PACKS_HELPED},
        {16, 256, 64, 16, false, ATTENTION_PACKS_HELPED},
        // Fewer heads than threads: each thread packs the head whose tiles it takes, except for few rows or for many
        // copies of a long head.
        {15, 256, 64, 16, false, ATTENTION_PACKS_SHARED},
        {4, 128, 64, 16, false, ATTENTION_PACKS_TILES},
        {4, 127, 256, 16, true, ATTENTION_PACKS_TILES},
        {1, 512, 256, 16, true, ATTENTION_PACKS_SHARED},
        {1, 511, 256, 16, true, ATTENTION_PACKS_STRIPES},
        {1, 512, 256, 16, false, ATTENTION_PACKS_STRIPES},
        {1, 768, 64, 4, false, ATTENTION_PACKS_SHARED},
        {1, 769, 64, 4, false, ATTENTION_PACKS_STRIPES},
        {15, 8192, 64, 16, false, ATTENTION_PACKS_SHARED},
        {15, 8193, 64, 16, false, ATTENTION_PACKS_STRIPES},
        {15, 16384, 64, 16, true, ATTENTION_PACKS_SHARED},
        {1, 1024, 64, 17, true, ATTENTION_PACKS_STRIPES},
        {2, 1024, 64, 17, true, ATTENTION_PACKS_SHARED},
        {2, 1024, 128, 3, false, ATTENTION_PACKS_STRIPES},
        {3, 1024, 128, 4, false, ATTENTION_PACKS_SHARED},
        {100, 1024, 64, 300, false, ATTENTION_PACKS_STRIPES},
        {32, 512, 64, 1, false, ATTENTION_PACKS_HEADS},
        {32, 128, 64, 16, false, ATTENTION_PACKS_HELPED},
        {32, 128, 64, 16, true, ATTENTION_PACKS_HEADS},
        {24, 128, 32, 16, false, ATTENTION_PACKS_TILES},
        {64, 128, 64, 16, false, ATTENTION_PACKS_HEADS},
        {24, 90, 256, 16, false, ATTENTION_PACKS_TILES},
        {24, 8192, 64, 16, false, ATTENTION_PACKS_HELPED},
        {24, 8193, 64, 16, false, ATTENTION_PACKS_STRIPES},
        {24, 16384, 64, 16, true, ATTENTION_PACKS_HELPED},
        {600, 512, 64, 300, false, ATTENTION_PACKS_HEADS},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        struct attention_problem p = problem_of(cases[i].heads, cases[i].seqlen, cases[i].dim);
        p.dtype = cases[i].is_mixed ? TSR_BF16 : TSR_F32;
        struct tsri_limits limits = {
            .isa = TSR_ISA_AVX512, .num_threads = cases[i].threads, .l2_bytes = 2 << 20};
        assert_int_equal(attention_packing(&p, &limits, 96, cases[i].is_mixed), cases[i].packing);
    }
}

// Few rows use decode's splits, and fewer rows do if bf16 has its own unit. The number of threads does not matter,
// because bits follow the variant.
static void variant_of_few_rows(void **state) {
    (void)state;
    enum unit { FMA, DOT, TILES };
    static const struct {
        int64_t rows, keys, dim;
        tsr_isa isa;
        enum unit unit;
        const char *choice;
    } cases[] = {
        {2, 16, 64, TSR_ISA_AVX512, FMA, "few"},
        {3, 16, 64, TSR_ISA_AVX512, FMA, "flash2"},
        {8, 1024, 64, TSR_ISA_AVX512, FMA, "few"},
        {9, 1024, 64, TSR_ISA_AVX512, FMA, "tuned"},
        {16, 4096, 128, TSR_ISA_AVX512, FMA, "few"},
        {17, 4096, 256, TSR_ISA_AVX512, FMA, "tuned"},
        {8, 4096, 64, TSR_ISA_AVX2, FMA, "tuned"},
        {4, 4096, 64, TSR_ISA_AVX2, FMA, "few"},
        {4, 512, 128, TSR_ISA_AVX512, TILES, "few"},
        {5, 512, 128, TSR_ISA_AVX512, TILES, "amx_bf16"},
        {5, 60, 16, TSR_ISA_AVX512, TILES, "flash2"},
        {1, 512, 64, TSR_ISA_AVX512, DOT, "few"},
        {2, 512, 64, TSR_ISA_AVX512, DOT, "avx512_bf16"},
        {12, 8192, 128, TSR_ISA_AVX512, DOT, "few"},
        {33, 64, 32, TSR_ISA_AVX512, DOT, "avx512_bf16"},
    };
    for (int i = 0; i < 2 * COUNT(cases); i++) {
        struct attention_problem p = problem_of(4, cases[i / 2].rows, cases[i / 2].dim);
        p.seqlen_k = p.total_k = cases[i / 2].keys;
        p.dtype = cases[i / 2].unit == FMA ? TSR_F32 : TSR_BF16;
        struct tsri_limits limits = {
            .isa = cases[i / 2].isa, .num_threads = i % 2 ? 16 : 1, .l2_bytes = 1 << 20};
        limits.bf16.has_dot = limits.bf16.is_dot_fast = cases[i / 2].unit == DOT;
        limits.bf16.has_tiles = cases[i / 2].unit == TILES;
        if (limits.bf16.has_tiles && !tsri_can_use_tiles(limits.bf16)) continue;
        assert_string_equal(attention_prefer_forward(&p, &limits), cases[i / 2].choice);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variant_of_few_rows),
        cmocka_unit_test(heads_of_threads_that_help),
        cmocka_unit_test(heads_of_a_few_threads),
        cmocka_unit_test(same_bits_for_any_number_of_threads),
        cmocka_unit_test(tasks_of_backward),
        cmocka_unit_test(runs_of_a_lone_tile),
    };
    return cmocka_run_group_tests_name("attention_runs", tests, NULL, NULL);
}
