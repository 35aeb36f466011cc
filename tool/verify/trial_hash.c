// SPDX-License-Identifier: Apache-2.0
// Hashes of the tensors of a trial, to see whether inputs stayed unchanged and whether outputs have the same bits.
#include <math.h>
#include <string.h>

#include "verify/trial.h"

static uint64_t hash_bytes(const void *data, size_t bytes) {
    const unsigned char *p = data;
    uint64_t hash = 0xcbf29ce484222325u;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    for (; bytes > 0; bytes--, p++) hash = (hash ^ *p) * 0x100000001b3u;
    return hash;
}

uint64_t trial_hash_inputs(const struct trial *trial) {
    uint64_t hash = 0;
    for (int s = 0; trial->c.spec->slots[s].name != NULL; s++) {
        const struct buffer *buffer = &trial->given.buffer[s];
        if (trial->c.is_present[s] && !trial_is_output(&trial->c, s) && !buffer->is_mapped)
            hash = hash * 31 + hash_bytes(buffer->base, buffer->bytes);
    }
    return hash;
}

enum { HASHED_AT_ONCE = 256 };

uint64_t trial_hash_outputs(const struct trial *trial) {
    uint64_t hash = 0;
    for (int s = 0; trial->c.spec->slots[s].name != NULL; s++) {
        const struct buffer *buffer = &trial->given.buffer[s];
        if (!trial_is_output(&trial->c, s) || buffer->is_mapped) continue;
        tsr_dtype dtype = trial->given.c.tensor[s].dtype;
        int64_t count = (int64_t)(buffer->bytes / tsr_dtype_bytes(dtype));
        int64_t element = (int64_t)tsr_dtype_bytes(dtype);
        for (int64_t i = 0; i < count; i += HASHED_AT_ONCE) {
            double values[HASHED_AT_ONCE];
            int64_t run = count - i < HASHED_AT_ONCE ? count - i : HASHED_AT_ONCE;
            load_run(dtype, (const char *)buffer->base + i * element, 1, values, run);
            for (int64_t k = 0; k < run; k++) {
                if (values[k] != values[k]) values[k] = (double)NAN;
                hash = hash * 31 + hash_bytes(&values[k], sizeof *values);
            }
        }
    }
    return hash;
}
