// SPDX-License-Identifier: Apache-2.0
// Recordings on the host: calls on the CPU and their threads, ranges around them, other threads and processes.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <tessera/tessera.h>
#include <unistd.h>

#include "core/core_system.h"
#include "profile_case.h"

static int setup(void **state) {
    (void)state;
    num_seen = 0;
    return 0;
}

// ---- Calls ------------------------------------------------------------------------------------

static const tsr_device cpu = {TSR_CPU, 0};

static void spans_of_the_host(void **state) {
    (void)state;
    tsr_context *ctx = test_context(2);
    int64_t num_lost = -1;
    tsr_profile_begin("before"); // no recording: nothing happens
    assert_ok(tsr_profile_start(ctx));
    tsr_profile_begin("outer");
    assert_ok(softmax(ctx, cpu));
    tsr_profile_begin("inner");
    assert_ok(softmax(ctx, cpu));
    tsr_profile_end();
    tsr_profile_end();
    tsr_profile_end(); // one too many
    assert_ok(tsr_profile_stop(ctx, see, &num_seen, &num_lost));
    assert_int_equal(num_lost, 0);
    int64_t outer = 0, inner = 0, calls[2] = {0}, num_calls = 0, num_threads = 0;
    for (int i = 0; i < num_seen; i++) {
        const tsr_profile_record *r = &seen[i];
        assert_true(r->end_ns >= r->start_ns && r->start_ns > 0);
        switch (r->kind) {
        case TSR_PROFILE_RANGE:
            if (strcmp(names[i], "outer") == 0) outer = r->id;
            if (strcmp(names[i], "inner") == 0) inner = r->id;
            assert_int_equal(r->parent, inner == r->id ? outer : 0);
            break;
        case TSR_PROFILE_CALL:
            assert_string_equal(names[i], "softmax_forward");
            assert_string_equal(r->variant, "fused");
            assert_int_equal(r->parent, num_calls == 0 ? outer : inner);
            calls[num_calls++] = r->id;
            break;
        default:
            assert_int_equal(r->kind, TSR_PROFILE_THREAD);
            assert_string_equal(r->op, "softmax_forward");
            assert_true(r->parent == calls[0] || r->parent == calls[1]);
            assert_true(r->thread == 0 || r->thread == 1);
            num_threads++;
        }
    }
    assert_true(0 < outer && outer < calls[0] && calls[0] < inner && inner < calls[1]);
    assert_int_equal(num_calls, 2);
    assert_true(num_threads >= 2);
    // Afterwards nothing is recorded, and the next recording is empty.
    assert_ok(softmax(ctx, cpu));
    assert_ok(tsr_profile_start(ctx));
    num_seen = 0;
    assert_ok(tsr_profile_stop(ctx, see, &num_seen, NULL));
    assert_int_equal(num_seen, 0);
    tsr_context_destroy(ctx);
}

static void one_at_a_time(void **state) {
    (void)state;
    tsr_context *ctx = test_context(1), *other = test_context(1);
    assert_status(tsr_profile_start(NULL), TSR_INVALID_ARGUMENT, "profile_start", "ctx");
    assert_status(tsr_profile_stop(ctx, NULL, NULL, NULL), TSR_INVALID_ARGUMENT, "profile_stop");
    assert_ok(tsr_profile_start(ctx));
    assert_status(tsr_profile_start(other), TSR_INVALID_ARGUMENT, "under way");
    assert_status(tsr_profile_stop(other, NULL, NULL, NULL), TSR_INVALID_ARGUMENT, "this context");
    assert_status(tsr_profile_stop(NULL, NULL, NULL, NULL), TSR_INVALID_ARGUMENT, "this context");
    assert_ok(tsr_profile_stop(ctx, NULL, NULL, NULL));
    tsr_context_destroy(ctx);
    tsr_context_destroy(other);
}

// A refused call also ends its span. The parts of a composed call are inside its span.
static void refused_and_composed_calls(void **state) {
    (void)state;
    tsr_context *ctx = test_context(1);
    tsr_softmax_forward_args args =
        TSR_SOFTMAX_FORWARD_ARGS(.x = TSR_TENSOR(x, TSR_F32, ROWS, COLS),
                                 .y = TSR_TENSOR(y, TSR_F32, ROWS, COLS),
                                 .variant = "no such variant");
    assert_ok(tsr_profile_start(ctx));
    assert_int_equal(tsr_softmax_forward(ctx, &args), TSR_INVALID_ARGUMENT);
    assert_ok(softmax(ctx, cpu));
    assert_ok(tsr_profile_stop(ctx, see, &num_seen, NULL));
    assert_true(num_seen >= 2);
    assert_int_equal(seen[0].kind, TSR_PROFILE_CALL);
    assert_int_equal(seen[1].kind, TSR_PROFILE_CALL);
    assert_int_equal(seen[1].parent, 0); // not inside the previous call
    tsr_context_destroy(ctx);
}

