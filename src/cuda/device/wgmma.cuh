// SPDX-License-Identifier: Apache-2.0
// Hopper's asynchronous products of a warpgroup, for 16-bit DTYPEs: 64 rows of a, from shared memory or registers,
// times b from shared memory, added to accumulators that are complete after WGMMA_WAIT. Tiles in shared memory have
// rows of 128 bytes (64 elements) at addresses that are multiples of 1024. They are permuted within eight rows like
// TMA's 128-byte swizzle: the 16-byte piece p of row r is at r * 128 + (p ^ r % 8) * 16.
//
// Accumulators c[n][4], and a in registers, have the layout of mma.cuh for each warp's 16 rows: c[n] holds columns 8 n
// to 8 n + 7. Do not touch registers of a product in flight; hold() keeps the compiler from moving a use before the
// wait.
#ifndef TSRI_DEVICE_WGMMA_CUH
#define TSRI_DEVICE_WGMMA_CUH

#include "cuda/device/mma.cuh"

// The order of a product: WGMMA_SEE_SHARED and a barrier if threads wrote the tiles (not needed after TMA); WGMMA_BEGIN
// before the first product that uses the current registers; the products; WGMMA_COMMIT; WGMMA_WAIT(n) for all groups
// except the newest n; WGMMA_HOLD. All four warps of the warpgroup must take part.
//
// Makes ordinary stores and copies visible to products (fence.proxy.async); a barrier must follow.
#define WGMMA_SEE_SHARED() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define WGMMA_BEGIN() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define WGMMA_COMMIT() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define WGMMA_WAIT(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")

// Descriptor of a tile in shared memory. In the first form the tile's rows are rows of the result and its columns are
// the depth: 16 columns are 32 bytes, and 64 columns are another tile. In the second form (not for wgmma_shared_* or a
// in registers) its rows are the depth, 16 rows are 2048 bytes, and its columns are columns of the result, or rows of
// a: the next 64 columns start slab_bytes later.
DEVICE unsigned long long wgmma_tile(unsigned shared, unsigned slab_bytes) {
    return (unsigned long long)((shared & 0x3ffff) >> 4) |
           (unsigned long long)(slab_bytes >> 4) << 16 | 64ull << 32 | 1ull << 62;
}
#define WGMMA_STEP(bytes) ((unsigned long long)((bytes) >> 4))

DEVICE void hold4(float c[4]) {
    asm volatile("" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])::"memory");
}
#define WGMMA_HOLD(c, tiles) _Pragma("unroll") for (int n_ = 0; n_ < (tiles); n_++) hold4((c)[n_])

// Tells the compiler that the accumulators' old values are dead. Otherwise it would keep them for the next product,
// whose first step does not read them.
DEVICE void forget4(float c[4]) {
    asm volatile("" : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])::"memory");
}
#define WGMMA_FORGET(c, tiles)                                                                     \
    _Pragma("unroll") for (int n_ = 0; n_ < (tiles); n_++) forget4((c)[n_])

#define WGMMA_4(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define WGMMA_16(c, n) WGMMA_4(c, n), WGMMA_4(c, n + 1), WGMMA_4(c, n + 2), WGMMA_4(c, n + 3)
#define WGMMA_32(c, n) WGMMA_16(c, n), WGMMA_16(c, n + 4)

#if DTYPE != DTYPE_F32
// c = a b^T, or c += with is_more: 64 columns.
DEVICE void wgmma_shared_64(float (*c)[4], unsigned long long a, unsigned long long b,
                            int is_more) {
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." MMA_TYPES " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, %32, %33, more, 1, 1, 0, 0;\n}\n"
                 : WGMMA_32(c, 0)
                 : "l"(a), "l"(b), "r"(is_more)
                 : "memory");
}
// c += a b, 64 columns.
DEVICE void wgmma_registers_64(float (*c)[4], const unsigned a[4], unsigned long long b) {
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." MMA_TYPES " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, more, 1, 1, 1;\n}\n"
                 : WGMMA_32(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                 : "memory");
}
// c = a b^T, or c += with is_more: 128 columns.
DEVICE void wgmma_shared_128(float (*c)[4], unsigned long long a, unsigned long long b,
                             int is_more) {
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." MMA_TYPES " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, %64, %65, more, 1, 1, 0, 0;\n}\n"
                 : WGMMA_32(c, 0), WGMMA_32(c, 8)
                 : "l"(a), "l"(b), "r"(is_more)
                 : "memory");
}
// The same, 80 columns.
DEVICE void wgmma_shared_80(float (*c)[4], unsigned long long a, unsigned long long b,
                            int is_more) {
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %42, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n80k16.f32." MMA_TYPES " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39"
                 "}, %40, %41, more, 1, 1, 0, 0;\n}\n"
                 : WGMMA_32(c, 0), WGMMA_4(c, 8), WGMMA_4(c, 9)
                 : "l"(a), "l"(b), "r"(is_more)
                 : "memory");
}
// c += a b, 128 columns.
DEVICE void wgmma_registers_128(float (*c)[4], const unsigned a[4], unsigned long long b) {
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." MMA_TYPES " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, more, 1, 1, 1;\n}\n"
                 : WGMMA_32(c, 0), WGMMA_32(c, 8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                 : "memory");
}
#endif

// ---- Both operands from shared memory, in either direction: 16, 32, 64, 96, 128, 192 or 256 columns -----------
// c = a b, or c += a b with is_more. a_is_mn, b_is_mn: the tile's rows are the depth. They must be literals, because
// they are part of the instruction.

