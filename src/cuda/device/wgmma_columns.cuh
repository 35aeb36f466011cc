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

#define WGMMA_TILES_48(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %26, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32." MMA_TYPES " {" WGMMA_REGS_24        \
                 "}, %24, %25, more, 1, 1, %27, %28;\n}\n"                                         \
                 : WGMMA_16(c, 0), WGMMA_4(c, 4), WGMMA_4(c, 5)                                    \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_72(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %38, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n72k16.f32." MMA_TYPES " {" WGMMA_REGS_36        \
                 "}, %36, %37, more, 1, 1, %39, %40;\n}\n"                                         \
                 : WGMMA_32(c, 0), WGMMA_4(c, 8)                                                   \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_80(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %42, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n80k16.f32." MMA_TYPES " {" WGMMA_REGS_40        \
                 "}, %40, %41, more, 1, 1, %43, %44;\n}\n"                                         \
                 : WGMMA_32(c, 0), WGMMA_4(c, 8), WGMMA_4(c, 9)                                    \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_88(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %46, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n88k16.f32." MMA_TYPES " {" WGMMA_REGS_44        \
                 "}, %44, %45, more, 1, 1, %47, %48;\n}\n"                                         \
                 : WGMMA_32(c, 0), WGMMA_4(c, 8), WGMMA_4(c, 9), WGMMA_4(c, 10)                    \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_104(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %54, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n104k16.f32." MMA_TYPES " {" WGMMA_REGS_52       \
                 "}, %52, %53, more, 1, 1, %55, %56;\n}\n"                                         \
                 : WGMMA_32(c, 0), WGMMA_16(c, 8), WGMMA_4(c, 12)                                  \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_112(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %58, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n112k16.f32." MMA_TYPES " {" WGMMA_REGS_56       \
                 "}, %56, %57, more, 1, 1, %59, %60;\n}\n"                                         \
                 : WGMMA_32(c, 0), WGMMA_16(c, 8), WGMMA_4(c, 12), WGMMA_4(c, 13)                  \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_120(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %62, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n120k16.f32." MMA_TYPES " {" WGMMA_REGS_60       \
                 "}, %60, %61, more, 1, 1, %63, %64;\n}\n"                                         \
                 : WGMMA_32(c, 0), WGMMA_16(c, 8), WGMMA_4(c, 12), WGMMA_4(c, 13), WGMMA_4(c, 14)  \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_136(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %70, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n136k16.f32." MMA_TYPES " {" WGMMA_REGS_68       \
                 "}, %68, %69, more, 1, 1, %71, %72;\n}\n"                                         \
                 : WGMMA_64(c, 0), WGMMA_4(c, 16)                                                  \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_144(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %74, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n144k16.f32." MMA_TYPES " {" WGMMA_REGS_72       \
                 "}, %72, %73, more, 1, 1, %75, %76;\n}\n"                                         \
                 : WGMMA_64(c, 0), WGMMA_4(c, 16), WGMMA_4(c, 17)                                  \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_152(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %78, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n152k16.f32." MMA_TYPES " {" WGMMA_REGS_76       \
                 "}, %76, %77, more, 1, 1, %79, %80;\n}\n"                                         \
                 : WGMMA_64(c, 0), WGMMA_4(c, 16), WGMMA_4(c, 17), WGMMA_4(c, 18)                  \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_168(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %86, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n168k16.f32." MMA_TYPES " {" WGMMA_REGS_84       \
                 "}, %84, %85, more, 1, 1, %87, %88;\n}\n"                                         \
                 : WGMMA_64(c, 0), WGMMA_16(c, 16), WGMMA_4(c, 20)                                 \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_200(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %102, 0;\n"                               \
                 "wgmma.mma_async.sync.aligned.m64n200k16.f32." MMA_TYPES " {" WGMMA_REGS_100      \
                 "}, %100, %101, more, 1, 1, %103, %104;\n}\n"                                     \
                 : WGMMA_64(c, 0), WGMMA_32(c, 16), WGMMA_4(c, 24)                                 \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define WGMMA_TILES_240(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %122, 0;\n"                               \
                 "wgmma.mma_async.sync.aligned.m64n240k16.f32." MMA_TYPES " {" WGMMA_REGS_120      \
                 "}, %120, %121, more, 1, 1, %123, %124;\n}\n"                                     \
                 : WGMMA_64(c, 0), WGMMA_32(c, 16), WGMMA_16(c, 24), WGMMA_4(c, 28),               \
                   WGMMA_4(c, 29)                                                                  \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")