// Recordings begin and end while other threads are inside calls and loops. Records of one recording must not appear in
// the next.
static atomic_bool is_over;

static void *call_on(void *arg) {
    (void)arg;
    float *out = malloc(sizeof x);
    tsr_context *ctx = test_context(2);
    tsr_softmax_forward_args args =
        TSR_SOFTMAX_FORWARD_ARGS(.x = TSR_TENSOR(x, TSR_F32, ROWS, COLS),
                                 .y = TSR_TENSOR(out, TSR_F32, ROWS, COLS));
    while (!atomic_load(&is_over)) {
        tsr_profile_begin("another thread's");
        assert_ok(tsr_softmax_forward(ctx, &args));
        tsr_profile_end();
    }
    tsr_context_destroy(ctx);
    free(out);
    return NULL;
}

// Counts records that are out of order. An assertion here would leave the recording locked.
static void see_order(void *user, const tsr_profile_record *record) {
    bool is_thread = record->kind == TSR_PROFILE_THREAD;
    *(int *)user += !(record->start_ns > 0 && record->end_ns >= record->start_ns) ||
                    !(record->id == 0 || record->parent < record->id) ||
                    (is_thread && strcmp(record->op, "softmax_forward") != 0);
}

static void other_threads(void **state) {
    (void)state;
    pthread_t threads[3];
    tsr_context *ctx = test_context(1);
    int num_wrong = 0;
    for (int i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_on, NULL), 0);
    for (int i = 0; i < 200; i++) {
        assert_ok(tsr_profile_start(ctx));
        assert_ok(softmax(ctx, cpu));
        assert_ok(tsr_profile_stop(ctx, see_order, &num_wrong, NULL));
    }
    atomic_store(&is_over, true);
    for (int i = 0; i < COUNT(threads); i++) pthread_join(threads[i], NULL);
    assert_int_equal(num_wrong, 0);
    tsr_context_destroy(ctx);
}

// A process forks while one of its threads delivers a recording. The child destroys contexts, calls and records.
static atomic_bool is_inside, may_leave, has_ended;

static void stay_inside(void *user, const tsr_profile_record *record) {
    (void)user, (void)record;
    atomic_store(&is_inside, true);
    while (!atomic_load(&may_leave)) sched_yield();
}

static void *record_slowly(void *ctx) {
    bool is_right = tsr_profile_start(ctx) == TSR_OK;
    tsr_profile_begin("one");
    tsr_profile_end();
    is_right = is_right && tsr_profile_stop(ctx, stay_inside, NULL, NULL) == TSR_OK;
    atomic_store(&has_ended, true);
    return is_right ? NULL : ctx;
}

static int record_in_child(tsr_context *inherited) {
    float *out = malloc(sizeof x);
    tsr_context *ctx = test_context(2);
    tsr_softmax_forward_args args =
        TSR_SOFTMAX_FORWARD_ARGS(.x = TSR_TENSOR(x, TSR_F32, ROWS, COLS),
                                 .y = TSR_TENSOR(out, TSR_F32, ROWS, COLS));
    bool is_right = tsr_softmax_forward(ctx, &args) == TSR_OK;
    tsr_context_destroy(inherited);
    num_seen = 0;
    is_right = is_right && tsr_profile_start(ctx) == TSR_OK &&
               tsr_softmax_forward(ctx, &args) == TSR_OK &&
               tsr_profile_stop(ctx, see, &num_seen, NULL) == TSR_OK;
    tsr_context_destroy(ctx);
    free(out);
    return is_right && num_seen >= 2 ? 0 : 1;
}

static void forks_amid_a_recording(void **state) {
    (void)state;
    if (TEST_HAS_TSAN) skip(); // TSan forbids new threads in such a child
    pthread_t thread;
    void *failure;
    tsr_context *ctx = test_context(1), *other = test_context(1);
    assert_int_equal(pthread_create(&thread, NULL, record_slowly, ctx), 0);
    while (!atomic_load(&is_inside) && !atomic_load(&has_ended)) sched_yield();
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        _exit(record_in_child(other));
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    atomic_store(&may_leave, true);
    assert_int_equal(pthread_join(thread, &failure), 0);
    assert_null(failure);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    tsr_context_destroy(other);
    tsr_context_destroy(ctx);
}

