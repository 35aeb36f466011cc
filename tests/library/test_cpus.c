// SPDX-License-Identifier: Apache-2.0
// The CPUs and the memory that control groups allow: all groups from the process's own up to the root limit them, in
// both versions of the file system. Also the instruction sets that both the processor and the system support.
#include "test_support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "cpu/cpu_detect.h"
#include "cpu/cpu_limits.h"

static char root[64];
static char made[32][160]; // in order of creation
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
    assert_int_equal(cpus("0::/a/b\n"), 3); // 2.5, rounded up
    make("cpu.max", "400000 100000\n");
    assert_int_equal(cpus("0::/a/b\n"), 3);
    assert_int_equal(cpus("0::/\n"), 4);
    assert_int_equal(cpus("0::/elsewhere/on/the/host\n"), 4); // only the root is visible
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
    make("cpu", NULL); // another name of the mount
    make("cpu/cpu.cfs_quota_us", "300000\n");
    make("cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpus(groups), 3);
    clear();
}

// ---- Memory -----------------------------------------------------------------------------------

static int64_t memory(const char *groups) {
    make("groups", groups);
    int64_t bytes = tsri_cgroup_memory(made[num_made - 1], root);
    assert_int_equal(remove(made[--num_made]), 0);
    return bytes;
}

static void memory_of_version_2(void **state) {
    (void)state;
    assert_int_equal(memory("0::/a/b\n"), -1); // nothing is mounted
    make("a", NULL);
    make("a/b", NULL);
    make("a/b/memory.max", "max\n");
    make("a/b/memory.current", "4096\n");
    assert_int_equal(memory("0::/a/b\n"), -1);
    make("a/memory.max", "1000000\n");
    assert_int_equal(memory("0::/a/b\n"), -1); // the usage is unknown
    make("a/memory.current", "400000\n");
    assert_int_equal(memory("0::/a/b\n"), 600000);
    make("a/memory.stat", "anon 250000\nfile 150000\ninactive_file 50000\nactive_file 25000\n");
    assert_int_equal(memory("0::/a/b\n"), 675000); // file pages can be dropped
    make("memory.max", "70000\n");
    make("memory.current", "60000\n");
    assert_int_equal(memory("0::/a/b\n"), 10000);                   // the minimum of the chain
    assert_int_equal(memory("0::/elsewhere/on/the/host\n"), 10000); // only the root is visible
    assert_int_equal(memory("3:cpu:/a\n0::/a/b\n"), 10000);
    assert_int_equal(tsri_cgroup_memory("/nonexistent", root), 10000);
    clear();
    make("memory.max", "70000\n");
    make("memory.current", "90000\n"); // the limit was lowered
    assert_int_equal(memory("0::/\n"), 0);
    clear();
}

static void memory_of_version_1(void **state) {
    (void)state;
    static const char groups[] = "9:name=x:/\n4:memory:/a/b\n1:cpu:/\n0::/\n";
    make("memory", NULL);
    make("memory/a", NULL);
    make("memory/a/b", NULL);
    make("memory/memory.limit_in_bytes", "9223372036854771712\n"); // no limit
    make("memory/memory.usage_in_bytes", "123456789\n");
    assert_int_equal(memory(groups), -1);
    make("memory/a/memory.limit_in_bytes", "5000000000\n");
    make("memory/a/memory.usage_in_bytes", "1000000000\n");
    assert_int_equal(memory(groups), 4000000000);
    make("memory/a/memory.stat",
         "inactive_file 7\ntotal_inactive_file 100\ntotal_active_file 20\n");
    assert_int_equal(memory(groups), 4000000120);
    make("memory/a/b/memory.limit_in_bytes", "30000\n");
    make("memory/a/b/memory.usage_in_bytes", "10000\n");
    assert_int_equal(memory(groups), 20000);
    assert_int_equal(memory("3:cpu:/a/b\n"), -1);
    clear();
}

