// SPDX-License-Identifier: Apache-2.0
// tessera kernels: CUDA kernels ahead of time. check compiles the standard set without a GPU and tests the rules for
// kernels; pack writes all kernels into a file for machines without a compiler; list and clear work on the cache.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>
#include <unistd.h>

#include "commands/command.h"
#include "system/files.h"
#include "system/options.h"

static const char *const verbs[] = {"check", "pack", "list", "clear", NULL};

static const struct command_help help = {
    .name = "kernels",
    .synopsis = "check|pack|list|clear [options]",
    .summary = "Compiles the CUDA kernels ahead of time, on any machine with NVRTC.",
    .examples = "tessera kernels list\ntessera kernels pack --arch sm_90a --out "
                "tessera-kernels.pack",
    .notes = "check  compiles the standard set, the kernels of all ordinary calls, and fails on a "
             "spill,\n"
             "       a stack frame, a warning, or more registers or shared memory than a\n"
             "       multiprocessor has; --all adds the rare kernels, which the first call that "
             "needs one\n"
             "       compiles otherwise\n"
             "pack   writes all kernels into one file; the library looks for it in its own folder "
             "and at\n"
             "       $TSR_KERNEL_PACK. A machine with this file needs only a driver, no compiler\n"
             "list   lists the kernels in the cache on disk\n"
             "clear  empties the cache\n\n"
             "Exit codes: 0 fine, 1 a kernel breaks a rule, 77 there is no NVRTC that knows the "
             "architecture.",
    .operands = verbs,
};

// ---- Rules ------------------------------------------------------------------------------------

// C7517 and C7519 report waits that the assembler moved on purpose.
static bool is_harmless(const char *line) {
    return strstr(line, "(C7517)") != NULL || strstr(line, "(C7519)") != NULL;
}

// The first of the compiler's warnings that matters; NULL for none.
static const char *first_warning(const char *warnings, char *line, size_t bytes) {
    while (*warnings != '\0') {
        size_t length = strcspn(warnings, "\n");
        snprintf(line, bytes, "%.*s", (int)length, warnings);
        if (!is_harmless(line)) return line;
        warnings += length + (warnings[length] == '\n');
    }
    return NULL;
}

struct progress_of_build {
    bool is_listing;
    int num_broken, num_kernels, max_registers;
    size_t bytes;
    double compile_ms;
};

// False if the kernel breaks a rule; text then has the rule in words.
static bool keeps_the_rules(const tsr_kernel_report *k, char *text, size_t bytes) {
    enum { MOST_REGISTERS = 255, MOST_SHARED = 48 << 10 }; // static shared memory
    char line[300];
    if (k->status != TSR_OK)
        snprintf(text, bytes, "%s", k->error);
    else if (k->num_registers < 0)
        snprintf(text, bytes, "the compiler did not report its registers");
    else if (k->spill_bytes > 0 || k->stack_bytes > 0)
        snprintf(text, bytes, "spills %d bytes and has a stack frame of %d bytes", k->spill_bytes,
                 k->stack_bytes);
    else if (k->num_registers > MOST_REGISTERS || k->shared_bytes > MOST_SHARED)
        snprintf(text, bytes, "takes %d registers and %d bytes of shared memory", k->num_registers,
                 k->shared_bytes);
    else if (first_warning(k->warnings, line, sizeof line) != NULL)
        snprintf(text, bytes, "%s", line);
    else
        return true;
    return false;
}

static void visit(void *user, const tsr_kernel_report *k) {
    struct progress_of_build *progress = user;
    char text[800];
    if (k->status == TSR_UNSUPPORTED) return; // no compiler for this: reported once, at the end
    progress->num_kernels++;
    progress->bytes += k->bytes;
    progress->compile_ms += k->compile_ms;
    if (k->num_registers > progress->max_registers) progress->max_registers = k->num_registers;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%d of %d kernels for %s", k->index + 1, k->count, k->arch);
    if (progress->is_listing)
        printf("%s %s: %d registers, %d bytes of shared memory, %zu bytes (%s, %.0f ms)\n", k->arch,
               k->name, k->num_registers, k->shared_bytes, k->bytes, k->origin, k->compile_ms);
    if (keeps_the_rules(k, text, sizeof text)) return;
    progress->num_broken++;
    printf("%s %s: %s\n", k->arch, k->name, text);
}

// ---- Verbs ------------------------------------------------------------------------------------

