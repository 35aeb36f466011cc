// SPDX-License-Identifier: Apache-2.0
// The emulated device's NVRTC. g++ compiles a kernel to a shared object, which is its "cubin". The sources are
// preprocessed, translated and compiled in a temporary folder. EMULATOR_CXX names another compiler, EMULATOR_CXXFLAGS
// adds flags (-O2, -g), and EMULATOR_KEEP=1 keeps the folder and prints its path.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/cuda_nvrtc.h"
#include "emulator_image.h"
#include "emulator_translate.h"

enum { OUT_OF_MEMORY = 1, INVALID_PROGRAM = 4, COMPILATION = 6, PATH_BYTES = 512 };

struct nvrtc_program_st {
    char folder[256], name[128];
    struct text log, image;
};

static const char *headers_folder(void) {
    const char *folder = getenv("EMULATOR_DIR");
    return folder != NULL && *folder != '\0' ? folder : EMULATOR_FOLDER;
}

static const char *compiler(void) {
    const char *name = getenv("EMULATOR_CXX");
    return name != NULL && *name != '\0' ? name : "'" EMULATOR_COMPILER "'";
}

// ---- Files ------------------------------------------------------------------------------------

bool emulator_temporary(char *path, size_t bytes, const char *name) {
    const char *folder = getenv("TMPDIR");
    if (folder == NULL || *folder == '\0') folder = "/tmp";
    int length = snprintf(path, bytes, "%s/%s-XXXXXX", folder, name);
    return length > 0 && (size_t)length < bytes;
}

static int read_file(const char *path, struct text *text) {
    char block[8192];
    size_t bytes;
    FILE *file = fopen(path, "rb");
    if (file == NULL) return -1;
    while ((bytes = fread(block, 1, sizeof block, file)) > 0) text_add_bytes(text, block, bytes);
    return fclose(file);
}

static int write_file(const char *folder, const char *name, const char *data, size_t bytes) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "wb");
    if (file == NULL) return -1;
    size_t written = fwrite(data, 1, bytes, file);
    return fclose(file) != 0 || written != bytes ? -1 : 0;
}

static unsigned hash_text(unsigned hash, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    return hash;
}

static unsigned hash_file(unsigned hash, const char *path) {
    struct text text = {0};
    if (read_file(path, &text) == 0) hash = hash_text(hash, text.data, text.length);
    free(text.data);
    return hash;
}

// ---- The interface ----------------------------------------------------------------------------

#define EXPORT __attribute__((visibility("default")))
#define DECLARE(returns, field, name, parameters) EXPORT returns name parameters;
TSRI_NVRTC_FUNCTIONS(DECLARE)
#undef DECLARE

// Hashes the first processor's name and features, because kernels are compiled for this processor.
static unsigned hash_processor(unsigned hash) {
    static const char *const names[] = {"model", "flags", "CPU ", "Features"};
    struct text text = {0};
    if (read_file("/proc/cpuinfo", &text) != 0 || text.data == NULL) return hash;
    for (const char *line = text.data; *line != '\0' && *line != '\n';) {
        size_t length = strcspn(line, "\n");
        for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
            if (strncmp(line, names[i], strlen(names[i])) == 0)
                hash = hash_text(hash, line, length);
        line += length + (line[length] == '\n');
    }
    free(text.data);
    return hash;
}

// The minor version is a hash of the emulator's own text, its compiler and the processor, so that a cache never serves
// another one's kernels.
EXPORT nvrtc_result nvrtcVersion(int *major, int *minor) {
    static const char *const files[] = {"emulator_api.h", "emulator_formats.h",
                                        "emulator_kernel.cuh", "emulator_ptx.cuh",
                                        "emulator_ptx_sm90.cuh"};
    unsigned hash = 2166136261u;
    const char *flags = getenv("EMULATOR_CXXFLAGS");
    Dl_info info;
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", headers_folder(), files[i]);
        hash = hash_file(hash, path);
    }
    if (dladdr((void *)(size_t)nvrtcVersion, &info) != 0) hash = hash_file(hash, info.dli_fname);
    if (flags != NULL) hash = hash_text(hash, flags, strlen(flags) + 1);
    hash = hash_text(hash, compiler(), strlen(compiler()) + 1);
    hash = hash_processor(hash);
    *major = 13;
    *minor = 100 + (int)(hash >> 2);
    return NVRTC_OK;
}

EXPORT nvrtc_result nvrtcCreateProgram(nvrtc_program *program, const char *text, const char *name,
                                       int count, const char *const *texts,
                                       const char *const *names) {
    struct nvrtc_program_st *p = calloc(1, sizeof *p);
    *program = p;
    if (p == NULL) return OUT_OF_MEMORY;
    if (!emulator_temporary(p->folder, sizeof p->folder, "emulator") ||
        mkdtemp(p->folder) == NULL) {
        free(p);
        *program = NULL;
        return INVALID_PROGRAM;
    }
    snprintf(p->name, sizeof p->name, "%s", name);
    int failures = write_file(p->folder, name, text, strlen(text));
    for (int i = 0; i < count; i++)
        failures += write_file(p->folder, names[i], texts[i], strlen(texts[i]));
    if (failures == 0) return NVRTC_OK;
    (void)nvrtcDestroyProgram(program);
    return INVALID_PROGRAM;
}

