// SPDX-License-Identifier: Apache-2.0
// The "cubin" of an emulated kernel: this header, and a shared object behind it.
#ifndef EMULATOR_IMAGE_H
#define EMULATOR_IMAGE_H

#include <stdbool.h>
#include <stddef.h>

#define EMULATOR_MAGIC "EMULATOR"

struct emulator_image {
    char magic[12];
    int arch;
    char source[128]; // its file, for EMULATOR_LOG
    size_t bytes;     // of the object
};

// A path in the folder of temporary files that ends in XXXXXX; false where that has no room.
bool emulator_temporary(char *path, size_t bytes, const char *name);

#endif
