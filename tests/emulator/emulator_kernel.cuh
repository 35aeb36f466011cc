// SPDX-License-Identifier: Apache-2.0
// CUDA C for g++, included before every emulated kernel: the parts of the language. Everything that needs other threads
// uses the table `emulator`. emulator_ptx.cuh has the instructions of inline PTX.
#ifndef EMULATOR_KERNEL_CUH
#define EMULATOR_KERNEL_CUH

#include "emulator_api.h"
#include "emulator_formats.h"

extern "C" {
__attribute__((visibility("default"))) struct emulator *emulator;
float fmaf(float, float, float) noexcept;
float fabsf(float) noexcept;
float fmaxf(float, float) noexcept;
float fminf(float, float) noexcept;
float sqrtf(float) noexcept;
float expf(float) noexcept;
float exp2f(float) noexcept;
float logf(float) noexcept;
float log2f(float) noexcept;
float log1pf(float) noexcept;
float expm1f(float) noexcept;
float powf(float, float) noexcept;
float sinf(float) noexcept;
float cosf(float) noexcept;
void sincosf(float, float *, float *) noexcept;
float tanhf(float) noexcept;
float erff(float) noexcept;
float floorf(float) noexcept;
float ceilf(float) noexcept;
float truncf(float) noexcept;
float rintf(float) noexcept;
float roundf(float) noexcept;
float fmodf(float, float) noexcept;
float ldexpf(float, int) noexcept;
float copysignf(float, float) noexcept;
double fma(double, double, double) noexcept;
double fabs(double) noexcept;
double fmax(double, double) noexcept;
double fmin(double, double) noexcept;
double sqrt(double) noexcept;
double exp(double) noexcept;
double exp2(double) noexcept;
double log(double) noexcept;
double log2(double) noexcept;
double pow(double, double) noexcept;
double sin(double) noexcept;
double cos(double) noexcept;
void sincos(double, double *, double *) noexcept;
double floor(double) noexcept;
double ceil(double) noexcept;
double trunc(double) noexcept;
double rint(double) noexcept;
double round(double) noexcept;
double fmod(double, double) noexcept;
double ldexp(double, int) noexcept;
double frexp(double, int *) noexcept;
double copysign(double, double) noexcept;
}

#define __device__
#define __host__
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline
#define __grid_constant__
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) alignas(bytes)

#define threadIdx (emulator->now->thread)
#define blockIdx (emulator->now->block)
#define blockDim (emulator->now->block_size)
#define gridDim (emulator->now->grid)
#define warpSize 32

// ---- Vectors ----------------------------------------------------------------------------------

#define EMULATOR_VECTORS(type, name, of_two, of_four)                                              \
    struct alignas(of_two) name##2 {                                                               \
        type x, y;                                                                                 \
    };                                                                                             \
    struct name##3 {                                                                               \
        type x, y, z;                                                                              \
    };                                                                                             \
    struct alignas(of_four) name##4 {                                                              \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name##2 make_##name##2(type x, type y) { return {x, y}; }                        \
    static inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }             \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
EMULATOR_VECTORS(int, int, 8, 16)
EMULATOR_VECTORS(unsigned, uint, 8, 16)
EMULATOR_VECTORS(float, float, 8, 16)
EMULATOR_VECTORS(double, double, 16, 16)
EMULATOR_VECTORS(short, short, 4, 8)
EMULATOR_VECTORS(unsigned short, ushort, 4, 8)
EMULATOR_VECTORS(unsigned char, uchar, 2, 4)
EMULATOR_VECTORS(long long, longlong, 16, 16)
EMULATOR_VECTORS(unsigned long long, ulonglong, 16, 16)
typedef unsigned long size_t;

// ---- Shared memory ----------------------------------------------------------------------------

extern "C" {
extern char __start_emulator_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_emulator_shared[] __attribute__((weak, visibility("hidden")));
__attribute__((visibility("default"))) unsigned emulator_static_bytes(void) {
    return (unsigned)(__stop_emulator_shared - __start_emulator_shared);
}
}
// This block's copy of a static variable, at the same offset as `slot` in the section.
template <class T> static inline T &emulator_static(T &slot) {
    return *(T *)(emulator->now->static_shared + ((char *)&slot - __start_emulator_shared));
}
template <class T> struct emulator_dynamic {
    operator T *() const { return (T *)emulator->now->dynamic_shared; }
    template <class U> explicit operator U *() const { return (U *)emulator->now->dynamic_shared; }
};

