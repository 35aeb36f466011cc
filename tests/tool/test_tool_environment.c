// SPDX-License-Identifier: Apache-2.0
// A program with the set-user-id bit: the caller's environment variables must not decide what the library opens, runs
// or writes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/core_system.h"
#include "system/environment.h"
#include "test_support.h"

enum { STRANGER = 65534, NOT_ITSELF = 76 };
// All variables that the library and the tool read. Each value is visible if it is used.
static const char *const variables[] = {"TSR_ISA=nonsense",
                                        "TSR_TUNING_FILE=/stranger/tuning",
                                        "TSR_CACHE_DIR=/stranger/cache",
                                        "TSR_LIBCUDA=/stranger/",
                                        "XDG_CACHE_HOME=/stranger/xdg",
                                        "TESSERA_PYTHON=/stranger/python",
                                        "HOME=/stranger/home",
                                        "TSR_KERNEL_PACK=/stranger/pack",
                                        "TSR_KERNEL_DIR=/stranger/kernels",
                                        "TSR_LOG=plan,kernels",
                                        NULL};

// Exits with the number of the first violation, or 0.
static void run_as_another(void) {
    char path[512];
    tsr_context *ctx = NULL;
    if (geteuid() == getuid()) _exit(NOT_ITSELF); // the file system ignores the bit
    for (int i = 0; variables[i] != NULL; i++) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(variables[i], "="), variables[i]);
        if (getenv(name) == NULL) _exit(1);
        if (tsri_environment(name) != NULL) _exit(2);
        if (environment_value(name) != NULL) _exit(3);
    }
    if (tsr_tuning_path(path, sizeof path) != TSR_UNSUPPORTED) _exit(4);
    if (tsr_context_create(NULL, &ctx) != TSR_OK) _exit(5);
    tsr_context_destroy(ctx);
    (void)tsr_device_count(TSR_CUDA);
    tsr_status status = tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 9999}), &ctx);
    if (status == TSR_OK || strstr(tsr_last_error(), "stranger") != NULL) _exit(6);
    _exit(0);
}

static void copy_itself(const char *path) {
    static char bytes[1 << 16];
    ssize_t got;
    int from = open("/proc/self/exe", O_RDONLY), to = open(path, O_WRONLY | O_CREAT | O_EXCL, 0755);
    assert_true(from >= 0 && to >= 0);
    while ((got = read(from, bytes, sizeof bytes)) > 0)
        assert_int_equal(write(to, bytes, (size_t)got), got);
    close(from);
    assert_int_equal(close(to), 0);
}

static void test_set_user_id(void **state) {
    char folder[] = "/tmp/test-environment-XXXXXX", path[64];
    int status = 0;
    (void)state;
    if (geteuid() != 0 || TEST_HAS_ASAN || TEST_HAS_TSAN)
        skip(); // sanitizers read their own variables at the start
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chmod(folder, 0755), 0);
    snprintf(path, sizeof path, "%s/program", folder);
    copy_itself(path);
    assert_int_equal(chmod(path, 04755), 0);
    pid_t child = fork();
    if (child == 0) {
        if (setresgid(STRANGER, STRANGER, STRANGER) != 0 ||
            setresuid(STRANGER, STRANGER, STRANGER) != 0)
            _exit(NOT_ITSELF);
        execle(path, path, "as another", (char *)NULL, (char *const *)(uintptr_t)variables);
        _exit(NOT_ITSELF);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    unlink(path);
    rmdir(folder);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NOT_ITSELF) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_ordinary(void **state) {
    (void)state;
    if (geteuid() != getuid() || getegid() != getgid()) skip();
    assert_int_equal(setenv("TSR_TUNING_FILE", "/some/tuning", 1), 0);
    assert_string_equal(tsri_environment("TSR_TUNING_FILE"), "/some/tuning");
    assert_string_equal(environment_value("TSR_TUNING_FILE"), "/some/tuning");
    assert_null(tsri_environment("TSR_NO_SUCH_VARIABLE"));
    assert_null(environment_value("TSR_NO_SUCH_VARIABLE"));
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1) run_as_another();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_user_id),
        cmocka_unit_test(test_ordinary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
