// SPDX-License-Identifier: Apache-2.0
// The full register tile of gemm_simd.c on AVX-512, 6 x 64 floats, in assembly. Compilers put each load right before
// its products; if a hyper-thread uses half of the core's queues, the products then wait. Here elements of A are loaded
// two rows ahead and vectors of B at least one step ahead: six registers hold B in rotation, four for the current step.
// Lines of C are prefetched one at a time, because all at once would delay loads of B.
#ifndef TSRI_CPU_GEMM_AVX512_H
#define TSRI_CPU_GEMM_AVX512_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu/simd_nan.h"

#define FMA(v, x, d) "vfmadd231ps %%zmm" #v ",%%zmm" #x ",%%zmm" #d "\n"
#define LOAD(B, s, j, v) "vmovups 64*" #j "+" B##_##s ",%%zmm" #v "\n"
#define SET1(at, x) "vbroadcastss " at ",%%zmm" #x "\n"

// Addresses start with a number, because a displacement precedes them.
// Step s of B. NEAR: rows follow each other, in panels. FAR: rows are bs bytes apart.
#define NEAR_0 "0(%[b])"
#define NEAR_1 "256(%[b])"
#define NEAR_2 "512(%[b])"
#define NEAR_3 "768(%[b])"
#define NEAR_4 "1024(%[b])"
#define NEAR_TURN "add $768,%[b]\n"
#define NEAR_ONE "add $256,%[b]\n"
#define FAR_0 "0(%[b])"
#define FAR_1 "0(%[b],%[bs])"
#define FAR_2 "0(%[b],%[bs],2)"
#define FAR_3 "0(%[b3])"
#define FAR_4 "0(%[b],%[bs],4)"
#define FAR_TURN "mov %[b3],%[b]\n lea (%[b3],%[bs],2),%[b3]\n add %[bs],%[b3]\n"
#define FAR_ONE "add %[bs],%[b]\n"

// Row i of A in step s, for panels, rows and columns. `as` is the stride in bytes.
#define PANELS(s, i) "24*" #s "+4*" #i "(%[a])"
#define PANELS_TURN "add $72,%[a]\n"
#define PANELS_ONE "add $24,%[a]\n"
#define ROWS_0 "0(%[a])"
#define ROWS_1 "0(%[a],%[as])"
#define ROWS_2 "0(%[a],%[as],2)"
#define ROWS_3 "0(%[a3])"
#define ROWS_4 "0(%[a3],%[as])"
#define ROWS_5 "0(%[a3],%[as],2)"
#define ROWS(s, i) "4*" #s "+" ROWS_##i
#define ROWS_TURN "add $12,%[a]\n add $12,%[a3]\n"
#define ROWS_ONE "add $4,%[a]\n add $4,%[a3]\n"
#define COLS_0 "0(%[a])"
#define COLS_1 "0(%[a],%[as])"
#define COLS_2 "0(%[a],%[as],2)"
#define COLS_3 "0(%[a3])"
#define COLS(s, i) "4*" #i "+" COLS_##s
#define COLS_TURN                                                                                  \
    "lea (%[a3],%[as],2),%[a3]\n add %[as],%[a3]\n lea (%[a],%[as],2),%[a]\n add %[as],%[a]\n"
#define COLS_ONE "add %[as],%[a]\n"

#define ROW(x, v0, v1, v2, v3, d0, d1, d2, d3)                                                     \
    FMA(v0, x, d0) FMA(v1, x, d1) FMA(v2, x, d2) FMA(v3, x, d3)
// Step s with its four vectors of B; t is the next step. The `load` arguments refill the vectors as soon as they are
// free.
#define STEP(A, s, t, v0, v1, v2, v3, load0, load1, load2, load3)                                  \
    ROW(6, v0, v1, v2, v3, 8, 9, 10, 11)                                                           \
    SET1(A(s, 2), 6)                                                                               \
    ROW(7, v0, v1, v2, v3, 12, 13, 14, 15)                                                         \
    SET1(A(s, 3), 7)                                                                               \
    ROW(6, v0, v1, v2, v3, 16, 17, 18, 19)                                                         \
    SET1(A(s, 4), 6)                                                                               \
    ROW(7, v0, v1, v2, v3, 20, 21, 22, 23)                                                         \
    SET1(A(s, 5), 7)                                                                               \
    ROW(6, v0, v1, v2, v3, 24, 25, 26, 27)                                                         \
    SET1(A(t, 0), 6)                                                                               \
    FMA(v0, 7, 28)                                                                                 \
    load0 FMA(v1, 7, 29) load1 FMA(v2, 7, 30) load2 FMA(v3, 7, 31) load3 SET1(A(t, 1), 7)