static inline size_t __cvta_generic_to_shared(const void *place) {
    return emulator->shared_address(place);
}

// ---- Kernels ----------------------------------------------------------------------------------

template <unsigned...> struct emulator_numbers {};
template <class... A, unsigned... I>
static void emulator_call(void (*kernel)(A...), void **params, emulator_numbers<I...>) {
    kernel(*(A *)params[I]...);
}
template <class... A> static void emulator_call(void (*kernel)(A...), void **params) {
    emulator_call(kernel, params, emulator_numbers<__integer_pack(unsigned(sizeof...(A)))...>());
}
template <class... A> struct emulator_signature {
    static constexpr unsigned bytes[] = {unsigned(sizeof(A))..., 0};
};
template <class... A> constexpr emulator_signature<A...> emulator_signature_of(void (*)(A...)) {
    return {};
}

// ---- Threads together -------------------------------------------------------------------------

#define EMULATOR_HERE int line = __builtin_LINE(), const char *file = __builtin_FILE()
#define EMULATOR_NOTE (emulator->now->line = line, emulator->now->file = file)

static inline void __syncthreads(EMULATOR_HERE) {
    EMULATOR_NOTE, emulator->barrier(0, 0, EMULATOR_MEET, 0);
}
static inline int __syncthreads_or(int x, EMULATOR_HERE) {
    return EMULATOR_NOTE, emulator->barrier(0, 0, EMULATOR_OR, x != 0);
}
static inline int __syncthreads_and(int x, EMULATOR_HERE) {
    return EMULATOR_NOTE, emulator->barrier(0, 0, EMULATOR_AND, x != 0);
}
static inline int __syncthreads_count(int x, EMULATOR_HERE) {
    return EMULATOR_NOTE, emulator->barrier(0, 0, EMULATOR_COUNT, x != 0);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_HERE) {
    EMULATOR_NOTE, emulator->warp(mask, EMULATOR_SYNC, 0);
}
static inline void __threadfence(void) {}
static inline void __threadfence_block(void) {}
static inline void __threadfence_system(void) {}
static inline void __nanosleep(unsigned) { emulator->poll(); }

template <class T>
static inline T emulator_shuffle_as(unsigned mask, T x, unsigned number, int width, int kind) {
    struct emulator_shuffle shuffle = {0, 0, number, width, kind};
    __builtin_memcpy(&shuffle.value, &x, sizeof x);
    emulator->warp(mask, EMULATOR_SHUFFLE, &shuffle);
    __builtin_memcpy(&x, &shuffle.result, sizeof x);
    return x;
}
#define EMULATOR_SHUFFLES(name, kind)                                                              \
    template <class T>                                                                             \
    static inline T name(unsigned mask, T x, unsigned number, int width = 32, EMULATOR_HERE) {     \
        return EMULATOR_NOTE, emulator_shuffle_as(mask, x, number, width, kind);                   \
    }
EMULATOR_SHUFFLES(__shfl_sync, EMULATOR_IDX)
EMULATOR_SHUFFLES(__shfl_up_sync, EMULATOR_UP)
EMULATOR_SHUFFLES(__shfl_down_sync, EMULATOR_DOWN)
EMULATOR_SHUFFLES(__shfl_xor_sync, EMULATOR_XOR)

static inline unsigned emulator_vote_as(unsigned mask, unsigned x, int kind) {
    struct emulator_vote vote = {x, 0, kind};
    emulator->warp(mask, EMULATOR_VOTE, &vote);
    return vote.result;
}
#define EMULATOR_VOTES(name, type, given, kind, taken)                                             \
    static inline type name(unsigned mask, type x, EMULATOR_HERE) {                                \
        EMULATOR_NOTE;                                                                             \
        unsigned y = emulator_vote_as(mask, (unsigned)(given), kind);                              \
        return (type)(taken);                                                                      \
    }
EMULATOR_VOTES(__ballot_sync, unsigned, x != 0, EMULATOR_BALLOT, y)
EMULATOR_VOTES(__any_sync, int, x != 0, EMULATOR_BALLOT, y != 0)
EMULATOR_VOTES(__all_sync, int, x == 0, EMULATOR_BALLOT, y == 0)
EMULATOR_VOTES(__match_any_sync, unsigned, x, EMULATOR_MATCH, y)
EMULATOR_VOTES(__reduce_add_sync, unsigned, x, EMULATOR_ADD, y)
EMULATOR_VOTES(__reduce_min_sync, unsigned, x, EMULATOR_MIN, y)
EMULATOR_VOTES(__reduce_max_sync, unsigned, x, EMULATOR_MAX, y)

