// SPDX-License-Identifier: Apache-2.0
// The gradients of the experts' biases on a real GPU, or on the emulated one: offsets out of range count as the nearest in range, rows
// that do not exist add nothing, offsets that fall reach no other memory, and an expert has the same bits among any others.
#include <math.h>

#include "cuda_case.h"

enum { ROWS = 1700, SOURCES = 60, COLS = 40, EXPERTS = 4, GUARD = 64, POISON = 0x55 };

struct buffers {
    int32_t offsets[EXPERTS + 1], tokens[ROWS];
    float weights[ROWS], rows[SOURCES][COLS];
    char before[GUARD];
    float dbias[EXPERTS][COLS];
    char after[GUARD];
};

static struct buffers host, *device;
static tsr_context *ctx;

static void fill(const int32_t *offsets) {
    memset(&host, POISON, sizeof host);
    memcpy(host.offsets, offsets, sizeof host.offsets);
    for (int r = 0; r < ROWS; r++) {
        host.tokens[r] = r * 7 % SOURCES;
        host.weights[r] = (float)(1 + r % 3);
    }
    for (int r = 0; r < SOURCES; r++)
        for (int i = 0; i < COLS; i++) host.rows[r][i] = (float)((r + i) % 5);
}

// From `first` on: rows and experts. Copies the result to host.
static void run(int first, int rows, int experts) {
    assert_ok(tsr_memory_copy(ctx, device, &host, sizeof host));
    assert_ok(tsr_moe_bias_backward(
        ctx, &TSR_MOE_BIAS_BACKWARD_ARGS(
                     .rows = on_cuda(TSR_TENSOR(device->rows, TSR_F32, SOURCES, COLS)),
                     .row_tokens = on_cuda(TSR_TENSOR(device->tokens + first, TSR_I32, rows)),
                     .row_weights = on_cuda(TSR_TENSOR(device->weights + first, TSR_F32, rows)),
                     .offsets = on_cuda(TSR_TENSOR(device->offsets, TSR_I32, experts + 1)),
                     .dbias = on_cuda(TSR_TENSOR(device->dbias, TSR_F32, experts, COLS)))));
    assert_ok(tsr_memory_copy(ctx, &host, device, sizeof host));
    assert_ok(tsr_context_synchronize(ctx));
    assert_true(test_all_bytes_are(host.before, POISON, GUARD));
    assert_true(test_all_bytes_are(host.after, POISON, GUARD));
}

static int clamped(int32_t offset) { return offset < 0 ? 0 : offset > ROWS ? ROWS : offset; }

// Sums of small integers are exact.
static void check(void) {
    for (int e = 0; e < EXPERTS; e++)
        for (int i = 0; i < COLS; i++) {
            double sum = 0;
            for (int r = clamped(host.offsets[e]); r < clamped(host.offsets[e + 1]); r++)
                if (host.tokens[r] >= 0 && host.tokens[r] < SOURCES)
                    sum += (double)(host.weights[r] * host.rows[host.tokens[r]][i]);
            assert_same_number((double)host.dbias[e][i], sum);
        }
}

static void offsets_out_of_range(void **state) {
    static const int32_t all[][EXPERTS + 1] = {{0, 600, 600, 601, ROWS},
                                               {-5, 3, 1100, ROWS + 1, INT32_MAX},
                                               {INT32_MIN, -1, 0, 1024, 1536},
                                               {ROWS, ROWS, ROWS, ROWS, INT32_MAX},
                                               {511, 512, 513, 1025, 1538}};
    (void)state;
    for (int i = 0; i < COUNT(all); i++) {
        fill(all[i]);
        run(0, ROWS, EXPERTS);
        check();
    }
}

static void rows_that_do_not_exist(void **state) {
    static const int32_t offsets[] = {3, 700, 800, 810, 1650};
    static const int32_t wrong[] = {SOURCES, -1, INT32_MAX, INT32_MIN};
    (void)state;
    fill(offsets);
    for (int i = 0; i < 40; i++) {
        const int r = i * 41;
        host.tokens[r] = wrong[i % 4];
        host.weights[r] = NAN;
    }
    run(0, ROWS, EXPERTS);
    check();
}

// Any values: only dbias is written.
static void offsets_that_fall(void **state) {
    static const int32_t all[][EXPERTS + 1] = {{ROWS, 900, 600, 100, 0},
                                               {0, ROWS, 0, ROWS, 0},
                                               {INT32_MAX, INT32_MIN, 1600, 5, 1700},
                                               {600, 0, 1200, 1100, 1}};
    (void)state;
    for (int i = 0; i < COUNT(all); i++) {
        fill(all[i]);
        run(0, ROWS, EXPERTS);
    }
}

static void an_expert_among_others(void **state) {
    enum { FIRST = 130, END = 1430 };
    static const int32_t offsets[] = {0, FIRST, END, END + 10, ROWS};
    static const int32_t alone[EXPERTS + 1] = {0, END - FIRST};
    float dbias[COLS];
    uint64_t random = 5;
    (void)state;
    for (int pass = 0; pass < 2; pass++) {
        random = 5;
        fill(pass == 0 ? offsets : alone);
        for (int r = 0; r < ROWS; r++) host.weights[r] = test_float(&random);
        if (pass == 0) {
            run(0, ROWS, EXPERTS);
            memcpy(dbias, host.dbias[1], sizeof dbias);
        } else {
            run(FIRST, END - FIRST, 1);
            assert_memory_equal(host.dbias[0], dbias, sizeof dbias);
        }
    }
}

int main(void) {
    void *memory;
    int skip = cuda_case_open(80, sizeof host, &ctx, &memory);
    if (skip != 0) return skip;
    device = memory;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offsets_out_of_range),
        cmocka_unit_test(rows_that_do_not_exist),
        cmocka_unit_test(offsets_that_fall),
        cmocka_unit_test(an_expert_among_others),
    };
    int failed = cmocka_run_group_tests_name("cuda moe bias", tests, NULL, NULL);
    cuda_case_close(ctx, memory);
    return failed;
}
