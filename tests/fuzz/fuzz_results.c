// SPDX-License-Identifier: Apache-2.0
// What compare and history read: the results of two runs, as two documents separated by 0. Each is read, or refused
// with one sentence. The printed table has only printable words, a run compared with itself has not changed, and a
// history returns what was added. The JSON's memory stays within 128 times the file plus the need of an empty one
// (Jansson's empty object has 3 bytes and takes 200).
#define _GNU_SOURCE
#include <fcntl.h>
#include <jansson.h>
#include <malloc.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "commands/command.h"
#include "files/compare_runs.h"
#include "files/history_store.h"
#include "fuzz.h"

enum { FIXED_BYTES = 8192, MAX_TEXT = 1 << 20 };

// ---- Memory of the JSON -------------------------------------------------------------------------

static size_t held, peak;

static void *counted_malloc(size_t bytes) {
    void *block = malloc(bytes);
    if (block != NULL) held += malloc_usable_size(block);
    if (held > peak) peak = held;
    return block;
}

// The tool frees texts that Jansson allocated, without this function.
static void counted_free(void *pointer) {
    held -= malloc_usable_size(pointer);
    free(pointer);
}

// ---- What the tool says -------------------------------------------------------------------------

static char text[MAX_TEXT];

// Checks that the text has complete lines without control characters. In a table every line has as many columns as its
// head.
static void check_text(bool is_table) {
    size_t length = strlen(text);
    int columns = 0, head = 0;
    fuzz_require(length == 0 || text[length - 1] == '\n');
    for (size_t i = 0; i < length; i++) {
        const unsigned char byte = (unsigned char)text[i];
        fuzz_require(byte == '\n' || (byte >= ' ' && byte != 0x7f));
        fuzz_require(byte != 0xc2 || (unsigned char)text[i + 1] >= 0xa0);
        columns += byte == '|';
        if (byte != '\n') continue;
        if (head == 0) head = columns;
        fuzz_require(!is_table || columns == 0 || columns == head);
        columns = 0;
    }
}

static FILE *begin_text(void) {
    text[0] = '\0';
    FILE *out = fmemopen(text, sizeof text, "w");
    fuzz_require(out != NULL);
    return out;
}

static bool read_run(const uint8_t *data, size_t bytes, struct run *run) {
    static int file = -1;
    static char path[64];
    if (file < 0) {
        file = memfd_create("results", 0);
        fuzz_require(file >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    fuzz_require(ftruncate(file, 0) == 0);
    fuzz_require(pwrite(file, data, bytes, 0) == (ssize_t)bytes);
    held = peak = 0;
    FILE *before = stderr;
    stderr = begin_text();
    int code = run_read("fuzz", path, run);
    fclose(stderr);
    stderr = before;
    fuzz_require(peak <= 128 * bytes + FIXED_BYTES);
    fuzz_require(code == -1 || code == EXIT_USAGE);
    fuzz_require((code == -1) == (text[0] == '\0'));
    check_text(false);
    return code == -1;
}

// ---- Runs ---------------------------------------------------------------------------------------

static void compare(const struct run *old, const struct run *new) {
    FILE *out = begin_text();
    int code = compare_runs_write(out, old, new, 1.05, true);
    fclose(out);
    check_text(true);
    fuzz_require(code == EXIT_FINE || code == EXIT_WRONG || code == EXIT_NOT_COMPARABLE);
    if (old != new) return;
    // Rows with the same key and variant match in their order, so each is compared with itself.
    bool is_wrong = false;
    for (int i = 0; i < new->count; i++)
        is_wrong |= run_judge(&new->rows[i], &new->rows[i], 1.05) == RUN_WRONG;
    fuzz_require(code == (is_wrong         ? EXIT_WRONG
                          : new->count > 0 ? EXIT_FINE
                                           : EXIT_NOT_COMPARABLE));
    fuzz_require(strstr(text, "| faster") == NULL && strstr(text, "| slower") == NULL);
}

static bool is_same_number(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static char folder[64], path[96];

static void remove_folder(void) {
    (void)unlink(path);
    (void)rmdir(folder);
}

// Creates a file for the history, in memory if the system has such a folder.
static const char *new_file(void) {
    if (folder[0] == '\0') {
        strcpy(folder, "/dev/shm/tessera-fuzz-XXXXXX");
        if (mkdtemp(folder) == NULL)
            fuzz_require(mkdtemp(strcpy(folder, "/tmp/tessera-fuzz-XXXXXX")));
        snprintf(path, sizeof path, "%s/history", folder);
        atexit(remove_folder);
    }
    (void)unlink(path);
    return path;
}

static void keep(const struct run *run, const struct run *other) {
    char error[256];
    bool is_new;
    struct history *history = history_open(new_file(), true, error, sizeof error);
    if (history == NULL) return; // built without SQLite
    int64_t number = history_add(history, run, &is_new);
    fuzz_require(number == 1 && is_new);
    fuzz_require(history_add(history, run, &is_new) == 1 && !is_new);
    struct run kept, base;
    fuzz_require(history_get(history, number, &kept) && kept.count == run->count);
    fuzz_require(strcmp(kept.cpu, run->cpu) == 0 && strcmp(kept.digest, run->digest) == 0);
    for (int i = 0; i < run->count; i++) {
        fuzz_require(strcmp(kept.rows[i].label, run->rows[i].label) == 0);
        fuzz_require(is_same_number(kept.rows[i].ms, run->rows[i].ms));
    }
    run_free(&kept);
    number = history_add(history, other, &is_new);
    fuzz_require(number == (is_new ? 2 : 1));
    int num_runs = 0;
    fuzz_require(history_before(history, number, 10, &base, &num_runs));
    fuzz_require(num_runs == 0 || (is_new && strcmp(run->cpu, other->cpu) == 0));
    compare(&base, other);
    run_free(&base);
    FILE *out = begin_text();
    history_list(history, out);
    fclose(out);
    check_text(true);
    out = begin_text();
    history_show(history, "", out);
    fclose(out);
    check_text(true);
    fuzz_require(history_error(history) == NULL);
    history_close(history);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const uint8_t *end = bytes > 0 ? memchr(data, 0, bytes) : NULL;
    size_t first = end != NULL ? (size_t)(end - data) : bytes;
    const uint8_t *rest = data + first + (end != NULL);
    struct run old, new;
    json_set_alloc_funcs(counted_malloc, counted_free);
    bool is_read = read_run(data, first, &old);
    if (read_run(rest, bytes - (size_t)(rest - data), &new) && is_read) {
        compare(&old, &new);
        compare(&new, &new);
        keep(&old, &new);
    }
    if (is_read) compare(&old, &old);
    run_free(&old);
    run_free(&new);
    return 0;
}
