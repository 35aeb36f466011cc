// SPDX-License-Identifier: Apache-2.0
// Primitives for the threads of a block: accesses to shared memory by 32-bit address (ld.shared and st.shared; such an
// address takes one register instead of two), and barriers for part of a block (bar.sync and bar.arrive; numbers 1 to
// 15, because 0 is __syncthreads').
#ifndef TSRI_DEVICE_BLOCK_CUH
#define TSRI_DEVICE_BLOCK_CUH

#include "cuda/device/numbers.cuh"

// ---- Shared memory; an address is a multiple of the size read -----------------------------------------

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
// Loads 16 bytes.
DEVICE uint4 load_piece(unsigned shared) {
    uint4 piece;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                 : "r"(shared)
                 : "memory");
    return piece;
}
// Stores the same word four times.
DEVICE void fill_piece(unsigned shared, unsigned word) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(shared), "r"(word) : "memory");
}

// ---- Barriers of whole warps: `threads`, a multiple of 32, arrive at each ------------------------------

// Waits for the other threads; then their writes are visible.
DEVICE void meet(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Arrives without waiting.
DEVICE void let_pass(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#endif
