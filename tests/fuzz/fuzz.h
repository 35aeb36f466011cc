// SPDX-License-Identifier: Apache-2.0
// Shared by the fuzz targets. Each fuzz_<subject>.c defines LLVMFuzzerTestOneInput. `make fuzz` links it with
// libFuzzer; every build links it with replay.c to a plain program that runs the corpus and mutations of it.
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/types.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

// Checks what the target promises. Both ways of running catch the abort and keep the input.
#define fuzz_require(condition)                                                                    \
    do {                                                                                           \
        if (!(condition)) fuzz_fail(__FILE__, __LINE__, #condition);                               \
    } while (0)

static inline void fuzz_fail(const char *file, int line, const char *condition) {
    fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", file, line, condition,
            tsr_last_error());
    abort();
}

// Bytes from which decisions are taken one by one. After the end they are 0, so that the shortest input gives the
// plainest case.
struct fuzz_bytes {
    const uint8_t *next, *end;
};

static inline uint8_t fuzz_byte(struct fuzz_bytes *bytes) {
    return bytes->next < bytes->end ? *bytes->next++ : 0;
}

static inline uint64_t fuzz_word(struct fuzz_bytes *bytes, int count) {
    uint64_t word = 0;
    for (int i = 0; i < count; i++) word |= (uint64_t)fuzz_byte(bytes) << 8 * i;
    return word;
}

// A number that provokes overflows: near a power of two, a small one of either sign, or any.
static inline int64_t fuzz_wild(struct fuzz_bytes *bytes) {
    uint8_t kind = fuzz_byte(bytes);
    if (kind < 64) return kind;
    if (kind < 72) return 64 - (int64_t)kind - 1;
    if (kind == 255) return (int64_t)fuzz_word(bytes, 8);
    int64_t power = (int64_t)(UINT64_C(1) << (kind & 63)), off = (int64_t)(kind >> 6) - 2;
    return (int64_t)((uint64_t)power + (uint64_t)off);
}

#endif
