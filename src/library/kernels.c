// SPDX-License-Identifier: Apache-2.0
// Builds the kernels that the operations list (the standard set or all): several threads compile, report and pack them.
#include <tessera/kernels.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/core_float.h"
#include "core/core_system.h"
#include "cpu/cpu_isa.h"
#include "cpu/cpu_limits.h"
#include "cuda/cuda_cache.h"
#include "cuda/cuda_kernel.h"
#include "library/op_list.h"

static const char *const origins[] = {"pack", "cache", "compiler"};

// ---- Reports ----------------------------------------------------------------------------------

static tsr_kernel_report report_of(const struct tsri_cuda_image *image, const char *origin) {
    return (tsr_kernel_report){
        .status = TSR_OK,
        .name = image->text,
        .arch = image->arch,
        .origin = origin,
        .warnings = image->warnings != NULL ? image->warnings : "",
        .error = "",
        .num_registers = image->facts.num_registers,
        .stack_bytes = image->facts.stack_bytes,
        .spill_bytes = image->facts.spill_bytes,
        .shared_bytes = image->facts.shared_bytes,
        .bytes = image->cubin_bytes,
        .compile_ms = image->compile_ms,
    };
}

// ---- Building ---------------------------------------------------------------------------------

struct build {
    const char *arch;
    struct tsri_cuda_program *programs;
    unsigned char **packed; // NULL: do not make a pack
    size_t *packed_bytes;
    int count;

    pthread_mutex_t lock; // protects the fields below and calls of visit
    int next, num_reported;
    tsr_status status; // status of the first failure
    char error[768];
    tsr_kernel_visit visit;
    void *user;
};

static int list_programs(int cuda_arch, bool has_rare, struct tsri_cuda_program *programs,
                         int room) {
    int count = 0;
    struct tsri_cuda_program program;
    for (int op = 0; op < tsri_num_ops; op++)
        for (int i = 0;
             tsri_ops[op]->kernel != NULL && tsri_ops[op]->kernel(i, cuda_arch, &program); i++) {
            if (program.is_rare && !has_rare) continue;
            if (count < room) programs[count] = program;
            count++;
        }
    for (int i = 0; tsri_probe_kernel(i, cuda_arch, &program); i++, count++)
        if (count < room) programs[count] = program;
    return count;
}

static void build_one(struct build *build, int index) {
    struct tsri_cuda_image image = {0};
    enum tsri_cuda_origin origin = TSRI_CUDA_CACHE; // never from a pack, which is being made
    char text[TSRI_CUDA_PROGRAM_TEXT];
    unsigned char pack_key[TSRI_SHA256_BYTES], cache_key[TSRI_SHA256_BYTES];
    bool has_compiler;
    const struct tsri_cuda_program *program = &build->programs[index];
    tsr_status status = tsri_cuda_image_get(program, build->arch, &origin, &image);
    tsr_kernel_report report = report_of(&image, origins[origin]);
    if (status == TSR_OK && build->packed != NULL) {
        status = tsri_cuda_image_keys(program, build->arch, pack_key, cache_key, &has_compiler);
        if (status == TSR_OK) {
            memcpy(image.key, pack_key, sizeof pack_key);
            build->packed[index] = tsri_cuda_image_pack(&image, &build->packed_bytes[index]);
            if (build->packed[index] == NULL)
                status = tsri_fail(TSR_OUT_OF_MEMORY, "kernels_build: no memory for a kernel");
        }
    }
    report.status = status;
    report.count = build->count;
    if (status != TSR_OK) {
        report.name = tsri_cuda_program_text(program, text);
        report.arch = build->arch;
        report.error = tsr_last_error();
    }
    pthread_mutex_lock(&build->lock);
    report.index = build->num_reported++;
    if (status != TSR_OK && build->status == TSR_OK) {
        build->status = status;
        snprintf(build->error, sizeof build->error, "%s", report.error);
    }
    if (build->visit != NULL) build->visit(build->user, &report);
    pthread_mutex_unlock(&build->lock);
    tsri_cuda_image_free(&image);
}

static void *build_some(void *arg) {
    struct build *build = arg;
    for (;;) {
        pthread_mutex_lock(&build->lock);
        // Without a compiler, or with one that does not know the architecture, all others would fail in the same way.
        int index = build->status == TSR_UNSUPPORTED ? build->count : build->next++;
        pthread_mutex_unlock(&build->lock);
        if (index >= build->count) return NULL;
        build_one(build, index);
    }
}

// The calling thread works too, and does everything if the system creates no threads.
static void build_all(struct build *build, int num_threads) {
    enum { MOST = 64 };
    pthread_t threads[MOST];
    int num_others = 0;
    while (num_others < num_threads - 1 && num_others < MOST &&
           tsri_system.thread_create(&threads[num_others], NULL, build_some, build) == 0)
        num_others++;
    build_some(build);
    for (int i = 0; i < num_others; i++) pthread_join(threads[i], NULL);
}

