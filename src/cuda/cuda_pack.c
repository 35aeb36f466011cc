// SPDX-License-Identifier: Apache-2.0
// A pack is a sequence of images. A lookup reads all their headers, which takes less than a millisecond, and keeps no
// file open.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/core_system.h"
#include "cuda/cuda_cache.h"

static const char pack_name[] = "tessera-kernels.pack";

// The folder of the library, or of the program that it is linked into.
static bool own_folder(char folder[TSRI_CUDA_PATH]) {
    Dl_info info;
    const char *file = dladdr(pack_name, &info) != 0 ? info.dli_fname : NULL;
    const char *slash = file != NULL ? strrchr(file, '/') : NULL;
    if (slash == NULL) { // a program found on the PATH has no folder in its name
        ssize_t used = readlink("/proc/self/exe", folder, TSRI_CUDA_PATH - 1);
        if (used <= 0) return false;
        folder[used] = '\0';
        *strrchr(folder, '/') = '\0';
        return true;
    }
    return snprintf(folder, TSRI_CUDA_PATH, "%.*s", (int)(slash - file), file) < TSRI_CUDA_PATH;
}

bool tsri_cuda_pack_path(int i, char path[TSRI_CUDA_PATH]) {
    static const char *const below[] = {"", "/../lib"};
    char folder[TSRI_CUDA_PATH];
    const char *given = tsri_environment("TSR_KERNEL_PACK");
    bool is_given = given != NULL && *given != '\0';
    if (is_given) // only that path
        return i == 0 && snprintf(path, TSRI_CUDA_PATH, "%s", given) < TSRI_CUDA_PATH;
    if (i >= (int)(sizeof below / sizeof *below) || !own_folder(folder)) return false;
    return snprintf(path, TSRI_CUDA_PATH, "%s%s/%s", folder, below[i], pack_name) < TSRI_CUDA_PATH;
}

static bool find(int file, const unsigned char wanted[TSRI_SHA256_BYTES],
                 struct tsri_cuda_image *image) {
    unsigned char header[TSRI_CUDA_IMAGE_HEADER], key[TSRI_SHA256_BYTES];
    struct stat info;
    if (tsri_system.status(file, &info) != 0) return false;
    for (off_t at = 0; tsri_read(file, header, sizeof header, at) == sizeof header;) {
        size_t bytes = tsri_cuda_image_extent(header, key);
        // Not a pack, or damaged from here on, or cut off. Checked first, so that no memory is allocated for missing
        // bytes.
        if (bytes == 0 || (off_t)bytes > info.st_size - at) return false;
        if (memcmp(key, wanted, sizeof key) == 0) {
            unsigned char *data = tsri_alloc(bytes);
            bool is_intact = data != NULL && tsri_read(file, data, bytes, at) == bytes &&
                             tsri_cuda_image_unpack(data, bytes, image);
            tsri_system.free(data);
            return is_intact;
        }
        at += (off_t)bytes;
    }
    return false;
}

bool tsri_cuda_pack_load(const unsigned char key[TSRI_SHA256_BYTES],
                         struct tsri_cuda_image *image) {
    char path[TSRI_CUDA_PATH];
    bool is_found = false;
    for (int i = 0; !is_found && tsri_cuda_pack_path(i, path); i++) {
        int file = tsri_system.open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
        if (file < 0) continue;
        is_found = find(file, key, image);
        (void)tsri_system.close(file);
    }
    return is_found;
}

tsr_status tsri_cuda_pack_write(const char *path, unsigned char *const *images,
                                const size_t *image_bytes, int count) {
    size_t bytes = 0, at = 0;
    for (int i = 0; i < count; i++) bytes += image_bytes[i];
    unsigned char *data = tsri_alloc(bytes);
    if (data == NULL)
        return tsri_fail(TSR_OUT_OF_MEMORY, "kernels: no %zu bytes for the pack", bytes);
    for (int i = 0; i < count; i++) {
        memcpy(data + at, images[i], image_bytes[i]);
        at += image_bytes[i];
    }
    errno = 0;
    bool is_written = tsri_cuda_file_publish(AT_FDCWD, path, data, bytes);
    tsri_system.free(data);
    if (is_written) return TSR_OK;
    return tsri_fail(TSR_IO, "kernels: the pack '%.300s' cannot be written: %s", path,
                     errno != 0 ? strerror(errno) : "out of space");
}