// Atomic, because threads switch only where they wait for each other.
#define ATOMIC(name, result)                                                                       \
    template <class T, class U> static inline T name(T *at, U x) {                                 \
        const T old = *at, with = (T)x;                                                            \
        *at = (T)(result);                                                                         \
        return old;                                                                                \
    }
ATOMIC(atomicAdd, old + with)
ATOMIC(atomicMax, old < with ? with : old)
ATOMIC(atomicMin, with < old ? with : old)
ATOMIC(atomicOr, old | with)
ATOMIC(atomicAnd, old &with)
#undef ATOMIC
template <class T, class U> static inline T atomicExch(T *at, U x) {
    T old = *at;
    *at = (T)x;
    emulator->poll(); // this may be a lock
    return old;
}
template <class T, class U, class V> static inline T atomicCAS(T *at, U is, V x) {
    T old = *at;
    if (old == (T)is) *at = (T)x;
    emulator->poll();
    return old;
}

// ---- Numbers ----------------------------------------------------------------------------------

static inline unsigned __float_as_uint(float x) { return emulator_bits(x); }
static inline int __float_as_int(float x) { return (int)emulator_bits(x); }
static inline float __uint_as_float(unsigned x) { return emulator_float(x); }
static inline float __int_as_float(int x) { return emulator_float((unsigned)x); }
static inline long long __double_as_longlong(double x) {
    long long bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline double __longlong_as_double(long long bits) {
    double x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
static inline int __double2loint(double x) { return (int)__double_as_longlong(x); }
static inline int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
static inline double __hiloint2double(int high, int low) {
    return __longlong_as_double(
        (long long)((unsigned long long)(unsigned)high << 32 | (unsigned)low));
}
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned choice) {
    unsigned long long both = (unsigned long long)high << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned byte = (unsigned)(both >> 8 * (choice >> 4 * i & 7)) & 0xff;
        if (choice >> 4 * i & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << 8 * i;
    }
    return result;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
static inline int __clzll(long long x) {
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}
static inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
    return y;
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (by & 31));
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (by & 31) >> 32);
}
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fadd_rn(float a, float b) {
    volatile float x = a;
    return x + b;
}
static inline float __fsub_rn(float a, float b) { return __fadd_rn(a, -b); }
static inline float __fmul_rn(float a, float b) {
    volatile float x = a * b;
    return x;
}
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float x) { return 1 / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __expf(float x) { return expf(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
static inline int __float2int_rn(float x) { return (int)rintf(x); }
static inline int __float2int_rz(float x) { return (int)x; }
static inline double sinpi(double x) { return sin(3.14159265358979323846 * x); }
static inline double cospi(double x) { return cos(3.14159265358979323846 * x); }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline int isnan(float x) { return __builtin_isnan(x); }
static inline int isinf(float x) { return __builtin_isinf(x); }
static inline int isfinite(float x) { return __builtin_isfinite(x); }
#define EMULATOR_LESSER(type)                                                                      \
    static inline type min(type a, type b) { return b < a ? b : a; }                               \
    static inline type max(type a, type b) { return a < b ? b : a; }
EMULATOR_LESSER(int)
EMULATOR_LESSER(unsigned)
EMULATOR_LESSER(long long)
EMULATOR_LESSER(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
template <class T> static inline T __ldg(const T *at) { return *at; }
template <class T> static inline T __ldcg(const T *at) { return *at; }
template <class T> static inline T __ldcs(const T *at) { return *at; }
template <class T> static inline void __stcs(T *at, T x) { *at = x; }
template <class T> static inline void __stcg(T *at, T x) { *at = x; }

// ---- Errors that g++ detects: a misaligned address, an index beyond an array -----------------------------

struct emulator_place {
    const char *file;
    unsigned line, column;
};
static inline void emulator_find(const void *data, const char *what) {
    const emulator_place *place = (const emulator_place *)data;
    emulator->now->file = place->file;
    emulator->now->line = (int)place->line;
    emulator->fail(what);
}
extern "C" {
void __ubsan_handle_type_mismatch_v1_abort(void *place, void *) {
    emulator_find(place, "an address is no multiple of its type's alignment");
}
void __ubsan_handle_out_of_bounds_abort(void *place, void *) {
    emulator_find(place, "an index is beyond its array");
}
}

#include "emulator_ptx.cuh"

#endif
