// SPDX-License-Identifier: Apache-2.0
// Fault tests of the model library while it reads and writes safetensors: its memory, the JSON library's memory, and
// files.
#include <jansson.h>

#include "fault_case.h"
#include "model/model_system.h"
#include "safetensors_case.h"

static struct tsri_model_system model_system; // the real one
static float x[6] = {1, 2, 3, 4, 5, 6};

// ---- The system -------------------------------------------------------------------------------

static void *json_alloc(size_t bytes) { return fault_alloc(64, (bytes + 63) / 64 * 64); }
static char *model_resolve(const char *name, char *resolved) {
    return fault_is_refused() ? errno = ENOMEM, NULL : model_system.resolve(name, resolved);
}
static int model_status_of(const char *name, struct stat *status) {
    return fault_is_refused() ? fault_error(EIO) : model_system.status_of(name, status);
}
static int model_access(const char *name, int wanted) {
    return fault_is_refused() ? fault_error(EACCES) : model_system.access(name, wanted);
}
static int model_open(const char *name, int flags, mode_t mode) {
    if (fault_is_refused()) return fault_error(EMFILE);
    return fault_count_file(model_system.open(name, flags, mode));
}
static ssize_t model_read(int file, void *data, size_t bytes) {
    return fault_is_refused() ? fault_error(EIO) : model_system.read(file, data, bytes);
}
static int model_rename(const char *from, const char *to) {
    return fault_is_refused() ? fault_error(EACCES) : model_system.rename(from, to);
}

static int setup(void **state) {
    fault_install();
    model_system = tsri_model_system;
    tsri_model_system = (struct tsri_model_system){.alloc = fault_alloc,
                                                   .free = fault_free,
                                                   .resolve = model_resolve,
                                                   .status_of = model_status_of,
                                                   .access = model_access,
                                                   .open = model_open,
                                                   .status = fault_status,
                                                   .read = model_read,
                                                   .write = fault_write,
                                                   .sync = fault_sync,
                                                   .close = fault_close,
                                                   .rename = model_rename};
    json_set_alloc_funcs(json_alloc, fault_free);
    return make_folder(state);
}

static int teardown(void **state) {
    (void)fault_summary(state);
    return remove_folder(state);
}

// ---- Reading ----------------------------------------------------------------------------------

static tsr_safetensors *file;

static void write_before(void *arg) {
    (void)arg;
    write_small();
}

static tsr_status open_run(void *arg) {
    (void)arg;
    file = (tsr_safetensors *)&faults;
    return tsr_safetensors_open(path, &file);
}

static tsr_status open_memory_run(void *arg) {
    static const char header[] = "{\"__metadata__\":{\"k\":\"v\"},\"a\":" TENSOR(
        "U8", "[1]", "[0,1]") ",\"x\":" TENSOR("F32", "[2,3]", "[1,25]") "}"; // x is copied
    (void)arg;
    file = (tsr_safetensors *)&faults;
    return open_text(header, sizeof header - 1, 25, &file);
}

static bool open_is_right(void *arg, tsr_status status) {
    tsr_tensor tensor;
    if (status != TSR_OK) return file == NULL;
    bool is_right =
        tsr_safetensors_count(file) == 2 && strcmp(tsr_safetensors_metadata(file, "k"), "v") == 0 &&
        tsr_safetensors_tensor(file, "x", &tensor) == TSR_OK && tsr_tensor_numel(&tensor) == 6;
    if (is_right && arg == NULL) is_right = memcmp(tensor.data, x, sizeof x) == 0;
    if (is_right && arg != NULL) is_right = *(const char *)tensor.data == 1;
    tsr_safetensors_close(file);
    return is_right;
}

static void reading(void **state) {
    (void)state;
    const struct fault_call from_disk = {"safetensors", write_before, open_run, open_is_right},
                            from_memory = {"safetensors", NULL, open_memory_run, open_is_right};
    assert_true(fault_walk(&from_disk, NULL) >= 2 * 20);
    assert_true(fault_walk(&from_memory, x) >= 2 * 20);
}

// ---- Writing ----------------------------------------------------------------------------------

static struct bytes old_file, new_file;

static tsr_status write_run(void *arg) {
    const tsr_safetensors_entry entries[] = {{"x", TSR_TENSOR(x, TSR_F32, 2, 3)},
                                             {"scalar", TSR_TENSOR(x, TSR_F32)}};
    const tsr_safetensors_pair pair = {"key", "value"};
    (void)arg;
    return tsr_safetensors_write(path, entries, 2, &pair, 1);
}

static void write_before_private(void *arg) {
    write_before(arg);
    assert_int_equal(chmod(path, 0640), 0);
}

static void remove_before(void *arg) {
    (void)arg;
    (void)unlink(path);
}

// The path must hold the old or the new file, with the old mode, and no other file: otherwise teardown cannot remove
// the folder.
static bool write_is_right(void *arg, tsr_status status) {
    const struct bytes *expected = status == TSR_OK ? &new_file : arg != NULL ? &old_file : NULL;
    struct stat info;
    if (expected == NULL) return access(path, F_OK) != 0;
    struct bytes bytes = read_file();
    bool is_right = bytes.count == expected->count &&
                    memcmp(bytes.data, expected->data, bytes.count) == 0 &&
                    stat(path, &info) == 0 && (arg == NULL || (info.st_mode & 0777) == 0640);
    free(bytes.data);
    return is_right;
}

static void writing(void **state) {
    (void)state;
    const struct fault_call over = {"safetensors", write_before_private, write_run, write_is_right},
                            fresh = {"safetensors", remove_before, write_run, write_is_right};
    write_small();
    old_file = read_file();
    assert_ok(write_run(NULL));
    new_file = read_file();
    assert_true(fault_walk(&over, x) >= 2 * 30);
    assert_true(fault_walk(&fresh, NULL) >= 2 * 30);
    free(old_file.data);
    free(new_file.data);
}

// Without memory the error must not blame the tensors' names.
static void names_are_not_blamed(void **state) {
    (void)state;
    for (int n = 1, refused = 1; refused > 0; n++) {
        fault_arm(n, true);
        tsr_status status = write_run(NULL);
        refused = fault_disarm();
        assert_true(status == TSR_OK || strstr(tsr_last_error(), "UTF-8") == NULL);
    }
    const tsr_safetensors_entry entry = {"\xff", TSR_TENSOR(x, TSR_F32, 2, 3)};
    assert_status(tsr_safetensors_write(path, &entry, 1, NULL, 0), TSR_INVALID_ARGUMENT, "UTF-8");
}

static ssize_t write_nothing(int sink, const void *data, size_t bytes) {
    return (void)sink, (void)data, (void)bytes, 0;
}

static void a_disk_that_takes_nothing(void **state) {
    (void)state;
    tsri_model_system.write = write_nothing;
    assert_status(write_run(NULL), TSR_IO, "written");
    tsri_model_system.write = fault_write;
    assert_ok(write_run(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading),
        cmocka_unit_test(writing),
        cmocka_unit_test(names_are_not_blamed),
        cmocka_unit_test(a_disk_that_takes_nothing),
    };
    return cmocka_run_group_tests_name("faults of the model library", tests, setup, teardown);
}
