// SPDX-License-Identifier: Apache-2.0
// Tensor-core instructions from sm_80 on, for 16-bit DTYPEs: loads of fragments from shared memory (ldmatrix), and a
// warp's product (mma.sync, m16n8k16). All lanes of the warp must take part.
//
// With lane = 4 g + t, a fragment of a (16 x 16) holds rows g and g + 8, columns 2 t, 2 t + 1 and those + 8: a[0] = (g,
// 2t), a[1] = (g + 8, 2t), a[2] = (g, 2t + 8), a[3] = (g + 8, 2t + 8), each with its right neighbour in the high half.
// b (16 x 8): b0 = rows 2t, 2t + 1 of column g, b1 = those + 8. c (16 x 8): c[0], c[1] = (g, 2t), (g, 2t + 1); c[2],
// c[3] = the same in row g + 8. So two adjacent c, narrowed, form one a.
#ifndef TSRI_DEVICE_MMA_CUH
#define TSRI_DEVICE_MMA_CUH

#include "cuda/device/copy_async.cuh"

// ---- Fragments --------------------------------------------------------------------------------

// Loads four 8 x 8 matrices of 16-bit elements: lane i gives the address of row i % 8 of matrix i / 8.
DEVICE void load_matrices(unsigned x[4], unsigned shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared)
                 : "memory");
}
// The same, with each matrix transposed.
DEVICE void load_matrices_transposed(unsigned x[4], unsigned shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared)
                 : "memory");
}

// c += a b, in fp32.
#if DTYPE == DTYPE_BF16
#define MMA_TYPES "bf16.bf16"
#else
#define MMA_TYPES "f16.f16"
#endif
#if DTYPE != DTYPE_F32
DEVICE void mma(float c[4], const unsigned a[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPES
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// ---- Layout in shared memory ------------------------------------------------------------------

// Byte offset of 16-byte piece `piece` of row `row`, for rows of `pieces` pieces (a power of two, at least 4). The row
// number permutes the pieces of a row, so that the same piece of eight rows lies in different banks.
DEVICE unsigned swizzled(int row, int piece, int pieces) {
    int turn = pieces >= 8 ? row & 7 : (row >> 1) & 3;
    return (unsigned)((row * pieces + (piece ^ turn)) * 16);
}

#endif
