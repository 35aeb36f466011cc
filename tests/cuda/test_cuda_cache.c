// SPDX-License-Identifier: Apache-2.0
// The kernel cache and the packs: racing and killed writers, damaged files, other users' folders, full and read-only
// disks. No compiler is needed.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_cache_case.h"

// ---- Images that no compiler made -------------------------------------------------------------

enum { CUBIN = 5000 };
static unsigned char cubin[CUBIN];

static struct tsri_cuda_image make_image(int seed) {
    struct tsri_cuda_image image = {.facts = {32, 0, 0, 128}, .cubin = cubin, .cubin_bytes = CUBIN};
    uint64_t random = (uint64_t)seed;
    for (int i = 0; i < TSRI_SHA256_BYTES; i++) image.key[i] = (unsigned char)test_bits(&random);
    for (int i = 0; i < CUBIN; i++) cubin[i] = (unsigned char)(i * 7 + seed);
    snprintf(image.text, sizeof image.text, "some/kernel.cu SEED=%d", seed);
    strcpy(image.arch, "sm_80");
    return image;
}

static bool loads(const struct tsri_cuda_image *image) {
    struct tsri_cuda_image got;
    if (!tsri_cuda_cache_load(image->key, &got)) return false;
    assert_int_equal(got.cubin_bytes, image->cubin_bytes);
    assert_memory_equal(got.cubin, image->cubin, got.cubin_bytes);
    assert_string_equal(got.text, image->text);
    assert_string_equal(got.arch, image->arch);
    assert_int_equal(got.facts.num_registers, image->facts.num_registers);
    tsri_cuda_image_free(&got);
    return true;
}

static void path_of(const struct tsri_cuda_image *image, char path[256]) {
    char hex[TSRI_SHA256_HEX];
    tsri_sha256_hex(image->key, hex);
    snprintf(path, 256, "%s/%s.kernel", kernels, hex);
}

