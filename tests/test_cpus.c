// SPDX-License-Identifier: Apache-2.0
// CPUs that a cgroup quota leaves: every group from the process's own up to the root has a say, in both
// versions of the file system.
#include "test_support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "cpu/cpu_isa.h"

static char root[64];
static char made[32][160]; // in the order of making
static int num_made;

static void make(const char *name, const char *text) {
    char *path = made[num_made++];
    assert_true(num_made <= COUNT(made));
    snprintf(path, sizeof made[0], "%s/%s", root, name);
    if (text == NULL) {
        assert_int_equal(mkdir(path, 0700), 0);
        return;
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int setup(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/test_cpus.XXXXXX");
    return mkdtemp(root) == NULL;
}

static void clear(void) {
    while (num_made > 0) assert_int_equal(remove(made[--num_made]), 0);
}

static int teardown(void **state) {
    (void)state;
    return rmdir(root);
}

static int cpus(const char *groups) {
    make("groups", groups);
    int count = tsri_cgroup_cpus(made[num_made - 1], root);
    assert_int_equal(remove(made[--num_made]), 0);
    return count;
}

static void version_2(void **state) {
    (void)state;
    assert_int_equal(cpus("0::/a/b\n"), 0); // nothing is mounted
    make("a", NULL);
    make("a/b", NULL);
    make("a/b/cpu.max", "max 100000\n");
    assert_int_equal(cpus("0::/a/b\n"), 0);
    make("a/cpu.max", "250000 100000\n");
    assert_int_equal(cpus("0::/a/b\n"), 3); // two and a half, rounded up
    make("cpu.max", "400000 100000\n");
    assert_int_equal(cpus("0::/a/b\n"), 3);
    assert_int_equal(cpus("0::/\n"), 4);
    assert_int_equal(cpus("0::/elsewhere/on/the/host\n"), 4); // only the root is in sight
    assert_int_equal(cpus("nonsense\n\n0::\n"), 4);
    assert_int_equal(tsri_cgroup_cpus("/nonexistent", root), 4);
    clear();
}

static void version_1(void **state) {
    (void)state;
    static const char groups[] =
        "12:pids:/other\n3:cpu,cpuacct:/a/b\n2:cpuset:/a\n1:name=x:/\n0::/\n";
    make("cpu,cpuacct", NULL);
    make("cpu,cpuacct/a", NULL);
    make("cpu,cpuacct/a/b", NULL);
    make("cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    make("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpus(groups), 0);
    make("cpu,cpuacct/a/b/cpu.cfs_quota_us", "50000\n");
    make("cpu,cpuacct/a/b/cpu.cfs_period_us", "25000\n");
    assert_int_equal(cpus(groups), 2);
    assert_int_equal(cpus("2:cpuset:/a/b\n"), 0);
    make("cpu,cpuacct/a/cpu.cfs_quota_us", "1000\n");
    make("cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpus(groups), 1);
    clear();
    make("cpu", NULL); // the other name of the mount
    make("cpu/cpu.cfs_quota_us", "300000\n");
    make("cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpus(groups), 3);
    clear();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(version_2), cmocka_unit_test(version_1)};
    return cmocka_run_group_tests_name("cpus", tests, setup, teardown);
}
