// SPDX-License-Identifier: Apache-2.0
// Products of 64 rows and further numbers of columns, like WGMMA_TILES_64, WGMMA_FP8_128 and others of wgmma.cuh; the
// arguments are the same.
#ifndef TSRI_DEVICE_WGMMA_COLUMNS_CUH
#define TSRI_DEVICE_WGMMA_COLUMNS_CUH

#include "cuda/device/wgmma.cuh"

// The names of the first 24, 36, ... registers.
#define WGMMA_REGS_24                                                                              \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                                           \
    "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_REGS_36                                                                              \
    WGMMA_REGS_24 ", "                                                                             \
                  "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35"
#define WGMMA_REGS_40                                                                              \
    WGMMA_REGS_36 ", "                                                                             \
                  "%36, %37, %38, %39"
#define WGMMA_REGS_44                                                                              \
    WGMMA_REGS_40 ", "                                                                             \
                  "%40, %41, %42, %43"
#define WGMMA_REGS_48                                                                              \
    WGMMA_REGS_44 ", "                                                                             \
                  "%44, %45, %46, %47"
#define WGMMA_REGS_52                                                                              \
    WGMMA_REGS_48 ", "                                                                             \
                  "%48, %49, %50, %51"
#define WGMMA_REGS_56                                                                              \
    WGMMA_REGS_52 ", "                                                                             \
                  "%52, %53, %54, %55"
#define WGMMA_REGS_60                                                                              \
    WGMMA_REGS_56 ", "                                                                             \
                  "%56, %57, %58, %59"
#define WGMMA_REGS_68                                                                              \
    WGMMA_REGS_60 ", "                                                                             \
                  "%60, %61, %62, %63, %64, %65, %66, %67"
#define WGMMA_REGS_72                                                                              \
    WGMMA_REGS_68 ", "                                                                             \
                  "%68, %69, %70, %71"
#define WGMMA_REGS_76                                                                              \
    WGMMA_REGS_72 ", "                                                                             \
                  "%72, %73, %74, %75"
#define WGMMA_REGS_84                                                                              \
    WGMMA_REGS_76 ", "                                                                             \
                  "%76, %77, %78, %79, %80, %81, %82, %83"
#define WGMMA_REGS_100                                                                             \
    WGMMA_REGS_84 ", "                                                                             \
                  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                   \
                  "%96, %97, %98, %99"
#define WGMMA_REGS_120                                                                             \
    WGMMA_REGS_100 ", "                                                                            \
                   "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
                   "%112, %113, %114, %115, %116, %117, %118, %119"

// A product of so many columns, whose names of registers are those of WGMMA_REGS_`registers`; a_at and what follows are the numbers
// of the operands after them, the last arguments the registers themselves.
#define WGMMA_TILES_OF(columns, registers, a_at, b_at, more_at, a_mn_at, b_mn_at, a, b, is_more,   \
                       a_is_mn, b_is_mn, ...)                                                      \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %" #more_at ", 0;\n"                      \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." MMA_TYPES                 \
                 " {" WGMMA_REGS_##registers "}, %" #a_at ", %" #b_at ", more, 1, 1, %" #a_mn_at   \
                                             ", %" #b_mn_at ";\n}\n"                               \
                 : __VA_ARGS__                                                                     \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_48(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    WGMMA_TILES_OF(48, 24, 24, 25, 26, 27, 28, a, b, is_more, a_is_mn, b_is_mn, WGMMA_16(c, 0),    \
                   WGMMA_4(c, 4), WGMMA_4(c, 5))
#define WGMMA_TILES_72(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    WGMMA_TILES_OF(72, 36, 36, 37, 38, 39, 40, a, b, is_more, a_is_mn, b_is_mn, WGMMA_32(c, 0),    \
                   WGMMA_4(c, 8))
