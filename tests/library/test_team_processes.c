// SPDX-License-Identifier: Apache-2.0
// The thread team in forking processes, and in a shared library that is loaded and unloaded with its threads.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <sys/wait.h>

#include "core/core_system.h"
#include "team_case.h"

// ---- fork -------------------------------------------------------------------------------------

// A parallel call in the child. Returns 0 if it is right.
static int call_in_child(void) {
    tsr_context *ctx;
    if (tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 3), &ctx) != TSR_OK) return 2;
    for (int i = 0; i < 5; i++)
        if (softmax_job_run(ctx, &job) != TSR_OK || !softmax_job_is_right(&job)) return 3;
    tsr_context_destroy(ctx);
    return 0;
}

// Returns whether the child exited with 0.
static bool ends_well(pid_t child) {
    int status = -1;
    pid_t waited;
    while ((waited = waitpid(child, &status, 0)) < 0 && errno == EINTR)
        ;
    return waited == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void fork_and_call(bool exits) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(120);
        int status = call_in_child();
        if (exits && !TEST_HAS_ASAN) exit(status); // destructors run, including LSan's check
        _exit(status);
    }
    assert_true(ends_well(child));
}

// TSan does not let the child of a process with threads create threads.
static void skip_under_tsan(void) {
    if (TEST_HAS_TSAN) skip();
}

// A thread forks while another one initialises the team, and the child initialises it again. The child's own forks must
// not run the handlers twice.
static bool has_forked_well;

static void *fork_twice(void *arg) {
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        if (call_in_child() != 0) _exit(1);
        pid_t grandchild = fork();
        if (grandchild == 0) _exit(call_in_child());
        _exit(!ends_well(grandchild));
    }
    has_forked_well = ends_well(child);
    return arg;
}

static int fork_after_handlers(void (*before)(void), void (*in_parent)(void),
                               void (*in_child)(void)) {
    tsri_system.at_fork = pthread_atfork;
    pthread_t thread;
    if (pthread_atfork(before, in_parent, in_child) != 0 ||
        pthread_create(&thread, NULL, fork_twice, NULL) != 0)
        return 1;
    pthread_join(thread, NULL);
    return 0;
}

static void fork_amid_the_first_call(void **state) {
    (void)state;
    skip_under_tsan();
#if defined(__GLIBC__)
    pid_t child = fork();
    if (child == 0) { // so that later tests have a first call too
        alarm(60);
        tsri_system.at_fork = fork_after_handlers;
        _exit(call_in_child() != 0 || !has_forked_well);
    }
    assert_true(ends_well(child));
#else
    skip(); // only glibc's pthread_once restarts in a child
#endif
}

static void fork_before_first_use(void **state) {
    (void)state;
    skip_under_tsan();
    fork_and_call(false);
    fork_and_call(true);
}

static void fork_after_use(void **state) {
    (void)state;
    skip_under_tsan();
    check_team(4, false);
    for (int i = 0; i < 5; i++) fork_and_call(i % 2 == 0);
    check_team(4, false); // the parent's team is unchanged
    sleep_us(20000);
    fork_and_call(true);
    check_team(4, false);
}

static void fork_while_others_call(void **state) {
    (void)state;
    skip_under_tsan();
    struct caller callers[2];
    atomic_int start;
    atomic_init(&start, 2);
    for (int i = 0; i < 2; i++) {
        callers[i] = (struct caller){.num_threads = 2, .num_calls = 3000, .start = &start};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]), 0);
    }
    for (int i = 0; i < 40; i++) fork_and_call(false);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
        assert_int_equal(callers[i].num_wrong, 0);
    }
}

// ---- dlopen and dlclose -----------------------------------------------------------------------

static int count_threads(void) {
    DIR *directory = opendir("/proc/self/task");
    if (directory == NULL) return -1;
    int count = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += *entry->d_name != '.';
    closedir(directory);
    return count;
}

static void *do_nothing(void *arg) { return arg; }

// Rounding, traps and flushing of subnormals: a library linked with -ffast-math changes them for the whole process.
static unsigned float_modes(void) {
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr() & 0xffc0;
#else
    return 0;
#endif
}

static void load_and_unload(void **state) {
    (void)state;
#ifdef TSR_TEST_SHARED_LIBRARY
    pthread_t first; // with it a sanitizer starts its own thread
    assert_int_equal(pthread_create(&first, NULL, do_nothing, NULL), 0);
    assert_int_equal(pthread_join(first, NULL), 0);
    int before = count_threads();
    static const char rows[] = "tessera-tuning 1\n"; // each copy reads and releases it
    char tuning[] = "/tmp/tessera_tuning_XXXXXX";
    int file = mkstemp(tuning);
    assert_int_equal(write(file, rows, sizeof rows - 1), sizeof rows - 1);
    close(file);
    setenv("TSR_TUNING_FILE", tuning, 1);
    unsigned modes = float_modes();
    for (int i = 0; i < (TEST_HAS_TSAN ? 5 : 40); i++) {
        void *library = dlopen(TSR_TEST_SHARED_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) fail_msg("%s", dlerror());
        assert_int_equal(float_modes(), modes);
        tsr_status (*create)(const tsr_context_options *, tsr_context **);
        tsr_status (*forward)(tsr_context *, const tsr_softmax_forward_args *);
        void (*destroy)(tsr_context *);
        *(void **)&create = dlsym(library, "tsr_context_create");
        *(void **)&forward = dlsym(library, "tsr_softmax_forward");
        *(void **)&destroy = dlsym(library, "tsr_context_destroy");
        assert_true(create != NULL && forward != NULL && destroy != NULL);
        assert_true(create != tsr_context_create); // not the copy linked here
        tsr_context *ctx;
        assert_int_equal(create(&TSR_CONTEXT_OPTIONS(.num_threads = 4), &ctx), TSR_OK);
        memset(job.y, 0xff, ROWS * COLS * sizeof(float));
        assert_int_equal(
            forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = TSR_TENSOR(job.x, TSR_F32, ROWS, COLS),
                                                   .y = TSR_TENSOR(job.y, TSR_F32, ROWS, COLS))),
            TSR_OK);
        assert_true(softmax_job_is_right(&job));
        destroy(ctx);
        if (i % 3 == 0) sleep_us(2000); // asleep, or still spinning
        assert_int_equal(dlclose(library), 0);
        assert_null(dlopen(TSR_TEST_SHARED_LIBRARY, RTLD_NOW | RTLD_NOLOAD)); // really unloaded
        if (!TEST_HAS_TSAN && i % 10 == 0) fork_and_call(true); // its fork handlers are gone
    }
    unsetenv("TSR_TUNING_FILE");
    unlink(tuning);
    for (int i = 0; i < 1000 && count_threads() > before; i++) sleep_us(5000);
    assert_int_equal(count_threads(), before);
#else
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fork_amid_the_first_call), cmocka_unit_test(fork_before_first_use),
        cmocka_unit_test(fork_after_use),           cmocka_unit_test(fork_while_others_call),
        cmocka_unit_test(load_and_unload),
    };
    return cmocka_run_group_tests_name("team and processes", tests, setup, teardown);
}
