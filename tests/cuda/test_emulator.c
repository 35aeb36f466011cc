// SPDX-License-Identifier: Apache-2.0
// Tests the emulated device itself: its constants equal the library's, and it finds and reports what kernels do wrong.
#define _GNU_SOURCE
#include "test_support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "../emulator/emulator_formats.h"
#include "cuda/cuda_driver.h"
#include "cuda/cuda_nvrtc.h"
#include "cuda/device/tensor_map.h"

// Each kernel gets memory of 64 floats.
static const char source[] =
    "#define DEVICE static __device__ __forceinline__\n"
    "#define KERNEL extern \"C\" __global__ void __launch_bounds__(64)\n"
    "DEVICE unsigned address(const void *at) { return (unsigned)__cvta_generic_to_shared(at); }\n"
    "DEVICE void copy(unsigned to, const void *from) {\n"
    "    asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16;\\n\"\n"
    "                 \"cp.async.commit_group;\" ::\"r\"(to), \"l\"(from) : \"memory\");\n"
    "}\n"
    "KERNEL copies(float *x, int waits) {\n" // each thread doubles its four
    "    __shared__ float4 tile[16];\n"
    "    if (threadIdx.x >= 16) return;\n"
    "    copy(address(tile + threadIdx.x), x + threadIdx.x * 4);\n"
    "    if (waits) asm volatile(\"cp.async.wait_group %0;\" ::\"n\"(0) : \"memory\");\n"
    "    float4 y = tile[threadIdx.x];\n"
    "    ((float4 *)x)[threadIdx.x] = make_float4(2 * y.x, 2 * y.y, 2 * y.z, 2 * y.w);\n"
    "}\n"
    "KERNEL turns(float *x, int unused) {\n" // blocks in turn, the last one first
    "    int turn, mine = gridDim.x - 1 - blockIdx.x;\n"
    "    if (threadIdx.x > 0) return;\n"
    "    do asm volatile(\"ld.acquire.gpu.global.s32 %0, [%1];\" : \"=r\"(turn) : \"l\"(x) : "
    "\"memory\");\n"
    "    while (turn != mine);\n"
    "    x[1 + mine] = mine;\n"
    "    asm volatile(\"red.release.gpu.global.add.s32 [%0], 1;\" ::\"l\"(x) : \"memory\");\n"
    "}\n"
    "KERNEL beyond(float *x, int by) { x[(int)threadIdx.x + by] = 1; }\n"
    "KERNEL aslant(float *x, int by) { x[0] = ((float4 *)(x + by))->x; }\n"
    "KERNEL stuck(float *x, int threads) {\n"
    "    asm volatile(\"bar.sync 1, %0;\" ::\"r\"(threads) : \"memory\");\n"
    "}\n"
    "KERNEL apart(float *x, int lane) {\n"
    "    if (threadIdx.x % 32 < lane) x[threadIdx.x] = __shfl_xor_sync(0xffffffff, x[0], 1);\n"
    "    else __syncwarp();\n"
    "}\n"
    "KERNEL unstarted(float *x, int starts) {\n"
    "    __shared__ unsigned long long barrier;\n"
    "    if (threadIdx.x > 0) return;\n"
    "    if (starts) asm volatile(\"mbarrier.init.shared::cta.b64 [%0], %1;\" "
    "::\"r\"(address(&barrier)),\n"
    "                             \"r\"(1) : \"memory\");\n"
    "    asm volatile(\"mbarrier.arrive.shared::cta.b64 _, [%0];\" ::\"r\"(address(&barrier)) : "
    "\"memory\");\n"
    "}\n"
    "KERNEL unfenced(float *x, int is_fenced) {\n" // the second product has a fence or not
    "    __shared__ float4 tile[8];\n"
    "    float c[4] = {0, 0, 0, 0};\n"
    "    if (threadIdx.x < 8) tile[threadIdx.x] = make_float4(1, 1, 1, 1);\n"
    "    __syncthreads();\n"
    "    unsigned long long rows = address(tile) >> 4;\n"
    "    for (int i = 0; i < 2; i++) {\n"
    "        if (i == 0 || is_fenced) asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");\n"
    "        asm volatile(\"{\\n.reg .pred more;\\nsetp.ne.b32 more, %6, 0;\\n\"\n"
    "                     \"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, "
    "\"\n"
    "                     \"%4, %5, more, 1, 1, 0, 0;\\n}\\n\"\n"
    "                     : \"+f\"(c[0]), \"+f\"(c[1]), \"+f\"(c[2]), \"+f\"(c[3])\n"
    "                     : \"l\"(rows), \"l\"(rows), \"r\"(i) : \"memory\");\n"
    "        asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");\n"
    "        asm volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n"
    "    }\n"
    "}\n"
    "struct alignas(64) tile_map { unsigned char bytes[128]; };\n"
    "KERNEL sums(float *x, int unused, const __grid_constant__ struct tile_map map) {\n"
    "    __shared__ alignas(128) float tile[8];\n"
    "    if (threadIdx.x > 0) return;\n"
    "    for (int i = 0; i < 8; i++) tile[i] = i;\n"
    "    asm volatile(\"cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group \"\n"
    "                 \"[%1, {%2, %3}], [%0];\\n\"\n"
    "                 \"cp.async.bulk.commit_group;\\ncp.async.bulk.wait_group 0;\"\n"
    "                 ::\"r\"(address(tile)), \"l\"(&map), \"r\"(0), \"r\"(1) : \"memory\");\n"
    "}\n"
    "KERNEL leaves(float *x, int waits) {\n"
    "    __shared__ float4 tile;\n"
    "    if (threadIdx.x > 0) return;\n"
    "    tile = make_float4(1, 2, 3, 4);\n"
    "    asm volatile(\"cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;\\n\"\n"
    "                 \"cp.async.bulk.commit_group;\" ::\"l\"(x), \"r\"(address(&tile)) : "
    "\"memory\");\n"
    "    if (waits) asm volatile(\"cp.async.bulk.wait_group.read 0;\" ::: \"memory\");\n"
    "}\n";

