// SPDX-License-Identifier: Apache-2.0
// NVIDIA libraries that are absent, wrong or named by the user: one sentence says which library was searched for and
// where. Runs without any of them.
#include "core/core_system.h"
#include "cuda/cuda_cupti.h"
#include "cuda/cuda_driver.h"
#include "cuda/cuda_library.h"
#include "cuda/cuda_nvml.h"
#include "cuda/cuda_nvrtc.h"
#include "test_support.h"

static const struct tsri_cuda_library example = {
    "the example", "TSR_LIBEXAMPLE", {"libexample.so.2", "libexample.so.1"}};

static char asked[64][256];
static int num_asked;
static const char *present; // the only path that opens

static void *fake_open(const char *path) {
    if (num_asked < COUNT(asked)) snprintf(asked[num_asked++], sizeof *asked, "%s", path);
    return present != NULL && strcmp(path, present) == 0 ? &present : NULL;
}

static int setup(void **state) {
    (void)state;
    num_asked = 0;
    present = NULL;
    tsri_system.open_library = fake_open;
    unsetenv("TSR_LIBEXAMPLE");
    return 0;
}

static void names_what_and_where(void **state) {
    (void)state;
    char sentence[640];
    setenv("CUDA_HOME", "/nowhere/cuda", 1);
    assert_null(tsri_cuda_library_open(&example, sentence, sizeof sentence));
    unsetenv("CUDA_HOME");
    static const char *const words[] = {"the example was not found",
                                        "libexample.so.2 and libexample.so.1",
                                        "loader's path",
                                        "/nowhere/cuda/lib64",
                                        "/usr/local/cuda/lib64",
                                        "TSR_LIBEXAMPLE"};
    for (int i = 0; i < COUNT(words); i++) assert_non_null(strstr(sentence, words[i]));
    setenv("CUDA_HOME", "/usr/local/cuda", 1); // no folder is listed twice
    assert_null(tsri_cuda_library_open(&example, sentence, sizeof sentence));
    unsetenv("CUDA_HOME");
    const char *first = strstr(sentence, "/usr/local/cuda/lib64");
    assert_non_null(first);
    assert_null(strstr(first + 1, "/usr/local/cuda/lib64"));
    // Another folder whose name only begins with a listed one must be listed.
    setenv("CONDA_PREFIX", "/usr/local/cuda", 1);
    assert_null(tsri_cuda_library_open(&example, sentence, sizeof sentence));
    unsetenv("CONDA_PREFIX");
    assert_non_null(strstr(sentence, ", /usr/local/cuda/lib,"));
    char small[16]; // must not overflow the buffer
    assert_null(tsri_cuda_library_open(&example, small, sizeof small));
    assert_true(strlen(small) < sizeof small);
}

static void newest_name_first(void **state) {
    (void)state;
    char sentence[640];
    present = "libexample.so.1";
    assert_ptr_equal(tsri_cuda_library_open(&example, sentence, sizeof sentence), &present);
    assert_true(num_asked >= 2);
    assert_string_equal(asked[0], "libexample.so.2");
}

// If the user names a file, only this file is tried.
static void the_users_file(void **state) {
    (void)state;
    char sentence[640];
    setenv("TSR_LIBEXAMPLE", "/somewhere/mine.so", 1);
    assert_null(tsri_cuda_library_open(&example, sentence, sizeof sentence));
    assert_int_equal(num_asked, 1);
    assert_non_null(strstr(sentence, "TSR_LIBEXAMPLE names '/somewhere/mine.so'"));
    present = "/somewhere/mine.so";
    assert_non_null(tsri_cuda_library_open(&example, sentence, sizeof sentence));
    setenv("TSR_LIBEXAMPLE", "", 1); // as if it were not set
    present = "libexample.so.2";
    assert_non_null(tsri_cuda_library_open(&example, sentence, sizeof sentence));
}

static void wheels_and_toolkits(void **state) {
    (void)state;
    char sentence[640], folder[] = "/tmp/tsr_wheel_XXXXXX", path[128], command[512];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/lib/python3.11/site-packages/nvidia/cu13/lib", folder);
    snprintf(command, sizeof command, "mkdir -p '%s' && touch '%s/libexample.so.2'", path, path);
    assert_int_equal(system(command), 0);
    setenv("VIRTUAL_ENV", folder, 1);
    strcat(path, "/libexample.so.2");
    present = path;
    assert_non_null(tsri_cuda_library_open(&example, sentence, sizeof sentence));
    unsetenv("VIRTUAL_ENV");
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}

// A library without the expected functions, and no library at all. A process searches only once, so these tests are
// last.
static void *find_nothing(void *handle, const char *name) {
    (void)handle, (void)name;
    return NULL;
}

static void a_driver_without_symbols(void **state) {
    (void)state;
    present = "libcuda.so.1";
    unsetenv("TSR_LIBCUDA");
    tsri_system.find_symbol = find_nothing;
    assert_null(tsri_cuda_driver());
    assert_non_null(strstr(tsri_cuda_driver_sentence(), "the CUDA driver lacks"));
    assert_non_null(strstr(tsri_cuda_driver_sentence(), "cuGetProcAddress_v2"));
    assert_int_equal(tsri_cuda_driver_version(), 0);
}

static void no_compiler(void **state) {
    (void)state;
    struct tsri_cuda_sensors sensors;
    unsetenv("TSR_LIBNVRTC");
    assert_null(tsri_nvrtc());
    assert_non_null(strstr(tsri_nvrtc_sentence(), "libnvrtc.so.13 and libnvrtc.so.12"));
    assert_false(tsri_cuda_sensors_read("0000:01:00.0", &sensors));
    assert_true(sensors.power_w != sensors.power_w);
    unsetenv("TSR_LIBCUPTI");
    assert_null(tsri_cupti());
    assert_non_null(strstr(tsri_cupti_sentence(), "CUPTI, the profiling library of CUDA,"));
    assert_non_null(strstr(tsri_cupti_sentence(), "libcupti.so.13 and libcupti.so.12"));
    assert_non_null(strstr(tsri_cupti_sentence(), "extras/CUPTI/lib64"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(names_what_and_where, setup),
        cmocka_unit_test_setup(newest_name_first, setup),
        cmocka_unit_test_setup(the_users_file, setup),
        cmocka_unit_test_setup(wheels_and_toolkits, setup),
        cmocka_unit_test_setup(a_driver_without_symbols, setup),
        cmocka_unit_test_setup(no_compiler, setup),
    };
    return cmocka_run_group_tests_name("cuda loaders", tests, NULL, NULL);
}