// clang-format off
// A step that loads only its own operands.
#define LAST_STEP(A, B)                                                                               \
    LOAD(B, 0, 0, 0) LOAD(B, 0, 1, 1) LOAD(B, 0, 2, 2) LOAD(B, 0, 3, 3) SET1(A(0, 0), 6) SET1(A(0, 1), 7)      \
    ROW(6, 0, 1, 2, 3, 8, 9, 10, 11) SET1(A(0, 2), 6)                                              \
    ROW(7, 0, 1, 2, 3, 12, 13, 14, 15) SET1(A(0, 3), 7)                                            \
    ROW(6, 0, 1, 2, 3, 16, 17, 18, 19) SET1(A(0, 4), 6)                                            \
    ROW(7, 0, 1, 2, 3, 20, 21, 22, 23) SET1(A(0, 5), 7)                                            \
    ROW(6, 0, 1, 2, 3, 24, 25, 26, 27) ROW(7, 0, 1, 2, 3, 28, 29, 30, 31)

#define ZERO(d) "vpxord %%zmm" #d ",%%zmm" #d ",%%zmm" #d "\n"
#define ADD(j, d) "vaddps 64*" #j "(%[c]),%%zmm" #d ",%%zmm" #d "\n"
#define STORE(j, d) "vmovups %%zmm" #d ",64*" #j "(%[c])\n"
#define OF_ROW(F, d0, d1, d2, d3) F(0, d0) F(1, d1) F(2, d2) F(3, d3)
#define NEXT_ROW "add %[cs],%[c]\n"
#define ADD_STORE(d0, d1, d2, d3) OF_ROW(ADD, d0, d1, d2, d3) OF_ROW(STORE, d0, d1, d2, d3) NEXT_ROW
#define ONLY_STORE(d0, d1, d2, d3) OF_ROW(STORE, d0, d1, d2, d3) NEXT_ROW
// k1 and k2: lanes in which no vector holds a NaN (predicate 7: ordered), as in simd_find_nans.
#define ORDERED(d, e, k) "vcmpps $7,%%zmm" #d ",%%zmm" #e ",%%" #k "%{%%" #k "%}\n"
#define FIND_NANS(d0, d1, d2, d3) ORDERED(d0, d1, k1) ORDERED(d2, d3, k2)
#define OF_ROWS(F)                                                                                 \
    F(8, 9, 10, 11)                                                                                \
    F(12, 13, 14, 15) F(16, 17, 18, 19) F(20, 21, 22, 23) F(24, 25, 26, 27) F(28, 29, 30, 31)

// Prefetches one line of C per turn.
#define C_LINES                                                                                    \
    "dec %[lines]\n js 2f\n prefetchw (%[line])\n add $64,%[line]\n"                               \
    "test $3,%[lines]\n jnz 2f\n add %[line_skip],%[line]\n2:\n"

// Prefetches B in place, eight rows ahead.
#define ROW_OF_B                                                                                   \
    "prefetcht0 0(%[line])\n prefetcht0 64(%[line])\n"                                             \
    "prefetcht0 128(%[line])\n prefetcht0 192(%[line])\n add %[bs],%[line]\n"
#define B_LINES "lea (%[b],%[bs],8),%[line]\n" ROW_OF_B ROW_OF_B ROW_OF_B

