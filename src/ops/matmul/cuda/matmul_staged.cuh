// SPDX-License-Identifier: Apache-2.0
// From a warp's accumulators to c through tiles of 16 rows of 128 bytes in shared memory: 64 columns of 16 bits, or 32
// of fp32. Two tiles alternate: one is filled while the copy engine reads the other. For kernels of matmul_stages.cuh,
// which first define
//     PICKED: eights of columns that the epilogue takes out of the accumulators at a time
#ifndef TSRI_MATMUL_STAGED_CUH
#define TSRI_MATMUL_STAGED_CUH

#include "cuda/device/activation.cuh"
#include "cuda/device/mma.cuh"
#include "ops/matmul/cuda/matmul_stages.cuh"
#include "ops/matmul/cuda/matmul_wgmma_params.h"

#ifndef PICKED
#error "PICKED is not defined"
#endif

// Hides a number's origin from the compiler, so that it recomputes derived values instead of keeping them in registers.
DEVICE int forgotten(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

// ---- In registers -------------------------------------------------------------------------------

#define EACH_VALUE(i) _Pragma("unroll") for (int i = 0; i < 4 * PICKED; i++)

// Copies number `number` of PICKED eights of accumulators, times alpha plus the column's addend; `number` is not a
// constant. Each case has a different instruction that the compiler cannot see through. Otherwise it would select each
// accumulator from all of them, or keep all in memory.
#define PICK(n)                                                                                    \
    EACH_VALUE(i)                                                                                  \
    asm volatile("fma.rn.f32 %0, %1, %2, %3; // " #n                                               \
                 : "=f"(v[i / 4][i % 4])                                                           \
                 : "f"(acc[(n)*PICKED / EIGHTS][(n)*PICKED % EIGHTS + i / 4][i % 4]), "f"(alpha),  \
                   "f"(add[i / 4][i % 2]))
#define PICK_CASE(n)                                                                               \
    case n:                                                                                        \
        if (n < PICKS - 1) {                                                                       \
            PICK(n % PICKS);                                                                       \
            break;                                                                                 \
        }
DEVICE void pick(float v[PICKED][4], float acc[TILES_M][EIGHTS][4], int number, float alpha,
                 float (*add)[2]) {
    enum { PICKS = TILES_M * EIGHTS / PICKED };
    static_assert(PICKS <= 8, "there is no case for each");
    switch (number) {
        PICK_CASE(0)
        PICK_CASE(1)
        PICK_CASE(2)
        PICK_CASE(3)
        PICK_CASE(4)
        PICK_CASE(5)
        PICK_CASE(6)
    default: PICK(PICKS - 1);
    }
}

// What a bias adds to a lane's columns in PICKED eights: two of each, from `col` on. at: of the group's bias.
DEVICE void load_bias(float add[PICKED][2], const void *bias, long long at, int is_f32, int col,
                      int n) {
#pragma unroll
    for (int i = 0; i < 2 * PICKED; i++) {
        const int here = col + i / 2 * 8 + i % 2;
        if (here < n) add[i / 2][i % 2] = load_either(bias, at + here, is_f32);
    }
}

#define ACTIVATE_ALL(of, kind)                                                                     \
    case kind:                                                                                     \
        EACH_VALUE(i) v[i / 4][i % 4] = of(kind, v[i / 4][i % 4]);                                 \
        break
#define ACTIVATE_KINDS(of)                                                                         \
    switch (kind) {                                                                                \
        ACTIVATE_ALL(of, ACTIVATION_GELU);                                                         \
        ACTIVATE_ALL(of, ACTIVATION_GELU_TANH);                                                    \
        ACTIVATE_ALL(of, ACTIVATION_SILU);                                                         \
        ACTIVATE_ALL(of, ACTIVATION_RELU);                                                         \
        ACTIVATE_ALL(of, ACTIVATION_RELU2);                                                        \
        ACTIVATE_ALL(of, ACTIVATION_SWIGLU_CLAMPED);                                               \
    }
DEVICE void activate_all(float v[PICKED][4], int kind, int is_f32) {
#if DTYPE == DTYPE_F32
    ACTIVATE_KINDS(activate);
#else
    if (is_f32) {
        ACTIVATE_KINDS(activate);
    } else {
        ACTIVATE_KINDS(activate_rounded);
    }
#endif
}

DEVICE void gate_all(float v[PICKED][4], float up[PICKED][4], int kind) {
    if (kind == ACTIVATION_SWIGLU_CLAMPED) {
        EACH_VALUE(i) up[i / 4][i % 4] = gate(ACTIVATION_SWIGLU_CLAMPED, up[i / 4][i % 4]);
    }
    EACH_VALUE(i) v[i / 4][i % 4] *= up[i / 4][i % 4];
}

// ---- To a tile ----------------------------------------------------------------------------------

// Stages 16 columns in 16 bits; to: address of matmul_wgmma_piece(lane % 16, their first piece + lane / 16).
DEVICE void stage_halves(unsigned to, float (*v)[4]) {
    unsigned x[4];
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = pair_of_floats(v[j / 2][j % 2 * 2], v[j / 2][j % 2 * 2 + 1]);
    store_matrices(to, x);
}

// Stages 32 columns of floats.
DEVICE void stage_floats(unsigned tile, float (*v)[4], int lane) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int row = lane / 4 + i % 2 * 8, piece = i / 2 * 2 + lane % 4 / 2;
        const float *x = v[i / 2] + i % 2 * 2;
        store_pair(tile + matmul_wgmma_piece(row, piece) + lane % 2 * 8, x[0], x[1]);
    }
}

// ---- To c ---------------------------------------------------------------------------------------

// Stores the tile by the copy engine, at `at` of its map.
DEVICE void send_tile(unsigned tile, const struct tensor_map *c, const int at[5],
                      int is_accumulating) {
    tma_see_shared();
    __syncwarp();
    if (!elect_one()) return;
    if (is_accumulating)
        tma_add(tile, c, at);
    else
        tma_store(tile, c, at);
}

#endif
