// SPDX-License-Identifier: Apache-2.0
// Fault tests. Each request of a public call to the operating system, a driver or an allocator is refused in turn, once
// alone and once with all later requests. After each refusal the call must either fail with a sentence and leave its
// outputs unchanged, or succeed with the right result. It must not leak anything, and the same call on the same handles
// must then succeed.
#ifndef FAULT_CASE_H
#define FAULT_CASE_H

#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

#include "core/core_system.h"
#include "cpu/cpu_team.h"
#include "test_support.h"

static struct {
    atomic_int num_requests, num_refused;
    int fail_at; // the first request is 1; 0: none is refused
    bool goes_on;
    atomic_int num_blocks, num_files; // currently held
    int num_calls,
        num_points; // of the whole program: public calls, and refused requests
} faults;

// Called by every function that can refuse a request.
static inline bool fault_is_refused(void) {
    int n = atomic_fetch_add(&faults.num_requests, 1) + 1;
    bool is_refused =
        faults.fail_at > 0 && (n == faults.fail_at || (faults.goes_on && n > faults.fail_at));
    if (is_refused) atomic_fetch_add(&faults.num_refused, 1);
    return is_refused;
}

static inline void fault_arm(int fail_at, bool goes_on) {
    atomic_store(&faults.num_requests, 0);
    atomic_store(&faults.num_refused, 0);
    faults.fail_at = fail_at;
    faults.goes_on = goes_on;
}

// Returns how many requests were refused since fault_arm().
static inline int fault_disarm(void) {
    faults.fail_at = 0;
    return atomic_load(&faults.num_refused);
}

// ---- The operating system ---------------------------------------------------------------------

static struct tsri_system fault_system; // the real one

static inline int fault_error(int error) { return errno = error, -1; }

static inline void *fault_alloc(size_t alignment, size_t bytes) {
    if (fault_is_refused()) return NULL;
    void *block = fault_system.alloc(alignment, bytes);
    assert_true(bytes % alignment == 0 && block != NULL);
    atomic_fetch_add(&faults.num_blocks, 1);
    return memset(block, 0xa5, bytes);
}
static inline void fault_free(void *block) {
    if (block != NULL) atomic_fetch_sub(&faults.num_blocks, 1);
    fault_system.free(block);
}
static inline int fault_thread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                      void *(*body)(void *), void *arg) {
    if (fault_is_refused()) return EAGAIN;
    return fault_system.thread_create(thread, attributes, body, arg);
}
static inline int fault_at_fork(void (*before)(void), void (*in_parent)(void),
                                void (*in_child)(void)) {
    return fault_is_refused() ? ENOMEM : fault_system.at_fork(before, in_parent, in_child);
}
static inline void *fault_open_library(const char *path) {
    return fault_is_refused() ? NULL : fault_system.open_library(path);
}
static inline void *fault_find_symbol(void *library, const char *name) {
    return fault_is_refused() ? NULL : fault_system.find_symbol(library, name);
}
static inline int fault_count_file(int file) {
    if (file >= 0) atomic_fetch_add(&faults.num_files, 1);
    return file;
}
static inline int fault_open(int folder, const char *path, int flags, mode_t mode) {
    if (fault_is_refused()) return fault_error(EMFILE);
    return fault_count_file(fault_system.open(folder, path, flags, mode));
}
static inline DIR *fault_open_list(int folder) {
    if (fault_is_refused()) return errno = ENOMEM, NULL;
    DIR *list = fault_system.open_list(folder);
    if (list != NULL) atomic_fetch_sub(&faults.num_files, 1); // closedir will close it
    return list;
}
static inline int fault_status(int file, struct stat *status) {
    return fault_is_refused() ? fault_error(EIO) : fault_system.status(file, status);
}
static inline ssize_t fault_read(int file, void *data, size_t bytes, off_t at) {
    return fault_is_refused() ? fault_error(EIO) : fault_system.read(file, data, bytes, at);
}
static inline ssize_t fault_write(int file, const void *data, size_t bytes) {
    return fault_is_refused() ? fault_error(ENOSPC) : fault_system.write(file, data, bytes);
}
static inline int fault_sync(int file) { // does not wait for the disk
    return (void)file, fault_is_refused() ? fault_error(EIO) : 0;
}
static inline int fault_close(int file) {
    atomic_fetch_sub(&faults.num_files, 1);
    int result = fault_system.close(file);
    return fault_is_refused() ? fault_error(EIO) : result;
}
static inline int fault_rename(int folder, const char *from, int to_folder, const char *to) {
    if (fault_is_refused()) return fault_error(EACCES);
    return fault_system.rename(folder, from, to_folder, to);
}