#define TILE_AHEAD(A, B, LINES)                                                                    \
    int64_t turns = k >= 5 ? (k - 2) / 3 : 0, rest = k - 3 * turns, lines = 24,                    \
            line_skip = c_stride * 4 - 256;                                                        \
    const float *a3 = a + 3 * a_stride, *b3 = b + 3 * b_row;                                       \
    float *first = c;                                                                              \
    const char *line = (const char *)c;                                                            \
    int64_t as = a_stride * 4, bs = b_row * 4, cs = c_stride * 4;                                  \
    __asm__ volatile(                                                                              \
        OF_ROWS(ZERO_ROW) "test %[turns],%[turns]\n jz 3f\n"                                       \
        LOAD(B, 0, 0, 0) LOAD(B, 0, 1, 1) LOAD(B, 0, 2, 2) LOAD(B, 0, 3, 3)                        \
        LOAD(B, 1, 0, 4) LOAD(B, 1, 1, 5) SET1(A(0, 0), 6) SET1(A(0, 1), 7)                        \
        ".p2align 6\n1:\n" LINES                                                                   \
        STEP(A, 0, 1, 0, 1, 2, 3, LOAD(B, 1, 2, 0), LOAD(B, 1, 3, 1), LOAD(B, 2, 0, 2),            \
             LOAD(B, 2, 1, 3))                                                                     \
        STEP(A, 1, 2, 4, 5, 0, 1, LOAD(B, 2, 2, 4), LOAD(B, 2, 3, 5), LOAD(B, 3, 0, 0),            \
             LOAD(B, 3, 1, 1))                                                                     \
        STEP(A, 2, 3, 2, 3, 4, 5, LOAD(B, 3, 2, 2), LOAD(B, 3, 3, 3), LOAD(B, 4, 0, 4),            \
             LOAD(B, 4, 1, 5))                                                                     \
        A##_TURN B##_TURN "dec %[turns]\n jnz 1b\n"                                                \
        "3:\n test %[rest],%[rest]\n jz 5f\n4:\n"                                                  \
        LAST_STEP(A, B) A##_ONE B##_ONE "dec %[rest]\n jnz 4b\n"                                   \
        "5:\n cmpb $0,%[is_accumulating]\n jz 6f\n"                                                \
        OF_ROWS(ADD_STORE) "jmp 7f\n6:\n" OF_ROWS(ONLY_STORE)                                      \
        "7:\n kxnorw %%k1,%%k1,%%k1\n kxnorw %%k2,%%k2,%%k2\n" OF_ROWS(FIND_NANS)              \
        "kandw %%k1,%%k2,%%k1\n kortestw %%k1,%%k1\n sbb %[rest],%[rest]\n vzeroupper\n"           \
        : [a] "+r"(a), [a3] "+r"(a3), [b] "+r"(b), [b3] "+r"(b3), [c] "+r"(c),                     \
          [turns] "+r"(turns), [rest] "+r"(rest), [line] "+r"(line), [lines] "+r"(lines)           \
        : [as] "r"(as), [bs] "r"(bs), [cs] "m"(cs), [line_skip] "m"(line_skip),                    \
          [is_accumulating] "m"(is_accumulating)                                                   \
        : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",  \
          "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", \
          "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",         \
          "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2");                                         \
    if (rest == 0) simd_one_nan_tile(first, c_stride, 6, 64)
// clang-format on
#define ZERO_ROW(d0, d1, d2, d3) ZERO(d0) ZERO(d1) ZERO(d2) ZERO(d3)

#define FULL_TILE(name, A, B, LINES)                                                               \
    static void name(int64_t k, const float *a, int64_t a_stride, const float *b, int64_t b_row,   \
                     float *c, int64_t c_stride, int64_t tail, bool is_accumulating) {             \
        (void)tail;                                                                                \
        TILE_AHEAD(A, B, LINES);                                                                   \
    }

FULL_TILE(full_tile_rows_near, ROWS, NEAR, C_LINES)
FULL_TILE(full_tile_panels_near, PANELS, NEAR, C_LINES)
FULL_TILE(full_tile_cols_near, COLS, NEAR, "")
FULL_TILE(full_tile_rows_far, ROWS, FAR, "")
FULL_TILE(full_tile_panels_far, PANELS, FAR, C_LINES)
FULL_TILE(full_tile_cols_far, COLS, FAR, "")
FULL_TILE(full_tile_rows_fetched, ROWS, FAR, B_LINES)

#endif
