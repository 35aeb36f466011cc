// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_nvrtc.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cuda/cuda_library.h"

// Version 13 first, because it knows newer GPUs. Both compile for every GPU from 8.0 on.
static const struct tsri_cuda_library library = {
    "NVRTC, the compiler of CUDA kernels,", "TSR_LIBNVRTC", {"libnvrtc.so.13", "libnvrtc.so.12"}};

static struct tsri_nvrtc loaded;
static bool is_loaded;
static char sentence[640];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
    void *handle = tsri_cuda_library_open(&library, sentence, sizeof sentence), *symbol;
    if (handle == NULL) return;
#define RESOLVE(returns, field, name, parameters)                                                  \
    symbol = tsri_cuda_library_symbol(&library, handle, #name, sentence, sizeof sentence);         \
    if (symbol == NULL) return;                                                                    \
    memcpy(&loaded.field, &symbol, sizeof symbol);
    TSRI_NVRTC_FUNCTIONS(RESOLVE)
#undef RESOLVE
    is_loaded = loaded.version(&loaded.major, &loaded.minor) == NVRTC_OK && loaded.major >= 12;
    if (!is_loaded)
        snprintf(sentence, sizeof sentence, "NVRTC is version %d.%d, expected 12.0 or newer",
                 loaded.major, loaded.minor);
}

const struct tsri_nvrtc *tsri_nvrtc(void) {
    pthread_once(&once, load);
    return is_loaded ? &loaded : NULL;
}

const char *tsri_nvrtc_sentence(void) { return sentence; }
