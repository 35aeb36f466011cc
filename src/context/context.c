// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "context/context_state.h"
#include "context/profile_internal.h"
#include "core/core_float.h"
#include "core/core_status.h"
#include "core/core_system.h"
#include "core/core_tensor.h"
#include "cpu/cpu_isa.h"
#include "cpu/cpu_limits.h"
#include "cpu/cpu_team.h"

enum { HUGE_PAGE = 2 << 20 };

// ---- Creation ---------------------------------------------------------------------------------

// aligned_alloc needs a size that is a multiple of the alignment. Large blocks ask for huge pages, which speed up
// DRAM-bound kernels from two threads on.
static void *system_alloc(void *user, size_t bytes, size_t alignment) {
    (void)user;
    if (bytes >= HUGE_PAGE) alignment = HUGE_PAGE;
    if (bytes > SIZE_MAX - alignment) return NULL;
    void *pointer = tsri_system.alloc(alignment, tsri_round_up(bytes, alignment));
#if defined(MADV_HUGEPAGE)
    if (pointer != NULL && bytes >= HUGE_PAGE)
        (void)madvise(pointer, tsri_round_up(bytes, HUGE_PAGE), MADV_HUGEPAGE);
#endif
    return pointer;
}

static void system_free(void *user, void *pointer, size_t bytes) {
    (void)user;
    (void)bytes;
    tsri_system.free(pointer);
}

static tsr_status choose_isa(tsr_isa wanted, tsr_isa *isa) {
    const char *source = "options.isa";
    if (wanted == TSR_ISA_AUTO) {
        const char *name = tsri_environment("TSR_ISA");
        *isa = tsri_isa_best();
        if (name == NULL || *name == '\0' || strcmp(name, "auto") == 0) return TSR_OK;
        source = "TSR_ISA";
        for (int i = TSR_ISA_SCALAR; i < TSR_ISA_COUNT; i++)
            if (strcmp(name, tsr_isa_name((tsr_isa)i)) == 0) wanted = (tsr_isa)i;
        if (wanted == TSR_ISA_AUTO)
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "context_create: TSR_ISA is '%s', expected scalar, avx2 or avx512",
                             name);
    }
    if ((unsigned)wanted >= TSR_ISA_COUNT)
        return tsri_fail(TSR_INVALID_ARGUMENT, "context_create: %s is %d, expected a tsr_isa",
                         source, (int)wanted);
    if (!tsr_isa_is_supported(wanted))
        return tsri_fail(TSR_UNSUPPORTED,
                         "context_create: %s is %s, expected at most %s, the best that this build, "
                         "processor and operating system support",
                         source, tsr_isa_name(wanted), tsr_isa_name(tsri_isa_best()));
    *isa = wanted;
    return TSR_OK;
}

static TSRI_NOT_INLINED tsr_status create(const tsr_context_options *given, tsri_find_op find_op,
                                          tsr_context **context) {
    if (context == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "context_create: context is NULL, expected an address for the handle");
    *context = NULL;
    tsr_context_options options = {0};
    if (given != NULL)
        TSRI_TRY(tsri_args_read("context_create", "options", &options, sizeof options, given));
    bool is_cuda = options.device.type == TSR_CUDA && options.device.index >= 0;
    if (!is_cuda && (options.device.type != TSR_CPU || options.device.index != 0))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "context_create: options.device is {%d, %d}, expected {TSR_CPU, 0} or "
                         "{TSR_CUDA, 0 or more}",
                         (int)options.device.type, (int)options.device.index);
    if (!is_cuda && options.stream != NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "context_create: options.stream is %p on the cpu, expected NULL",
                         options.stream);
    if (options.num_threads < 0 || options.num_threads > 4096)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "context_create: options.num_threads is %d, expected 0 to 4096",
                         (int)options.num_threads);
    if ((options.allocator.alloc == NULL) != (options.allocator.free == NULL))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "context_create: options.allocator has one of alloc and free, expected "
                         "both or none");
    if (options.l3_bytes < 0)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "context_create: options.l3_bytes is %lld, expected 0 or more",
                         (long long)options.l3_bytes);
    tsr_isa isa = TSR_ISA_AUTO;
    TSRI_TRY(choose_isa(options.isa, &isa));
    // The allocator serves the device; host memory of a CUDA context comes from the system.
    const tsr_allocator system = {system_alloc, system_free, NULL};
    bool has_allocator = options.allocator.alloc != NULL;
    if (!has_allocator) options.allocator = system;
    const tsr_allocator host = is_cuda ? system : options.allocator;
    int most_busy = options.num_threads == 0 ? tsri_num_cpus() : 0;
    if (options.num_threads == 0) options.num_threads = most_busy;
    struct tsri_cache_sizes caches = tsri_cache_sizes();
    if (options.l3_bytes == 0) options.l3_bytes = tsri_l3_share();

    tsr_context *ctx = host.alloc(host.user, sizeof *ctx, TSRI_ARENA_ALIGNMENT);
    if (ctx == NULL)
        return tsri_fail(TSR_OUT_OF_MEMORY, "context_create: the allocator has no %zu bytes",
                         sizeof *ctx);
    *ctx = (tsr_context){
        .options = options,
        .limits = {isa, options.num_threads, caches.l1, caches.l2, options.l3_bytes, 0,
                   isa == TSR_ISA_AVX512 ? tsri_bf16_units() : (struct tsri_bf16_units){0},
                   isa == TSR_ISA_AVX512 && tsri_has_vnni()},
        .most_busy = most_busy,
        .last_variant = "",
    };
    tsr_status status = is_cuda ? context_open_cuda(ctx) : TSR_OK;
    if (status != TSR_OK) {
        host.free(host.user, ctx, sizeof *ctx);
        return status;
    }
    tsri_tuning_open(&ctx->tuning, options.tuning_file, find_op, &ctx->limits);
    if (ctx->tuning.table != NULL) ctx->limits.tuning = &ctx->tuning;
    if (is_cuda) ctx->limits.memo = &ctx->memos->plans;
    ctx->options.tuning_file = NULL; // valid only during this call
    if (is_cuda && !has_allocator)
        ctx->options.allocator = (tsr_allocator){context_cuda_alloc, context_cuda_free, ctx};
    *context = ctx;
    return TSR_OK;
}

