// SPDX-License-Identifier: Apache-2.0
// The writer of tuning files: rows of other keys stay, concurrent writers lose nothing, and paths that are no tuning
// file are not touched.
#define _GNU_SOURCE
#include "test_support.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files/tuning_file.h"
#include "measure/tune_candidates.h"

static char folder[] = "/tmp/test_tool_tuning_XXXXXX", path[96], error[512];

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL ? -1 : snprintf(path, sizeof path, "%s/tuning", folder) < 0;
}

static int remove_folder(void **state) {
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

static void put(const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void expect(const char *text) {
    char got[4096] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    got[fread(got, 1, sizeof got - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(got, text);
}

static void merge(const char *key, const char *choice) {
    struct tuning_line line;
    snprintf(line.key, sizeof line.key, "%s", key);
    snprintf(line.choice, sizeof line.choice, "%s", choice);
    assert_true(tuning_file_merge(path, &line, 1, error, sizeof error));
}

static void test_rows_replace_those_of_their_keys(void **state) {
    (void)state;
    (void)unlink(path);
    merge("op d f32 1x1", "one 8x8 # why");
    merge("op d f32 1x16", "two");
    merge("op e f32 1x1", "three");
    expect("tessera-tuning 1\nop d f32 1x1 one 8x8 # why\nop d f32 1x16 two\nop e f32 1x1 three\n");
    merge("op d f32 1x1", "four");
    expect("tessera-tuning 1\nop d f32 1x16 two\nop e f32 1x1 three\nop d f32 1x1 four\n");
    merge("op d f32 1x16", ""); // the built-in choice was fastest
    expect("tessera-tuning 1\nop e f32 1x1 three\nop d f32 1x1 four\n");
    put("tessera-tuning 1\n# mine\n  op\td  f32 1x1 four\nop d f32 1x1\n");
    merge("op d f32 1x1", "five");
    expect("tessera-tuning 1\n# mine\nop d f32 1x1\nop d f32 1x1 five\n");
}

static void test_other_files_are_not_touched(void **state) {
    (void)state;
    struct tuning_line line = {"op d f32 1", "one"};
    put("my notes\n");
    assert_false(tuning_file_merge(path, &line, 1, error, sizeof error));
    assert_non_null(strstr(error, "is no tuning file"));
    assert_false(tuning_file_clear(path, error, sizeof error));
    expect("my notes\n");
    assert_false(tuning_file_merge(folder, &line, 1, error, sizeof error));
    put("tessera-tuning 7\nwhatever\n"); // another version: ignored
    assert_true(tuning_file_merge(path, &line, 1, error, sizeof error));
    expect("tessera-tuning 1\nop d f32 1 one\n");
    assert_true(tuning_file_clear(path, error, sizeof error));
    assert_int_equal(access(path, F_OK), -1);
    assert_true(tuning_file_clear(path, error, sizeof error));
}

static void test_a_link_stays_one(void **state) {
    (void)state;
    char link[128];
    snprintf(link, sizeof link, "%s/link", folder);
    put("tessera-tuning 1\n");
    assert_int_equal(symlink("tuning", link), 0);
    struct tuning_line line = {"op d f32 1", "one"};
    assert_true(tuning_file_merge(link, &line, 1, error, sizeof error));
    struct stat info;
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    expect("tessera-tuning 1\nop d f32 1 one\n");
    assert_int_equal(unlink(link), 0);
}

static void test_folders_are_made(void **state) {
    (void)state;
    char deep[192];
    snprintf(deep, sizeof deep, "%s/a/b/tuning", folder);
    struct tuning_line line = {"op d f32 1", "one"};
    assert_true(tuning_file_merge(deep, &line, 1, error, sizeof error));
    assert_int_equal(unlink(deep), 0);
    snprintf(deep, sizeof deep, "%s/a/b", folder);
    assert_int_equal(rmdir(deep), 0);
    snprintf(deep, sizeof deep, "%s/a", folder);
    assert_int_equal(rmdir(deep), 0);
}

// Each process writes its own rows one by one. In the end all must be there.
static void test_two_writers_at_once(void **state) {
    (void)state;
    enum { WRITERS = 3, ROWS = 12 };
    pid_t writers[WRITERS];
    (void)unlink(path);
    for (int w = 0; w < WRITERS; w++) {
        writers[w] = fork();
        assert_true(writers[w] >= 0);
        for (int i = 0; writers[w] == 0 && i < ROWS; i++) {
            struct tuning_line line = {.choice = "one"};
            snprintf(line.key, sizeof line.key, "op d%d f32 %d", w, i);
            if (!tuning_file_merge(path, &line, 1, error, sizeof error)) _exit(1);
        }
        if (writers[w] == 0) _exit(0);
    }
    for (int w = 0; w < WRITERS; w++) {
        int status;
        assert_int_equal(waitpid(writers[w], &status, 0), writers[w]);
        assert_int_equal(status, 0);
    }
    char text[4096] = "", row[64];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    for (int w = 0; w < WRITERS; w++)
        for (int i = 0; i < ROWS; i++) {
            snprintf(row, sizeof row, "\nop d%d f32 %d one\n", w, i);
            assert_non_null(strstr(text, row));
        }
}

// ---- Which choices are worth measuring --------------------------------------------------------------

static struct tune_candidate candidate(const char *name, double ns) {
    struct tune_candidate made = {.model = ns};
    snprintf(made.name, sizeof made.name, "%s", name);
    return made;
}

static void test_survivors(void **state) {
    (void)state;
    struct tune_candidate list[MEASURE_MAX_CONTENDERS],
        all[] = {
            candidate("slow 1x1", 9000), candidate("far 1x1", 4100), candidate("two 2x2", 2300),
            candidate("one 1x1", 2000),  candidate("one 2x2", 2100), candidate("one 3x3", 2200),
            candidate("one 4x4", 2250),  candidate("one 5x5", 2400), candidate("near 1x1", 3900),
            candidate("near 2x2", 3950), candidate("onely", 2500),
        };
    static const char *const expected[] = {"two 2x2", "one 1x1", "one 2x2", "one 3x3",
                                           "one 4x4", "onely",   "near 1x1"};
    // The built-in choice is first, even if others are expected to be faster. Then the best four, and the best of each
    // other variant up to twice the least time.
    int count = tune_survivors(all, COUNT(all), "two", list);
    assert_int_equal(count, COUNT(expected));
    for (int i = 0; i < count; i++) assert_string_equal(list[i].name, expected[i]);
    assert_true(list[1].model == 2); // microseconds
    assert_int_equal(tune_survivors(all, 0, "two", list), 1);
    assert_string_equal(list[0].name, "");
    struct tune_candidate single[] = {candidate("one", 5)};
    assert_int_equal(tune_survivors(single, 1, "one", list), 1);
    assert_string_equal(list[0].name, "one");
    assert_int_equal(tune_survivors(single, 1, "other", list), 2);
    struct tune_candidate many[40];
    for (int i = 0; i < COUNT(many); i++) {
        char name[16];
        snprintf(name, sizeof name, "v%d 1x1", i);
        many[i] = candidate(name, 100);
    }
    assert_int_equal(tune_survivors(many, COUNT(many), "v7", list), MEASURE_MAX_CONTENDERS);
    assert_string_equal(list[0].name, "v7 1x1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_replace_those_of_their_keys),
        cmocka_unit_test(test_other_files_are_not_touched),
        cmocka_unit_test(test_a_link_stays_one),
        cmocka_unit_test(test_folders_are_made),
        cmocka_unit_test(test_two_writers_at_once),
        cmocka_unit_test(test_survivors),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
