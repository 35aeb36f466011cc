// SPDX-License-Identifier: Apache-2.0
#include "args_view.h"

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifdef HAS_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

_Alignas(4096) uint8_t args_arena[ARENA_BYTES];
static _Alignas(4096) uint8_t remembered[ARENA_BYTES], owners[ARENA_BYTES];

bool args_extent(const tsr_tensor *t, int64_t *begin, int64_t *end) {
    *begin = *end = 0;
    if (t->dtype == TSR_DTYPE_NONE) return true;
    if ((unsigned)t->dtype >= TSR_DTYPE_COUNT || t->ndim < 0 || t->ndim > TSR_MAX_DIMS)
        return false;
    __int128 elements = 1, first = 0, last = 0;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0 || t->shape[i] > MAX_ELEMENTS) return false;
        elements *= t->shape[i];
        __int128 step = (__int128)(t->shape[i] - 1) * t->stride[i];
        *(step < 0 ? &first : &last) += step;
    }
    if (elements > MAX_ELEMENTS) return false;
    if (elements == 0) return true;
    __int128 size = (__int128)tsr_dtype_bytes(t->dtype);
    __int128 base = (__int128)(uintptr_t)t->data - (__int128)(uintptr_t)args_arena;
    if (base + first * size < 0 || base + (last + 1) * size > ARENA_BYTES) return false;
    *begin = (int64_t)(base + first * size);
    *end = (int64_t)(base + (last + 1) * size);
    return true;
}

// ---- Contents ---------------------------------------------------------------------------------

void args_fill(int kind) {
    static uint8_t patterns[3][ARENA_BYTES];
    if (patterns[0][1] == 0) {
        uint64_t state = 1;
        for (size_t i = 0; i < ARENA_BYTES; i += 2) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            uint16_t bits = (uint16_t)(state >> 40), sign = (uint16_t)(bits & 0x8000u);
            // A number from 2^-8 to 2 as bf16, as f16 and as the upper half of an f32 or f64.
            uint16_t mild = (uint16_t)(sign | (0x3c00u + (bits & 0x3ffu)));
            uint16_t odd = (uint16_t)(sign | (bits & 1 ? 0x7f80u : 0x7fffu));
            memcpy(&patterns[0][i], &mild, 2);
            memcpy(&patterns[1][i], &bits, 2);
            memcpy(&patterns[2][i], bits & 0x70u ? &mild : &odd, 2);
        }
    }
    memcpy(args_arena, patterns[kind], ARENA_BYTES);
}

void args_hide(void) { ASAN_POISON_MEMORY_REGION(args_arena, ARENA_BYTES); }
void args_show_all(void) { ASAN_UNPOISON_MEMORY_REGION(args_arena, ARENA_BYTES); }
void args_show(int64_t begin, int64_t end) {
    ASAN_UNPOISON_MEMORY_REGION(args_arena + begin, (size_t)(end - begin));
}

// ---- Element by element -----------------------------------------------------------------------

// Steps to the next element and returns false after the last. index starts with zeros; the tensor must not be empty.
static bool step(const tsr_tensor *t, int64_t index[TSR_MAX_DIMS]) {
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (++index[i] < t->shape[i]) return true;
        index[i] = 0;
    }
    return false;
}

static size_t place(const tsr_tensor *t, const int64_t index[TSR_MAX_DIMS]) {
    int64_t offset = 0;
    for (int i = 0; i < t->ndim; i++) offset += index[i] * t->stride[i];
    return (size_t)((intptr_t)t->data - (intptr_t)args_arena +
                    offset * (int64_t)tsr_dtype_bytes(t->dtype));
}

static bool has_elements(const tsr_tensor *t) {
    return t->dtype != TSR_DTYPE_NONE && tsr_tensor_numel(t) > 0;
}

void args_remember(void) { memcpy(remembered, args_arena, ARENA_BYTES); }

bool args_is_as_remembered(void) { return memcmp(remembered, args_arena, ARENA_BYTES) == 0; }

void args_accept(const tsr_tensor *t) {
    if (!has_elements(t)) return;
    int64_t index[TSR_MAX_DIMS] = {0};
    size_t size = tsr_dtype_bytes(t->dtype);
    do {
        size_t at = place(t, index);
        memcpy(remembered + at, args_arena + at, size);
    } while (step(t, index));
}

static bool is_same_view(const tsr_tensor *a, const tsr_tensor *b) {
    if (a->data != b->data || a->dtype != b->dtype || a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i] || (a->shape[i] > 1 && a->stride[i] != b->stride[i]))
            return false;
    return true;
}

bool args_are_apart(const tsr_tensor *tensors, const char *roles, int count) {
    memset(owners, 0, sizeof owners);
    for (int pass = 0; pass < 2; pass++) // outputs first
        for (int n = 0; n < count; n++) {
            const tsr_tensor *t = &tensors[n];
            if (roles[n] != (pass == 0 ? 'o' : 'i') || !has_elements(t)) continue;
            int64_t index[TSR_MAX_DIMS] = {0};
            size_t size = tsr_dtype_bytes(t->dtype);
            do {
                uint8_t *owner = owners + place(t, index);
                for (size_t i = 0; i < size; i++) {
                    if (owner[i] != 0 && (pass == 0 || !is_same_view(&tensors[owner[i] - 1], t)))
                        return false;
                    if (pass == 0) owner[i] = (uint8_t)(n + 1);
                }
            } while (step(t, index));
        }
    return true;
}
