// SPDX-License-Identifier: Apache-2.0
// Shared libraries of NVIDIA's, opened when first needed: the build knows none of them, and a machine
// without them runs on the CPU. Where one is looked for, in this order:
//   1. the file that its variable names (TSR_LIBCUDA, TSR_LIBNVRTC, TSR_LIBNVML, TSR_LIBCUPTI), and nowhere else then
//   2. the loader's own path, which also finds what the process has loaded already
//   3. toolkits and drivers: $CUDA_HOME, $CUDA_PATH, /usr/local/cuda, /opt/cuda, $CONDA_PREFIX, ...
//   4. the wheels that pip installs: $VIRTUAL_ENV, ~/.local and the system's site-packages
#ifndef TSRI_CUDA_LIBRARY_H
#define TSRI_CUDA_LIBRARY_H

#include <stddef.h>

struct tsri_cuda_library {
    const char *what;     // "the CUDA driver"
    const char *variable; // TSR_LIBCUDA
    const char *names[4]; // file names, the best first; NULL ends them
};

// The handle, or NULL with one sentence that says what was looked for and where.
void *tsri_cuda_library_open(const struct tsri_cuda_library *library, char *sentence,
                             size_t sentence_bytes);

// A symbol; NULL, with a sentence, where the library lacks it.
void *tsri_cuda_library_symbol(const struct tsri_cuda_library *library, void *handle,
                               const char *name, char *sentence, size_t sentence_bytes);

#endif
