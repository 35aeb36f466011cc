// SPDX-License-Identifier: Apache-2.0
// A conformance case and its answer from somebody else: the call (JSON), the header of its inputs, the answer's header,
// and repeated bytes for all tensors, separated by 0. The case is checked, or refused with a sentence, and the output
// has no control characters. This also tests what apply reads: any tensors, sizes and options for any operation.
//
// Numbers are small or very large. Sizes in between could fit the machine's memory.
#define _GNU_SOURCE
#include <ctype.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apply/conformance.h"
#include "commands/command.h"
#include "fuzz.h"

enum { MAX_TEXT = 1 << 16, MAX_DATA = 1024, SMALL_DIGITS = 3, LARGE_DIGITS = 12 };

// ---- The folders --------------------------------------------------------------------------------

static char root[] = "/tmp/tessera-fuzz-XXXXXX", cases[64], results[64];
static char call[96], inputs[96], answer[96];

static void remove_folders(void) {
    unlink(call);
    unlink(inputs);
    unlink(answer);
    rmdir(cases);
    rmdir(results);
    rmdir(root);
}

static void make_folders(void) {
    if (call[0] != '\0') return;
    fuzz_require(mkdtemp(root) != NULL);
    snprintf(cases, sizeof cases, "%s/cases", root);
    snprintf(results, sizeof results, "%s/results", root);
    snprintf(call, sizeof call, "%s/case.json", cases);
    snprintf(inputs, sizeof inputs, "%s/case.safetensors", cases);
    snprintf(answer, sizeof answer, "%s/case.safetensors", results);
    fuzz_require(mkdir(cases, 0700) == 0 && mkdir(results, 0700) == 0);
    atexit(remove_folders);
}

// ---- The files ----------------------------------------------------------------------------------

struct part {
    const uint8_t *data;
    size_t bytes;
};

// Returns the bytes up to the next 0 and skips the 0.
static struct part next_part(struct fuzz_bytes *in) {
    struct part part = {in->next, 0};
    while (in->next < in->end && *in->next != 0) in->next++;
    part.bytes = (size_t)(in->next - part.data);
    if (in->next < in->end) in->next++;
    return part;
}

static bool is_bounded(const struct part *part) {
    const uint8_t *end = part->data + part->bytes;
    for (const uint8_t *c = part->data, *first; c < end; c++) {
        if (!isdigit(*c)) continue;
        for (first = c; c < end && isdigit(*c);) c++;
        if (c - first > SMALL_DIGITS && c - first < LARGE_DIGITS) return false;
        if (c < end && (*c == 'e' || *c == 'E')) return false;
    }
    return true;
}

static void write_file(const char *path, const void *data, size_t bytes) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    fuzz_require(file >= 0 && write(file, data, bytes) == (ssize_t)bytes);
    close(file);
}

// Writes as many bytes after the header as its tensors claim.
static void write_tensors(const char *path, const struct part *header, const struct part *data) {
    static uint8_t file[8 + MAX_TEXT + MAX_DATA];
    size_t bytes = 8 + header->bytes, most = 0;
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)header->bytes >> 8 * i);
    memcpy(file + 8, header->data, header->bytes);
    file[bytes] = '\0';
    for (const char *at = (char *)file + 8; (at = strstr(at, "data_offsets")) != NULL; at++) {
        unsigned begin, end;
        if (sscanf(at, "data_offsets\":[%u,%u", &begin, &end) == 2 && end > most) most = end;
    }
    for (size_t i = 0; i < most && i < MAX_DATA; i++)
        file[bytes++] = data->bytes > 0 ? data->data[i % data->bytes] : 0;
    write_file(path, file, bytes);
}

// ---- The check ----------------------------------------------------------------------------------

static char text[MAX_TEXT];

static FILE *begin_text(void) {
    text[0] = '\0';
    FILE *out = fmemopen(text, sizeof text, "w");
    fuzz_require(out != NULL);
    return out;
}

static void check_text(void) {
    for (const unsigned char *c = (unsigned char *)text; *c != '\0'; c++) {
        fuzz_require(*c == '\n' || (*c >= ' ' && *c != 0x7f));
        fuzz_require(*c != 0xc2 || c[1] >= 0xa0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct fuzz_bytes in = {data, data + bytes};
    const struct part words = next_part(&in), given = next_part(&in), answered = next_part(&in);
    const struct part values = {in.next, (size_t)(in.end - in.next)};
    if (bytes >= MAX_TEXT || !is_bounded(&words) || !is_bounded(&given)) return 0;
    make_folders();
    write_file(call, words.data, words.bytes);
    write_tensors(inputs, &given, &values);
    if (answered.bytes > 0)
        write_tensors(answer, &answered, &values);
    else
        unlink(answer);

    struct conformance_checking checking = {.folder = cases, .results = results, .name = "fuzz"};
    struct verify_report report;
    uint64_t seed;
    FILE *stdout_before = stdout, *stderr_before = stderr;
    stderr = begin_text();
    int code = conformance_check(&checking, &report, &seed);
    fclose(stderr);
    stderr = stderr_before;
    check_text();
    fuzz_require(code == -1 || code == EXIT_USAGE || code == EXIT_COULD_NOT_RUN);
    fuzz_require(text[0] != '\0' || code == -1);
    fuzz_require(code >= 0 || report.num_runs == 1);
    fuzz_require(report.num_failed == 0 || text[0] != '\0');
    fuzz_require(answered.bytes > 0 || code >= 0 || report.num_failed == 1);
    stdout = begin_text();
    if (code < 0) verify_print_markdown(&report, seed);
    fclose(stdout);
    stdout = stdout_before;
    check_text();
    verify_report_free(&report);
    return 0;
}