static const struct tsri_cuda_driver *driver;
static cu_library library;
static cu_context context;
static cu_map_type map_type = CU_MAP_F32; // the kernel's memory has this map

static nvrtc_result compile(const char *text, char *log, size_t log_bytes) {
    static const char *const options[] = {"--gpu-architecture=sm_90a"};
    const struct tsri_nvrtc *nvrtc = tsri_nvrtc();
    nvrtc_program program;
    size_t bytes = 0;
    assert_non_null(nvrtc);
    assert_int_equal(nvrtc->create_program(&program, text, "test.cu", 0, NULL, NULL), NVRTC_OK);
    nvrtc_result result = nvrtc->compile_program(program, COUNT(options), options);
    assert_int_equal(nvrtc->get_log_size(program, &bytes), NVRTC_OK);
    char *whole = malloc(bytes);
    assert_int_equal(nvrtc->get_log(program, whole), NVRTC_OK);
    snprintf(log, log_bytes, "%s", whole);
    free(whole);
    if (result == NVRTC_OK) {
        assert_int_equal(nvrtc->get_cubin_size(program, &bytes), NVRTC_OK);
        char *code = malloc(bytes);
        assert_int_equal(nvrtc->get_cubin(program, code), NVRTC_OK);
        assert_int_equal(driver->library_load_data(&library, code, NULL, NULL, 0, NULL, NULL, 0),
                         CU_OK);
        free(code);
    }
    assert_int_equal(nvrtc->destroy_program(&program), NVRTC_OK);
    return result;
}

static int setup(void **state) {
    (void)state;
    char log[2000];
    driver = tsri_cuda_driver();
    assert_non_null(driver);
    assert_int_equal(driver->primary_ctx_retain(&context, 0), CU_OK);
    assert_int_equal(driver->ctx_push_current(context), CU_OK);
    if (compile(source, log, sizeof log) != NVRTC_OK) fail_msg("%s", log);
    return 0;
}

// Runs a kernel on memory that holds 0, 1, 2 and so on. Returns the device's sentence; x receives the memory.
static const char *launch(const char *name, int blocks, int number, float x[64]) {
    static const char fine[] = "";
    cu_kernel kernel;
    cu_function function;
    cu_pointer memory = 0;
    const char *sentence = fine;
    assert_int_equal(driver->mem_alloc(&memory, 64 * sizeof *x), CU_OK);
    for (int i = 0; i < 64; i++) x[i] = (float)i;
    assert_int_equal(driver->memcpy_async(memory, (uintptr_t)x, 64 * sizeof *x, NULL), CU_OK);
    assert_int_equal(driver->library_get_kernel(&kernel, library, name), CU_OK);
    assert_int_equal(driver->kernel_get_function(&function, kernel), CU_OK);
    const uint64_t size[] = {8, 4}, stride[] = {32};
    const uint32_t box[] = {8, 1}, steps[] = {1, 1};
    struct tensor_map map;
    assert_int_equal(driver->tensor_map_encode(&map, map_type, 2, (void *)(uintptr_t)memory, size,
                                               stride, box, steps, CU_MAP_NOT_INTERLEAVED,
                                               CU_MAP_SWIZZLE_NONE, 0, CU_MAP_FILL_ZEROS),
                     CU_OK);
    void *params[] = {&memory, &number, &map};
    const cu_launch config = {.grid_x = (unsigned)blocks,
                              .grid_y = 1,
                              .grid_z = 1,
                              .block_x = 64,
                              .block_y = 1,
                              .block_z = 1};
    cu_result result = driver->launch_kernel_ex(&config, function, params, NULL);
    if (result != CU_OK) {
        assert_int_equal(result, CU_LAUNCH_FAILED);
        assert_int_equal(driver->stream_synchronize(NULL), CU_LAUNCH_FAILED);
        assert_int_equal(driver->get_error_string(result, &sentence), CU_OK);
        assert_int_equal(driver->primary_ctx_release(0), CU_OK);
    }
    assert_int_equal(driver->memcpy_async((uintptr_t)x, memory, 64 * sizeof *x, NULL), CU_OK);
    assert_int_equal(driver->mem_free(memory), CU_OK);
    return sentence;
}

