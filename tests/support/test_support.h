// SPDX-License-Identifier: Apache-2.0
// Shared by the C tests: cmocka with the headers it needs, random numbers, bytes, guarded memory, and assertions on a
// status and its sentence. Each tests/<folder>/test_<topic>.c is one program.
#ifndef TEST_SUPPORT_H
#define TEST_SUPPORT_H

// clang-format off
#include <setjmp.h> // cmocka.h needs these four first
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

// Sanitizers that change what a test can do. TSan makes everything about ten times slower and ASan five times, so loops
// that only add repetitions run fewer of them. Neither knows the threads that fork left behind.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TEST_HAS_TSAN 1
#endif
#if __has_feature(address_sanitizer)
#define TEST_HAS_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define TEST_HAS_TSAN 1
#endif
#if defined(__SANITIZE_ADDRESS__)
#define TEST_HAS_ASAN 1
#endif
#ifndef TEST_HAS_TSAN
#define TEST_HAS_TSAN 0
#endif
#ifndef TEST_HAS_ASAN
#define TEST_HAS_ASAN 0
#endif
#define TEST_IS_SLOW (TEST_HAS_TSAN || TEST_HAS_ASAN)

// The instruction sets that a test tries. Under TSan this is only the best one, because the sets differ in arithmetic
// and not in threads (except attention's packing: test_attention_runs).
static inline bool test_has_isa(int isa) {
    bool is_best = true;
    for (int better = isa + 1; better < TSR_ISA_COUNT; better++)
        is_best &= !tsr_isa_is_supported((tsr_isa)better);
    return tsr_isa_is_supported((tsr_isa)isa) && (is_best || !TEST_HAS_TSAN);
}

// A number from the environment (TESSERA_TEST_CASES or TESSERA_TEST_SEED), or the default.
static inline uint64_t test_number(const char *variable, uint64_t usual) {
    const char *text = getenv(variable);
    return text != NULL ? strtoull(text, NULL, 0) : usual;
}

// splitmix64.
// The seed of random cases, which is printed.
static inline uint64_t test_seed(uint64_t usual) {
    const uint64_t seed = test_number("TESSERA_TEST_SEED", usual);
    print_message("TESSERA_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static inline uint64_t test_bits(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

// A tensor's view of memory on the first CUDA device.
static inline tsr_tensor on_cuda(tsr_tensor t) {
    t.device = (tsr_device){TSR_CUDA, 0};
    return t;
}

// A float as bf16, cut off, and back.
static inline uint16_t test_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}
static inline float test_of_bf16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float test_float(uint64_t *state) { // [-4, 4)
    return (float)((double)(test_bits(state) >> 11) * 0x1p-50 - 4.0);
}

static inline int test_below(uint64_t *state, int limit) { // [0, limit)
    return (int)(test_bits(state) % (uint64_t)limit);
}

static inline bool test_all_bytes_are(const void *data, int byte, size_t bytes) {
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++)
        if (p[i] != (unsigned char)byte) return false;
    return true;
}

// Checks that a call returned this status and that its sentence contains each of the given words (NULL ends them).
static inline void test_status(const char *file, int line, tsr_status got, tsr_status expected,
                               const char *const *words) {
    if (got != expected) {
        print_error("got %s (%s), expected %s\n", tsr_status_name(got), tsr_last_error(),
                    tsr_status_name(expected));
        _fail(file, line);
    }
    for (; *words != NULL; words++)
        if (strstr(tsr_last_error(), *words) == NULL) {
            print_error("'%s' is not in the error '%s'\n", *words, tsr_last_error());
            _fail(file, line);
        }
}
#define assert_status(got, expected, ...)                                                          \
    test_status(__FILE__, __LINE__, (got), (expected), (const char *const[]){__VA_ARGS__, NULL})
#define assert_ok(call) test_status(__FILE__, __LINE__, (call), TSR_OK, (const char *const[]){NULL})

// Checks that two numbers are equal. cmocka's assert_float_equal accepts anything for NaN and infinity.
static inline void test_same_number(const char *file, int line, double got, double expected) {
    if (got == expected) return;
    print_error("got %.9g, expected %.9g\n", got, expected);
    _fail(file, line);
}
#define assert_same_number(got, expected) test_same_number(__FILE__, __LINE__, (got), (expected))

static inline tsr_context *test_context(int num_threads) {
    tsr_context *ctx;
    assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = num_threads), &ctx));
    return ctx;
}

// Ends a test whose state is a context.
static inline int test_end_context(void **state) {
    tsr_context_destroy(*state);
    return 0;
}

// A context of one instruction set.
static inline tsr_context *test_context_of(int isa, int num_threads) {
    tsr_context *ctx;
    assert_ok(tsr_context_create(
        &TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa, .num_threads = num_threads), &ctx));
    return ctx;
}

// Rows that begin `stride` elements apart.
static inline tsr_tensor test_strided(void *data, tsr_dtype dtype, int rows, int cols, int stride) {
    tsr_tensor t = TSR_TENSOR(data, dtype, rows, cols);
    t.stride[0] = stride;
    return t;
}

#endif
