// SPDX-License-Identifier: Apache-2.0
// Elements in memory and floats in registers. A kernel is compiled for one DTYPE (a value of tsr_dtype); a group is 16
// bytes, GROUP elements. NVRTC has no toolkit headers, so conversions are PTX.
#ifndef TSRI_DEVICE_NUMBERS_CUH
#define TSRI_DEVICE_NUMBERS_CUH

#ifndef DTYPE
#error "DTYPE is not defined: 2 (f32), 3 (bf16) or 4 (f16)"
#endif
#define DTYPE_F32 2
#define DTYPE_BF16 3
#define DTYPE_F16 4

#if DTYPE == DTYPE_F32
#define ELEMENT_BYTES 4
#elif DTYPE == DTYPE_BF16 || DTYPE == DTYPE_F16
#define ELEMENT_BYTES 2
#else
#error "DTYPE is none of 2, 3 and 4"
#endif
#define GROUP (16 / ELEMENT_BYTES)

#define DEVICE static __device__ __forceinline__
#define INFINITE __int_as_float(0x7f800000)

// ---- Kernels that start before the previous kernel has ended (tsri_cuda_launch.is_early) ---------------

// Waits until all writes of the previous kernel are visible; do not read them earlier.
DEVICE void wait_for_primary(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Allows the next kernel's blocks to start where there is room.
DEVICE void start_dependents(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Kernels of rows begin with this: their blocks start while the previous kernel still runs, and the next kernel's
// blocks may start while they run.
DEVICE void begin_early(void) {
    start_dependents();
    wait_for_primary();
}

// ---- One 16-bit number ------------------------------------------------------------------------

DEVICE float float_of_bf16(unsigned bits) { return __uint_as_float(bits << 16); }

DEVICE float float_of_f16(unsigned bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)bits));
    return x;
}

DEVICE unsigned pair_to_bf16(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

DEVICE unsigned pair_to_f16(float low, float high) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

#if DTYPE == DTYPE_BF16
#define float_of_half float_of_bf16
#define pair_of_floats pair_to_bf16
#else
#define float_of_half float_of_f16
#define pair_of_floats pair_to_f16
#endif

// ---- One element; at is in elements -----------------------------------------------------------

#if DTYPE == DTYPE_F32
DEVICE float load(const void *data, long long at) { return ((const float *)data)[at]; }
DEVICE void store(void *data, long long at, float x) { ((float *)data)[at] = x; }
DEVICE float as_stored(float x) { return x; }
#else
DEVICE float load(const void *data, long long at) {
    return float_of_half(((const unsigned short *)data)[at]);
}
DEVICE void store(void *data, long long at, float x) {
    ((unsigned short *)data)[at] = (unsigned short)pair_of_floats(x, 0.0f);
}
DEVICE float as_stored(float x) { return float_of_half(pair_of_floats(x, 0.0f) & 0xffff); }
#endif

// A number that is fp32 with is_f32, else DTYPE.
DEVICE float load_either(const void *data, long long at, int is_f32) {
    return is_f32 ? ((const float *)data)[at] : load(data, at);
}
// The same in two steps: code between them does not wait for the load.
DEVICE unsigned fetch_either(const void *data, long long at, int is_f32) {
    return is_f32 || DTYPE == DTYPE_F32 ? ((const unsigned *)data)[at]
                                        : ((const unsigned short *)data)[at];
}
DEVICE float fetched_either(unsigned x, int is_f32) {
    return is_f32 || DTYPE == DTYPE_F32 ? __uint_as_float(x) : float_of_half(x);
}
DEVICE void store_either(void *data, long long at, float x, int is_f32) {
    if (is_f32)
        ((float *)data)[at] = x;
    else
        store(data, at, x);
}

// ---- A group of 16 bytes, at an address that is a multiple of 16 ----------------------------------
// Data that is read once is not kept in the first-level cache.

DEVICE uint4 load_bytes(const void *data, long long at) {
    uint4 raw;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"((const char *)data + at * ELEMENT_BYTES)
                 : "memory");
    return raw;
}

// Loads into raw if is_there, else keeps its contents, so missing groups need no test later.
DEVICE void load_bytes_if(uint4 *raw, const void *data, long long at, int is_there) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %5, 0;\n"
                 "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "+r"(raw->x), "+r"(raw->y), "+r"(raw->z), "+r"(raw->w)
                 : "l"((const char *)data + at * ELEMENT_BYTES), "r"(is_there)
                 : "memory");
}

// A word with 0 or -inf in each element.
DEVICE unsigned fill_of(float fill) {
    if (DTYPE == DTYPE_F32) return __float_as_uint(fill);
    return fill == 0 ? 0 : DTYPE == DTYPE_BF16 ? 0xff80ff80u : 0xfc00fc00u;
}

DEVICE void store_bytes(void *data, long long at, uint4 raw) {
    *(uint4 *)((char *)data + at * ELEMENT_BYTES) = raw;
}

// Evicted from the second-level cache first; for outputs larger than that cache.
DEVICE void store_bytes_past(void *data, long long at, uint4 raw) {
    asm volatile(
        "st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"((char *)data + at * ELEMENT_BYTES),
        "r"(raw.x), "r"(raw.y), "r"(raw.z), "r"(raw.w)
        : "memory");
}

DEVICE void widen(uint4 raw, float x[GROUP]) {
    const unsigned word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if DTYPE == DTYPE_F32
        x[i] = __uint_as_float(word[i]);
#elif DTYPE == DTYPE_BF16
        x[2 * i] = __uint_as_float(word[i] << 16);
        x[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
#else
        x[2 * i] = float_of_f16(word[i] & 0xffff);
        x[2 * i + 1] = float_of_f16(word[i] >> 16);
#endif
    }
}

DEVICE uint4 narrow(const float x[GROUP]) {
    unsigned word[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if DTYPE == DTYPE_F32
        word[i] = __float_as_uint(x[i]);
#else
        word[i] = pair_of_floats(x[2 * i], x[2 * i + 1]);
#endif
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// A group of a vector that is fp32 with is_f32, else DTYPE; it stays in the caches.
DEVICE void load_group_beside(float x[GROUP], const void *vector, int col, int is_f32) {
    if (is_f32) {
#pragma unroll
        for (int i = 0; i < GROUP; i += 4) {
            float4 four = *(const float4 *)((const float *)vector + col + i);
            x[i] = four.x;
            x[i + 1] = four.y;
            x[i + 2] = four.z;
            x[i + 3] = four.w;
        }
    } else {
        widen(*(const uint4 *)((const char *)vector + (long long)col * ELEMENT_BYTES), x);
    }
}

// 2^x within 2 units in the last place; subnormal results become 0.
DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#define LOG2_E 1.4426950408889634f

// ---- Random numbers: Philox4x32-10 of core/core_philox.h ------------------------------------------------

DEVICE uint4 philox(unsigned long long key, unsigned c0, unsigned c1, unsigned c2, unsigned c3) {
    unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        unsigned high0 = __umulhi(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
        unsigned high1 = __umulhi(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

#endif
