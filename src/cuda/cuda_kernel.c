// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_kernel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "core/core_log.h"
#include "core/core_system.h"
#include "cuda/cuda_cache.h"

// ---- Images -----------------------------------------------------------------------------------

static void say(const struct tsri_cuda_image *image, const char *from) {
    if (tsri_log_is_on(TSRI_LOG_KERNELS))
        tsri_log("kernel %s for %s: %s, %zu bytes, %d registers, %d bytes of stack", image->text,
                 image->arch, from, image->cubin_bytes, image->facts.num_registers,
                 image->facts.stack_bytes);
}

tsr_status tsri_cuda_image_get(const struct tsri_cuda_program *program, const char *arch,
                               enum tsri_cuda_origin *origin, struct tsri_cuda_image *image) {
    unsigned char pack_key[TSRI_SHA256_BYTES], cache_key[TSRI_SHA256_BYTES];
    bool has_compiler;
    TSRI_TRY(tsri_cuda_image_keys(program, arch, pack_key, cache_key, &has_compiler));
    if (*origin <= TSRI_CUDA_PACK && tsri_cuda_pack_load(pack_key, image)) {
        *origin = TSRI_CUDA_PACK;
        say(image, "from the pack");
        return TSR_OK;
    }
    if (*origin <= TSRI_CUDA_CACHE && has_compiler && tsri_cuda_cache_load(cache_key, image)) {
        *origin = TSRI_CUDA_CACHE;
        say(image, "from the cache");
        return TSR_OK;
    }
    *origin = TSRI_CUDA_COMPILER;
    TSRI_TRY(tsri_cuda_image_compile(program, arch, image));
    memcpy(image->key, cache_key, sizeof image->key);
    bool is_kept = tsri_cuda_cache_store(image);
    say(image, is_kept ? "compiled and kept" : "compiled, not kept");
    return TSR_OK;
}

// ---- Loaded kernels ---------------------------------------------------------------------------

// A kernel of one driver, architecture and program. Names are constants of the caller and are compared by address; a
// second copy of a name only costs a second load.
struct entry {
    struct entry *next;
    const struct tsri_cuda_driver *driver;
    char arch[16];
    struct tsri_cuda_program program;
    bool is_ready; // false: a thread is loading it
    cu_library library;
    cu_kernel kernel;
    int shared_bytes; // dynamic shared memory that its blocks may use
};

