// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_image.h"

#include <stdio.h>
#include <string.h>

#include "core/core_system.h"

// Stored in the machine's byte order. A file from a machine of the other byte order fails the checksum, which counts as
// a miss.
struct header {
    char magic[8];
    uint32_t format, text_bytes;
    uint64_t cubin_bytes;
    int32_t facts[4];
    char arch[16];
    unsigned char key[TSRI_SHA256_BYTES];
    unsigned char checksum[TSRI_SHA256_BYTES]; // of all other bytes
    unsigned char reserved[8];
};
_Static_assert(sizeof(struct header) == TSRI_CUDA_IMAGE_HEADER, "no gaps");

enum { FORMAT = 1, MAX_CUBIN = 64 << 20 };
static const char magic[8] = "TSRCUBIN";

void tsri_cuda_image_free(struct tsri_cuda_image *image) {
    tsri_system.free(image->cubin);
    tsri_system.free(image->warnings);
    *image = (struct tsri_cuda_image){0};
}

static void checksum(const struct header *header, const void *text, const void *cubin,
                     unsigned char digest[TSRI_SHA256_BYTES]) {
    struct tsri_sha256 hash;
    struct header plain = *header;
    memset(plain.checksum, 0, sizeof plain.checksum);
    tsri_sha256_start(&hash);
    tsri_sha256_add(&hash, &plain, sizeof plain);
    tsri_sha256_add(&hash, text, header->text_bytes);
    tsri_sha256_add(&hash, cubin, header->cubin_bytes);
    tsri_sha256_finish(&hash, digest);
}

unsigned char *tsri_cuda_image_pack(const struct tsri_cuda_image *image, size_t *bytes) {
    struct header header = {.format = FORMAT,
                            .text_bytes = (uint32_t)strlen(image->text),
                            .cubin_bytes = image->cubin_bytes,
                            .facts = {image->facts.num_registers, image->facts.stack_bytes,
                                      image->facts.spill_bytes, image->facts.shared_bytes}};
    memcpy(header.magic, magic, sizeof magic);
    memcpy(header.arch, image->arch, sizeof header.arch);
    memcpy(header.key, image->key, sizeof header.key);
    checksum(&header, image->text, image->cubin, header.checksum);
    *bytes = sizeof header + header.text_bytes + header.cubin_bytes;
    unsigned char *data = tsri_alloc(*bytes);
    if (data == NULL) return NULL;
    memcpy(data, &header, sizeof header);
    memcpy(data + sizeof header, image->text, header.text_bytes);
    memcpy(data + sizeof header + header.text_bytes, image->cubin, header.cubin_bytes);
    return data;
}

size_t tsri_cuda_image_extent(const unsigned char data[TSRI_CUDA_IMAGE_HEADER],
                              unsigned char key[TSRI_SHA256_BYTES]) {
    struct header header;
    memcpy(&header, data, sizeof header);
    if (memcmp(header.magic, magic, sizeof magic) != 0 || header.format != FORMAT ||
        header.text_bytes >= TSRI_CUDA_PROGRAM_TEXT || header.cubin_bytes > MAX_CUBIN)
        return 0;
    memcpy(key, header.key, sizeof header.key);
    return sizeof header + header.text_bytes + (size_t)header.cubin_bytes;
}

bool tsri_cuda_image_unpack(const unsigned char *data, size_t bytes,
                            struct tsri_cuda_image *image) {
    struct header header;
    unsigned char digest[TSRI_SHA256_BYTES];
    *image = (struct tsri_cuda_image){0};
    if (bytes < sizeof header || tsri_cuda_image_extent(data, digest) != bytes) return false;
    memcpy(&header, data, sizeof header);
    const unsigned char *text = data + sizeof header, *cubin = text + header.text_bytes;
    checksum(&header, text, cubin, digest);
    if (memcmp(digest, header.checksum, sizeof digest) != 0) return false;
    image->cubin = tsri_alloc((size_t)header.cubin_bytes);
    if (image->cubin == NULL) return false;
    memcpy(image->cubin, cubin, (size_t)header.cubin_bytes);
    image->cubin_bytes = (size_t)header.cubin_bytes;
    memcpy(image->key, header.key, sizeof image->key);
    memcpy(image->text, text, header.text_bytes);
    memcpy(image->arch, header.arch, sizeof image->arch - 1);
    image->facts = (struct tsri_cuda_facts){header.facts[0], header.facts[1], header.facts[2],
                                            header.facts[3]};
    return true;
}
