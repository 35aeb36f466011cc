// SPDX-License-Identifier: Apache-2.0
// A pack of kernels that no compiler made, on the fake driver: it shows what calls request from the driver, without a
// GPU or a compiler. One test program includes this file.
#ifndef KERNEL_PACK_CASE_H
#define KERNEL_PACK_CASE_H

#include "context/op_table.h"
#include "cuda/cuda_cache.h"
#include "cuda/cuda_kernel.h"
#include "fake_driver.h"
#include "library/op_list.h"

static char folder[] = "/tmp/tsr_pack_XXXXXX";

// Writes every kernel that the operations list for the given architectures, or only the standard set.
static inline void write_pack(const int *archs, int num_archs, bool has_rare) {
    enum { MOST = 5000 };
    static unsigned char *data[MOST];
    static size_t bytes[MOST];
    char path[64];
    int count = 0;
    struct tsri_cuda_program program;
    unsigned char cache_key[TSRI_SHA256_BYTES];
    bool has_compiler;
    for (int a = 0; a < num_archs; a++)
        for (int op = 0; op < tsri_num_ops; op++)
            for (int i = 0;
                 tsri_ops[op]->kernel != NULL && tsri_ops[op]->kernel(i, archs[a], &program); i++) {
                struct tsri_cuda_image image = {.cubin = "code", .cubin_bytes = 4};
                if (program.is_rare && !has_rare) continue;
                assert_true(count < MOST);
                snprintf(image.arch, sizeof image.arch, "sm_%d%s", archs[a],
                         archs[a] == 90 ? "a" : "");
                assert_ok(tsri_cuda_image_keys(&program, image.arch, image.key, cache_key,
                                               &has_compiler));
                data[count] = tsri_cuda_image_pack(&image, &bytes[count]);
                assert_non_null(data[count++]);
            }
    snprintf(path, sizeof path, "%s/pack", folder);
    assert_ok(tsri_cuda_pack_write(path, data, bytes, count));
    setenv("TSR_KERNEL_PACK", path, 1);
    for (int i = 0; i < count; i++) free(data[i]);
}

static inline int setup_pack_for(const int *archs, int num_archs, bool has_rare) {
    if (mkdtemp(folder) == NULL) return -1;
    setenv("TSR_CACHE_DIR", folder, 1);
    setenv("TSR_LIBNVRTC", "/nowhere/libnvrtc.so", 1); // only the pack may serve
    write_pack(archs, num_archs, has_rare);
    tsri_cuda_driver_replace(&driver);
    return 0;
}

static inline int setup_pack(void **state) {
    static const int arch = 90;
    return (void)state, setup_pack_for(&arch, 1, true);
}

static inline int teardown_pack(void **state) {
    char command[64];
    (void)state;
    tsri_cuda_driver_replace(NULL);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command);
}

static inline tsr_context *cuda_context(void) {
    tsr_context *ctx;
    assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}), &ctx));
    return ctx;
}

// Resets the counts and clears the context's maps, so that it builds them again.
static inline void count_anew(const tsr_context *ctx) {
    struct tsri_cuda_memo *memo = tsri_context_queue(ctx)->memo;
    memset(memo->maps, 0, sizeof memo->maps);
    fake.num_maps = fake.num_launches = 0;
}

#endif
