// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_cupti.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "cuda/cuda_library.h"

static const struct tsri_cuda_library library = {
    "CUPTI, the profiling library of CUDA,", "TSR_LIBCUPTI", {"libcupti.so.13", "libcupti.so.12"}};

static struct tsri_cupti loaded;
static bool is_loaded;
static char sentence[1024];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void) {
    void *handle = tsri_cuda_library_open(&library, sentence, sizeof sentence), *symbol;
    if (handle == NULL) return;
#define RESOLVE(field, name, parameters)                                                           \
    symbol = tsri_cuda_library_symbol(&library, handle, #name, sentence, sizeof sentence);         \
    if (symbol == NULL) return;                                                                    \
    memcpy(&loaded.field, &symbol, sizeof symbol);
    TSRI_CUPTI_FUNCTIONS(RESOLVE)
#undef RESOLVE
    is_loaded = true;
}

const struct tsri_cupti *tsri_cupti(void) {
    pthread_once(&once, load);
    return is_loaded ? &loaded : NULL;
}

const char *tsri_cupti_sentence(void) { return sentence; }
