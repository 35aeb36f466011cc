// SPDX-License-Identifier: Apache-2.0
// Products of matmul_split_sm90.cu with 48, 72, 96 and 144 columns of wgmma, which wgmma.cuh does not have; the
// arguments are the same.
#ifndef TSRI_MATMUL_SPLIT_PRODUCTS_CUH
#define TSRI_MATMUL_SPLIT_PRODUCTS_CUH

#include "cuda/device/wgmma.cuh"

#define SPLIT_LIST_0_TO_23                                                                         \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23"
#define SPLIT_LIST_24_TO_35 "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35"
#define SPLIT_LIST_36_TO_47 "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SPLIT_LIST_64_TO_71 "%64, %65, %66, %67, %68, %69, %70, %71"

#define SPLIT_TILES_48(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %26, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32." MMA_TYPES " {" SPLIT_LIST_0_TO_23   \
                 "}, %24, %25, more, 1, 1, %27, %28;\n}\n"                                         \
                 : WGMMA_16(c, 0), WGMMA_4(c, 4), WGMMA_4(c, 5)                                    \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define SPLIT_TILES_72(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %38, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n72k16.f32." MMA_TYPES " {" SPLIT_LIST_0_TO_23   \
                 ", " SPLIT_LIST_24_TO_35 "}, %36, %37, more, 1, 1, %39, %40;\n}\n"                \
                 : WGMMA_32(c, 0), WGMMA_4(c, 8)                                                   \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define SPLIT_TILES_96(c, a, b, is_more, a_is_mn, b_is_mn)                                         \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %50, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32." MMA_TYPES " {" SPLIT_LIST_0_TO_23   \
                 ", " SPLIT_LIST_24_TO_35 ", " SPLIT_LIST_36_TO_47                                 \
                 "}, %48, %49, more, 1, 1, %51, %52;\n}\n"                                         \
                 : WGMMA_32(c, 0), WGMMA_16(c, 8)                                                  \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")
#define SPLIT_TILES_144(c, a, b, is_more, a_is_mn, b_is_mn)                                        \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %74, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n144k16.f32." MMA_TYPES " {" WGMMA_LIST_0_TO_63  \
                 ", " SPLIT_LIST_64_TO_71 "}, %72, %73, more, 1, 1, %75, %76;\n}\n"                \
                 : WGMMA_64(c, 0), WGMMA_4(c, 16), WGMMA_4(c, 17)                                  \
                 : "l"(a), "l"(b), "r"(is_more), "n"(a_is_mn), "n"(b_is_mn)                        \
                 : "memory")

#endif