static void expect(const char *name, int number, const char *phrase) {
    float x[64];
    const char *sentence = launch(name, 1, number, x);
    if (*phrase == '\0' ? *sentence != '\0' : strstr(sentence, phrase) == NULL)
        fail_msg("%s %d: '%s', expected '%s'", name, number, sentence, phrase);
}

static void copies_need_their_waits(void **state) {
    (void)state;
    float x[64];
    assert_string_equal(launch("copies", 1, 1, x), "");
    for (int i = 0; i < 64; i++) assert_true(x[i] == 2 * (float)i);
    assert_string_equal(launch("copies", 1, 0, x), "");
    for (int i = 0; i < 64; i++) assert_true(x[i] != x[i]);
}

static void blocks_wait_for_each_other(void **state) {
    (void)state;
    float x[64];
    assert_string_equal(launch("turns", 40, 0, x), "");
    for (int i = 0; i < 40; i++) assert_true(x[1 + i] == (float)i);
}

static void mistakes_are_found(void **state) {
    (void)state;
    expect("beyond", 0, "");
    expect("beyond", 64, "where there is no memory");
    expect("beyond", -1, "something was written beyond an allocation of 256 bytes");
    expect("aslant", 4, "");
    expect("aslant", 1, "multiple of its type's alignment");
    expect("stuck", 64, "");
    expect("stuck", 96, "at barrier 1 (64 of 96 are there)");
    expect("apart", 32, "");
    expect("apart", 16, "lanes of a warp are at");
    expect("unstarted", 1, "");
    expect("unstarted", 0, "no barrier that was started");
    expect("unfenced", 1, "");
    expect("unfenced", 0, "wgmma without a wgmma.fence before it");
    expect("leaves", 1, "");
    expect("leaves", 0, "a block ends with a copy on its way");
}

// A failed launch leaves no copies or blocks for the next one.
static void a_failed_launch_ends(void **state) {
    (void)state;
    float x[64];
    expect("leaves", 0, "a block ends with a copy on its way");
    assert_string_equal(launch("beyond", 1, 0, x), "");
    for (int i = 0; i < 64; i++) assert_true(x[i] == 1);
    expect("leaves", 0, "a block ends with a copy on its way");
    expect("leaves", 1, "");
}

static void unknown_instructions_are_named(void **state) {
    (void)state;
    char log[2000];
    assert_int_not_equal(compile("extern \"C\" __global__ void k(int *x) {\n"
                                 "    asm volatile(\"turn.around.u32 %0;\" ::\"r\"(x[0]));\n}\n",
                                 log, sizeof log),
                         NVRTC_OK);
    assert_non_null(strstr(log, "ptx_turn_around_u32"));
    assert_non_null(strstr(log, "test.cu:2"));
}

static void sums_are_of_floats(void **state) {
    (void)state;
    float x[64];
    assert_string_equal(launch("sums", 1, 0, x), "");
    for (int i = 0; i < 64; i++) assert_true(x[i] == (float)(i >= 8 && i < 16 ? 2 * i - 8 : i));
    map_type = CU_MAP_BF16;
    expect("sums", 0, "a sum into a tensor map that is not of floats");
    map_type = CU_MAP_F32;
}

static void restore(const char *variable, char *value) {
    if (value != NULL)
        setenv(variable, value, 1);
    else
        unsetenv(variable);
    free(value);
}