// ---- fp8 ----------------------------------------------------------------------------------------

#define WGMMA_REGS_32 WGMMA_REGS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_FP8_64(types, c, a, b, is_more)                                                      \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %34, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32." types " {" WGMMA_REGS_32            \
                 "}, %32, %33, more, 1, 1;\n}\n"                                                   \
                 : WGMMA_32(c, 0)                                                                  \
                 : "l"(a), "l"(b), "r"(is_more)                                                    \
                 : "memory")
#define WGMMA_FP8_88(types, c, a, b, is_more)                                                      \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %46, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n88k32.f32." types " {" WGMMA_REGS_44            \
                 "}, %44, %45, more, 1, 1;\n}\n"                                                   \
                 : WGMMA_32(c, 0), WGMMA_4(c, 8), WGMMA_4(c, 9), WGMMA_4(c, 10)                    \
                 : "l"(a), "l"(b), "r"(is_more)                                                    \
                 : "memory")
#define WGMMA_FP8_104(types, c, a, b, is_more)                                                     \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %54, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n104k32.f32." types " {" WGMMA_REGS_52           \
                 "}, %52, %53, more, 1, 1;\n}\n"                                                   \
                 : WGMMA_32(c, 0), WGMMA_16(c, 8), WGMMA_4(c, 12)                                  \
                 : "l"(a), "l"(b), "r"(is_more)                                                    \
                 : "memory")
#define WGMMA_FP8_112(types, c, a, b, is_more)                                                     \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %58, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n112k32.f32." types " {" WGMMA_REGS_56           \
                 "}, %56, %57, more, 1, 1;\n}\n"                                                   \
                 : WGMMA_32(c, 0), WGMMA_16(c, 8), WGMMA_4(c, 12), WGMMA_4(c, 13)                  \
                 : "l"(a), "l"(b), "r"(is_more)                                                    \
                 : "memory")
#define WGMMA_FP8_136(types, c, a, b, is_more)                                                     \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %70, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n136k32.f32." types " {" WGMMA_REGS_68           \
                 "}, %68, %69, more, 1, 1;\n}\n"                                                   \
                 : WGMMA_64(c, 0), WGMMA_4(c, 16)                                                  \
                 : "l"(a), "l"(b), "r"(is_more)                                                    \
                 : "memory")
#define WGMMA_FP8_168(types, c, a, b, is_more)                                                     \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %86, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n168k32.f32." types " {" WGMMA_REGS_84           \
                 "}, %84, %85, more, 1, 1;\n}\n"                                                   \
                 : WGMMA_64(c, 0), WGMMA_16(c, 16), WGMMA_4(c, 20)                                 \
                 : "l"(a), "l"(b), "r"(is_more)                                                    \
                 : "memory")
#define WGMMA_FP8_200(types, c, a, b, is_more)                                                     \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %102, 0;\n"                               \
                 "wgmma.mma_async.sync.aligned.m64n200k32.f32." types " {" WGMMA_REGS_100          \
                 "}, %100, %101, more, 1, 1;\n}\n"                                                 \
                 : WGMMA_64(c, 0), WGMMA_32(c, 16), WGMMA_4(c, 24)                                 \
                 : "l"(a), "l"(b), "r"(is_more)                                                    \
                 : "memory")

#endif
