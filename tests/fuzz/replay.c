// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without libFuzzer: every file of the given folders (or the given files), then mutations of them,
// which are the same each time.
//
//   replay_<subject> [--mutations N] [--seconds N] [--seed N] FILE|FOLDER...
//
// If an input ends the program, it is stored in $FUZZ_KEEP, if that names a file.
#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>

#include "fuzz.h"

enum { MAX_BYTES = 4096, MAX_FILES = 4096 };

static struct seed {
    uint8_t *data;
    size_t bytes;
} seeds[MAX_FILES];
static int num_seeds;
static struct seed running; // for the signal handler

static void read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || num_seeds == MAX_FILES) {
        fprintf(stderr, "replay: %s cannot be read, or is one too many\n", path);
        exit(2);
    }
    uint8_t buffer[MAX_BYTES];
    size_t bytes = fread(buffer, 1, sizeof buffer, file);
    fclose(file);
    struct seed *seed = &seeds[num_seeds++];
    *seed = (struct seed){malloc(bytes + 1), bytes};
    if (seed->data == NULL) exit(2);
    memcpy(seed->data, buffer, bytes);
}

static int compare_names(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void read_path(const char *path) {
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISDIR(status.st_mode)) {
        read_file(path);
        return;
    }
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, compare_names);
    for (int i = 0; i < count; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        if (stat(name, &status) == 0 && S_ISREG(status.st_mode)) read_file(name);
        free(entries[i]);
    }
    if (count >= 0) free(entries);
}

static void keep_input(int number) {
    const char *path = getenv("FUZZ_KEEP");
    FILE *file = path != NULL ? fopen(path, "wb") : NULL;
    if (file != NULL) {
        fwrite(running.data, 1, running.bytes, file);
        fclose(file);
    }
    signal(number, SIG_DFL);
    raise(number);
}

static void run(const uint8_t *data, size_t bytes) {
    // A separate block, so that a sanitizer detects reads beyond it.
    running = (struct seed){malloc(bytes + !bytes), bytes};
    if (running.data == NULL) exit(2);
    if (bytes > 0) memcpy(running.data, data, bytes);
    LLVMFuzzerTestOneInput(running.data, bytes);
    free(running.data);
}

static uint64_t random_state; // splitmix64
static uint64_t random_bits(void) {
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static size_t random_below(size_t count) { return (size_t)(random_bits() % count); }

// One to four changes: a byte, a bit, a removed or inserted piece, a longer end, or a piece of another seed.
static size_t mutate(uint8_t buffer[MAX_BYTES], size_t bytes) {
    for (size_t n = 1 + random_below(4); n > 0; n--) {
        size_t at = random_below(bytes + 1), room = bytes - at;
        const struct seed *other = &seeds[random_below((size_t)num_seeds)];
        size_t length = 1 + random_below(8);
        switch (random_below(6)) {
        case 0:
            if (room > 0) buffer[at] = (uint8_t)random_bits();
            break;
        case 1:
            if (room > 0) buffer[at] ^= (uint8_t)(1u << random_below(8));
            break;
        case 2:
            if (length > room) length = room;
            memmove(buffer + at, buffer + at + length, room - length);
            bytes -= length;
            break;
        case 3:
            if (bytes + length > MAX_BYTES) break;
            memmove(buffer + at + length, buffer + at, room);
            for (size_t i = 0; i < length; i++) buffer[at + i] = (uint8_t)random_bits();
            bytes += length;
            break;
        case 4: // many bytes at the end, most of them plain
            for (size_t i = random_below(64); i > 0 && bytes < MAX_BYTES; i--)
                buffer[bytes++] = random_below(3) == 0 ? (uint8_t)random_bits() : 0;
            break;
        default:
            for (size_t i = at; i < bytes && i < other->bytes; i++) buffer[i] = other->data[i];
        }
    }
    return bytes;
}

// Inputs take milliseconds, so 20 s of CPU time mean that the program hangs.
static void watch(void) {
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value = {.tv_sec = 20}}, NULL);
}

int main(int argc, char **argv) {
    unsigned long mutations = 0, done = 0;
    time_t end = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--mutations") == 0 && i + 1 < argc)
            mutations = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            end = time(NULL) + (time_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            random_state = strtoul(argv[++i], NULL, 10);
        else
            read_path(argv[i]);
    }
    if (num_seeds == 0) {
        fprintf(stderr, "replay: no inputs\n");
        return 2;
    }
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGPROF};
    if (getenv("FUZZ_KEEP") != NULL)
        for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
            signal(signals[i], keep_input);
    for (int i = 0; i < num_seeds; i++) {
        watch();
        run(seeds[i].data, seeds[i].bytes);
    }
    for (; done < mutations; done++) {
        if (done % 64 == 0) watch();
        if (done % 64 == 0 && end != 0 && time(NULL) >= end) break;
        uint8_t buffer[MAX_BYTES];
        const struct seed *seed = &seeds[random_below((size_t)num_seeds)];
        memcpy(buffer, seed->data, seed->bytes);
        run(buffer, mutate(buffer, seed->bytes));
    }
    for (int i = 0; i < num_seeds; i++) free(seeds[i].data);
    printf("%d inputs and %lu mutations: fine\n", num_seeds, done);
    return 0;
}
