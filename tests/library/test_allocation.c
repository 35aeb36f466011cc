// SPDX-License-Identifier: Apache-2.0
// Refused memory and threads: every request to a caller's allocator and to the operating system is refused in turn.
#include <pthread.h>

#include "core/core_system.h"
#include "softmax_job.h"

enum { ROWS = 160, COLS = 1024, MANY_THREADS = 5 };

static struct softmax_job job;

// The library keeps its workers: only a team larger than all before creates new ones.
static int larger_team(void) {
    static int num_threads = MANY_THREADS;
    return ++num_threads;
}

static int setup(void **state) {
    (void)state;
    softmax_job_create(&job, ROWS, COLS);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    softmax_job_release(&job);
    return 0;
}

static void check_run(tsr_context *ctx) {
    assert_ok(softmax_job_run(ctx, &job));
    assert_true(softmax_job_is_right(&job));
}

// ---- Allocators -------------------------------------------------------------------------------

struct counted {
    int num_requests, fail_at; // fail_at: the first is 1
    bool fails_from_there_on;
    int num_live, num_failed;
    size_t bytes_live;
};

static bool is_refused(struct counted *counted) {
    int n = ++counted->num_requests;
    bool refused = counted->fail_at > 0 && (n == counted->fail_at ||
                                            (n > counted->fail_at && counted->fails_from_there_on));
    counted->num_failed += refused;
    return refused;
}

static void *counted_alloc(void *user, size_t bytes, size_t alignment) {
    struct counted *counted = user;
    if (is_refused(counted)) return NULL;
    assert_true(bytes > 0 && alignment >= 64 && (alignment & (alignment - 1)) == 0);
    size_t room = (bytes + alignment - 1) / alignment * alignment + alignment;
    unsigned char *block = aligned_alloc(alignment, room);
    memcpy(block, &bytes, sizeof bytes); // header: one whole alignment
    memset(block + alignment, 0xff, bytes);
    counted->num_live++;
    counted->bytes_live += bytes;
    return block + alignment;
}

static void counted_free(void *user, void *pointer, size_t bytes) {
    struct counted *counted = user;
    unsigned char *block = (unsigned char *)pointer - 64;
    size_t allocated;
    memcpy(&allocated, block, sizeof allocated);
    assert_int_equal(bytes, allocated);
    counted->num_live--;
    counted->bytes_live -= bytes;
    free(block);
}

static tsr_status create_counted(struct counted *counted, tsr_context **ctx) {
    tsr_context_options options = TSR_CONTEXT_OPTIONS(.num_threads = 2);
    options.allocator = (tsr_allocator){counted_alloc, counted_free, counted};
    return tsr_context_create(&options, ctx);
}

static void allocator_hooks_balance(void **state) {
    (void)state;
    struct counted counted = {0};
    tsr_context *ctx;
    assert_ok(create_counted(&counted, &ctx));
    check_run(ctx);
    int requests = counted.num_requests;
    size_t arena = tsr_context_arena_bytes(ctx);
    for (int i = 0; i < 10; i++) check_run(ctx); // the arena stays
    assert_int_equal(counted.num_requests, requests);
    struct softmax_job wide; // a larger call grows the arena; its rows fit any L2 cache
    softmax_job_create(&wide, 2, 12000);
    assert_ok(softmax_job_run(ctx, &wide));
    assert_true(softmax_job_is_right(&wide));
    softmax_job_release(&wide);
    assert_true(tsr_context_arena_bytes(ctx) > arena);
    assert_true(counted.bytes_live >= tsr_context_arena_bytes(ctx));
    tsr_context_destroy(ctx);
    assert_int_equal(counted.num_live, 0);
    assert_int_equal(counted.bytes_live, 0);
}

// Every request to the context's allocator is refused in turn, alone and with all later requests.
static void nth_allocation_fails(void **state) {
    (void)state;
    int num_failed = 0;
    for (int both = 0; both < 2; both++)
        for (int n = 1;; n++) {
            struct counted counted = {.fail_at = n, .fails_from_there_on = both == 1};
            tsr_context *ctx = (tsr_context *)&job;
            tsr_status status = create_counted(&counted, &ctx);
            if (status != TSR_OK) {
                assert_status(status, TSR_OUT_OF_MEMORY, "context_create", "bytes");
                assert_null(ctx);
            } else {
                if (softmax_job_run(ctx, &job) != TSR_OK) {
                    assert_status(softmax_job_run(ctx, &job), both ? TSR_OUT_OF_MEMORY : TSR_OK,
                                  NULL);
                    if (both) assert_true(softmax_job_is_untouched(&job));
                    assert_non_null(strstr(tsr_last_error(), "softmax_forward"));
                }
                int failed = counted.num_failed;
                counted.fail_at = 0;
                check_run(ctx); // the next call succeeds
                tsr_context_destroy(ctx);
                counted.num_failed = failed;
            }
            assert_int_equal(counted.num_live, 0);
            num_failed += counted.num_failed;
            if (counted.num_failed == 0) break;
            assert_true(n < 100);
        }
    assert_true(num_failed >= 4);
}

