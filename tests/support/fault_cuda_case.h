// SPDX-License-Identifier: Apache-2.0
// Fault tests on CUDA without a GPU or a compiler: contexts, resources held, and sources that are short to compile.
// Kernels do nothing, and device memory is host memory.
#ifndef FAULT_CUDA_CASE_H
#define FAULT_CUDA_CASE_H

#include "cuda/cuda_kernel.h"
#include "cuda/cuda_source.h"
#include "fake_libraries.h"
#include "fault_case.h"

static char folder[] = "/tmp/tsr_faults_XXXXXX";
static const tsr_device cuda_0 = {TSR_CUDA, 0};
static tsr_context *ctx;
static void *stream;

static inline bool is_balanced(void) {
    bool is = fake.num_memory == 0 && fake.num_retained == 0 && fake.num_objects == 0 &&
              fake.num_programs == 0 && fake.depth == 0;
    if (!is)
        print_error("held: %d blocks, %d contexts, %d objects, %d programs, %d current\n",
                    fake.num_memory, fake.num_retained, fake.num_objects, fake.num_programs,
                    fake.depth);
    return is;
}

static inline void clear_cache(void) {
    int32_t num_removed;
    assert_ok(tsr_kernels_clear(&num_removed));
}

static inline void make_context(void *arg) {
    (void)arg;
    assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = cuda_0), &ctx));
    assert_ok(tsr_stream_create(ctx, &stream));
    assert_ok(tsr_context_set_stream(ctx, stream));
}

static inline void make_cold_context(void *arg) {
    clear_cache();
    make_context(arg);
}

static inline void drop_context(void *arg) {
    (void)arg;
    assert_ok(tsr_stream_destroy(ctx, stream));
    tsr_context_destroy(ctx);
    ctx = NULL;
}

static inline void drop_cold_context(void *arg) {
    drop_context(arg);
    tsri_cuda_kernel_forget();
    assert_true(is_balanced());
}

// Releases what a failed test left, so that the next test starts clean.
static inline int let_go(void **state) {
    (void)state;
    (void)fault_disarm();
    if (ctx != NULL) drop_context(NULL);
    tsri_cuda_kernel_forget();
    memset(&fake, 0, sizeof fake);
    return 0;
}

// ---- The program ------------------------------------------------------------------------------

// Writes sources that are short to hash: each is one line with the file's name.
static inline void write_sources(void) {
    for (const struct tsri_cuda_file *file = tsri_cuda_files; file->name != NULL; file++) {
        char path[256];
        snprintf(path, sizeof path, "%s/src/%s", folder, file->name);
        for (char *slash = path + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
            *slash = '\0';
            (void)mkdir(path, 0700);
            *slash = '/';
        }
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        fprintf(out, "// %s\n", file->name);
        assert_int_equal(fclose(out), 0);
    }
}

static inline int setup_all(void **state) {
    (void)state;
    char path[64];
    if (mkdtemp(folder) == NULL) return -1;
    write_sources();
    snprintf(path, sizeof path, "%s/src", folder);
    setenv("TSR_KERNEL_DIR", path, 1);
    setenv("TSR_CACHE_DIR", folder, 1);
    setenv("TSR_KERNEL_PACK", "/nowhere/pack", 1);
    fake_libraries_install();
    fault_install();
    fake_refuses = fault_is_refused;
    return 0;
}

static inline int teardown_all(void **state) {
    char command[64];
    (void)fault_summary(state);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command);
}

#endif