#define WGMMA_64(c, n) WGMMA_32(c, n), WGMMA_32(c, n + 8)
#define WGMMA_LIST_0_TO_63                                                                         \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_LIST_64_TO_95                                                                        \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_LIST_64_TO_127                                                                       \
    WGMMA_LIST_64_TO_95 ", %96, %97, %98, %99, "                                                   \
                        "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
                        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, " \
                        "%124, %125, %126, %127"
#define WGMMA_TILES_16(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %10, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32." MMA_TYPES " {"                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7"                                                  \
                 "}, %8, %9, more, 1, 1, %11, %12;\n}\n"                                           \
                 : WGMMA_4(c, 0), WGMMA_4(c, 1)                                                    \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_32(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %18, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32." MMA_TYPES " {"                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"            \
                 "}, %16, %17, more, 1, 1, %19, %20;\n}\n"                                         \
                 : WGMMA_16(c, 0)                                                                  \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_64(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %34, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." MMA_TYPES " {"                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"  \
                 "}, %32, %33, more, 1, 1, %35, %36;\n}\n"                                         \
                 : WGMMA_32(c, 0)                                                                  \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_96(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    asm volatile(                                                                                  \
        "{\n.reg .pred more;\nsetp.ne.b32 more, %50, 0;\n"                                         \
        "wgmma.mma_async.sync.aligned.m64n96k16.f32." MMA_TYPES " {"                               \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                   \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "         \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"           \
        "}, %48, %49, more, 1, 1, %51, %52;\n}\n"                                                  \
        : WGMMA_32(c, 0), WGMMA_16(c, 8)                                                           \
        : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                                 \
        : "memory")
#define WGMMA_TILES_128(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %66, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." MMA_TYPES " {" WGMMA_LIST_0_TO_63  \
                 "}, %64, %65, more, 1, 1, %67, %68;\n}\n"                                         \
                 : WGMMA_64(c, 0)                                                                  \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_192(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %98, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32." MMA_TYPES " {" WGMMA_LIST_0_TO_63  \
                 ", " WGMMA_LIST_64_TO_95 "}, %96, %97, more, 1, 1, %99, %100;\n}\n"               \
                 : WGMMA_64(c, 0), WGMMA_32(c, 16)                                                 \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_256(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %130, 0;\n"                               \
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." MMA_TYPES " {" WGMMA_LIST_0_TO_63  \
                 ", " WGMMA_LIST_64_TO_127 "}, %128, %129, more, 1, 1, %131, %132;\n}\n"           \
                 : WGMMA_64(c, 0), WGMMA_64(c, 16)                                                 \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")

#if DTYPE != DTYPE_F32
// c += a b, 256 columns.
DEVICE void wgmma_registers_256(float (*c)[4], const unsigned a[4], unsigned long long b) {
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." MMA_TYPES " {" WGMMA_LIST_0_TO_63
                 ", " WGMMA_LIST_64_TO_127 "}, {%128, %129, %130, %131}, %132, more, 1, 1, 1;\n}\n"
                 : WGMMA_64(c, 0), WGMMA_64(c, 16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
                 : "memory");
}
#endif

// ---- fp8, both operands from shared memory with lines along k: k = 32, 128 or 256 columns --------------
// types: "e4m3.e4m3" or another pair of formats, of a and b. Rows of a tile hold 128 elements; the next 32 start 32
// bytes later.
#define WGMMA_FP8_128(types, c, a, b, is_more)                                                     \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %66, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32." types " {" WGMMA_LIST_0_TO_63      \
                 "}, %64, %65, more, 1, 1;\n}\n"                                                   \
                 : WGMMA_64(c, 0)                                                                  \
                 : "l"(a), "l"(b), "r"(is_more)                                                    \
                 : "memory")
#define WGMMA_FP8_256(types, c, a, b, is_more)                                                     \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %130, 0;\n"                               \
                 "wgmma.mma_async.sync.aligned.m64n256k32.f32." types " {" WGMMA_LIST_0_TO_63      \
                 ", " WGMMA_LIST_64_TO_127 "}, %128, %129, more, 1, 1;\n}\n"                       \
                 : WGMMA_64(c, 0), WGMMA_64(c, 16)                                                 \
                 : "l"(a), "l"(b), "r"(is_more)                                                    \
                 : "memory")

// ---- tf32, both operands from shared memory with lines along k: k = 8, 128 or 256 columns --------------
// Rows of a tile hold 32 floats, whose upper 19 bits count; the next 8 start 32 bytes later.
#define WGMMA_TF32_128(c, a, b, is_more)                                                           \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %66, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {" WGMMA_LIST_0_TO_63       \
                 "}, %64, %65, more, 1, 1;\n}\n"                                                   \
                 : WGMMA_64(c, 0)                                                                  \
                 : "l"(a), "l"(b), "r"(is_more)                                                    \
                 : "memory")
#define WGMMA_TF32_256(c, a, b, is_more)                                                           \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %130, 0;\n"                               \
                 "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 {" WGMMA_LIST_0_TO_63       \
                 ", " WGMMA_LIST_64_TO_127 "}, %128, %129, more, 1, 1;\n}\n"                       \
                 : WGMMA_64(c, 0), WGMMA_64(c, 16)                                                 \
                 : "l"(a), "l"(b), "r"(is_more)                                                    \
                 : "memory")

#endif