// ---- The operating system refuses -------------------------------------------------------------

static struct counted system_memory, system_threads;
static struct tsri_system real_system;

static void *refusing_alloc(size_t alignment, size_t bytes) {
    if (is_refused(&system_memory)) return NULL;
    system_memory.num_live++;
    return real_system.alloc(alignment, bytes);
}

static void refusing_free(void *pointer) {
    system_memory.num_live--;
    real_system.free(pointer);
}

static int refusing_thread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                  void *(*body)(void *), void *arg) {
    if (is_refused(&system_threads)) return 11; // EAGAIN
    return real_system.thread_create(thread, attributes, body, arg);
}

static int swap_system(void **state) {
    (void)state;
    real_system = tsri_system;
    system_memory = system_threads = (struct counted){0};
    tsri_system = (struct tsri_system){refusing_alloc, refusing_free, refusing_thread_create};
    return 0;
}

static int restore_system(void **state) {
    (void)state;
    tsri_system = real_system;
    return 0;
}

// Every request for memory, for contexts, arenas and workers, is refused in turn. Each round needs one more thread than
// the last, so that a worker must be created.
static void nth_system_allocation_fails(void **state) {
    (void)state;
    int num_failed = 0;
    for (int both = 0; both < 2; both++)
        for (int n = 1; n < 100; n++) {
            system_memory = (struct counted){.fail_at = n, .fails_from_there_on = both == 1};
            tsr_context *ctx = (tsr_context *)&job;
            tsr_status status =
                tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = larger_team()), &ctx);
            if (status == TSR_OK) {
                status = softmax_job_run(ctx, &job);
                // Without a worker the call continues with fewer threads.
                assert_true(status == TSR_OK ? softmax_job_is_right(&job)
                                             : softmax_job_is_untouched(&job));
            }
            if (status != TSR_OK) assert_status(status, TSR_OUT_OF_MEMORY, "bytes");
            int failed = system_memory.num_failed;
            system_memory.fail_at = 0;
            if (ctx != NULL) {
                check_run(ctx);
                tsr_context_destroy(ctx);
            }
            num_failed += failed;
            if (failed == 0) break;
        }
    assert_true(num_failed >= 6); // context, arena, worker; alone and with all later
}

static void thread_creation_fails(void **state) {
    (void)state;
    int num_failed = 0;
    for (int both = 0; both < 2; both++)
        for (int n = 1; n <= 3; n++) {
            larger_team();
            system_threads = (struct counted){.fail_at = n, .fails_from_there_on = both == 1};
            tsr_context *ctx = test_context(larger_team());
            int live = system_memory.num_live;
            for (int repeat = 0; repeat < 3; repeat++) check_run(ctx);
            assert_true(system_memory.num_live - live <=
                        1 + system_threads.num_requests - system_threads.num_failed);
            num_failed += system_threads.num_failed;
            system_threads.fail_at = 0;
            check_run(ctx);
            tsr_context_destroy(ctx);
        }
    assert_true(num_failed >= 6);
}

// All memory from the system is returned except the workers, which stay.
static void system_allocations_balance(void **state) {
    (void)state;
    tsr_context *ctx = test_context(2);
    check_run(ctx);
    tsr_context_destroy(ctx);
    int live = system_memory.num_live;
    for (int i = 0; i < 20; i++) {
        ctx = test_context(2);
        check_run(ctx);
        tsr_context_destroy(ctx);
    }
    assert_int_equal(system_memory.num_live, live);
}

#define WITH_SYSTEM(name) cmocka_unit_test_setup_teardown(name, swap_system, restore_system)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocator_hooks_balance), cmocka_unit_test(nth_allocation_fails),
        WITH_SYSTEM(nth_system_allocation_fails),  WITH_SYSTEM(thread_creation_fails),
        WITH_SYSTEM(system_allocations_balance),
    };
    return cmocka_run_group_tests_name("allocation", tests, setup, teardown);
}