static void store_and_load(void **state) {
    (void)state;
    struct stat info;
    char path[TSRI_CUDA_PATH], sentence[640];
    struct tsri_cuda_image image = make_image(1);
    assert_false(loads(&image));
    assert_true(tsri_cuda_cache_store(&image));
    assert_true(loads(&image));
    assert_true(tsri_cuda_cache_store(&image)); // again, replaces itself
    assert_int_equal(count_files(), 1);
    assert_true(tsri_cuda_cache_path(path, sentence, sizeof sentence));
    assert_string_equal(path, kernels);
    assert_int_equal(stat(kernels, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    assert_int_equal(tsri_cuda_cache_clear(), 1);
    assert_false(loads(&image));
}

static void folder_by_the_environment(void **state) {
    (void)state;
    char path[TSRI_CUDA_PATH], sentence[640], expected[128];
    unsetenv("TSR_CACHE_DIR");
    char *home = getenv("HOME") != NULL ? strdup(getenv("HOME")) : NULL;
    setenv("XDG_CACHE_HOME", folder, 1);
    assert_true(tsri_cuda_cache_path(path, sentence, sizeof sentence));
    snprintf(expected, sizeof expected, "%s/tessera/kernels", folder);
    assert_string_equal(path, expected);
    setenv("XDG_CACHE_HOME", "relative", 1); // must be ignored
    setenv("HOME", folder, 1);
    assert_true(tsri_cuda_cache_path(path, sentence, sizeof sentence));
    snprintf(expected, sizeof expected, "%s/.cache/tessera/kernels", folder);
    assert_string_equal(path, expected);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_false(tsri_cuda_cache_path(path, sentence, sizeof sentence));
    assert_non_null(strstr(sentence, "HOME"));
    if (home != NULL) setenv("HOME", home, 1);
    free(home);
}

// A home folder without a cache: every folder of the path is created, and only the owner can access the last one.
static void folders_that_are_not_there_are_made(void **state) {
    (void)state;
    struct tsri_cuda_image image = make_image(1);
    char nested[128], path[TSRI_CUDA_PATH], sentence[640];
    struct stat info;
    snprintf(nested, sizeof nested, "%s/a/b/c", folder);
    setenv("TSR_CACHE_DIR", nested, 1);
    assert_true(tsri_cuda_cache_store(&image));
    assert_true(loads(&image));
    assert_true(tsri_cuda_cache_path(path, sentence, sizeof sentence));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    setenv("TSR_CACHE_DIR", folder, 1);
}

// ---- Damage -----------------------------------------------------------------------------------

static void flipped_and_cut(void **state) {
    (void)state;
    struct tsri_cuda_image image = make_image(2);
    char path[256];
    size_t bytes;
    path_of(&image, path);
    assert_true(tsri_cuda_cache_store(&image));
    unsigned char *whole = tsri_cuda_image_pack(&image, &bytes);
    for (size_t at = 0; at < bytes; at += at < 300 ? 1 : 97) { // every byte of header and text
        whole[at] ^= (unsigned char)(1u << at % 8);
        write_file(path, whole, bytes);
        assert_false(loads(&image));
        whole[at] ^= (unsigned char)(1u << at % 8);
    }
    for (size_t length = 0; length < bytes; length += length < 300 ? 1 : 101) {
        write_file(path, whole, length);
        assert_false(loads(&image));
    }
    unsigned char *longer = calloc(1, bytes + 1);
    memcpy(longer, whole, bytes);
    write_file(path, longer, bytes + 1);
    assert_false(loads(&image));
    write_file(path, whole, bytes);
    assert_true(loads(&image));
    free(longer);
    free(whole);
}

// An intact file of another kernel, and paths that are no file of the cache.
static void something_else_in_its_place(void **state) {
    (void)state;
    struct tsri_cuda_image one = make_image(3), other;
    char path[256], other_path[256];
    assert_true(tsri_cuda_cache_store(&one));
    path_of(&one, path);
    other = make_image(4);
    path_of(&other, other_path);
    assert_int_equal(rename(path, other_path), 0);
    assert_false(loads(&other));
    assert_int_equal(unlink(other_path), 0);
    assert_int_equal(symlink("/dev/zero", path), 0);
    one = make_image(3);
    assert_false(loads(&one));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); // must not wait for a writer
    assert_false(loads(&one));
    assert_true(tsri_cuda_cache_store(&one)); // replaces it
    assert_true(loads(&one));
    if (geteuid() == 0) { // only root can change a file's owner
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_false(loads(&one));
    }
}

static void count_visits(void *user, const struct tsri_cuda_image *image) {
    assert_string_equal(image->arch, "sm_80");
    ++*(int *)user;
}

static void walking_counts_what_is_damaged(void **state) {
    (void)state;
    char path[256];
    int visits = 0;
    for (int seed = 10; seed < 15; seed++) {
        struct tsri_cuda_image image = make_image(seed);
        assert_true(tsri_cuda_cache_store(&image));
    }
    struct tsri_cuda_image image = make_image(12);
    path_of(&image, path);
    assert_int_equal(truncate(path, 1000), 0);
    assert_int_equal(tsri_cuda_cache_walk(count_visits, &visits), 1);
    assert_int_equal(visits, 4);
    assert_int_equal(tsri_cuda_cache_clear(), 5);
}

// ---- Folders ----------------------------------------------------------------------------------

static void folders_of_others(void **state) {
    (void)state;
    char path[TSRI_CUDA_PATH], sentence[640], elsewhere[128];
    struct tsri_cuda_image image = make_image(5);
    assert_true(tsri_cuda_cache_store(&image));
    assert_int_equal(chmod(kernels, 0755), 0); // others may read, and could later write
    assert_false(loads(&image));
    assert_false(tsri_cuda_cache_store(&image));
    assert_false(tsri_cuda_cache_path(path, sentence, sizeof sentence));
    assert_non_null(strstr(sentence, "0700"));
    assert_int_equal(chmod(kernels, 0700), 0);
    assert_true(loads(&image));
    if (geteuid() == 0) {
        assert_int_equal(chown(kernels, 12345, 12345), 0);
        assert_false(loads(&image));
        assert_int_equal(chown(kernels, 0, 0), 0);
        assert_true(loads(&image));
    }
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", folder); // a symbolic link
    assert_int_equal(rename(kernels, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, kernels), 0);
    assert_false(loads(&image));
    assert_int_equal(unlink(kernels), 0);
    write_file(kernels, (const unsigned char *)"x", 1); // not a folder
    assert_false(tsri_cuda_cache_store(&image));
}

// root can write anywhere, so for root the folder's path leads through a file.
static void home_that_cannot_be_written(void **state) {
    (void)state;
    struct tsri_cuda_image image = make_image(6);
    char path[128];
    if (geteuid() == 0) {
        snprintf(path, sizeof path, "%s/file", folder);
        write_file(path, (const unsigned char *)"x", 1);
        strcat(path, "/below");
        setenv("TSR_CACHE_DIR", path, 1);
    } else {
        assert_int_equal(chmod(folder, 0500), 0);
    }
    assert_false(tsri_cuda_cache_store(&image));
    assert_false(loads(&image));
    assert_int_equal(chmod(folder, 0700), 0);
}

// ---- Disks ------------------------------------------------------------------------------------

static size_t room; // on the disk
static bool is_deadly;

static ssize_t write_until_full(int file, const void *data, size_t bytes) {
    if (room == 0) {
        if (is_deadly) raise(SIGKILL);
        errno = ENOSPC;
        return -1;
    }
    size_t some = bytes < 100 ? bytes : 100; // never all at once
    some = some < room ? some : room;
    room -= some;
    return write(file, data, some);
}

static int sync_fails(int file) {
    (void)file;
    errno = EIO;
    return -1;
}

static void full_disks(void **state) {
    (void)state;
    struct tsri_cuda_image image = make_image(7);
    tsri_system.write = write_until_full;
    for (size_t size = 0; size < CUBIN; size += 613) {
        room = size;
        assert_false(tsri_cuda_cache_store(&image));
        assert_false(loads(&image));
        assert_int_equal(count_files(), 0); // nothing is left behind
    }
    room = SIZE_MAX;
    assert_true(tsri_cuda_cache_store(&image)); // in pieces of 100 bytes
    assert_true(loads(&image));
    tsri_system.sync = sync_fails;
    assert_false(tsri_cuda_cache_store(&image));
    assert_true(loads(&image)); // the earlier one
}

static void killed_in_the_middle(void **state) {
    (void)state;
    struct tsri_cuda_image image = make_image(8);
    int status;
    for (size_t size = 0; size < CUBIN + 600; size += 700) {
        pid_t child = fork();
        if (child == 0) {
            tsri_system.write = write_until_full;
            room = size;
            is_deadly = true;
            (void)tsri_cuda_cache_store(&image);
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFSIGNALED(status)) assert_false(loads(&image));
    }
    assert_true(count_files() > 1); // left by the killed writers
    assert_true(tsri_cuda_cache_store(&image));
    assert_true(loads(&image));
    assert_true(tsri_cuda_cache_clear() > 1);
    assert_int_equal(count_files(), 0);
}

// 64 processes at once use the same few kernels, all with an empty cache.
static void racing_processes(void **state) {
    (void)state;
    enum { PROCESSES = 64, ROUNDS = 10, IMAGES = 3 };
    pid_t children[PROCESSES];
    for (int p = 0; p < PROCESSES; p++) {
        children[p] = fork();
        if (children[p] != 0) continue;
        for (int round = 0; round < ROUNDS; round++) {
            struct tsri_cuda_image image = make_image(20 + (p + round) % IMAGES), got;
            bool is_there = tsri_cuda_cache_load(image.key, &got);
            if (is_there && memcmp(got.cubin, cubin, CUBIN) != 0) _exit(1);
            if (is_there) tsri_cuda_image_free(&got);
            if (!tsri_cuda_cache_store(&image)) _exit(2);
            if (!tsri_cuda_cache_load(image.key, &got)) _exit(3);
            tsri_cuda_image_free(&got);
        }
        _exit(0);
    }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        assert_int_equal(waitpid(children[p], &status, 0), children[p]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    assert_int_equal(count_files(), IMAGES);
}

// ---- Packs ------------------------------------------------------------------------------------

static void packs(void **state) {
    (void)state;
    enum { IMAGES = 3 };
    unsigned char *data[IMAGES];
    size_t bytes[IMAGES];
    char path[128];
    struct tsri_cuda_image image, got;
    for (int i = 0; i < IMAGES; i++) {
        image = make_image(30 + i);
        data[i] = tsri_cuda_image_pack(&image, &bytes[i]);
    }
    snprintf(path, sizeof path, "%s/my.pack", folder);
    assert_ok(tsri_cuda_pack_write(path, data, bytes, IMAGES));
    assert_false(tsri_cuda_pack_load(image.key, &got)); // in a folder where packs are not searched
    setenv("TSR_KERNEL_PACK", path, 1);
    for (int i = 0; i < IMAGES; i++) {
        image = make_image(30 + i);
        assert_true(tsri_cuda_pack_load(image.key, &got));
        assert_string_equal(got.text, image.text);
        assert_memory_equal(got.cubin, cubin, CUBIN);
        tsri_cuda_image_free(&got);
    }
    image = make_image(99);
    assert_false(tsri_cuda_pack_load(image.key, &got));
    // Damage affects only the damaged image. A truncated pack still serves its complete images.
    int file = open(path, O_RDWR);
    assert_int_equal(pwrite(file, "!", 1, (off_t)(bytes[0] + 3000)), 1);
    close(file);
    image = make_image(31);
    assert_false(tsri_cuda_pack_load(image.key, &got));
    image = make_image(32);
    assert_true(tsri_cuda_pack_load(image.key, &got));
    tsri_cuda_image_free(&got);
    assert_int_equal(truncate(path, (off_t)(bytes[0] + 50)), 0);
    image = make_image(30);
    assert_true(tsri_cuda_pack_load(image.key, &got));
    tsri_cuda_image_free(&got);
    image = make_image(32);
    assert_false(tsri_cuda_pack_load(image.key, &got));
    assert_status(tsri_cuda_pack_write("/nowhere/at/all.pack", data, bytes, IMAGES), TSR_IO,
                  "/nowhere/at/all.pack");
    for (int i = 0; i < IMAGES; i++) free(data[i]);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup(name, setup)
    const struct CMUnitTest tests[] = {
        TEST(store_and_load),
        TEST(folder_by_the_environment),
        TEST(folders_that_are_not_there_are_made),
        TEST(flipped_and_cut),
        TEST(something_else_in_its_place),
        TEST(walking_counts_what_is_damaged),
        TEST(folders_of_others),
        TEST(home_that_cannot_be_written),
        TEST(full_disks),
        TEST(killed_in_the_middle),
        TEST(racing_processes),
        TEST(packs),
    };
    return cmocka_run_group_tests_name("cuda cache", tests, setup_all, teardown_all);
}
