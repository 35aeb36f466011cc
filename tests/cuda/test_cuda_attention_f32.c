// SPDX-License-Identifier: Apache-2.0
// fp32 attention on tensor cores of a real GPU. Numbers that the tensor cores' formats cannot hold, infinities, and
// numbers that would round to infinity give the results of fp32 arithmetic, and only in rows that see them.
#include <float.h>
#include <math.h>

#include "cuda_case.h"

enum {
    SEQLEN = 70,
    HEADS = 2,
    DIM = 40,
    HIGH_KEY = 20,
    LOW_KEY = 65,
    LARGE_KEY = 45,
    BAD_KEY = 33
};

struct buffers {
    float q[SEQLEN][HEADS][DIM], k[SEQLEN][HEADS][DIM], v[SEQLEN][HEADS][DIM];
    float out[2][SEQLEN][HEADS][DIM]; // flash1 and flash2
};

static struct buffers host, *device;
static tsr_context *ctx;

static void fill(void) {
    for (int i = 0; i < SEQLEN; i++)
        for (int h = 0; h < HEADS; h++)
            for (int c = 0; c < DIM; c++) {
                host.q[i][h][c] = (float)((i * 7 + h * 3 + c * 5) % 11 + 1) / 16;
                host.k[i][h][c] = (float)((i * 3 + h * 5 + c * 7) % 13 - 6) / 16;
                host.v[i][h][c] = (float)((i * 5 + h + c * 3) % 17 - 8) / 8;
            }
    host.v[HIGH_KEY][0][3] = INFINITY;
    host.v[LOW_KEY][0][5] = -INFINITY;
    host.v[LARGE_KEY][0][7] = FLT_MAX;
    host.k[BAD_KEY][0][2] = -INFINITY; // gives a weight of 0, because q is positive
    host.k[LARGE_KEY][1][4] = -FLT_MAX;
    for (int i = 0; i < SEQLEN; i++) host.q[i][1][4] = 0x1p-126f;
}

static tsr_tensor on_device(void *at) {
    tsr_tensor t = TSR_TENSOR(at, TSR_F32, 1, SEQLEN, HEADS, DIM);
    t.device = (tsr_device){TSR_CUDA, 0};
    return t;
}

static void attend(tsr_mask mask) {
    static const char *const variants[] = {"cuda-flash1", "cuda-flash2"};
    memset(host.out, 0xff, sizeof host.out);
    assert_ok(tsr_memory_copy(ctx, device, &host, sizeof host));
    for (int n = 0; n < 2; n++)
        assert_ok(tsr_attention_forward(
            ctx, &TSR_ATTENTION_FORWARD_ARGS(.variant = variants[n], .q = on_device(device->q),
                                             .k = on_device(device->k), .v = on_device(device->v),
                                             .out = on_device(device->out[n]), .mask = mask)));
    assert_ok(tsr_memory_copy(ctx, &host, device, sizeof host));
    for (int i = 0; i < SEQLEN; i++)
        for (int h = 0; h < HEADS; h++)
            for (int c = 0; c < DIM; c++) {
                float expected = host.out[0][i][h][c], got = host.out[1][i][h][c];
                assert_true(got == got);
                if (isinf(expected) != 0)
                    assert_true(got == expected);
                else
                    assert_true(fabsf(got - expected) <= 1e-5F * (1 + fabsf(expected)));
            }
}

static void infinities(void **state) {
    (void)state;
    fill();
    attend(TSR_MASK_CAUSAL);
    for (int i = 0; i < SEQLEN; i++) {
        assert_int_equal(host.out[1][i][0][3] == INFINITY, i >= HIGH_KEY);
        assert_int_equal(host.out[1][i][0][5] == -INFINITY, i >= LOW_KEY);
        assert_int_equal(host.out[1][i][0][7] > 1e30F, i >= LARGE_KEY);
        assert_true(isfinite(host.out[1][i][0][7]) != 0);
        assert_true(isfinite(host.out[1][i][1][3]) != 0);
    }
    attend(TSR_MASK_NONE);
}

int main(void) {
    void *memory;
    int skip = cuda_case_open(0, sizeof host, &ctx, &memory);
    if (skip != 0) return skip;
    device = memory;
    const struct CMUnitTest tests[] = {cmocka_unit_test(infinities)};
    int failed = cmocka_run_group_tests_name("cuda attention f32", tests, NULL, NULL);
    cuda_case_close(ctx, memory);
    return failed;
}
