// SPDX-License-Identifier: Apache-2.0
// A kernel cache in a temporary folder, for the tests of the cache and the compiler.
#ifndef CUDA_CACHE_CASE_H
#define CUDA_CACHE_CASE_H

#include "core/core_system.h"
#include "cuda/cuda_cache.h"
#include "test_support.h"

static char folder[] = "/tmp/tsr_cache_XXXXXX";
static char kernels[64]; // folder/kernels
static struct tsri_system real;

static inline void run_command(const char *format, const char *argument) {
    char command[512];
    snprintf(command, sizeof command, format, argument);
    assert_int_equal(system(command), 0);
}

static inline int setup_all(void **state) {
    (void)state;
    real = tsri_system;
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(kernels, sizeof kernels, "%s/kernels", folder);
    return 0;
}

static inline int teardown_all(void **state) {
    (void)state;
    run_command("rm -rf '%s'", folder);
    return 0;
}

// Empties the cache and points TSR_CACHE_DIR to it.
static inline int setup(void **state) {
    (void)state;
    tsri_system = real;
    run_command("rm -rf '%s'/*", folder);
    setenv("TSR_CACHE_DIR", folder, 1);
    unsetenv("TSR_KERNEL_PACK");
    unsetenv("TSR_KERNEL_DIR");
    return 0;
}

static inline int count_files(void) {
    FILE *pipe;
    int count = -1;
    char command[128];
    snprintf(command, sizeof command, "ls -A '%s' | wc -l", kernels);
    pipe = popen(command, "r");
    assert_int_equal(fscanf(pipe, "%d", &count), 1);
    pclose(pipe);
    return count;
}

static inline void write_file(const char *path, const unsigned char *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

#endif
