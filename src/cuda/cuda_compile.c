// SPDX-License-Identifier: Apache-2.0
// Compiles a program with NVRTC and computes the keys of the result.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/core_system.h"
#include "cuda/cuda_image.h"
#include "cuda/cuda_nvrtc.h"
#include "cuda/cuda_source.h"

// Options of every kernel, and so part of its key. The assembler's report goes to the log. No -w, because the log is
// read for warnings.
static const char *const common_options[] = {"--std=c++17", "--ptxas-options=-v",
                                             "--ptxas-options=--warn-on-spills"};
enum { NUM_COMMON = sizeof common_options / sizeof *common_options, MAX_OPTION = 96 };

static int by_name(const void *a, const void *b) {
    const struct tsri_cuda_define *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static struct tsri_cuda_program sorted(const struct tsri_cuda_program *program) {
    struct tsri_cuda_program copy = *program;
    qsort(copy.defines, (size_t)copy.num_defines, sizeof *copy.defines, by_name);
    return copy;
}

const char *tsri_cuda_program_text(const struct tsri_cuda_program *program,
                                   char text[TSRI_CUDA_PROGRAM_TEXT]) {
    struct tsri_cuda_program in_order = sorted(program);
    int used = snprintf(text, TSRI_CUDA_PROGRAM_TEXT, "%s", program->source);
    for (int i = 0; i < in_order.num_defines && used < TSRI_CUDA_PROGRAM_TEXT; i++)
        used += snprintf(text + used, (size_t)(TSRI_CUDA_PROGRAM_TEXT - used), " %s=%d",
                         in_order.defines[i].name, in_order.defines[i].value);
    return text;
}

// ---- Keys -------------------------------------------------------------------------------------

static void hash_program(const struct tsri_cuda_source *source,
                         const struct tsri_cuda_program *program, const char *arch,
                         const char *compiler, unsigned char key[TSRI_SHA256_BYTES]) {
    struct tsri_sha256 hash;
    char text[TSRI_CUDA_PROGRAM_TEXT];
    tsri_sha256_start(&hash);
    for (int i = 0; i < NUM_COMMON; i++) tsri_sha256_add_text(&hash, common_options[i]);
    for (int i = 0; i < source->num_files; i++) {
        tsri_sha256_add_text(&hash, source->names[i]);
        tsri_sha256_add_text(&hash, source->texts[i]);
    }
    tsri_sha256_add_text(&hash, tsri_cuda_program_text(program, text));
    tsri_sha256_add_text(&hash, program->entry);
    tsri_sha256_add_text(&hash, arch);
    tsri_sha256_add_text(&hash, compiler);
    tsri_sha256_finish(&hash, key);
}

tsr_status tsri_cuda_image_keys(const struct tsri_cuda_program *program, const char *arch,
                                unsigned char pack_key[TSRI_SHA256_BYTES],
                                unsigned char cache_key[TSRI_SHA256_BYTES], bool *has_compiler) {
    struct tsri_cuda_source source;
    char compiler[64];
    TSRI_TRY(tsri_cuda_source_read(program->source, &source));
    hash_program(&source, program, arch, "any compiler", pack_key);
    const struct tsri_nvrtc *nvrtc = tsri_nvrtc();
    *has_compiler = nvrtc != NULL;
    if (nvrtc != NULL) {
        snprintf(compiler, sizeof compiler, "nvrtc %d.%d", nvrtc->major, nvrtc->minor);
        hash_program(&source, program, arch, compiler, cache_key);
    }
    tsri_cuda_source_free(&source);
    return TSR_OK;
}

// ---- The log ----------------------------------------------------------------------------------

// The number before a phrase of the assembler's report, as in "40 bytes stack frame"; -1 if there is none.
static int number_before(const char *log, const char *phrase) {
    const char *at = strstr(log, phrase);
    if (at == NULL) return -1;
    while (at > log && at[-1] == ' ') at--;
    while (at > log && at[-1] >= '0' && at[-1] <= '9') at--;
    return atoi(at);
}

static struct tsri_cuda_facts read_facts(const char *log) {
    struct tsri_cuda_facts facts = {
        number_before(log, " registers"), number_before(log, " bytes stack frame"),
        number_before(log, " bytes spill stores"), number_before(log, " bytes smem")};
    if (facts.num_registers >= 0 && facts.shared_bytes < 0) facts.shared_bytes = 0; // omitted: 0
    return facts;
}

static bool holds(const char *line, size_t length, const char *word) {
    const char *at = strstr(line, word);
    return at != NULL && at < line + length;
}

// The lines beyond the report: warnings, and notes with a number such as (C7508). NULL if there are none.
static char *read_warnings(const char *log) {
    char *kept = tsri_alloc(strlen(log) + 2);
    for (const char *line = log; kept != NULL && *line != '\0';) {
        size_t length = strcspn(line, "\n");
        if (holds(line, length, "warning") || holds(line, length, "(C7")) {
            strncat(kept, line, length);
            strcat(kept, "\n");
        }
        line += length + (line[length] == '\n');
    }
    if (kept == NULL || *kept != '\0') return kept;
    tsri_system.free(kept);
    return NULL;
}

static char *get_log(const struct tsri_nvrtc *nvrtc, nvrtc_program program) {
    size_t bytes = 0;
    if (nvrtc->get_log_size(program, &bytes) != NVRTC_OK || bytes == 0) return NULL;
    char *log = tsri_alloc(bytes + 1);
    if (log != NULL && nvrtc->get_log(program, log) != NVRTC_OK) *log = '\0';
    return log;
}

// ---- Compiling --------------------------------------------------------------------------------

static tsr_status fail_compile(const char *text, const char *arch, const char *what,
                               const char *log) {
    const char *error = log != NULL ? strstr(log, "error") : NULL; // the first error, with its line
    while (error != NULL && error > log && error[-1] != '\n') error--;
    if (error == NULL) error = log != NULL ? log : "";
    return tsri_fail(TSR_COMPILE, "kernel '%s' does not compile for %s: %s: %.*s", text, arch, what,
                     (int)strcspn(error, "\n"), error);
}

static double thread_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static nvrtc_result compile(const struct tsri_nvrtc *nvrtc, nvrtc_program handle,
                            const struct tsri_cuda_program *program, const char *arch) {
    char text[TSRI_CUDA_MAX_DEFINES + 1][MAX_OPTION];
    const char *options[NUM_COMMON + TSRI_CUDA_MAX_DEFINES + 2];
    int count = 0;
    for (; count < NUM_COMMON; count++) options[count] = common_options[count];
    snprintf(text[0], sizeof *text, "--gpu-architecture=%s", arch);
    options[count++] = text[0];
    // From 12.9 on, NVRTC uses its own cache if there is a driver, and cached results have no report.
    if (nvrtc->major > 12 || (nvrtc->major == 12 && nvrtc->minor >= 9))
        options[count++] = "--no-cache";
    for (int i = 0; i < program->num_defines; i++) {
        snprintf(text[i + 1], sizeof *text, "-D%s=%d", program->defines[i].name,
                 program->defines[i].value);
        options[count++] = text[i + 1];
    }
    return nvrtc->compile_program(handle, count, options);
}

static tsr_status take_cubin(const struct tsri_nvrtc *nvrtc, nvrtc_program handle,
                             struct tsri_cuda_image *image) {
    if (nvrtc->get_cubin_size(handle, &image->cubin_bytes) != NVRTC_OK || image->cubin_bytes == 0)
        return fail_compile(image->text, image->arch, "there is no machine code", NULL);
    image->cubin = tsri_alloc(image->cubin_bytes);
    if (image->cubin == NULL)
        return tsri_fail(TSR_OUT_OF_MEMORY, "kernel '%s': no %zu bytes for its code", image->text,
                         image->cubin_bytes);
    if (nvrtc->get_cubin(handle, image->cubin) != NVRTC_OK)
        return fail_compile(image->text, image->arch, "its code cannot be read", NULL);
    return TSR_OK;
}

tsr_status tsri_cuda_image_compile(const struct tsri_cuda_program *program, const char *arch,
                                   struct tsri_cuda_image *image) {
    const struct tsri_nvrtc *nvrtc = tsri_nvrtc();
    struct tsri_cuda_source source;
    nvrtc_program handle;
    *image = (struct tsri_cuda_image){0};
    tsri_cuda_program_text(program, image->text);
    snprintf(image->arch, sizeof image->arch, "%s", arch);
    if (nvrtc == NULL)
        return tsri_fail(TSR_UNSUPPORTED, "kernel '%s' for %s is not compiled yet, and %s",
                         image->text, arch, tsri_nvrtc_sentence());
    TSRI_TRY(tsri_cuda_source_read(program->source, &source));
    nvrtc_result result =
        nvrtc->create_program(&handle, source.texts[0], source.names[0], source.num_files - 1,
                              source.texts + 1, source.names + 1);
    tsr_status status = TSR_OK;
    if (result == NVRTC_OK) {
        double start = thread_ms();
        result = compile(nvrtc, handle, program, arch);
        image->compile_ms = thread_ms() - start;
        char *log = get_log(nvrtc, handle);
        if (result == NVRTC_INVALID_OPTION) // only the architecture may be unknown
            status = tsri_fail(TSR_UNSUPPORTED,
                               "kernel '%s': NVRTC %d.%d does not know %s, expected one that does",
                               image->text, nvrtc->major, nvrtc->minor, arch);
        else if (result != NVRTC_OK)
            status = fail_compile(image->text, arch, nvrtc->get_error_string(result), log);
        else
            status = take_cubin(nvrtc, handle, image);
        image->facts = read_facts(log != NULL ? log : "");
        image->warnings = log != NULL ? read_warnings(log) : NULL;
        tsri_system.free(log);
        (void)nvrtc->destroy_program(&handle);
    } else {
        status = fail_compile(image->text, arch, nvrtc->get_error_string(result), NULL);
    }
    tsri_cuda_source_free(&source);
    if (status != TSR_OK) tsri_cuda_image_free(image);
    return status;
}
