// SPDX-License-Identifier: Apache-2.0
// NVIDIA's shared libraries, opened when first needed. The build does not link them, and a machine without them uses
// the CPU. The search order:
//   1. the file that the library's variable names (TSR_LIBCUDA, TSR_LIBNVRTC, TSR_LIBNVML, TSR_LIBCUPTI), and then nothing else
//   2. the loader's path, which also finds libraries that the process has already loaded
//   3. toolkits and drivers: $CUDA_HOME, $CUDA_PATH, /usr/local/cuda, /opt/cuda, $CONDA_PREFIX, ...
//   4. the wheels that pip installs: $VIRTUAL_ENV, ~/.local and the system's site-packages
#ifndef TSRI_CUDA_LIBRARY_H
#define TSRI_CUDA_LIBRARY_H

#include <stddef.h>

struct tsri_cuda_library {
    const char *what;     // "the CUDA driver"
    const char *variable; // TSR_LIBCUDA
    const char *names[4]; // file names, best first, up to NULL
};

// The handle, or NULL with one sentence that says what was searched and where.
void *tsri_cuda_library_open(const struct tsri_cuda_library *library, char *sentence,
                             size_t sentence_bytes);

// A symbol; NULL, with a sentence, if the library does not have it.
void *tsri_cuda_library_symbol(const struct tsri_cuda_library *library, void *handle,
                               const char *name, char *sentence, size_t sentence_bytes);

#endif
