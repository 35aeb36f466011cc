// SPDX-License-Identifier: Apache-2.0
// Products of fp32 numbers on tensor cores. A number is the sum of two numbers of 11 bits (big + small). A product is
// the sum of three products (big big, big small, small big), accumulated in fp32.
//
// big is x rounded to 11 bits. x - big is exact, at most 2^12 units in the last place of x, and small is its upper 11
// bits. So big + small is off by at most one unit, 2^-23 of x. The omitted product, small small, is at most 2^-22 of
// the result.
#ifndef TSRI_DEVICE_TF32_CUH
#define TSRI_DEVICE_TF32_CUH

#include "cuda/device/numbers.cuh"

// The two parts of a number, in the format of tensor-core operands.
struct tf32_pair {
    unsigned big, small;
};

// Tensor cores ignore the low 13 bits of an operand, so small is not rounded. If x is not finite, small is NaN.
DEVICE struct tf32_pair split_tf32(float x) {
    struct tf32_pair pair;
#if __CUDA_ARCH__ >= 900
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(pair.big) : "f"(x));
#else
    pair.big = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
#endif
    pair.small = __float_as_uint(x - __uint_as_float(pair.big));
    return pair;
}

// c += a b, m16n8k8. With lane = 4 g + t, a (16 x 8) is (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4), and b (8 x 8) is
// rows t and t + 4 of column g; c as with m16n8k16 (mma.cuh).
DEVICE void mma_tf32(float c[4], const unsigned a[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The operand a of m16n8k8, split.
struct tf32_operand {
    unsigned big[4], small[4];
};

DEVICE void split_operand(struct tf32_operand *a, float x0, float x1, float x2, float x3) {
    const float x[4] = {x0, x1, x2, x3};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        struct tf32_pair pair = split_tf32(x[i]);
        a->big[i] = pair.big;
        a->small[i] = pair.small;
    }
}

// big + small += a b, in three products; big and small may be the same sum.
DEVICE void mma_split(float big[4], float small[4], const struct tf32_operand *a,
                      struct tf32_pair b0, struct tf32_pair b1) {
    mma_tf32(small, a->small, b0.big, b1.big);
    mma_tf32(small, a->big, b0.small, b1.small);
    mma_tf32(big, a->big, b0.big, b1.big);
}

// Four consecutive numbers from shared memory.
DEVICE void load_four(float x[4], unsigned shared) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(shared)
                 : "memory");
}
DEVICE void load_four_split(struct tf32_pair x[4], unsigned shared) {
    float four[4];
    load_four(four, shared);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = split_tf32(four[i]);
}

// The operands a of two products with 8 columns each, from four numbers of row g and four of row g + 8. The order of
// columns is free as long as the other operand has the same order: lane t of four uses columns 0 and 1 (then 2 and 3)
// of its four as columns t and t + 4.
DEVICE void load_rows_split(struct tf32_operand a[2], unsigned shared, int bytes_of_8_rows) {
    float x[2][4];
    load_four(x[0], shared);
    load_four(x[1], shared + bytes_of_8_rows);
    split_operand(&a[0], x[0][0], x[1][0], x[0][1], x[1][1]);
    split_operand(&a[1], x[0][2], x[1][2], x[0][3], x[1][3]);
}

#endif