#define WGMMA_TILES_80(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    WGMMA_TILES_OF(80, 40, 40, 41, 42, 43, 44, a, b, is_more, a_is_mn, b_is_mn, WGMMA_32(c, 0),    \
                   WGMMA_4(c, 8), WGMMA_4(c, 9))
#define WGMMA_TILES_88(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    WGMMA_TILES_OF(88, 44, 44, 45, 46, 47, 48, a, b, is_more, a_is_mn, b_is_mn, WGMMA_32(c, 0),    \
                   WGMMA_4(c, 8), WGMMA_4(c, 9), WGMMA_4(c, 10))
#define WGMMA_TILES_104(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    WGMMA_TILES_OF(104, 52, 52, 53, 54, 55, 56, a, b, is_more, a_is_mn, b_is_mn, WGMMA_32(c, 0),   \
                   WGMMA_16(c, 8), WGMMA_4(c, 12))
#define WGMMA_TILES_112(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    WGMMA_TILES_OF(112, 56, 56, 57, 58, 59, 60, a, b, is_more, a_is_mn, b_is_mn, WGMMA_32(c, 0),   \
                   WGMMA_16(c, 8), WGMMA_4(c, 12), WGMMA_4(c, 13))
#define WGMMA_TILES_120(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    WGMMA_TILES_OF(120, 60, 60, 61, 62, 63, 64, a, b, is_more, a_is_mn, b_is_mn, WGMMA_32(c, 0),   \
                   WGMMA_16(c, 8), WGMMA_4(c, 12), WGMMA_4(c, 13), WGMMA_4(c, 14))
#define WGMMA_TILES_136(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    WGMMA_TILES_OF(136, 68, 68, 69, 70, 71, 72, a, b, is_more, a_is_mn, b_is_mn, WGMMA_64(c, 0),   \
                   WGMMA_4(c, 16))
#define WGMMA_TILES_144(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    WGMMA_TILES_OF(144, 72, 72, 73, 74, 75, 76, a, b, is_more, a_is_mn, b_is_mn, WGMMA_64(c, 0),   \
                   WGMMA_4(c, 16), WGMMA_4(c, 17))
#define WGMMA_TILES_152(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    WGMMA_TILES_OF(152, 76, 76, 77, 78, 79, 80, a, b, is_more, a_is_mn, b_is_mn, WGMMA_64(c, 0),   \
                   WGMMA_4(c, 16), WGMMA_4(c, 17), WGMMA_4(c, 18))
#define WGMMA_TILES_168(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    WGMMA_TILES_OF(168, 84, 84, 85, 86, 87, 88, a, b, is_more, a_is_mn, b_is_mn, WGMMA_64(c, 0),   \
                   WGMMA_16(c, 16), WGMMA_4(c, 20))
#define WGMMA_TILES_200(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    WGMMA_TILES_OF(200, 100, 100, 101, 102, 103, 104, a, b, is_more, a_is_mn, b_is_mn,             \
                   WGMMA_64(c, 0), WGMMA_32(c, 16), WGMMA_4(c, 24))
#define WGMMA_TILES_240(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    WGMMA_TILES_OF(240, 120, 120, 121, 122, 123, 124, a, b, is_more, a_is_mn, b_is_mn,             \
                   WGMMA_64(c, 0), WGMMA_32(c, 16), WGMMA_16(c, 24), WGMMA_4(c, 28),               \
                   WGMMA_4(c, 29))

// ---- fp8 ----------------------------------------------------------------------------------------

#define WGMMA_REGS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_REGS_16 WGMMA_REGS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_REGS_32 WGMMA_REGS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_FP8_OF(columns, registers, a_at, b_at, more_at, types, a, b, is_more, ...)           \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %" #more_at ", 0;\n"                      \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k32.f32." types                     \
                 " {" WGMMA_REGS_##registers "}, %" #a_at ", %" #b_at ", more, 1, 1;\n}\n"         \
                 : __VA_ARGS__                                                                     \
                 : "l"(a), "l"(b), "r"(is_more)                                                    \
                 : "memory")
