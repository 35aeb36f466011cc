// SPDX-License-Identifier: Apache-2.0
// Compiled kernels on disk. The cache is a folder "kernels" that belongs to the user, mode 0700, in $TSR_CACHE_DIR,
// $XDG_CACHE_HOME/tessera or ~/.cache/tessera; a folder that another user owns or may write to is not used. Each file
// is one image, named by its key and put in place by a rename. There are no locks, so a killed process leaves nothing
// that blocks another. Any fault of a file or the folder counts as a miss.
//
// A pack is one file with many images, made ahead of time for machines without a compiler: $TSR_KERNEL_PACK, or
// tessera-kernels.pack beside the library (or the program that the library is linked into), or in ../lib from there.
#ifndef TSRI_CUDA_CACHE_H
#define TSRI_CUDA_CACHE_H

#include "cuda/cuda_image.h"

enum { TSRI_CUDA_PATH = 1024 };

// Creates the folder if it is missing. False, with one sentence, if it cannot be used.
bool tsri_cuda_cache_path(char path[TSRI_CUDA_PATH], char *sentence, size_t sentence_bytes);

bool tsri_cuda_cache_load(const unsigned char key[TSRI_SHA256_BYTES],
                          struct tsri_cuda_image *image);
// False if the image could not be stored, which is not an error.
bool tsri_cuda_cache_store(const struct tsri_cuda_image *image);

// Calls visit for every intact image. Returns the number of damaged files, which clear would remove too; -1 if the
// folder cannot be listed.
int tsri_cuda_cache_walk(void (*visit)(void *user, const struct tsri_cuda_image *image),
                         void *user);
// Removes all files of the cache and returns their number, or -1.
int tsri_cuda_cache_clear(void);

// cuda_pack.c
// The i-th path at which a pack is searched; false after the last.
bool tsri_cuda_pack_path(int i, char path[TSRI_CUDA_PATH]);
bool tsri_cuda_pack_load(const unsigned char key[TSRI_SHA256_BYTES], struct tsri_cuda_image *image);
// Writes images, packed, into a file that appears whole or not at all.
tsr_status tsri_cuda_pack_write(const char *path, unsigned char *const *images,
                                const size_t *image_bytes, int count);

// Shared by both: writes all data to a new file, which then replaces `name` in the folder (AT_FDCWD for a path).
bool tsri_cuda_file_publish(int folder, const char *name, const void *data, size_t bytes);
// Reads a whole regular file that belongs to this user; NULL if it is not one or is too large.
unsigned char *tsri_cuda_file_read(int folder, const char *name, size_t *bytes);

#endif