static int code_of(tsr_status status) {
    fprintf(stderr, "tessera kernels: %s\n", tsr_last_error());
    return status == TSR_UNSUPPORTED        ? EXIT_SKIPPED
           : status == TSR_INVALID_ARGUMENT ? EXIT_USAGE
                                            : EXIT_COULD_NOT_RUN;
}

static int build(const char *archs, const char *out, int threads, bool has_rare, bool is_listing) {
    char copy[256];
    struct text_list list;
    int code = EXIT_FINE;
    if (strlen(archs) >= sizeof copy || !text_list_split(strcpy(copy, archs), &list))
        return usage_error("kernels", "--arch is '%s', expected names with commas between", archs);
    if (out != NULL && list.count != 1)
        return usage_error("kernels", "a pack is for one architecture, --arch names %d",
                           list.count);
    if (out != NULL && !file_can_write(out)) // before minutes of compiling
        return usage_error("kernels", "--out is '%s', which cannot be written: %s", out,
                           strerror(errno));
    for (int i = 0; i < list.count; i++) {
        struct progress_of_build progress = {.is_listing = is_listing};
        tsr_status status = (has_rare ? tsr_kernels_build_all : tsr_kernels_build)(
            list.items[i], out, threads, visit, &progress);
        if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
        if (progress.num_broken > 0) code = EXIT_WRONG;
        if (status != TSR_OK && (status != TSR_COMPILE || progress.num_kernels == 0))
            return code_of(status);
        printf("%s: %d kernels, %d broken, at most %d registers, %.1f MB, %.0f s of compiling\n",
               list.items[i], progress.num_kernels, progress.num_broken, progress.max_registers,
               1e-6 * (double)progress.bytes, 1e-3 * progress.compile_ms);
    }
    if (out != NULL && code == EXIT_FINE) printf("written: %s\n", out);
    return code;
}

static void show(void *user, const tsr_kernel_report *k) {
    (void)user;
    printf("%s %s: %d registers, %zu bytes\n", k->arch, k->name, k->num_registers, k->bytes);
}

static int list_cache(void) {
    char folder[1024];
    int32_t num_damaged;
    tsr_status status = tsr_kernels_list(show, NULL, folder, sizeof folder, &num_damaged);
    if (status != TSR_OK) return code_of(status);
    printf("in %s, %d damaged\n", folder, num_damaged);
    return EXIT_FINE;
}

static int clear_cache(void) {
    int32_t num_removed;
    tsr_status status = tsr_kernels_clear(&num_removed);
    if (status != TSR_OK) return code_of(status);
    printf("%d files removed\n", num_removed);
    return EXIT_FINE;
}

int command_kernels(int argc, char **argv) {
    const char *arch = NULL, *out = NULL;
    int64_t threads = 0;
    bool has_rare = false, is_listing = false;
    const struct option_spec options[] = {
        {"arch", 0, "A,...", "architectures (check: sm_80,sm_90a; pack: sm_90a)", OPTION_TEXT,
         &arch, NULL, 0, 0},
        {"out", 0, "FILE", "pack: the file (tessera-kernels.pack)", OPTION_TEXT, &out, NULL, 0, 0},
        {"threads", 0, "N", "compiling threads (all CPUs)", OPTION_INT, &threads, NULL, 1, 64},
        {"all", 0, NULL, "check the rare kernels too", OPTION_FLAG, &has_rare, NULL, 0, 0},
        {"verbose", 0, NULL, "print a line for every kernel", OPTION_FLAG, &is_listing, NULL, 0, 0},
        {0},
    };
    struct text_list operands = {0};
    int parsed = options_parse(&help, options, argc, argv, &operands);
    if (parsed >= 0) return parsed;
    const char *verb = operands.count == 1 ? operands.items[0] : "";
    if (strcmp(verb, "check") == 0)
        return build(arch != NULL ? arch : "sm_80,sm_90a", NULL, (int)threads, has_rare,
                     is_listing);
    if (strcmp(verb, "pack") == 0)
        return build(arch != NULL ? arch : "sm_90a", out != NULL ? out : "tessera-kernels.pack",
                     (int)threads, true, is_listing);
    if (strcmp(verb, "list") == 0) return list_cache();
    if (strcmp(verb, "clear") == 0) return clear_cache();
    return usage_error("kernels", "expected one of check, pack, list and clear");
}