#define WGMMA_FP8_16(types, c, a, b, is_more)                                                      \
    WGMMA_FP8_OF(16, 8, 8, 9, 10, types, a, b, is_more, WGMMA_4(c, 0), WGMMA_4(c, 1))
#define WGMMA_FP8_32(types, c, a, b, is_more)                                                      \
    WGMMA_FP8_OF(32, 16, 16, 17, 18, types, a, b, is_more, WGMMA_16(c, 0))
#define WGMMA_FP8_48(types, c, a, b, is_more)                                                      \
    WGMMA_FP8_OF(48, 24, 24, 25, 26, types, a, b, is_more, WGMMA_16(c, 0), WGMMA_4(c, 4),          \
                 WGMMA_4(c, 5))
#define WGMMA_FP8_64(types, c, a, b, is_more)                                                      \
    WGMMA_FP8_OF(64, 32, 32, 33, 34, types, a, b, is_more, WGMMA_32(c, 0))
#define WGMMA_FP8_72(types, c, a, b, is_more)                                                      \
    WGMMA_FP8_OF(72, 36, 36, 37, 38, types, a, b, is_more, WGMMA_32(c, 0), WGMMA_4(c, 8))
#define WGMMA_FP8_80(types, c, a, b, is_more)                                                      \
    WGMMA_FP8_OF(80, 40, 40, 41, 42, types, a, b, is_more, WGMMA_32(c, 0), WGMMA_4(c, 8),          \
                 WGMMA_4(c, 9))
#define WGMMA_FP8_88(types, c, a, b, is_more)                                                      \
    WGMMA_FP8_OF(88, 44, 44, 45, 46, types, a, b, is_more, WGMMA_32(c, 0), WGMMA_4(c, 8),          \
                 WGMMA_4(c, 9), WGMMA_4(c, 10))
#define WGMMA_FP8_96(types, c, a, b, is_more)                                                      \
    WGMMA_FP8_OF(96, 48, 48, 49, 50, types, a, b, is_more, WGMMA_32(c, 0), WGMMA_16(c, 8))
#define WGMMA_FP8_104(types, c, a, b, is_more)                                                     \
    WGMMA_FP8_OF(104, 52, 52, 53, 54, types, a, b, is_more, WGMMA_32(c, 0), WGMMA_16(c, 8),        \
                 WGMMA_4(c, 12))
#define WGMMA_FP8_112(types, c, a, b, is_more)                                                     \
    WGMMA_FP8_OF(112, 56, 56, 57, 58, types, a, b, is_more, WGMMA_32(c, 0), WGMMA_16(c, 8),        \
                 WGMMA_4(c, 12), WGMMA_4(c, 13))
#define WGMMA_FP8_136(types, c, a, b, is_more)                                                     \
    WGMMA_FP8_OF(136, 68, 68, 69, 70, types, a, b, is_more, WGMMA_64(c, 0), WGMMA_4(c, 16))
#define WGMMA_FP8_144(types, c, a, b, is_more)                                                     \
    WGMMA_FP8_OF(144, 72, 72, 73, 74, types, a, b, is_more, WGMMA_64(c, 0), WGMMA_4(c, 16),        \
                 WGMMA_4(c, 17))
#define WGMMA_FP8_168(types, c, a, b, is_more)                                                     \
    WGMMA_FP8_OF(168, 84, 84, 85, 86, types, a, b, is_more, WGMMA_64(c, 0), WGMMA_16(c, 16),       \
                 WGMMA_4(c, 20))
#define WGMMA_FP8_200(types, c, a, b, is_more)                                                     \
    WGMMA_FP8_OF(200, 100, 100, 101, 102, types, a, b, is_more, WGMMA_64(c, 0), WGMMA_32(c, 16),   \
                 WGMMA_4(c, 24))

#endif
