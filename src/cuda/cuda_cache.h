// SPDX-License-Identifier: Apache-2.0
// Compiled kernels on disk. The cache is a folder "kernels" of the user's own, mode 0700, in $TSR_CACHE_DIR,
// $XDG_CACHE_HOME/tessera or ~/.cache/tessera; a folder that another user owns or may write to is not used. A file is
// one image, named by its key, that came there whole by a rename. Nothing is locked, so nothing that a killed
// process leaves behind stops another. Whatever is wrong with a file or the folder is a miss.
//
// A pack is one file with many images, made ahead of time for machines without a compiler: $TSR_KERNEL_PACK, or
// tessera-kernels.pack beside the library (or the program that it is linked into), or in ../lib of that.
#ifndef TSRI_CUDA_CACHE_H
#define TSRI_CUDA_CACHE_H

#include "cuda/cuda_image.h"

enum { TSRI_CUDA_PATH = 1024 };

// The folder, made where it is missing. False, with one sentence, where it cannot be used.
bool tsri_cuda_cache_path(char path[TSRI_CUDA_PATH], char *sentence, size_t sentence_bytes);

bool tsri_cuda_cache_load(const unsigned char key[TSRI_SHA256_BYTES],
                          struct tsri_cuda_image *image);
// False where it could not be kept, which is no error.
bool tsri_cuda_cache_store(const struct tsri_cuda_image *image);

// Calls visit for every intact image. The number of those that are not, which clear would remove too; -1 where
// the folder cannot be listed.
int tsri_cuda_cache_walk(void (*visit)(void *user, const struct tsri_cuda_image *image),
                         void *user);
// Removes all files of the cache; how many, or -1.
int tsri_cuda_cache_clear(void);

// cuda_pack.c
// The i-th place where a pack is looked for; false after the last.
bool tsri_cuda_pack_path(int i, char path[TSRI_CUDA_PATH]);
bool tsri_cuda_pack_load(const unsigned char key[TSRI_SHA256_BYTES], struct tsri_cuda_image *image);
// Writes images, packed, into a file that appears whole or not at all.
tsr_status tsri_cuda_pack_write(const char *path, unsigned char *const *images,
                                const size_t *image_bytes, int count);

// Both: all of data to a new file that then takes the place of name in the folder (AT_FDCWD for a path).
bool tsri_cuda_file_publish(int folder, const char *name, const void *data, size_t bytes);
// All of a regular file of this user's; NULL where it is none or too large.
unsigned char *tsri_cuda_file_read(int folder, const char *name, size_t *bytes);

#endif