static inline void fault_install(void) {
    setenv("TSR_TUNING_FILE", "/nowhere/tuning",
           1); // not the user's file, which would change the requests
    fault_system = tsri_system;
    tsri_system = (struct tsri_system){.alloc = fault_alloc,
                                       .free = fault_free,
                                       .thread_create = fault_thread_create,
                                       .at_fork = fault_at_fork,
                                       .open_library = fault_open_library,
                                       .find_symbol = fault_find_symbol,
                                       .open = fault_open,
                                       .open_list = fault_open_list,
                                       .status = fault_status,
                                       .read = fault_read,
                                       .write = fault_write,
                                       .sync = fault_sync,
                                       .close = fault_close,
                                       .rename = fault_rename};
}

// ---- Walks ------------------------------------------------------------------------------------

// A public call. `before` prepares its data and `after` releases them. NULL: nothing to do.
struct fault_call {
    const char *name; // every failure's sentence contains it
    void (*before)(void *arg);
    tsr_status (*run)(void *arg);
    // Returns whether the result is right or, if status is a failure, whether the outputs are unchanged. Resets the
    // outputs.
    bool (*is_right)(void *arg, tsr_status status);
    void (*after)(void *arg);
    int step; // for calls with thousands of requests: after the first FIRST only every step-th; 0: all
};

static inline void fault_fail(const struct fault_call *call, int n, bool goes_on, tsr_status status,
                              const char *what) {
    print_error("%s, request %d%s refused: %s (%s: %s)\n", call->name, n,
                goes_on ? " and all later ones" : "", what, tsr_status_name(status),
                tsr_last_error());
    fail();
}

// Returns the number of requests that were refused.
static inline int fault_walk(const struct fault_call *call, void *arg) {
    enum { MOST = 100000, FIRST = 14 };
    int points = 0;
    faults.num_calls++;
    for (int mode = 0; mode < 2; mode++)
        for (int n = 1, refused = 1; refused > 0;
             n += n < FIRST || call->step == 0 ? 1 : call->step) {
            bool goes_on = mode == 1;
            int blocks = atomic_load(&faults.num_blocks), files = atomic_load(&faults.num_files);
            if (call->before != NULL) call->before(arg);
            (void)tsr_fail(TSR_OK, "");
            fault_arm(n, goes_on);
            tsr_status status = call->run(arg);
            refused = fault_disarm();
            if (status != TSR_OK && refused == 0)
                fault_fail(call, n, goes_on, status, "failed, though nothing was refused");
            if (status != TSR_OK && strstr(tsr_last_error(), call->name) == NULL)
                fault_fail(call, n, goes_on, status, "the sentence does not name the call");
            if (status == TSR_INVALID_ARGUMENT || status == TSR_INTERNAL)
                fault_fail(call, n, goes_on, status, "blamed on the caller or the library");
            if (call->is_right != NULL && !call->is_right(arg, status))
                fault_fail(call, n, goes_on, status, "left something wrong");
            tsr_status again = call->run(arg);
            if (again != TSR_OK) fault_fail(call, n, goes_on, again, "the next call failed");
            if (call->is_right != NULL && !call->is_right(arg, TSR_OK))
                fault_fail(call, n, goes_on, again, "the next call gave something wrong");
            if (call->after != NULL) call->after(arg);
            if (atomic_load(&faults.num_blocks) != blocks)
                fault_fail(call, n, goes_on, status, "memory is held");
            if (atomic_load(&faults.num_files) != files)
                fault_fail(call, n, goes_on, status, "a file is open");
            points += refused > 0;
            assert_true(n < MOST);
        }
    faults.num_points += points;
    return points;
}

static inline int fault_summary(void **state) {
    (void)state;
    printf("faults: %d requests of %d calls refused, each alone and with all that follow\n",
           faults.num_points, faults.num_calls);
    return 0;
}

#endif