// ---- Ranges -----------------------------------------------------------------------------------

struct chain {
    int64_t count, end_ns;
    bool is_right;
};

// A chain of nested ranges, and one range outside it.
static void see_chain(void *user, const tsr_profile_record *record) {
    struct chain *chain = user;
    chain->count++;
    if (strcmp(record->name, "in") == 0) {
        chain->is_right &= record->id == chain->count && record->parent == chain->count - 1;
        chain->is_right &= chain->count == 1 || record->end_ns <= chain->end_ns;
        chain->end_ns = record->end_ns;
    } else {
        chain->is_right &= strcmp(record->name, "after") == 0 && record->parent == 0;
    }
}

static tsr_profile_record last_seen[2];

static void see_last(void *user, const tsr_profile_record *record) {
    int64_t *count = user;
    last_seen[0] = last_seen[1];
    last_seen[1] = *record;
    (*count)++;
}

static void *no_memory(size_t alignment, size_t bytes) {
    (void)alignment, (void)bytes;
    return NULL;
}

// Each range ends within the enclosing one. A range after them is in none of them, and surplus ends are ignored.
static void ranges_of_any_depth(void **state) {
    (void)state;
    enum { DEPTH = 5000 };
    tsr_context *ctx;
    int64_t num_lost;
    struct chain chain = {.is_right = true};
    assert_ok(tsr_context_create(NULL, &ctx));
    assert_ok(tsr_profile_start(ctx));
    for (int i = 0; i < DEPTH; i++) tsr_profile_begin("in");
    for (int i = 0; i < DEPTH + 3; i++) tsr_profile_end();
    tsr_profile_begin("after");
    assert_ok(tsr_profile_stop(ctx, see_chain, &chain, &num_lost));
    assert_int_equal(num_lost, 0);
    assert_int_equal(chain.count, DEPTH + 1);
    assert_true(chain.is_right);
    tsr_context_destroy(ctx);
}

// A range without memory is counted as lost with all ranges inside it, and its end closes no enclosing range.
static void ranges_without_memory(void **state) {
    (void)state;
    enum { FIRST = 1024 }; // initial capacity
    tsr_context *ctx;
    int64_t num_lost;
    const struct tsri_system kept = tsri_system;
    assert_ok(tsr_context_create(NULL, &ctx));
    assert_ok(tsr_profile_start(ctx));
    tsr_profile_begin("around");
    for (int i = 2; i < FIRST; i++) {
        tsr_profile_begin("");
        tsr_profile_end();
    }
    tsr_profile_begin("last");
    tsri_system.alloc = no_memory;
    tsr_profile_begin("lost");
    tsri_system = kept;
    tsr_profile_begin("in it");
    tsr_profile_end();
    tsr_profile_end();
    tsr_profile_begin("in last");
    tsr_profile_end();
    tsr_profile_end();
    tsr_profile_begin("in around");
    int64_t count = 0;
    assert_ok(tsr_profile_stop(ctx, see_last, &count, &num_lost));
    assert_int_equal(num_lost, 2);
    assert_int_equal(count, FIRST + 2);
    assert_string_equal(last_seen[0].name, "in last");
    assert_int_equal(last_seen[0].parent, FIRST);
    assert_string_equal(last_seen[1].name, "in around");
    assert_int_equal(last_seen[1].parent, 1);
    tsr_context_destroy(ctx);
}

static void a_context_that_goes(void **state) {
    (void)state;
    tsr_context *ctx;
    assert_ok(tsr_context_create(NULL, &ctx));
    assert_ok(tsr_profile_start(ctx));
    tsr_context_destroy(ctx);
    assert_ok(tsr_context_create(NULL, &ctx));
    assert_ok(tsr_profile_start(ctx));
    assert_ok(tsr_profile_stop(ctx, NULL, NULL, NULL));
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(spans_of_the_host, setup),
        cmocka_unit_test_setup(one_at_a_time, setup),
        cmocka_unit_test_setup(refused_and_composed_calls, setup),
        cmocka_unit_test_setup(other_threads, setup),
        cmocka_unit_test_setup(forks_amid_a_recording, setup),
        cmocka_unit_test_setup(ranges_of_any_depth, setup),
        cmocka_unit_test_setup(ranges_without_memory, setup),
        cmocka_unit_test_setup(a_context_that_goes, setup),
    };
    return cmocka_run_group_tests_name("profile", tests, NULL, NULL);
}
