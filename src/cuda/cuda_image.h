// SPDX-License-Identifier: Apache-2.0
// A compiled kernel: from a program (a source with the values of its macros) and an architecture to a cubin,
// by NVRTC, and as it lies in a file. Its key names it: SHA-256 of source, headers, sorted defines and
// architecture, to which the disk cache adds the compiler's version.
#ifndef TSRI_CUDA_IMAGE_H
#define TSRI_CUDA_IMAGE_H

#include <stdbool.h>

#include "core/core_sha256.h"
#include "core/core_status.h"

enum { TSRI_CUDA_MAX_DEFINES = 12, TSRI_CUDA_PROGRAM_TEXT = 512 };

// A kernel before it is compiled. A plain value; names are in static storage.
struct tsri_cuda_program {
    const char *source; // "ops/softmax/softmax_forward.cu"
    const char *entry;  // its extern "C" function
    int num_defines;
    struct tsri_cuda_define {
        const char *name;
        int value;
    } defines[TSRI_CUDA_MAX_DEFINES];
    bool is_rare; // said by lists alone: not of the standard set, for no ordinary call reaches it
};

// "ops/softmax/softmax_forward.cu DTYPE=1 THREADS=32", the defines sorted; returns the buffer.
const char *tsri_cuda_program_text(const struct tsri_cuda_program *program,
                                   char text[TSRI_CUDA_PROGRAM_TEXT]);

// What the compiler says of a kernel. Negative where it said nothing.
struct tsri_cuda_facts {
    int num_registers, stack_bytes, spill_bytes, shared_bytes;
};

struct tsri_cuda_image {
    unsigned char key[TSRI_SHA256_BYTES];
    char text[TSRI_CUDA_PROGRAM_TEXT]; // the program's, for lists
    char arch[16];                     // "sm_90a"
    struct tsri_cuda_facts facts;
    void *cubin;
    size_t cubin_bytes;
    char *warnings;    // of the compiler; NULL for none, and of an image from a file
    double compile_ms; // 0 of an image from a file
};
void tsri_cuda_image_free(struct tsri_cuda_image *image);

// ---- Compiling --------------------------------------------------------------------------------

// The key without and with the compiler's version. Errors: those of reading the source; UNSUPPORTED
// for the second without NVRTC.
tsr_status tsri_cuda_image_keys(const struct tsri_cuda_program *program, const char *arch,
                                unsigned char pack_key[TSRI_SHA256_BYTES],
                                unsigned char cache_key[TSRI_SHA256_BYTES], bool *has_compiler);

// Errors: UNSUPPORTED (no NVRTC), COMPILE (its first error), OUT_OF_MEMORY, those of the source.
tsr_status tsri_cuda_image_compile(const struct tsri_cuda_program *program, const char *arch,
                                   struct tsri_cuda_image *image);

// ---- Files: a header with the sizes and a checksum over everything, then text and cubin --------

// The bytes of an image as a file has them, for the caller to free; NULL without memory.
unsigned char *tsri_cuda_image_pack(const struct tsri_cuda_image *image, size_t *bytes);

// How many bytes the image takes that starts with these; 0 when no image does.
enum { TSRI_CUDA_IMAGE_HEADER = 128 };
size_t tsri_cuda_image_extent(const unsigned char header[TSRI_CUDA_IMAGE_HEADER],
                              unsigned char key[TSRI_SHA256_BYTES]);

// The way back. False, and nothing to free, for bytes that are not exactly one intact image.
bool tsri_cuda_image_unpack(const unsigned char *data, size_t bytes, struct tsri_cuda_image *image);

#endif
