// SPDX-License-Identifier: Apache-2.0
// A compiled kernel: NVRTC makes a cubin from a program (a source and the values of its macros) and an architecture; it
// can be stored in a file. Its key is the SHA-256 of the source, the headers, the sorted defines and the architecture;
// the disk cache adds the compiler's version.
#ifndef TSRI_CUDA_IMAGE_H
#define TSRI_CUDA_IMAGE_H

#include <stdbool.h>

#include "core/core_sha256.h"
#include "core/core_status.h"

enum { TSRI_CUDA_MAX_DEFINES = 12, TSRI_CUDA_PROGRAM_TEXT = 512 };

// A kernel before compilation. A plain value; names are in static storage.
struct tsri_cuda_program {
    const char *source; // "ops/softmax/softmax_forward.cu"
    const char *entry;  // its extern "C" function
    int num_defines;
    struct tsri_cuda_define {
        const char *name;
        int value;
    } defines[TSRI_CUDA_MAX_DEFINES];
    bool is_rare; // set by lists only: outside the standard set, because no ordinary call needs it
};

// Writes "ops/softmax/softmax_forward.cu DTYPE=1 THREADS=32", with sorted defines; returns the buffer.
const char *tsri_cuda_program_text(const struct tsri_cuda_program *program,
                                   char text[TSRI_CUDA_PROGRAM_TEXT]);

// The compiler's report on a kernel. Negative: not reported.
struct tsri_cuda_facts {
    int num_registers, stack_bytes, spill_bytes, shared_bytes;
};

struct tsri_cuda_image {
    unsigned char key[TSRI_SHA256_BYTES];
    char text[TSRI_CUDA_PROGRAM_TEXT]; // the program's text, for lists
    char arch[16];                     // "sm_90a"
    struct tsri_cuda_facts facts;
    void *cubin;
    size_t cubin_bytes;
    char *warnings;    // from the compiler; NULL: none, or the image came from a file
    double compile_ms; // 0 if the image came from a file
};
void tsri_cuda_image_free(struct tsri_cuda_image *image);

// ---- Compiling --------------------------------------------------------------------------------

// The keys without and with the compiler's version. Errors: those of reading the source; UNSUPPORTED for the second key
// without NVRTC.
tsr_status tsri_cuda_image_keys(const struct tsri_cuda_program *program, const char *arch,
                                unsigned char pack_key[TSRI_SHA256_BYTES],
                                unsigned char cache_key[TSRI_SHA256_BYTES], bool *has_compiler);

// Errors: UNSUPPORTED (no NVRTC), COMPILE (its first error), OUT_OF_MEMORY, those of the source.
tsr_status tsri_cuda_image_compile(const struct tsri_cuda_program *program, const char *arch,
                                   struct tsri_cuda_image *image);

// ---- Files: a header with sizes and a checksum of everything, then text and cubin ----------------

// The bytes of an image in a file, for the caller to free; NULL if there is no memory.
unsigned char *tsri_cuda_image_pack(const struct tsri_cuda_image *image, size_t *bytes);

// The number of bytes of the image with this header; 0 if it is not the header of an image.
enum { TSRI_CUDA_IMAGE_HEADER = 128 };
size_t tsri_cuda_image_extent(const unsigned char header[TSRI_CUDA_IMAGE_HEADER],
                              unsigned char key[TSRI_SHA256_BYTES]);

// The inverse. False, with nothing to free, unless the bytes are exactly one intact image.
bool tsri_cuda_image_unpack(const unsigned char *data, size_t bytes, struct tsri_cuda_image *image);

#endif
