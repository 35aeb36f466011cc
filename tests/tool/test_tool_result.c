// SPDX-License-Identifier: Apache-2.0
// The target of --out: a file is replaced, also behind a link. Paths that are no regular file are written to and stay
// what they were.
#include "test_support.h"

#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/result.h"
#include "system/files.h"

static char folder[64];
static struct result_list list;

static int setup(void **state) {
    (void)state;
    struct op_case c = case_default(spec_find("softmax_forward"));
    struct result result = result_empty(&c);
    snprintf(folder, sizeof folder, "/tmp/test_tool_result.XXXXXX");
    assert_non_null(mkdtemp(folder));
    result.median_ms = 1.5;
    result_add(&list, &result);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    result_list_free(&list);
    return rmdir(folder); // each test leaves it empty
}

static const char *path_of(const char *name) {
    static char paths[8][128];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static mode_t mode_of(const char *path) {
    struct stat info;
    assert_int_equal(lstat(path, &info), 0);
    return info.st_mode;
}

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static size_t read_text(const char *path, char *text, size_t bytes) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t count = fread(text, 1, bytes - 1, file);
    text[count] = '\0';
    fclose(file);
    return count;
}

static void assert_result_at(const char *path) {
    char text[4096];
    read_text(path, text, sizeof text);
    assert_non_null(strstr(text, "\"op\":\"softmax_forward\""));
    assert_non_null(strstr(text, "\"median_ms\":1.5"));
    assert_null(strstr(text, "earlier"));
    assert_int_equal(text[strlen(text) - 1], '\n');
}

static bool write_result(const char *path) { return result_write_file(path, &list, FORMAT_JSONL); }

static void a_new_file(void **state) {
    (void)state;
    const char *path = path_of("new");
    static const mode_t masks[] = {022, 077};
    for (int i = 0; i < 2; i++) {
        mode_t before = umask(masks[i]);
        assert_true(file_can_write(path));
        assert_true(write_result(path));
        umask(before);
        assert_result_at(path);
        assert_true(S_ISREG(mode_of(path)) && (mode_of(path) & 07777) == (0666 & ~masks[i]));
        unlink(path);
    }
}

static void a_file_is_replaced_with_its_mode(void **state) {
    (void)state;
    const char *path = path_of("old"), *other = path_of("other");
    write_text(path, "earlier");
    assert_int_equal(chmod(path, 0660), 0);
    assert_int_equal(link(path, other), 0); // keeps the earlier file visible
    assert_true(file_can_write(path));
    assert_true(write_result(path));
    assert_result_at(path);
    assert_true(S_ISREG(mode_of(path)) && (mode_of(path) & 07777) == 0660);
    char text[64];
    read_text(other, text, sizeof text);
    assert_string_equal(text, "earlier"); // replaced, not overwritten
    unlink(path);
    unlink(other);
}

static void a_link_stays_a_link(void **state) {
    (void)state;
    const char *path = path_of("link"), *target = path_of("target");
    for (int exists = 1; exists >= 0; exists--) {
        if (exists) write_text(target, "earlier");
        assert_int_equal(symlink("target", path), 0);
        assert_true(file_can_write(path));
        assert_true(write_result(path));
        assert_true(S_ISLNK(mode_of(path)));
        assert_result_at(target);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(unlink(target), 0);
    }
}

static void *read_pipe(void *text) {
    read_text(path_of("pipe"), text, 4096);
    return NULL;
}

static void a_pipe_is_written_to(void **state) {
    (void)state;
    char text[4096] = "";
    pthread_t reader;
    const char *path = path_of("pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_true(file_can_write(path));
    assert_int_equal(pthread_create(&reader, NULL, read_pipe, text), 0);
    bool is_written = write_result(path);
    if (!S_ISFIFO(mode_of(path))) fail_msg("the pipe is gone"); // the reader needs it
    pthread_join(reader, NULL);
    assert_true(is_written);
    assert_non_null(strstr(text, "\"median_ms\":1.5"));
    unlink(path);
}

static void what_cannot_be_written(void **state) {
    (void)state;
    const char *inner = path_of("inner");
    assert_false(file_can_write(folder));
    assert_int_equal(errno, EISDIR);
    assert_false(write_result(folder));
    assert_true(S_ISDIR(mode_of(folder)));
    assert_false(file_can_write(""));
    assert_int_equal(errno, ENOENT);
    assert_false(file_can_write(path_of("none/file")));
    assert_false(file_can_write(path_of("none/")));
    assert_false(write_result(path_of("none/file")));
    write_text(inner, "earlier");
    assert_false(file_can_write(path_of("inner/file")));
    assert_int_equal(unlink(inner), 0);
}

static void folders_above_a_file_are_made(void **state) {
    (void)state;
    const char *outer = path_of("outer"), *inner = path_of("outer/inner");
    const char *file = path_of("outer/inner/file");
    for (int i = 0; i < 2; i++) { // existing files do not matter
        file_make_folders(file);
        assert_true(S_ISDIR(mode_of(inner)) && (mode_of(inner) & 07777) == 0700);
        assert_true((mode_of(outer) & 07777) == 0700);
        assert_int_equal(access(file, F_OK), -1);
    }
    file_make_folders("");
    file_make_folders("no-folder-above");
    assert_int_equal(access("no-folder-above", F_OK), -1);
    assert_int_equal(rmdir(inner), 0);
    assert_int_equal(rmdir(outer), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_file),
        cmocka_unit_test(a_file_is_replaced_with_its_mode),
        cmocka_unit_test(a_link_stays_a_link),
        cmocka_unit_test(a_pipe_is_written_to),
        cmocka_unit_test(what_cannot_be_written),
        cmocka_unit_test(folders_above_a_file_are_made),
    };
    return cmocka_run_group_tests_name("where results go", tests, setup, teardown);
}
