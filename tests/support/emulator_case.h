// SPDX-License-Identifier: Apache-2.0
// Cases that are verified on the emulated device of tests/emulator: an operation, a variant, and sizes as `tessera
// verify` prints them. One test program includes this file.
#ifndef EMULATOR_CASE_H
#define EMULATOR_CASE_H

#include "test_support.h"

#include <sys/stat.h>

#include "cuda/cuda_source.h"
#include "verify/verify.h"

struct emulator_case {
    const char *op, *variant; // NULL: the default variant
    tsr_dtype dtype;
    const char *params;
    enum edge_fill fill;
    uint32_t flags;   // of the call
    const char *tile; // matmul_forward in bf16 or fp8 e4m3: as in a tuning file; NULL: the default
};

// Call this before any use of a device. Compiled kernels are cached beside the tests; the log lists the files that were
// loaded.
static inline int emulator_start(const char *log) {
#ifdef TEST_EMULATOR
    setenv("TSR_LIBCUDA", TEST_EMULATOR, 1);
    setenv("TSR_LIBNVRTC", TEST_EMULATOR, 1);
    setenv("TSR_LIBNVML", "absent", 1);
    setenv("TSR_KERNEL_PACK", "/dev/null", 1);
    setenv("TSR_CACHE_DIR", TEST_EMULATOR_CACHE, 1);
    (void)mkdir(TEST_EMULATOR_CACHE, 0700);
    (void)remove(log);
    setenv("EMULATOR_LOG", log, 1);
    return 0;
#else
    (void)log;
    return 77; // another architecture, a sanitizer, or no g++
#endif
}

// Creates a context. A tuning file sets matmul's tile if one is given.
static inline tsr_context *emulator_context(const char *tile, bool is_fp8) {
    char name[] = "/tmp/emulator_case_XXXXXX";
    tsr_context_options with = TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0});
    tsr_context *ctx;
    if (tile != NULL) {
        FILE *file = fdopen(mkstemp(name), "w");
        assert_non_null(file);
        fprintf(file, "tessera-tuning 1\nmatmul_forward sm_90/4 %s * %s\n",
                is_fp8 ? "e4m3" : "bf16", tile);
        fclose(file);
        with.tuning_file = name;
    }
    assert_ok(tsr_context_create(&with, &ctx));
    if (tile != NULL) (void)remove(name);
    return ctx;
}

// Checks that each case's error is within its bound.
static inline void emulator_prove(const struct emulator_case *cases, int count) {
    for (int i = 0; i < count; i++) {
        const bool is_fp8 = strstr(cases[i].params, "fp8=e4m3") != NULL;
        tsr_context *ctx = emulator_context(cases[i].tile, is_fp8);
        char error[512];
        struct verdict verdict = {0};
        const struct op_spec *spec = spec_find(cases[i].op);
        assert_non_null(spec);
        struct op_case c = case_default(spec);
        c.dtype = c.small_dtype = cases[i].dtype;
        c.flags = cases[i].flags;
        if (!case_set(&c, cases[i].params, error, sizeof error)) fail_msg("%s", error);
        tsr_status status = verify_case(ctx, &c, cases[i].variant, 1 + (uint64_t)i, cases[i].fill,
                                        LAYOUT_CONTIGUOUS, &verdict);
        if (status != TSR_OK || verdict.num_failed > 0 || verdict.num_configs != 1)
            fail_msg("%s %s %s: %s", cases[i].op, cases[i].variant != NULL ? cases[i].variant : "",
                     cases[i].params, verdict.num_failed > 0 ? verdict.failure : tsr_last_error());
        tsr_context_destroy(ctx);
    }
}

static inline bool emulator_has_line(const char *log, const char *line) {
    char text[256];
    bool is_found = false;
    FILE *file = fopen(log, "r");
    while (file != NULL && !is_found && fgets(text, sizeof text, file) != NULL) {
        text[strcspn(text, "\n")] = '\0';
        is_found = strcmp(text, line) == 0;
    }
    if (file != NULL) fclose(file);
    return is_found;
}

// Checks that every kernel file whose name begins with `start` has been loaded, except names that begin with one of
// `others` (ends with NULL).
static inline void emulator_has_run_all(const char *log, const char *start,
                                        const char *const *others) {
    int count = 0, missing = 0;
    for (const struct tsri_cuda_file *file = tsri_cuda_files; file->name != NULL; file++) {
        size_t length = strlen(file->name);
        if (strncmp(file->name, start, strlen(start)) != 0) continue;
        bool is_other = false;
        for (const char *const *other = others; other != NULL && *other != NULL; other++)
            is_other |= strncmp(file->name, *other, strlen(*other)) == 0;
        if (is_other) continue;
        if (strcmp(file->name + length - 3, ".cu") != 0) continue;
        count++;
        if (emulator_has_line(log, file->name)) continue;
        print_error("%s did not run\n", file->name);
        missing++;
    }
    assert_true(count > 0);
    assert_int_equal(missing, 0);
}

#endif
