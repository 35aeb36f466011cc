// SPDX-License-Identifier: Apache-2.0
// Measures the host's time for GPU calls. The first call of each operation is timed to its end; it compiles kernels that are not
// in the disk cache ($TSR_CACHE_DIR). Warm calls are timed to their return: medians over batches so short that the queue never
// fills up. The line "an empty kernel" is the lower bound, a launch by the driver itself.
//
//     cc -O2 -Iinclude bench/host_time.c build/release/libtessera.a -lm -ldl -lpthread -o host_time
//     TSR_CACHE_DIR=$(mktemp -d) ./host_time; ./host_time
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>
#include <time.h>

enum { BATCHES = 200, CALLS = 64, TENSORS = 5, BYTES = 17 << 20 };

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

// A few queries that share their keys. The call makes two launches.
static void few(void) {
    try(tsr_attention_forward(
        ctx, &TSR_ATTENTION_FORWARD_ARGS(.q = GPU(0, TSR_BF16, 1, 16, 32, 128),
                                         .k = GPU(1, TSR_BF16, 1, 8192, 8, 128),
                                         .v = GPU(2, TSR_BF16, 1, 8192, 8, 128),
                                         .out = GPU(3, TSR_BF16, 1, 16, 32, 128))));
}

enum { KEYS = 1024 };

static void decode(void) {
    try(tsr_attention_decode(
        ctx, &TSR_ATTENTION_DECODE_ARGS(.q = GPU(0, TSR_BF16, 1, 1, 32, 128),
                                        .k_cache = GPU(1, TSR_BF16, 1, KEYS, 8, 128),
                                        .v_cache = GPU(2, TSR_BF16, 1, KEYS, 8, 128),
                                        .cache_seqlens = GPU(4, TSR_I32, 1),
                                        .out = GPU(3, TSR_BF16, 1, 1, 32, 128))));
}

// ---- The driver alone ---------------------------------------------------------------------------

static int (*launch_kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, void *, void **, void **);
static void *empty_kernel;

static void launch(void) {
    if (launch_kernel(empty_kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) != 0)
        fprintf(stderr, "host_time: cuLaunchKernel failed\n");
}

static void *driver(void *library, const char *name) {
    void *function = library != NULL ? dlsym(library, name) : NULL;
    if (function == NULL) fprintf(stderr, "host_time: the CUDA driver has no %s\n", name);
    return function;
}
#define DRIVER(function, name)                                                                     \
    void *function##_ = driver(library, name);                                                     \
    if (function##_ == NULL) return 0;                                                             \
    memcpy(&(function), &function##_, sizeof function##_)

// Loads an empty kernel; returns whether that worked.
static int find_empty_kernel(void) {
    static const char code[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                               ".visible .entry empty() { ret; }\n";
    int (*retain)(void **, int), (*set_current)(void *), (*load)(void **, const void *),
        (*get)(void **, void *, const char *);
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *primary, *module;
    DRIVER(retain, "cuDevicePrimaryCtxRetain");
    DRIVER(set_current, "cuCtxSetCurrent");
    DRIVER(load, "cuModuleLoadData");
    DRIVER(get, "cuModuleGetFunction");
    DRIVER(launch_kernel, "cuLaunchKernel");
    return retain(&primary, 0) == 0 && set_current(primary) == 0 && load(&module, code) == 0 &&
           get(&empty_kernel, module, "empty") == 0;
}

// ---- Measuring ----------------------------------------------------------------------------------

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
    printf("%-24s first %8.1f ms, warm %5.2f us (minimum %5.2f)\n", name, 1e3 * first,
           1e6 * each[BATCHES / 2], 1e6 * each[0]);
}

int main(void) {
    double start = now();
    try(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}), &ctx));
    printf("%-24s %14.1f ms\n", "context", 1e3 * (now() - start));
    for (int i = 0; i < TENSORS; i++) try(tsr_memory_alloc(ctx, BYTES, &memory[i]));
    const int32_t length = KEYS;
    try(tsr_memory_copy(ctx, memory[4], &length, sizeof length));
    if (find_empty_kernel()) measure("an empty kernel", launch);
    measure("softmax 64x512 f32", softmax);
    measure("layernorm 64x768 bf16", layernorm);
    measure("matmul 256^3 bf16", matmul);
    measure("attention 1x64x8x32 bf16", attention);
    measure("16 queries, 8192 keys", few);
    measure("decode, 1024 keys", decode);
    for (int i = 0; i < TENSORS; i++) try(tsr_memory_free(ctx, memory[i]));
    tsr_context_destroy(ctx);
    return 0;
}
