// SPDX-License-Identifier: Apache-2.0
// A program that manages its own memory and threads: a context with the program's allocator and parallel_for, and a call with
// the program's workspace. The product has the same bits as with the library's own allocator and threads.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>

enum { M = 200, N = 300, K = 400, ALIGNMENT = 64 };

static float a[M][K], b[K][N], c[M][N], c_of_defaults[M][N];

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != TSR_OK) {                                                                    \
            fprintf(stderr, "%s: %s\n", #call, tsr_last_error());                                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

// How much of our memory the library holds now, and the most it has held.
struct account {
    size_t bytes, most;
};
static void *take(void *user, size_t bytes, size_t alignment) {
    struct account *account = user;
    void *memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory == NULL) return NULL;
    account->bytes += bytes;
    if (account->bytes > account->most) account->most = account->bytes;
    return memory;
}
static void give_back(void *user, void *memory, size_t bytes) {
    struct account *account = user;
    account->bytes -= bytes;
    free(memory);
}

// A real program would give the tasks to its thread pool; to run them one after the other is also allowed.
static void run_tasks(void *user, int num_tasks, void (*task)(void *arg, int index), void *arg) {
    *(int *)user += num_tasks;
    for (int i = 0; i < num_tasks; i++) task(arg, i);
}

int main(void) {
    for (int i = 0; i < M * K; i++) a[i / K][i % K] = (float)(i % 17) - 8;
    for (int i = 0; i < K * N; i++) b[i / N][i % N] = (float)(i % 13) / 4;

    struct account account = {0};
    int num_tasks = 0;
    tsr_context *ctx;
    TRY(tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 4, .parallel_for = run_tasks,
                                                .parallel_for_user = &num_tasks,
                                                .allocator = {take, give_back, &account},
                                                .tuning_file = ""),
                           &ctx));
    tsr_matmul_forward_args args = TSR_MATMUL_FORWARD_ARGS(.a = TSR_TENSOR(a, TSR_F32, M, K),
                                                           .b = TSR_TENSOR(b, TSR_F32, K, N),
                                                           .c = TSR_TENSOR(c, TSR_F32, M, N));
    // Without args.workspace the workspace is in the context's arena, which our allocator provides.
    TRY(tsr_matmul_forward(ctx, &args));
    printf("%d tasks, %zu bytes in the arena\n", num_tasks, account.most);

    // The same call with our workspace, which has exactly as many bytes as the call needs.
    size_t bytes = 0;
    TRY(tsr_matmul_forward_prepare(ctx, &args, &bytes));
    void *memory = aligned_alloc(ALIGNMENT, (bytes / ALIGNMENT + 1) * ALIGNMENT);
    if (memory == NULL) return 1;
    args.workspace = memory;
    args.workspace_bytes = bytes;
    memset(c, 0xff, sizeof c);
    TRY(tsr_matmul_forward(ctx, &args));
    free(memory);
    tsr_context_destroy(ctx);
    if (account.bytes != 0) return 1;

    TRY(tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 1, .tuning_file = ""), &ctx));
    args.c = TSR_TENSOR(c_of_defaults, TSR_F32, M, N);
    args.workspace = NULL;
    args.workspace_bytes = 0;
    TRY(tsr_matmul_forward(ctx, &args));
    tsr_context_destroy(ctx);
    return num_tasks > 0 && memcmp(c, c_of_defaults, sizeof c) == 0 ? 0 : 1;
}
