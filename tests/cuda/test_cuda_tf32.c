// SPDX-License-Identifier: Apache-2.0
// What fp32 on Hopper's tensor cores assumes, on a real GPU: boxes that the copy engine rounds to tf32, wgmma on them,
// the drift of its sums, and that planes of bf16 add up to the number. Small integers where sums must be exact, and no
// equal rows or columns.
#include <math.h>

#include "cuda/device/tf32_layouts_params.h"
#include "cuda_layouts_case.h"

enum { ROWS = 64, MOST_COLS = 256, DEPTH = 32, LINE = 72, TILE_WORDS = ROWS * DEPTH };

struct buffers {
    float a[ROWS * LINE], b[MOST_COLS * LINE], fragments[ROWS * MOST_COLS];
    uint32_t tile[TILE_WORDS];
};

static struct buffers host;
static tsr_context *ctx;
static struct buffers *device;

// m, n, k: the sizes in the maps, beyond which there are zeros.
struct tf32_case {
    int cols, step, first_k, repeats, m, n, k;
};

static struct tensor_map map_of(float *data, int width, int lines) {
    const struct tsri_tensor_map_args args = {.data = data,
                                              .dtype = TSR_F32,
                                              .is_tf32 = true,
                                              .size = {width, lines, 1, 1, 1},
                                              .stride = {1, LINE, LINE, LINE, LINE},
                                              .box = {DEPTH, 64, 1, 1, 1},
                                              .is_swizzled = true};
    return cuda_layouts_map(ctx, &args);
}

// Multiplies host.a by host.b.
static void run(const struct tf32_case *t) {
    const struct tsri_cuda_program program = {.source = "cuda/device/tf32_layouts.cu",
                                              .entry = "tf32_layouts",
                                              .num_defines = 1,
                                              .defines = {{"COLS", t->cols}}};
    const struct tf32_layouts_params p = {.a = map_of(device->a, t->k, t->m),
                                          .b = map_of(device->b, t->k, t->n),
                                          .fragments = device->fragments,
                                          .tile = device->tile,
                                          .first_k = t->first_k,
                                          .step = t->step,
                                          .repeats = t->repeats};
    const struct tsri_cuda_launch launch = {.num_blocks = 1,
                                            .num_threads = 128,
                                            .shared_bytes = (1 + t->cols / 64) * 8192 + 128,
                                            .params = &p};
    memset(host.fragments, 0xff, sizeof host.fragments);
    cuda_layouts_run(ctx, &program, &launch, device, &host, sizeof host);
}

static int value(int which, int line, int at) { return (line * 5 + at * 3 + which * 7) % 17 - 8; }

static void integers(const struct tf32_case t) {
    for (int i = 0; i < MOST_COLS * LINE; i++) {
        if (i < ROWS * LINE) host.a[i] = (float)value(0, i / LINE, i % LINE);
        host.b[i] = (float)value(1, i / LINE, i % LINE);
    }
    run(&t);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < t.cols; j++) {
            int sum = 0, first = t.first_k + (t.step < 0 ? 0 : t.step * 8);
            for (int k = first; k < first + (t.step < 0 ? DEPTH : 8); k++)
                if (i < t.m && j < t.n && k < t.k) sum += value(0, i, k) * value(1, j, k);
            if (host.fragments[i * t.cols + j] != (float)(sum * t.repeats))
                fail_msg("%d columns, step %d, k from %d, sizes %d %d %d: c(%d, %d) is %g, not %d",
                         t.cols, t.step, t.first_k, t.m, t.n, t.k, i, j,
                         (double)host.fragments[i * t.cols + j], sum * t.repeats);
        }
}

static void products(void **state) {
    (void)state;
    for (int cols = 128; cols <= 256; cols += 128) {
        for (int step = -1; step < 4; step++)
            integers((struct tf32_case){cols, step, 0, 1, 64, 256, 64});
        integers((struct tf32_case){cols, -1, 32, 3, 64, 256, 64});
        integers((struct tf32_case){cols, -1, 32, 1, 57, 100, 44});
        integers((struct tf32_case){cols, -1, 0, 1, 1, 1, 1});
    }
}