enum { NUM_BUCKETS = 256 };
static struct entry *buckets[NUM_BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

unsigned tsri_cuda_program_hash(const struct tsri_cuda_program *program) {
    uint64_t hash = (uint64_t)(uintptr_t)program->entry;
    for (int i = 0; i < program->num_defines; i++)
        hash = (hash ^ (uint64_t)(unsigned)program->defines[i].value) * 0x9e3779b97f4a7c15u;
    return (unsigned)(hash >> 40);
}

static unsigned bucket_of(const struct tsri_cuda_program *program) {
    return tsri_cuda_program_hash(program) % NUM_BUCKETS;
}

bool tsri_cuda_program_is_same(const struct tsri_cuda_program *a,
                               const struct tsri_cuda_program *b) {
    bool same = a->source == b->source && a->entry == b->entry && a->num_defines == b->num_defines;
    for (int i = 0; same && i < a->num_defines; i++)
        same =
            a->defines[i].name == b->defines[i].name && a->defines[i].value == b->defines[i].value;
    return same;
}

static struct entry *find(const struct tsri_cuda_driver *driver, const char *arch,
                          const struct tsri_cuda_program *program) {
    struct entry *entry = buckets[bucket_of(program)];
    while (entry != NULL && !(entry->driver == driver && strcmp(entry->arch, arch) == 0 &&
                              tsri_cuda_program_is_same(&entry->program, program)))
        entry = entry->next;
    return entry;
}

static void remove_entry(struct entry *gone) {
    struct entry **at = &buckets[bucket_of(&gone->program)];
    while (*at != gone) at = &(*at)->next;
    *at = gone->next;
    tsri_system.free(gone);
}

// The driver may refuse an image, for example one of a newer compiler; then the next source of images is tried.
static tsr_status load(const char *op, struct entry *entry) {
    const struct tsri_cuda_driver *driver = entry->driver;
    enum tsri_cuda_origin origin = TSRI_CUDA_PACK;
    for (;; origin++) {
        struct tsri_cuda_image image;
        tsr_status status = tsri_cuda_image_get(&entry->program, entry->arch, &origin, &image);
        if (status != TSR_OK) return tsri_fail(status, "%s: %s", op, tsr_last_error());
        const char *call = "library_load_data";
        cu_result result =
            driver->library_load_data(&entry->library, image.cubin, NULL, NULL, 0, NULL, NULL, 0);
        tsri_cuda_image_free(&image);
        if (result == CU_OK) {
            call = "library_get_kernel";
            result =
                driver->library_get_kernel(&entry->kernel, entry->library, entry->program.entry);
            if (result != CU_OK) (void)driver->library_unload(entry->library);
        }
        if (result == CU_OK || origin == TSRI_CUDA_COMPILER)
            return tsri_cuda_check(op, call, result);
    }
}

static tsr_status load_new(const char *op, const struct tsri_cuda_driver *driver, const char *arch,
                           const struct tsri_cuda_program *program, cu_kernel *kernel) {
    struct entry *entry = tsri_alloc(sizeof *entry);
    if (entry == NULL) {
        pthread_mutex_unlock(&lock);
        return tsri_fail(TSR_OUT_OF_MEMORY, "%s: no memory for a kernel", op);
    }
    entry->driver = driver;
    entry->program = *program;
    strncpy(entry->arch, arch, sizeof entry->arch - 1);
    entry->next = buckets[bucket_of(program)];
    buckets[bucket_of(program)] = entry;
    pthread_mutex_unlock(&lock); // others may compile meanwhile
    tsr_status status = load(op, entry);
    pthread_mutex_lock(&lock);
    *kernel = entry->kernel;
    if (status == TSR_OK)
        entry->is_ready = true;
    else
        remove_entry(entry);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return status;
}

tsr_status tsri_cuda_kernel_get(const char *op, const struct tsri_cuda_driver *driver,
                                const char *arch, const struct tsri_cuda_program *program,
                                bool may_load, cu_kernel *kernel) {
    pthread_mutex_lock(&lock);
    struct entry *entry = find(driver, arch, program);
    while (entry != NULL && !entry->is_ready && may_load) {
        pthread_cond_wait(&changed, &lock);
        entry = find(driver, arch, program); // loading may have failed
    }
    if (entry == NULL && may_load) return load_new(op, driver, arch, program, kernel); // unlocks
    bool is_ready = entry != NULL && entry->is_ready;
    if (is_ready) *kernel = entry->kernel;
    pthread_mutex_unlock(&lock);
    if (is_ready) return TSR_OK;
    char text[TSRI_CUDA_PROGRAM_TEXT];
    return tsri_fail(
        TSR_INVALID_ARGUMENT,
        "%s: its stream is capturing and kernel '%s' is not loaded, expected a call of "
        "%s_prepare before the capture",
        op, tsri_cuda_program_text(program, text), op);
}

tsr_status tsri_cuda_kernel_allow_shared(const char *op, const struct tsri_cuda_driver *driver,
                                         const char *arch, const struct tsri_cuda_program *program,
                                         cu_device device, int *bytes) {
    tsr_status status = TSR_OK;
    pthread_mutex_lock(&lock);
    struct entry *entry = find(driver, arch, program);
    const int most = entry->shared_bytes > *bytes ? entry->shared_bytes : *bytes;
    cu_result result =
        driver->kernel_set_attribute(CU_FUNCTION_MAX_DYNAMIC_SHARED, most, entry->kernel, device);
    if (result == CU_OK)
        *bytes = entry->shared_bytes = most;
    else
        status = tsri_cuda_check(op, "kernel_set_attribute", result);
    pthread_mutex_unlock(&lock);
    return status;
}

static atomic_uint num_forgotten;

unsigned tsri_cuda_kernel_generation(void) {
    return atomic_load_explicit(&num_forgotten, memory_order_relaxed);
}

void tsri_cuda_kernel_forget(void) {
    atomic_fetch_add(&num_forgotten, 1);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < NUM_BUCKETS; i++)
        while (buckets[i] != NULL) {
            (void)buckets[i]->driver->library_unload(buckets[i]->library);
            remove_entry(buckets[i]);
        }
    pthread_mutex_unlock(&lock);
}
