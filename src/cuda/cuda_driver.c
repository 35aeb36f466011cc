// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cuda/cuda_library.h"

enum { OLDEST_VERSION = 12000 }; // the first with cuLibraryLoadData

static const struct tsri_cuda_library library = {
    "the CUDA driver", "TSR_LIBCUDA", {"libcuda.so.1"}};

static struct tsri_cuda_driver loaded;
static bool is_loaded;
static int version;
static char sentence[640];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic(const struct tsri_cuda_driver *) replacement;

// cuGetProcAddress_v2 returns the newest form of a function that CUDA 12.0 knew: cuMemAlloc is cuMemAlloc_v2, and so
// on.
typedef cu_result get_proc_address(const char *name, void **function, int version, uint64_t flags,
                                   int *query);

static bool resolve(get_proc_address *get, void **function, const char *name) {
    int query = 0;
    *function = NULL;
    if (get(name, function, OLDEST_VERSION, 0, &query) == CU_OK && *function != NULL) return true;
    snprintf(sentence, sizeof sentence,
             "the CUDA driver lacks %s, expected a driver for CUDA 12.0 or newer", name);
    return false;
}

static bool resolve_all(get_proc_address *get) {
    void *function;
#define RESOLVE(field, name, parameters)                                                           \
    if (!resolve(get, &function, #name)) return false;                                             \
    memcpy(&loaded.field, &function, sizeof function);
    TSRI_CUDA_DRIVER_FUNCTIONS(RESOLVE)
#undef RESOLVE
    return true;
}

static void load(void) {
    void *handle = tsri_cuda_library_open(&library, sentence, sizeof sentence), *symbol;
    get_proc_address *get;
    if (handle == NULL) return;
    symbol = tsri_cuda_library_symbol(&library, handle, "cuGetProcAddress_v2", sentence,
                                      sizeof sentence);
    if (symbol == NULL) return;
    memcpy(&get, &symbol, sizeof get);
    if (!resolve_all(get)) return;
    cu_result result = loaded.init(0);
    if (result != CU_OK) {
        const char *name = "an unknown error";
        (void)loaded.get_error_name(result, &name);
        snprintf(sentence, sizeof sentence, "the CUDA driver does not start: cuInit gave %s%s",
                 name, result == CU_NO_DEVICE ? " (there is no NVIDIA GPU)" : "");
        return;
    }
    if (loaded.driver_get_version(&version) != CU_OK || version < OLDEST_VERSION) {
        snprintf(sentence, sizeof sentence,
                 "the CUDA driver is for CUDA %d.%d, expected 12.0 or newer", version / 1000,
                 version % 1000 / 10);
        return;
    }
    is_loaded = true;
}

const struct tsri_cuda_driver *tsri_cuda_driver(void) {
    const struct tsri_cuda_driver *other = atomic_load(&replacement);
    if (other != NULL) return other;
    pthread_once(&once, load);
    return is_loaded ? &loaded : NULL;
}

const char *tsri_cuda_driver_sentence(void) { return sentence; }

int tsri_cuda_driver_version(void) {
    int other = 0;
    const struct tsri_cuda_driver *driver = tsri_cuda_driver();
    if (driver == NULL || driver->driver_get_version(&other) != CU_OK) return 0;
    return other;
}

void tsri_cuda_driver_replace(const struct tsri_cuda_driver *driver) {
    atomic_store(&replacement, driver);
}

// ---- Errors -----------------------------------------------------------------------------------

// After these errors, the CUDA context fails every further call.
static bool is_lost(cu_result result) {
    switch (result) {
    case CU_DEINITIALIZED:
    case CU_ECC_UNCORRECTABLE:
    case CU_NVLINK_UNCORRECTABLE:
    case CU_ILLEGAL_ADDRESS:
    case CU_LAUNCH_TIMEOUT:
    case CU_CONTEXT_IS_DESTROYED:
    case CU_ASSERT: return true;
    default: return result >= CU_HARDWARE_STACK_ERROR && result <= CU_LAUNCH_FAILED;
    }
}

tsr_status tsri_cuda_check(const char *op, const char *call, cu_result result) {
    if (result == CU_OK) return TSR_OK;
    const struct tsri_cuda_driver *driver = tsri_cuda_driver();
    const char *name = NULL, *text = NULL;
    if (driver != NULL) {
        (void)driver->get_error_name(result, &name);
        (void)driver->get_error_string(result, &text);
    }
    tsr_status status = result == CU_OUT_OF_MEMORY ? TSR_OUT_OF_MEMORY
                        : is_lost(result)          ? TSR_DEVICE_LOST
                                                   : TSR_DEVICE;
    return tsri_fail(status, "%s: the driver's %s gave %s (%s)%s", op, call,
                     name != NULL ? name : "an unknown error", text != NULL ? text : "no text",
                     status == TSR_DEVICE_LOST ? "; the device context is lost" : "");
}