tsr_status tsri_context_create(const tsr_context_options *given, tsri_find_op find_op,
                               tsr_context **context) {
    tsri_float_environment before;
    tsri_float_enter_foreign(&before);
    tsr_status status = create(given, find_op, context);
    tsri_float_leave_foreign(&before);
    return status;
}

static void destroy(tsr_context *ctx) {
    tsri_profile_leave(ctx);
    tsri_tuning_close(&ctx->tuning);
    if (is_on_cuda(ctx)) {
        context_close_cuda(ctx);
        system_free(NULL, ctx, sizeof *ctx);
        return;
    }
    tsr_allocator allocator = ctx->options.allocator;
    if (ctx->arena != NULL) allocator.free(allocator.user, ctx->arena, ctx->arena_bytes);
    allocator.free(allocator.user, ctx, sizeof *ctx);
}

// The caller's allocator and the driver run in the library's floating-point environment.
void tsr_context_destroy(tsr_context *ctx) {
    tsri_float_environment before;
    if (ctx == NULL) return;
    tsri_float_enter_foreign(&before);
    destroy(ctx);
    tsri_float_leave_foreign(&before);
}

tsr_isa tsr_context_isa(const tsr_context *ctx) { return ctx->limits.isa; }
int32_t tsr_context_num_threads(const tsr_context *ctx) { return ctx->options.num_threads; }
size_t tsr_context_arena_bytes(const tsr_context *ctx) { return ctx->arena_bytes; }
size_t tsr_context_peak_workspace_bytes(const tsr_context *ctx) { return ctx->peak_bytes; }
void tsr_context_reset_peak(tsr_context *ctx) { ctx->peak_bytes = 0; }
const char *tsr_context_last_variant(const tsr_context *ctx) { return ctx->last_variant; }
void tsri_context_set_variant(tsr_context *ctx, const char *name) { ctx->last_variant = name; }

const struct tsri_limits *tsri_context_limits(const tsr_context *ctx) { return &ctx->limits; }

// ---- Workspace --------------------------------------------------------------------------------

static tsr_status grow_arena(tsr_context *ctx, const char *op, size_t need) {
    tsr_allocator allocator = ctx->options.allocator;
    if (ctx->arena != NULL) allocator.free(allocator.user, ctx->arena, ctx->arena_bytes);
    ctx->arena_bytes = 0;
    ctx->arena = allocator.alloc(allocator.user, need, TSRI_ARENA_ALIGNMENT);
    if (ctx->arena == NULL)
        return tsri_fail(TSR_OUT_OF_MEMORY, "%s: the allocator has no %zu bytes of workspace", op,
                         need);
    ctx->arena_bytes = need;
    return TSR_OK;
}

tsr_status tsri_context_workspace(tsr_context *ctx, const char *op, void *given, size_t given_bytes,
                                  size_t need, void **workspace) {
    static _Alignas(TSRI_ARENA_ALIGNMENT) char nothing[TSRI_ARENA_ALIGNMENT];
    *workspace = nothing;
    if (need == 0) return TSR_OK; // any given workspace will do
    if (given != NULL) {
        if (given_bytes < need)
            return tsri_fail(TSR_WORKSPACE, "%s: workspace_bytes is %zu, expected at least %zu", op,
                             given_bytes, need);
        if ((uintptr_t)given % TSRI_ARENA_ALIGNMENT != 0)
            return tsri_fail(TSR_WORKSPACE, "%s: workspace is %p, expected a multiple of %d", op,
                             given, (int)TSRI_ARENA_ALIGNMENT);
        *workspace = given;
        return TSR_OK;
    }
    if (is_on_cuda(ctx))
        TSRI_TRY(context_cuda_arena(ctx, op, need));
    else if (need > ctx->arena_bytes)
        TSRI_TRY(grow_arena(ctx, op, need));
    if (need > ctx->peak_bytes) ctx->peak_bytes = need;
    *workspace = ctx->arena;
    return TSR_OK;
}

