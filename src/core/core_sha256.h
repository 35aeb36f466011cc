// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), for names and checks of files on disk: a collision would run the wrong code.
#ifndef TSRI_CORE_SHA256_H
#define TSRI_CORE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { TSRI_SHA256_BYTES = 32, TSRI_SHA256_HEX = 65 };

struct tsri_sha256 {
    uint32_t state[8];
    uint64_t num_bytes;
    unsigned char block[64];
};

void tsri_sha256_start(struct tsri_sha256 *hash);
void tsri_sha256_add(struct tsri_sha256 *hash, const void *data, size_t bytes);
// Adds the text with its terminating zero, so that different sequences of texts never hash alike.
void tsri_sha256_add_text(struct tsri_sha256 *hash, const char *text);
void tsri_sha256_finish(struct tsri_sha256 *hash, unsigned char digest[TSRI_SHA256_BYTES]);
void tsri_sha256_hex(const unsigned char digest[TSRI_SHA256_BYTES], char hex[TSRI_SHA256_HEX]);

#endif
