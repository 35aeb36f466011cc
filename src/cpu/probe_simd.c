// SPDX-License-Identifier: Apache-2.0
// Probe kernels (tessera/probe.h), compiled once per instruction set. They measure one thread's rate of FMAs on
// registers, and of memory reads, writes, copies and updates. `tessera info` prints the rates; docs/kernels/ uses them
// as ceilings.
// Empty asm statements with operands tell the compiler that a value is used and that memory may have changed, so it can
// neither drop a sweep nor merge two.
#include "cpu/probe_kernels.h"
#include "cpu/simd.h"

// Chains of dependent FMAs. Latency times rate is 8 to 10 on today's cores; more than 14 chains spill with 16
// registers. One-lane builds use an array, which the compiler can vectorize.
enum { CHAINS = VL > 1 ? 14 : 48, FLOATS = TSRI_PROBE_BLOCK / 4, VECTORS = FLOATS / VL };

#define TOUCH_MEMORY() __asm__ volatile("" ::: "memory")

static void fma_probe(int64_t repeat) {
    float decay = 0.999f, growth = 0.001f; // every chain tends to 1
    __asm__ volatile("" : "+m"(decay), "+m"(growth));
    vf a = vf_set1(decay), b = vf_set1(growth), chain[CHAINS];
    for (int i = 0; i < CHAINS; i++) chain[i] = vf_set1((float)i * growth);
    for (int64_t r = 0; r < repeat; r++)
        for (int step = 0; step < TSRI_PROBE_STEPS; step++) {
#pragma GCC unroll 48
            for (int i = 0; i < CHAINS; i++) chain[i] = vf_fma(chain[i], a, b);
        }
    float sink[VL];
    for (int i = 0; i < CHAINS; i++) {
        vf_store(sink, chain[i]);
        __asm__ volatile("" ::"r"(sink) : "memory");
    }
}

#if defined(TSRI_SIMD_SCALAR)
// Integer sums: the compiler may reorder and so vectorize them.
static void read_probe(const void *source, int64_t bytes, int64_t repeat) {
    const uint64_t *words = source;
    for (int64_t r = 0; r < repeat; r++) {
        uint64_t sum = 0;
        for (int64_t i = 0; i < bytes / 8; i++) sum ^= words[i];
        __asm__ volatile("" ::"r"(sum) : "memory");
    }
}
#else
// A maximum: on every core it runs beside the loads, and its speed does not depend on the values.
static void read_probe(const void *source, int64_t bytes, int64_t repeat) {
    enum { SUMS = 8 };
    vf sum[SUMS];
    for (int i = 0; i < SUMS; i++) sum[i] = vf_set1(0.0f);
    for (int64_t r = 0; r < repeat; r++) {
        const float *x = source, *end = x + bytes / 4;
        for (; x < end; x += FLOATS) {
#pragma GCC unroll 32
            for (int i = 0; i < VECTORS; i++)
                sum[i % SUMS] = vf_max(sum[i % SUMS], vf_load(x + i * VL));
        }
        TOUCH_MEMORY();
    }
    float sink[VL];
    for (int i = 0; i < SUMS; i++) {
        vf_store(sink, sum[i]);
        __asm__ volatile("" ::"r"(sink) : "memory");
    }
}
#endif

SIMD_INLINE void write_as(void *destination, int64_t bytes, int64_t repeat, bool is_streaming) {
    for (int64_t r = 0; r < repeat; r++) {
        vf value = vf_set1(1.5f + (float)r); // not 0, because some machines store zeros faster
        float *y = destination, *end = y + bytes / 4;
        for (; y < end; y += FLOATS) {
#pragma GCC unroll 32
            for (int i = 0; i < VECTORS; i++) {
                if (is_streaming)
                    vf_stream(y + i * VL, value);
                else
                    vf_store(y + i * VL, value);
            }
        }
        if (is_streaming) vf_stream_fence();
        TOUCH_MEMORY();
    }
}

SIMD_INLINE void copy_as(const void *source, void *destination, int64_t bytes, int64_t repeat,
                         bool is_streaming) {
    for (int64_t r = 0; r < repeat; r++) {
        const float *x = source, *end = x + bytes / 4;
        for (float *y = destination; x < end; x += FLOATS, y += FLOATS) {
#pragma GCC unroll 32
            for (int i = 0; i < VECTORS; i++) {
                if (is_streaming)
                    vf_stream(y + i * VL, vf_load(x + i * VL));
                else
                    vf_store(y + i * VL, vf_load(x + i * VL));
            }
        }
        if (is_streaming) vf_stream_fence();
        TOUCH_MEMORY();
    }
}

static void update_probe(void *destination, int64_t bytes, int64_t repeat) {
    vf half = vf_set1(0.5f); // values tend to 1
    for (int64_t r = 0; r < repeat; r++) {
        float *y = destination, *end = y + bytes / 4;
        for (; y < end; y += FLOATS) {
#pragma GCC unroll 32
            for (int i = 0; i < VECTORS; i++)
                vf_store(y + i * VL, vf_fma(vf_load(y + i * VL), half, half));
        }
        TOUCH_MEMORY();
    }
}

static void write_probe(void *destination, int64_t bytes, int64_t repeat) {
    write_as(destination, bytes, repeat, false);
}

static void write_stream_probe(void *destination, int64_t bytes, int64_t repeat) {
    write_as(destination, bytes, repeat, true);
}

static void copy_probe(const void *source, void *destination, int64_t bytes, int64_t repeat) {
    copy_as(source, destination, bytes, repeat, false);
}

static void copy_stream_probe(const void *source, void *destination, int64_t bytes,
                              int64_t repeat) {
    copy_as(source, destination, bytes, repeat, true);
}

const struct probe_kernels TSRI_KERNEL_TABLE(probe) = {
    .fma = fma_probe,
    .read = read_probe,
    .write = write_probe,
    .write_stream = write_stream_probe,
    .copy = copy_probe,
    .copy_stream = copy_stream_probe,
    .update = update_probe,
    .flops_per_repeat = 2.0 * VL * CHAINS * TSRI_PROBE_STEPS,
};
