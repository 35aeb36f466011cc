// SPDX-License-Identifier: Apache-2.0
// Compiles kernels without a GPU: what a key contains, what an error says, packs before the compiler, and many
// processes with an empty cache. Skipped without NVRTC.
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/cuda_kernel.h"
#include "cuda/cuda_nvrtc.h"
#include "cuda_cache_case.h"

static const struct tsri_cuda_program program = {"test.cu", "add", 1, {{"AMOUNT", 3}}};

static void write_source(const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    write_file(path, (const unsigned char *)text, strlen(text));
    setenv("TSR_KERNEL_DIR", folder, 1);
}

static void write_sources(const char *header) {
    write_source(
        "test.cu",
        "#include \"test.cuh\"\n#ifndef AMOUNT\n#error \"AMOUNT is missing\"\n#endif\n"
        "extern \"C\" __global__ void add(int *x) { x[threadIdx.x] += AMOUNT * FACTOR; }\n");
    write_source("test.cuh", header);
}

static bool has_compiler(void) {
    if (tsri_nvrtc() != NULL) return true;
    printf("skipped: %s\n", tsri_nvrtc_sentence());
    return false;
}

static enum tsri_cuda_origin origin_of(const struct tsri_cuda_program *wanted, const char *arch) {
    enum tsri_cuda_origin origin = TSRI_CUDA_PACK;
    struct tsri_cuda_image image;
    assert_ok(tsri_cuda_image_get(wanted, arch, &origin, &image));
    assert_true(image.cubin_bytes > 0 && image.facts.num_registers > 0);
    assert_int_equal(image.facts.spill_bytes, 0);
    tsri_cuda_image_free(&image);
    return origin;
}

// The key contains everything that a kernel depends on.
static void compiled_once(void **state) {
    (void)state;
    if (!has_compiler()) skip();
    struct tsri_cuda_program other = program;
    write_sources("#define FACTOR 2\n");
    assert_int_equal(origin_of(&program, "sm_80"), TSRI_CUDA_COMPILER);
    assert_int_equal(origin_of(&program, "sm_80"), TSRI_CUDA_CACHE);
    assert_int_equal(origin_of(&program, "sm_90a"), TSRI_CUDA_COMPILER);
    other.defines[0].value = 4;
    assert_int_equal(origin_of(&other, "sm_80"), TSRI_CUDA_COMPILER);
    write_sources("#define FACTOR 3\n"); // in a header of the source
    assert_int_equal(origin_of(&program, "sm_80"), TSRI_CUDA_COMPILER);
    write_sources("#define FACTOR 2\n");
    assert_int_equal(origin_of(&program, "sm_80"), TSRI_CUDA_CACHE);
    // The order of defines does not matter.
    other = program;
    other.num_defines = 2;
    other.defines[1] = (struct tsri_cuda_define){"ALSO", 1};
    assert_int_equal(origin_of(&other, "sm_80"), TSRI_CUDA_COMPILER);
    other.defines[1] = program.defines[0];
    other.defines[0] = (struct tsri_cuda_define){"ALSO", 1};
    assert_int_equal(origin_of(&other, "sm_80"), TSRI_CUDA_CACHE);
}

static void compiles_without_a_cache(void **state) {
    (void)state;
    if (!has_compiler()) skip();
    write_sources("#define FACTOR 2\n");
    setenv("TSR_CACHE_DIR", "/proc/nowhere", 1);
    assert_int_equal(origin_of(&program, "sm_80"), TSRI_CUDA_COMPILER);
    assert_int_equal(origin_of(&program, "sm_80"), TSRI_CUDA_COMPILER);
}

static void errors_of_the_compiler(void **state) {
    (void)state;
    if (!has_compiler()) skip();
    enum tsri_cuda_origin origin = TSRI_CUDA_PACK;
    struct tsri_cuda_image image;
    struct tsri_cuda_program bare = program;
    bare.num_defines = 0;
    write_sources("#define FACTOR 2\n");
    assert_status(tsri_cuda_image_get(&bare, "sm_80", &origin, &image), TSR_COMPILE, "test.cu",
                  "sm_80", "AMOUNT is missing");
    assert_int_equal(count_files(), 0); // nothing was cached
    assert_status(tsri_cuda_image_get(&program, "sm_12", &origin, &image), TSR_UNSUPPORTED, "NVRTC",
                  "does not know sm_12");
    write_sources("this is not C\n");
    assert_status(tsri_cuda_image_get(&program, "sm_80", &origin, &image), TSR_COMPILE,
                  "test.cuh(1)");
    bare.source = "absent.cu";
    assert_status(tsri_cuda_image_get(&bare, "sm_80", &origin, &image), TSR_IO, "absent.cu",
                  "TSR_KERNEL_DIR");
    unsetenv("TSR_KERNEL_DIR");
    assert_status(tsri_cuda_image_get(&bare, "sm_80", &origin, &image), TSR_INTERNAL, "absent.cu");
}

static void packs_come_before_the_compiler(void **state) {
    (void)state;
    if (!has_compiler()) skip();
    enum tsri_cuda_origin origin = TSRI_CUDA_COMPILER;
    unsigned char pack_key[TSRI_SHA256_BYTES], cache_key[TSRI_SHA256_BYTES];
    struct tsri_cuda_image image;
    char path[128];
    size_t bytes;
    bool with_compiler;
    write_sources("#define FACTOR 2\n");
    assert_ok(tsri_cuda_image_get(&program, "sm_80", &origin, &image));
    assert_ok(tsri_cuda_image_keys(&program, "sm_80", pack_key, cache_key, &with_compiler));
    memcpy(image.key, pack_key, sizeof pack_key);
    unsigned char *data = tsri_cuda_image_pack(&image, &bytes);
    tsri_cuda_image_free(&image);
    snprintf(path, sizeof path, "%s/my.pack", folder);
    assert_ok(tsri_cuda_pack_write(path, &data, &bytes, 1));
    free(data);
    setenv("TSR_KERNEL_PACK", path, 1);
    assert_int_equal(origin_of(&program, "sm_80"), TSRI_CUDA_PACK);
    write_sources("#define FACTOR 3\n"); // another source
    assert_int_equal(origin_of(&program, "sm_80"), TSRI_CUDA_COMPILER);
}

// All at once: an empty cache and many processes that compile the same kernel.
static void racing_compilers(void **state) {
    (void)state;
    if (!has_compiler()) skip();
    enum { PROCESSES = 16 };
    pid_t children[PROCESSES];
    write_sources("#define FACTOR 2\n");
    for (int p = 0; p < PROCESSES; p++)
        if ((children[p] = fork()) == 0) {
            enum tsri_cuda_origin origin = TSRI_CUDA_PACK;
            struct tsri_cuda_image image;
            _exit(tsri_cuda_image_get(&program, "sm_80", &origin, &image) != TSR_OK);
        }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        assert_int_equal(waitpid(children[p], &status, 0), children[p]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(origin_of(&program, "sm_80"), TSRI_CUDA_CACHE);
    assert_int_equal(count_files(), 1);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup(name, setup)
    const struct CMUnitTest tests[] = {
        TEST(compiled_once),          TEST(compiles_without_a_cache),
        TEST(errors_of_the_compiler), TEST(packs_come_before_the_compiler),
        TEST(racing_compilers),
    };
    return cmocka_run_group_tests_name("cuda compile", tests, setup_all, teardown_all);
}
