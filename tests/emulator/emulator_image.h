// SPDX-License-Identifier: Apache-2.0
// The "cubin" of an emulated kernel: this header, followed by a shared object.
#ifndef EMULATOR_IMAGE_H
#define EMULATOR_IMAGE_H

#include <stdbool.h>
#include <stddef.h>

#define EMULATOR_MAGIC "EMULATOR"

struct emulator_image {
    char magic[12];
    int arch;
    char source[128]; // its source file, for EMULATOR_LOG
    size_t bytes;     // of the shared object
};

// Writes a path in the temporary folder that ends in XXXXXX. Returns false if it does not fit.
bool emulator_temporary(char *path, size_t bytes, const char *name);

#endif