// Each number becomes the nearest with 11 bits, as tsr_matmul_math promises.
static void rounding(void **state) {
    const struct tf32_case t = {128, -1, 0, 1, 64, 256, 64};
    (void)state;
    memset(host.b, 0, sizeof host.b);
    for (int i = 0; i < ROWS * LINE; i++) { // 1 + i % 8 eighths of an 11-bit unit
        const float x = ldexpf((float)(1024 * 8 + i) / (1024 * 8), i % 100 - 50);
        host.a[i] = i % 3 == 0 ? -x : x;
    }
    run(&t);
    for (int row = 0; row < ROWS; row++)
        for (int k = 0; k < DEPTH; k++) {
            const int i = row * LINE + k;
            const float x = host.a[i], unit = ldexpf(1, ilogbf(x) - 10);
            float y;
            memcpy(&y, &host.tile[row * 32 + ((k / 4) ^ (row & 7)) * 4 + k % 4], sizeof y);
            assert_true(fabsf(y - x) <= unit / 2);
            assert_true(fmodf(y, unit) == 0);
        }
}

// Sums of one sign of 11-bit numbers lose at most k / 4 units of 2^-24. Prints how many they lose.
static void drift(void **state) {
    (void)state;
    for (int repeats = 1; repeats <= 256; repeats *= 4) {
        const struct tf32_case t = {128, -1, 0, repeats, 64, 256, 64};
        const double k = (double)repeats * DEPTH;
        double most = 0, mean = 0;
        for (int i = 0; i < MOST_COLS * LINE; i++) {
            if (i < ROWS * LINE) host.a[i] = (float)(1024 + i * 37 % 1021) / 2048;
            host.b[i] = (float)(1024 + i * 53 % 1019) / 2048;
        }
        run(&t);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < t.cols; j++) {
                double sum = 0;
                for (int d = 0; d < DEPTH; d++)
                    sum += (double)host.a[i * LINE + d] * (double)host.b[j * LINE + d];
                const double lost =
                    (sum * repeats - (double)host.fragments[i * t.cols + j]) / (sum * repeats);
                most = fmax(most, fabs(lost) * 0x1p24);
                mean += lost * 0x1p24 / (ROWS * t.cols);
            }
        printf("k %5.0f: sums of one sign lose %.1f units on average, %.1f at most (k / %.1f)\n", k,
               mean, most, k / most);
        assert_true(most <= k / 4);
    }
}

// Products with 1 return every bit of a, for every exponent with which bf16 holds all planes.
static void planes_add_up(void **state) {
    enum { M = 70, K = 96 };
    static float a[M * K], one[K * K], c[M * K];
    (void)state;
    uint32_t draw = 1;
    for (int i = 0; i < M * K; i++) {
        draw = draw * 1664525u + 1013904223u;
        const uint32_t exponent = 20 + draw % 234, bits = draw ^ draw << 13;
        const uint32_t word = (bits & 0x807fffff) | exponent << 23;
        memcpy(&a[i], &word, sizeof word);
    }
    for (int i = 0; i < K; i++) one[i * K + i] = 1;
    void *memory[3];
    float *const data[3] = {a, one, c};
    const size_t bytes[3] = {sizeof a, sizeof one, sizeof c};
    tsr_tensor t[3] = {TSR_TENSOR(NULL, TSR_F32, M, K), TSR_TENSOR(NULL, TSR_F32, K, K),
                       TSR_TENSOR(NULL, TSR_F32, M, K)};
    for (int i = 0; i < 3; i++) {
        assert_ok(tsr_memory_alloc(ctx, bytes[i], &memory[i]));
        assert_ok(tsr_memory_copy(ctx, memory[i], data[i], bytes[i]));
        t[i].data = memory[i];
        t[i].device = (tsr_device){TSR_CUDA, 0};
    }
    for (int transposed = 0; transposed < 2; transposed++) {
        assert_ok(tsr_matmul_forward(ctx, &TSR_MATMUL_FORWARD_ARGS(.variant = "cuda-bf16x6",
                                                                   .math = TSR_MATMUL_MATH_SPLIT,
                                                                   .a = t[0], .b = t[1], .c = t[2],
                                                                   .transpose_b = transposed)));
        assert_ok(tsr_memory_copy(ctx, c, memory[2], sizeof c));
        assert_ok(tsr_context_synchronize(ctx));
        for (int i = 0; i < M * K; i++)
            if (c[i] != a[i])
                fail_msg("element %d is %a, expected %a", i, (double)c[i], (double)a[i]);
    }
    for (int i = 0; i < 3; i++) assert_ok(tsr_memory_free(ctx, memory[i]));
}

int main(void) {
    void *memory;
    int skip = cuda_case_open(CUDA_CASE_HOPPER, sizeof host, &ctx, &memory);
    if (skip != 0) return skip;
    device = memory;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),
        cmocka_unit_test(rounding),
        cmocka_unit_test(drift),
        cmocka_unit_test(planes_add_up),
    };
    int failed = cmocka_run_group_tests_name("cuda tf32", tests, NULL, NULL);
    cuda_case_close(ctx, memory);
    return failed;
}