static void the_host_has_memory(void **state) {
    (void)state;
    int64_t bytes = tsri_memory_available();
    assert_true(bytes > 0);
    assert_true(tsr_memory_available(NULL) > 0);
    int64_t groups = tsri_cgroup_memory("/proc/self/cgroup", "/sys/fs/cgroup");
    if (groups >= 0) assert_true(bytes < groups + (1 << 28)); // other processes use it too
}

// ---- Instruction sets -------------------------------------------------------------------------

// A processor may support an instruction set whose registers the system does not save, or that a virtual machine hides.
static void instruction_sets_that_the_system_saves(void **state) {
    (void)state;
    const unsigned leaf1 = 1u << 27 | 1u << 28 | 1u << 12 | 1u << 29, avx2 = 1u << 5,
                   avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, amx = 1u << 22 | 1u << 24,
                   vnni = 1u << 11;
    const struct tsri_cpuid all = {.leaf1_c = leaf1,
                                   .leaf7_b = avx2 | avx512,
                                   .leaf7_c = vnni,
                                   .leaf7_d = amx,
                                   .leaf7_1_a = 1u << 5,
                                   .xcr0 = 0x600e7};
    struct tsri_bf16_units units = tsri_bf16_units_of(&all);
    assert_int_equal(tsri_isa_of(&all), TSR_ISA_AVX512);
    assert_true(units.has_dot && units.has_tiles);
    static const struct {
        unsigned long long xcr0;
        tsr_isa isa;
        bool has_dot, has_tiles;
    } saved[] = {{0, TSR_ISA_SCALAR, false, false},      {0x3, TSR_ISA_SCALAR, false, false},
                 {0x7, TSR_ISA_AVX2, false, false},      {0x27, TSR_ISA_AVX2, false, false},
                 {0x67, TSR_ISA_AVX2, false, false},     {0xe7, TSR_ISA_AVX512, true, false},
                 {0x200e7, TSR_ISA_AVX512, true, false}, {0x60007, TSR_ISA_AVX2, false, false}};
    for (int i = 0; i < COUNT(saved); i++) {
        struct tsri_cpuid id = all;
        id.xcr0 = saved[i].xcr0;
        units = tsri_bf16_units_of(&id);
        assert_int_equal(tsri_isa_of(&id), saved[i].isa);
        assert_int_equal(units.has_dot, saved[i].has_dot);
        assert_int_equal(tsri_has_vnni_of(&id), saved[i].isa == TSR_ISA_AVX512);
        assert_int_equal(units.has_tiles, saved[i].has_tiles);
    }
    for (int bit = 0; bit < 32; bit++) { // each required flag matters
        struct tsri_cpuid id = all;
        id.leaf1_c &= ~(1u << bit);
        assert_int_equal(tsri_isa_of(&id), leaf1 >> bit & 1 ? TSR_ISA_SCALAR : TSR_ISA_AVX512);
        id = all;
        id.leaf7_b &= ~(1u << bit);
        assert_int_equal(tsri_isa_of(&id), avx2 >> bit & 1     ? TSR_ISA_SCALAR
                                           : avx512 >> bit & 1 ? TSR_ISA_AVX2
                                                               : TSR_ISA_AVX512);
        id = all;
        id.leaf7_c &= ~(1u << bit);
        assert_int_equal(tsri_has_vnni_of(&id), !(vnni >> bit & 1));
        id = all;
        id.leaf7_d &= ~(1u << bit);
        assert_int_equal(tsri_bf16_units_of(&id).has_tiles, !(amx >> bit & 1));
    }
    struct tsri_cpuid without_bf16 = all;
    without_bf16.leaf7_1_a = 0;
    units = tsri_bf16_units_of(&without_bf16);
    assert_false(units.has_dot || units.has_tiles);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(version_2),
                                       cmocka_unit_test(version_1),
                                       cmocka_unit_test(memory_of_version_2),
                                       cmocka_unit_test(memory_of_version_1),
                                       cmocka_unit_test(the_host_has_memory),
                                       cmocka_unit_test(instruction_sets_that_the_system_saves)};
    return cmocka_run_group_tests_name("cpus", tests, setup, teardown);
}