static void kept_kernels_are_of_their_compiler(void **state) {
    (void)state;
    const struct tsri_nvrtc *nvrtc = tsri_nvrtc();
    const char *name = getenv("EMULATOR_CXX");
    char *before = name != NULL ? strdup(name) : NULL;
    int major, minor, again, other;
    assert_int_equal(nvrtc->version(&major, &minor), NVRTC_OK);
    assert_int_equal(nvrtc->version(&major, &again), NVRTC_OK);
    assert_int_equal(again, minor);
    setenv("EMULATOR_CXX", "another", 1);
    assert_int_equal(nvrtc->version(&major, &other), NVRTC_OK);
    assert_int_not_equal(other, minor);
    restore("EMULATOR_CXX", before);
}

static void temporary_files_are_where_they_should_be(void **state) {
    (void)state;
    const struct tsri_nvrtc *nvrtc = tsri_nvrtc();
    nvrtc_program program;
    const char *folder = getenv("TMPDIR");
    char *before = folder != NULL ? strdup(folder) : NULL, path[300] = "/tmp/test_emulator-XXXXXX";
    assert_non_null(mkdtemp(path));
    size_t length = strlen(path);
    snprintf(path + length, sizeof path - length, "/%0150d", 0);
    assert_int_equal(mkdir(path, 0700), 0);
    setenv("TMPDIR", path, 1);
    assert_int_equal(nvrtc->create_program(&program, "", "a.cu", 0, NULL, NULL), NVRTC_OK);
    assert_int_equal(rmdir(path), -1); // the program's folder is in it
    assert_int_equal(nvrtc->destroy_program(&program), NVRTC_OK);
    assert_int_equal(rmdir(path), 0);
    assert_int_not_equal(nvrtc->create_program(&program, "", "a.cu", 0, NULL, NULL), NVRTC_OK);
    assert_null(program);
    path[length] = '\0';
    assert_int_equal(rmdir(path), 0);
    setenv("TMPDIR", "", 1);
    assert_int_equal(nvrtc->create_program(&program, "", "a.cu", 0, NULL, NULL), NVRTC_OK);
    assert_int_equal(nvrtc->destroy_program(&program), NVRTC_OK);
    restore("TMPDIR", before);
}

static int are_equal(double a, double b) { return a == b || (a != a && b != b); }

static void numbers_are_the_librarys(void **state) {
    (void)state;
    for (unsigned bits = 0; bits < 1u << 16; bits++) {
        const uint16_t half = (uint16_t)bits;
        const double f16 = tsr_load(TSR_F16, &half, 0), bf16 = tsr_load(TSR_BF16, &half, 0);
        assert_true(are_equal((double)emulator_of_f16(bits), f16));
        assert_true(are_equal((double)emulator_of_bf16(bits), bf16));
        const uint8_t byte = (uint8_t)bits;
        const double e4m3 = tsr_load(TSR_E4M3, &byte, 0), e5m2 = tsr_load(TSR_E5M2, &byte, 0);
        assert_true(are_equal((double)emulator_of_e4m3(byte), e4m3));
        assert_true(are_equal((double)emulator_of_e5m2(byte), e5m2));
    }
    uint64_t seed = 5;
    for (int i = 0; i < 200000; i++) {
        const float x = emulator_float((unsigned)test_bits(&seed));
        uint16_t half;
        uint8_t byte;
        if (x != x) continue;
        tsr_store(TSR_F16, &half, 0, (double)x);
        assert_int_equal(emulator_to_f16(x), half);
        tsr_store(TSR_BF16, &half, 0, (double)x);
        assert_int_equal(emulator_to_bf16(x), half);
        tsr_store(TSR_E4M3, &byte, 0, (double)x);
        assert_int_equal(emulator_to_e4m3(x), byte);
        tsr_store(TSR_E5M2, &byte, 0, (double)x);
        assert_int_equal(emulator_to_e5m2(x), byte);
    }
}

#ifndef TEST_EMULATOR
#define TEST_EMULATOR "" // another kind of machine, a sanitizer, or no g++
#endif

int main(void) {
    static const char emulator[] = TEST_EMULATOR;
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_need_their_waits),
        cmocka_unit_test(blocks_wait_for_each_other),
        cmocka_unit_test(mistakes_are_found),
        cmocka_unit_test(a_failed_launch_ends),
        cmocka_unit_test(unknown_instructions_are_named),
        cmocka_unit_test(sums_are_of_floats),
        cmocka_unit_test(kept_kernels_are_of_their_compiler),
        cmocka_unit_test(temporary_files_are_where_they_should_be),
        cmocka_unit_test(numbers_are_the_librarys),
    };
    if (emulator[0] == '\0') return 77;
    setenv("TSR_LIBCUDA", emulator, 1);
    setenv("TSR_LIBNVRTC", emulator, 1);
    setenv("EMULATOR_COPIES", "late", 1);
    return cmocka_run_group_tests(tests, setup, NULL);
}
