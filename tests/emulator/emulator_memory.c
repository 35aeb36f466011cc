// SPDX-License-Identifier: Apache-2.0
// The emulated device's memory, and its kernels. An allocation is a mapping between two protected pages, and ends at
// the second page except for its alignment of 256 bytes. Unwritten memory is NaN. Allocations of a gibibyte and more,
// which tests of far offsets hardly touch, are 0, take no memory and do not count.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emulator_driver.h"
#include "emulator_image.h"

enum {
    ALIGNMENT = 256,
    SPARSE = 1 << 30,
    INVALID_VALUE = 1,
    INVALID_IMAGE = 200,
    NOT_FOUND = 500,
    UNSET = 0xff
};

// ---- Memory -----------------------------------------------------------------------------------

struct allocation {
    struct allocation *next;
    unsigned char *mapping, *start;
    size_t mapped, bytes, counted;
};
static struct allocation *allocations;
static size_t total;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

cu_result emulator_memory_info(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = EMULATOR_MEMORY_BYTES;
    *free_bytes = EMULATOR_MEMORY_BYTES - total;
    return CU_OK;
}

cu_result emulator_memory_alloc(cu_pointer *pointer, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const bool is_sparse = bytes >= SPARSE;
    if (bytes == 0) return INVALID_VALUE;
    if (!is_sparse && bytes > EMULATOR_MEMORY_BYTES - total) return CU_OUT_OF_MEMORY;
    struct allocation *a = malloc(sizeof *a);
    const size_t body = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const size_t inner = (body + page - 1) / page * page;
    if (a == NULL) return CU_OUT_OF_MEMORY;
    *a = (struct allocation){
        .mapped = inner + 2 * page, .bytes = bytes, .counted = is_sparse ? 0 : bytes};
    a->mapping =
        mmap(NULL, a->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a->mapping == MAP_FAILED ||
        mprotect(a->mapping + page, inner, PROT_READ | PROT_WRITE) != 0) {
        free(a);
        return CU_OUT_OF_MEMORY;
    }
    a->start = a->mapping + page + inner - body;
    memset(a->mapping + page, UNSET, is_sparse ? (size_t)(a->start - a->mapping) - page : inner);
    memset(a->start + bytes, UNSET, body - bytes);
    pthread_mutex_lock(&lock);
    a->next = allocations;
    allocations = a;
    total += a->counted;
    pthread_mutex_unlock(&lock);
    *pointer = (uintptr_t)a->start;
    return CU_OK;
}

// Returns whether anything was written there, and restores the contents.
static bool is_damaged(unsigned char *from, const unsigned char *end) {
    bool result = false;
    for (unsigned char *p = from; p < end; p++) {
        result |= *p != UNSET;
        if (*p != UNSET) *p = UNSET;
    }
    return result;
}

// The margins between the mapping's pages and the allocation.
static bool has_damaged_margin(const struct allocation *a) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const bool before = is_damaged(a->mapping + page, a->start);
    return is_damaged(a->start + a->bytes, a->mapping + a->mapped - page) || before;
}

size_t emulator_memory_damaged(void) {
    size_t bytes = 0;
    pthread_mutex_lock(&lock);
    for (const struct allocation *a = allocations; a != NULL; a = a->next)
        if (has_damaged_margin(a)) bytes = a->bytes;
    pthread_mutex_unlock(&lock);
    return bytes;
}

cu_result emulator_memory_free(cu_pointer pointer) {
    cu_result result = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (struct allocation **at = &allocations; *at != NULL; at = &(*at)->next) {
        struct allocation *gone = *at;
        if ((uintptr_t)gone->start != pointer) continue;
        result = CU_OK;
        if (has_damaged_margin(gone)) {
            fprintf(stderr, "emulator: something was written beyond an allocation of %zu bytes\n",
                    gone->bytes);
            result = CU_ILLEGAL_ADDRESS;
        }
        total -= gone->counted;
        *at = gone->next;
        munmap(gone->mapping, gone->mapped);
        free(gone);
        break;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

// ---- Kernels ----------------------------------------------------------------------------------

struct cu_library_st {
    void *handle;
    struct cu_kernel_st *kernels;
};

static void *open_object(const struct emulator_image *image) {
    char path[256];
    int file = emulator_temporary(path, sizeof path, "emulator-kernel") ? mkstemp(path) : -1;
    if (file < 0) return NULL;
    const char *object = (const char *)(image + 1);
    size_t written = 0;
    while (written < image->bytes) {
        ssize_t bytes = write(file, object + written, image->bytes - written);
        if (bytes <= 0) break;
        written += (size_t)bytes;
    }
    close(file);
    void *handle = written == image->bytes ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (handle == NULL) fprintf(stderr, "emulator: a kernel cannot be loaded: %s\n", dlerror());
    unlink(path);
    return handle;
}

// EMULATOR_LOG names a file that gets one line per loaded kernel.
static void note_source(const char *source) {
    const char *path = getenv("EMULATOR_LOG");
    FILE *file = path != NULL && *path != '\0' ? fopen(path, "a") : NULL;
    if (file == NULL) return;
    fprintf(file, "%s\n", source);
    fclose(file);
}

cu_result emulator_library_load(cu_library *library, const void *code, cu_jit_option *options,
                                void **values, unsigned count, cu_library_option *more,
                                void **others, unsigned number) {
    struct emulator_image image;
    (void)options, (void)values, (void)count, (void)more, (void)others, (void)number;
    memcpy(&image, code, sizeof image.magic); // real machine code may be shorter than the header
    if (strncmp(image.magic, EMULATOR_MAGIC, sizeof image.magic) != 0) return INVALID_IMAGE;
    memcpy(&image, code, sizeof image);
    if (image.arch != emulator_device.arch) return INVALID_IMAGE;
    struct cu_library_st *l = calloc(1, sizeof *l);
    if (l == NULL) return CU_OUT_OF_MEMORY;
    l->handle = open_object(code);
    if (l->handle == NULL) {
        free(l);
        return INVALID_IMAGE;
    }
    note_source(image.source);
    *library = l;
    return CU_OK;
}

cu_result emulator_library_unload(cu_library library) {
    for (struct cu_kernel_st *k = library->kernels; k != NULL;) {
        struct cu_kernel_st *next = k->next;
        free(k);
        k = next;
    }
    dlclose(library->handle);
    free(library);
    return CU_OK;
}

cu_result emulator_library_kernel(cu_kernel *kernel, cu_library library, const char *name) {
    char symbol[128];
    snprintf(symbol, sizeof symbol, "emulator_of_%s", name);
    const struct emulator_kernel *found = dlsym(library->handle, symbol);
    struct emulator **table = dlsym(library->handle, "emulator");
    unsigned (*static_bytes)(void);
    void *function = dlsym(library->handle, "emulator_static_bytes");
    memcpy(&static_bytes, &function, sizeof function);
    if (found == NULL || table == NULL || function == NULL) return NOT_FOUND;
    const unsigned without_asking = 48 << 10, own = static_bytes(); // of shared memory
    struct cu_kernel_st *k = calloc(1, sizeof *k);
    if (k == NULL) return CU_OUT_OF_MEMORY;
    *k = (struct cu_kernel_st){.next = library->kernels,
                               .kernel = found,
                               .table = table,
                               .static_bytes = own,
                               .max_dynamic = own < without_asking ? without_asking - own : 0};
    snprintf(k->name, sizeof k->name, "%s", name);
    library->kernels = k;
    *kernel = k;
    return CU_OK;
}