// ---- Parallel loops ---------------------------------------------------------------------------

// With few threads, each takes the next task of one list. With many, the tasks are dealt into as many lists in
// alternating direction, because the first tasks are often the largest. A thread that has finished its own list takes
// tasks of other lists, because threads seldom run equally fast. So tasks begin roughly in order, threads do not share
// one counter, and in the next call a thread finds its operands and results in its own caches. Each list's counter has
// its own cache line.
enum { MANY_THREADS = 4, MOST_LISTS = 64 };

struct loop {
    int64_t num_tasks;
    int num_lists;
    void (*task)(void *arg, int64_t index, int thread);
    void *arg;
    struct tsri_profile_mark mark;
    struct {
        _Alignas(64) atomic_llong num_taken;
    } lists[MOST_LISTS];
};

static int64_t task_of(const struct loop *loop, int list, int64_t at) {
    return at * loop->num_lists + (at % 2 == 0 ? list : loop->num_lists - 1 - list);
}

// The next task of a list, or an index beyond all tasks.
static int64_t take_task(struct loop *loop, int list) {
    atomic_llong *taken = &loop->lists[list].num_taken;
    int64_t at = atomic_load_explicit(taken, memory_order_relaxed);
    if (task_of(loop, list, at) < loop->num_tasks)
        at = atomic_fetch_add_explicit(taken, 1, memory_order_relaxed);
    return task_of(loop, list, at);
}

static void run_loop(void *arg, int thread) {
    struct loop *loop = arg;
    tsri_float_environment before;
    tsri_float_enter(&before);
    int64_t start_ns = loop->mark.recording > 0 ? tsri_profile_now() : 0;
    for (int i = 0; i < loop->num_lists; i++) {
        int list = (thread + i) % loop->num_lists;
        for (int64_t index; (index = take_task(loop, list)) < loop->num_tasks;)
            loop->task(loop->arg, index, thread);
    }
    if (loop->mark.recording > 0) tsri_profile_thread(loop->mark, thread, start_ns);
    tsri_float_leave(&before);
}

// Each of n threads takes work / n, plus some time to wake and to wait for. Below LEAST_WORK, threads are no faster
// than the calling thread alone; of many threads, a few are no faster below LEAST_WORK_OF_MANY (docs/threads.md).
int tsri_worth_threads(const struct tsri_limits *limits, double multiplications) {
    enum { THREAD_WORK = 16 << 10, LEAST_WORK = 200 << 10, LEAST_WORK_OF_MANY = 400 << 10 };
    enum { SCALAR_TIMES = 16 }; // plain C takes this many times as long
    int n = 1, num_threads = limits->num_threads;
    if (limits->isa == TSR_ISA_SCALAR) multiplications *= SCALAR_TIMES;
    if (multiplications < (num_threads < MANY_THREADS ? LEAST_WORK : LEAST_WORK_OF_MANY)) return n;
    while (n < num_threads && (double)(n + 1) * (double)(n + 1) * THREAD_WORK <= multiplications)
        n++;
    return n;
}

void tsri_parallel(tsr_context *ctx, int64_t num_tasks,
                   void (*task)(void *arg, int64_t index, int thread), void *arg) {
    tsri_parallel_on(ctx, ctx->options.num_threads, num_tasks, task, arg);
}

void tsri_parallel_on(tsr_context *ctx, int num_threads, int64_t num_tasks,
                      void (*task)(void *arg, int64_t index, int thread), void *arg) {
    num_threads = (int)tsri_min(tsri_min(ctx->options.num_threads, num_threads), num_tasks);
    if (num_threads <= 1) {
        for (int64_t i = 0; i < num_tasks; i++) task(arg, i, 0);
        return;
    }
    struct loop loop;
    int most = num_threads < MANY_THREADS ? 1 : MOST_LISTS;
    loop.num_tasks = num_tasks, loop.num_lists = num_threads < most ? num_threads : most;
    loop.task = task, loop.arg = arg;
    loop.mark = tsri_profile_is_on() ? tsri_profile_mark() : (struct tsri_profile_mark){0};
    for (int i = 0; i < loop.num_lists; i++) atomic_init(&loop.lists[i].num_taken, 0);
    if (ctx->options.parallel_for != NULL) {
        tsri_float_environment left;
        ctx->options.parallel_for(ctx->options.parallel_for_user, num_threads, run_loop, &loop);
        tsri_float_enter(&left); // parallel_for may have changed it
    } else {
        tsri_team_run(num_threads, ctx->most_busy, run_loop, &loop);
    }
}