EXPORT nvrtc_result nvrtcDestroyProgram(nvrtc_program *program) {
    struct nvrtc_program_st *p = *program;
    char command[PATH_BYTES];
    const char *keep = getenv("EMULATOR_KEEP");
    snprintf(command, sizeof command, "rm -rf '%s'", p->folder);
    if (keep != NULL && *keep == '1')
        fprintf(stderr, "emulator: %s is in %s\n", p->name, p->folder);
    else if (system(command) != 0)
        fprintf(stderr, "emulator: %s stays\n", p->folder);
    free(p->log.data);
    free(p->image.data);
    free(p);
    *program = NULL;
    return NVRTC_OK;
}

static int run(struct nvrtc_program_st *p, const char *command) {
    char path[PATH_BYTES];
    int status = system(command);
    snprintf(path, sizeof path, "%s/log", p->folder);
    (void)read_file(path, &p->log);
    return status;
}

static int preprocess(struct nvrtc_program_st *p, int count, const char *const *options,
                      int *arch) {
    struct text command = {0};
    *arch = 90;
    for (int i = 0; i < count; i++) (void)sscanf(options[i], "--gpu-architecture=sm_%d", arch);
    text_add(&command,
             "cd '%s' && %s -E -x c++ -std=gnu++17 -w -nostdinc -I'%s' -I. "
             "-include emulator_kernel.cuh -D__CUDA_ARCH__=%d0 -D__CUDACC__ -D__CUDACC_RTC__",
             p->folder, compiler(), headers_folder(), *arch);
    for (int i = 0; i < count; i++)
        if (strncmp(options[i], "-D", 2) == 0) text_add(&command, " '%s'", options[i]);
    text_add(&command, " '%s' -o preprocessed 2>log", p->name);
    int status = run(p, command.data);
    free(command.data);
    return status;
}

static int translate(struct nvrtc_program_st *p) {
    struct text source = {0}, result = {0};
    char path[PATH_BYTES], problem[256] = "no output of the preprocessor";
    snprintf(path, sizeof path, "%s/preprocessed", p->folder);
    int status = read_file(path, &source);
    if (status == 0) status = emulator_translate(source.data, &result, problem);
    if (status == 0) status = write_file(p->folder, "translated", result.data, result.length);
    if (status != 0) text_add(&p->log, "%s: error: %s\n", p->name, problem);
    free(source.data);
    free(result.data);
    return status;
}

static int make_object(struct nvrtc_program_st *p) {
    struct text command = {0};
    const char *flags = getenv("EMULATOR_CXXFLAGS");
    text_add(
        &command,
        "cd '%s' && %s -x c++ -std=gnu++17 -w -fpermissive -O1 -march=native -ffp-contract=fast "
        "-fno-strict-aliasing -fwrapv -fno-exceptions -fno-rtti -fno-threadsafe-statics "
        "-fsanitize=alignment,bounds -fno-sanitize-recover=all -fvisibility=hidden -fPIC -shared "
        "-nostdlib -Wl,-Bsymbolic %s translated -o object -lm -lc -lgcc 2>log",
        p->folder, compiler(), flags != NULL ? flags : "");
    int status = run(p, command.data);
    free(command.data);
    return status;
}

EXPORT nvrtc_result nvrtcCompileProgram(nvrtc_program p, int count, const char *const *options) {
    char path[PATH_BYTES];
    struct emulator_image image = {.magic = EMULATOR_MAGIC};
    struct text object = {0};
    int arch;
    if (preprocess(p, count, options, &arch) != 0 || translate(p) != 0 || make_object(p) != 0)
        return COMPILATION;
    snprintf(path, sizeof path, "%s/object", p->folder);
    if (read_file(path, &object) != 0) return COMPILATION;
    image.arch = arch;
    snprintf(image.source, sizeof image.source, "%s", p->name);
    image.bytes = object.length;
    text_add_bytes(&p->image, (const char *)&image, sizeof image);
    text_add_bytes(&p->image, object.data, object.length);
    free(object.data);
    return NVRTC_OK;
}

EXPORT nvrtc_result nvrtcGetCUBINSize(nvrtc_program p, size_t *bytes) {
    *bytes = p->image.length;
    return NVRTC_OK;
}
EXPORT nvrtc_result nvrtcGetCUBIN(nvrtc_program p, char *code) {
    memcpy(code, p->image.data, p->image.length);
    return NVRTC_OK;
}
EXPORT nvrtc_result nvrtcGetProgramLogSize(nvrtc_program p, size_t *bytes) {
    *bytes = p->log.length + 1;
    return NVRTC_OK;
}
EXPORT nvrtc_result nvrtcGetProgramLog(nvrtc_program p, char *log) {
    memcpy(log, p->log.data != NULL ? p->log.data : "", p->log.length + 1);
    return NVRTC_OK;
}
EXPORT const char *nvrtcGetErrorString(nvrtc_result result) {
    return result == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "an error of the emulator";
}