static tsr_status parse_arch(const char *arch, int *number) {
    int end = 0;
    if (arch != NULL && sscanf(arch, "sm_%d%n", number, &end) == 1 && *number >= 80 &&
        *number < 1000 && strlen(arch) < 12 && (arch[end] == '\0' || strcmp(arch + end, "a") == 0))
        return TSR_OK;
    return tsri_fail(
        TSR_INVALID_ARGUMENT,
        "kernels_build: arch is '%.40s', expected sm_80, sm_90a or another from sm_80 on",
        arch != NULL ? arch : "NULL");
}

static TSRI_NOT_INLINED tsr_status build_list(const char *arch, bool has_rare,
                                              const char *pack_path, int32_t num_threads,
                                              tsr_kernel_visit visit, void *user) {
    int number;
    TSRI_TRY(parse_arch(arch, &number));
    if (num_threads < 0)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "kernels_build: num_threads is %d, expected 0 or more", (int)num_threads);
    struct build build = {.arch = arch,
                          .lock = PTHREAD_MUTEX_INITIALIZER,
                          .visit = visit,
                          .user = user,
                          .count = list_programs(number, has_rare, NULL, 0)};
    size_t room = (size_t)build.count + 1;
    build.programs = tsri_alloc(room * sizeof *build.programs);
    build.packed = pack_path != NULL ? tsri_alloc(room * sizeof *build.packed) : NULL;
    build.packed_bytes = tsri_alloc(room * sizeof *build.packed_bytes);
    if (build.programs == NULL || build.packed_bytes == NULL ||
        (pack_path != NULL && build.packed == NULL)) {
        build.status = TSR_OUT_OF_MEMORY;
        snprintf(build.error, sizeof build.error, "kernels_build: no memory for a list");
    } else {
        build.count = list_programs(number, has_rare, build.programs, build.count);
        build_all(&build, num_threads > 0 ? num_threads : tsri_num_cpus());
    }
    if (build.status == TSR_OK && pack_path != NULL)
        build.status =
            tsri_cuda_pack_write(pack_path, build.packed, build.packed_bytes, build.count);
    else if (build.status != TSR_OK)
        tsri_fail(build.status, "%s", build.error); // perhaps of another thread
    for (int i = 0; build.packed != NULL && i < build.count; i++) tsri_system.free(build.packed[i]);
    tsri_system.free(build.packed);
    tsri_system.free(build.packed_bytes);
    tsri_system.free(build.programs);
    return build.status;
}

// The compiling threads inherit the calling thread's floating-point environment.
static tsr_status build_kernels(const char *arch, bool has_rare, const char *pack_path,
                                int32_t num_threads, tsr_kernel_visit visit, void *user) {
    tsri_float_environment before;
    tsri_float_enter_foreign(&before);
    tsr_status status = build_list(arch, has_rare, pack_path, num_threads, visit, user);
    tsri_float_leave_foreign(&before);
    return status;
}

tsr_status tsr_kernels_build(const char *arch, const char *pack_path, int32_t num_threads,
                             tsr_kernel_visit visit, void *user) {
    return build_kernels(arch, false, pack_path, num_threads, visit, user);
}

tsr_status tsr_kernels_build_all(const char *arch, const char *pack_path, int32_t num_threads,
                                 tsr_kernel_visit visit, void *user) {
    return build_kernels(arch, true, pack_path, num_threads, visit, user);
}

// ---- The cache --------------------------------------------------------------------------------

struct listing {
    tsr_kernel_visit visit;
    void *user;
    int index;
};

static void list_image(void *arg, const struct tsri_cuda_image *image) {
    struct listing *listing = arg;
    tsr_kernel_report report = report_of(image, origins[TSRI_CUDA_CACHE]);
    report.index = listing->index++;
    if (listing->visit != NULL) listing->visit(listing->user, &report);
}

static tsr_status check_cache(const char *op, char path[TSRI_CUDA_PATH]) {
    char sentence[640];
    if (tsri_cuda_cache_path(path, sentence, sizeof sentence)) return TSR_OK;
    return tsri_fail(TSR_IO, "%s: there is no cache of kernels: %s", op, sentence);
}

static tsr_status fail_list(const char *op, const char *path) {
    return tsri_fail(TSR_IO, "%s: the files of %.400s cannot be listed", op, path);
}

tsr_status tsr_kernels_list(tsr_kernel_visit visit, void *user, char *folder, size_t folder_bytes,
                            int32_t *num_damaged) {
    struct listing listing = {visit, user, 0};
    char path[TSRI_CUDA_PATH];
    TSRI_TRY(check_cache("kernels_list", path));
    if (folder != NULL) snprintf(folder, folder_bytes, "%s", path);
    int num_bad = tsri_cuda_cache_walk(list_image, &listing);
    if (num_bad < 0) return fail_list("kernels_list", path);
    if (num_damaged != NULL) *num_damaged = num_bad;
    return TSR_OK;
}

tsr_status tsr_kernels_clear(int32_t *num_removed) {
    char path[TSRI_CUDA_PATH];
    TSRI_TRY(check_cache("kernels_clear", path));
    int count = tsri_cuda_cache_clear();
    if (count < 0) return fail_list("kernels_clear", path);
    if (num_removed != NULL) *num_removed = count;
    return TSR_OK;
}
