// SPDX-License-Identifier: Apache-2.0
// What the host spends on calls for a GPU: the first call of each operation, to its end, which compiles kernels where the cache
// on disk ($TSR_CACHE_DIR) has none, and a warm one, to its return: medians of batches short enough that the queue is never full.
//
//     cc -O2 -Iinclude bench/host_time.c build/release/libtessera.a -lm -ldl -lpthread -o host_time
//     TSR_CACHE_DIR=$(mktemp -d) ./host_time; ./host_time
#include <stdio.h>
#include <stdlib.h>
#include <tessera/tessera.h>
#include <time.h>

enum { BATCHES = 200, CALLS = 64, TENSORS = 4 };

static tsr_context *ctx;
static void *memory[TENSORS];

static void try(tsr_status status) {
    if (status == TSR_OK) return;
    fprintf(stderr, "host_time: %s\n", tsr_last_error());
    exit(1);
}

static tsr_tensor on_gpu(tsr_tensor tensor) {
    tensor.device = (tsr_device){TSR_CUDA, 0};
    return tensor;
}
#define GPU(index, ...) on_gpu(TSR_TENSOR(memory[index], __VA_ARGS__))

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void softmax(void) {
    try(tsr_softmax_forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = GPU(0, TSR_F32, 64, 512),
                                                           .y = GPU(1, TSR_F32, 64, 512))));
}

static void layernorm(void) {
    try(tsr_layernorm_forward(ctx, &TSR_LAYERNORM_FORWARD_ARGS(.x = GPU(0, TSR_BF16, 64, 768),
                                                               .weight = GPU(1, TSR_BF16, 768),
                                                               .bias = GPU(2, TSR_BF16, 768),
                                                               .y = GPU(3, TSR_BF16, 64, 768),
                                                               .eps = 1e-5)));
}

static void matmul(void) {
    try(tsr_matmul_forward(ctx, &TSR_MATMUL_FORWARD_ARGS(.a = GPU(0, TSR_BF16, 256, 256),
                                                         .b = GPU(1, TSR_BF16, 256, 256),
                                                         .c = GPU(2, TSR_BF16, 256, 256))));
}

static void attention(void) {
    try(tsr_attention_forward(ctx,
                              &TSR_ATTENTION_FORWARD_ARGS(.q = GPU(0, TSR_BF16, 1, 64, 8, 32),
                                                          .k = GPU(1, TSR_BF16, 1, 64, 8, 32),
                                                          .v = GPU(2, TSR_BF16, 1, 64, 8, 32),
                                                          .out = GPU(3, TSR_BF16, 1, 64, 8, 32))));
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *name, void (*call)(void)) {
    double start = now();
    call();
    try(tsr_context_synchronize(ctx));
    double first = now() - start, each[BATCHES];
    for (int batch = 0; batch < BATCHES; batch++) {
        start = now();
        for (int i = 0; i < CALLS; i++) call();
        each[batch] = (now() - start) / CALLS;
        try(tsr_context_synchronize(ctx));
    }
    qsort(each, BATCHES, sizeof each[0], ascending);
    printf("%-24s first %8.1f ms, warm %5.2f us\n", name, 1e3 * first, 1e6 * each[BATCHES / 2]);
}

int main(void) {
    double start = now();
    try(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}), &ctx));
    printf("%-24s %14.1f ms\n", "context", 1e3 * (now() - start));
    for (int i = 0; i < TENSORS; i++) try(tsr_memory_alloc(ctx, 1 << 20, &memory[i]));
    measure("softmax 64x512 f32", softmax);
    measure("layernorm 64x768 bf16", layernorm);
    measure("matmul 256^3 bf16", matmul);
    measure("attention 1x64x8x32 bf16", attention);
    for (int i = 0; i < TENSORS; i++) try(tsr_memory_free(ctx, memory[i]));
    tsr_context_destroy(ctx);
    return 0;
}
