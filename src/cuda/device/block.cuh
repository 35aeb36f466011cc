// SPDX-License-Identifier: Apache-2.0
// What threads of a block have in common: numbers in shared memory by their address (ld.shared and st.shared, for which an
// address takes one register instead of two), and barriers of a part of the block (bar.sync and bar.arrive; 1 to 15, as 0 is
// __syncthreads').
#ifndef TSRI_DEVICE_BLOCK_CUH
#define TSRI_DEVICE_BLOCK_CUH

#include "cuda/device/numbers.cuh"

// ---- Shared memory; addresses are multiples of what is read ------------------------------------------

DEVICE float load_float(unsigned shared) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(shared) : "memory");
    return x;
}
DEVICE void store_float(unsigned shared, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared), "f"(x) : "memory");
}
DEVICE void load_two_floats(float x[2], unsigned shared) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(x[0]), "=f"(x[1])
                 : "r"(shared)
                 : "memory");
}
// 16 bytes.
DEVICE uint4 load_piece(unsigned shared) {
    uint4 piece;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                 : "r"(shared)
                 : "memory");
    return piece;
}
// The same word four times.
DEVICE void fill_piece(unsigned shared, unsigned word) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(shared), "r"(word) : "memory");
}

// ---- Barriers of whole warps: `threads`, a multiple of 32, come to each -------------------------------

// Waits for the others, and sees what they wrote.
DEVICE void meet(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Is counted as come, and waits for nobody.
DEVICE void let_pass(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#endif
