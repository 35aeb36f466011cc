// SPDX-License-Identifier: Apache-2.0
// What backward's kernels for Hopper share. A block owns rows, 64 for each of two warpgroups that multiply, and tiles of other
// rows pass by. Both lie in slabs of 64 columns, as wgmma needs them. Scores have the owned rows as rows. So a thread's scores,
// narrowed, are an operand of the product that adds to its gradients. The includer defines
//     OWNED_SLAB, PASSING_SLAB (bytes), SUMS (groups of 8 columns of a gradient), PIECES, memory
#ifndef TSRI_ATTENTION_BACKWARD_FLASH3_CUH
#define TSRI_ATTENTION_BACKWARD_FLASH3_CUH

#include "ops/attention/cuda/attention_bias.cuh"

#define WORKERS 256 // threads that multiply

// Reads threadIdx.x again: values derived from it early would take registers through the loops before.
DEVICE unsigned thread_now(void) {
    unsigned thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// The same for values derived from x.
DEVICE unsigned anew(unsigned x) {
    asm volatile("" : "+r"(x));
    return x;
}

DEVICE void workers_meet(void) { asm volatile("bar.sync 1, %0;" ::"n"(WORKERS) : "memory"); }
// Whether any thread that multiplies has x != 0. These threads meet here too.
DEVICE int any_worker(unsigned x) {
    int any;
    asm volatile("{\n.reg .pred mine, all;\nsetp.ne.u32 mine, %1, 0;\n"
                 "bar.red.or.pred all, 1, %2, mine;\nselp.s32 %0, 1, 0, all;\n}"
                 : "=r"(any)
                 : "r"(x), "n"(WORKERS)
                 : "memory");
    return any;
}

DEVICE void clear(float (*c)[4], int groups) {
#pragma unroll
    for (int n = 0; n < groups; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
}

// Loads a tile from row `row` of a head on, 64 columns a slab.
DEVICE void load_rows(unsigned tile, const struct tensor_map *map, int slabs, int slab_bytes,
                      long long row, int head, int batch, unsigned barrier, int is_elected) {
#pragma unroll
    for (int i = 0; i < slabs; i++) {
        const int at[5] = {i * 64, (int)row, head, batch, 0};
        if (is_elected) tma_load(tile + i * slab_bytes, map, at, barrier);
    }
}

// ---- Numbers that are not finite ----------------------------------------------------------------

// A tile is slabs of 64 columns. The piece of 16 bytes at place n of row r has the number (slab * rows + r) * 8 + n.
#if DTYPE == DTYPE_BF16
#define EXPONENTS 0x7f807f80u
#define ONES 0x00800080u
#else
#define EXPONENTS 0x7c007c00u
#define ONES 0x04000400u
#endif
// The highest bit of each half: whether its number is not finite.
DEVICE unsigned nonfinite_halves(unsigned pair) {
    return ((pair & EXPONENTS) + ONES) & 0x80008000u;
}
DEVICE unsigned is_nonfinite_piece(uint4 x) {
    return nonfinite_halves(x.x) | nonfinite_halves(x.y) | nonfinite_halves(x.z) |
           nonfinite_halves(x.w);
}

DEVICE unsigned search_rows(const unsigned char *tile, int bytes, int thread) {
    unsigned found = 0;
#pragma unroll 4
    for (int n = thread; n < bytes / 16; n += WORKERS)
        found |= is_nonfinite_piece(((const uint4 *)tile)[n]);
    return found;
}

// Sets such pieces to 0, and marks[row] to NaN.
DEVICE void clean_rows(unsigned char *tile, int bytes, int rows, float *marks, int thread) {
#pragma unroll 1
    for (int n = thread; n < bytes / 16; n += WORKERS)
        if (is_nonfinite_piece(((const uint4 *)tile)[n])) {
            ((uint4 *)tile)[n] = make_uint4(0, 0, 0, 0);
            marks[n / 8 % rows] = NOT_A_NUMBER;
        }
}

// ---- Scores -----------------------------------------------------------------------------------

// Turns scores of 64 queries into weights.
DEVICE void weigh(float (*s)[4], unsigned lse, float scale) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float row[2];
        load_two_floats(row, lse + n * 32);
#pragma unroll
        for (int c = 0; c < 4; c++) s[n][c] = exp2_fast(s[n][c] * scale - row[c % 2] * LOG2_E);
    }
}
// The same for a quarter of them, which become weights at this point of the code.
DEVICE void weigh_quarter(float (*s)[4], unsigned lse, float scale, int quarter) {
#pragma unroll
    for (int n = 2 * quarter; n < 2 * quarter + 2; n++) {
        float row[2];
        load_two_floats(row, lse + n * 32);
#pragma unroll
        for (int c = 0; c < 4; c++) s[n][c] = exp2_fast(s[n][c] * scale - row[c % 2] * LOG2_E);
        hold4(s[n]);
    }
}

// Turns gradients of weights (times keep_scale) into gradients of scores, without softmax_scale.
DEVICE void differentiate(float (*g)[4], const float (*weights)[4], unsigned delta,
                          float keep_scale) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float row[2];
        load_two_floats(row, delta + n * 32);
#pragma unroll
        for (int c = 0; c < 4; c++) g[n][c] = weights[n][c] * (g[n][c] * keep_scale - row[c % 2]);
    }
}

// Packs into a operands of 16 queries each.
DEVICE void pack(unsigned (*a)[4], const float (*c)[4]) {
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[n][i] = pair_of_floats(c[2 * n + i / 2][i % 2 * 2], c[2 * n + i / 2][i % 2 * 2 + 1]);
}

#if MASKS_BY_RUNS
// A bit for each element of a thread's 8 groups of 8 columns: bit 8 c + n for element c of group n.
#define IS_SEEN(seen, n, c) ((seen) >> (8 * (c) + (n)) & 1)
// Masks for elements 2 i and 2 i + 1 of group n, as halves: their bits become the signs of bytes, which fill halves.
DEVICE unsigned seen_halves(unsigned seen, int n, int i) {
    unsigned halves;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(halves) : "r"(seen << (7 - n)), "r"(i ? 0xbbaa : 0x9988));
    return halves;
}

// Sets operands of pairs that do not see each other to 0, whatever they were: for `steps` steps of 16 columns, or for 64 columns.
DEVICE void mask_steps(unsigned (*a)[4], unsigned seen, int steps) {
#pragma unroll
    for (int n = 0; n < steps; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) a[n][i] &= seen_halves(seen, 2 * n + i / 2, i % 2);
}

DEVICE void mask(unsigned (*a)[4], unsigned seen) { mask_steps(a, seen, 4); }

// Bits n and 8 + n for this thread's columns 8 n and 8 n + 1, if they are before `end`.
DEVICE unsigned columns_before(int end) {
    end = end < 0 ? 0 : end > 64 ? 64 : end;
    return ((1u << ((unsigned)end + 7) / 8) - 1) | ((1u << ((unsigned)end + 6) / 8) - 1) << 8;
}

// The bits of a thread's 8 x 8 elements whose pairs see each other: columns [begin, end) in its first row, 8 more in its second,
// none from `left` on. has_first, has_second: whether these rows exist.
DEVICE unsigned see(int begin, int end, int left, int has_first, int has_second) {
    unsigned seen = 0;
#pragma unroll ROWS_AT_ONCE
    for (int half = 0; half < 2; half++, begin += 8, end += 8)
        if (half ? has_second : has_first)
            seen |= (columns_before(end < left ? end : left) & ~columns_before(begin)) << half * 16;
    return seen;
}

#else
// Sets operands of pairs that do not see each other to 0, whatever they were: for `steps` steps of 16 columns, or for 64 columns.
// Bit 4 n + c of seen is element c of the accumulator's group n.
DEVICE void mask_steps(unsigned (*a)[4], unsigned seen, int steps) {
#pragma unroll
    for (int n = 0; n < steps; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unsigned two = seen >> ((2 * n + i / 2) * 4 + i % 2 * 2);
            a[n][i] &= (two & 1 ? 0xffffu : 0u) | (two & 2 ? 0xffff0000u : 0u);
        }
}

DEVICE void mask(unsigned (*a)[4], unsigned seen) { mask_steps(a, seen, 4); }

// The bits of a thread's 8 x 8 elements c whose pairs see each other: columns [begin, end) in its first row, 8 more in its second,
// none from `left` on. has_first, has_second: whether these rows exist.
DEVICE unsigned see(int begin, int end, int left, int has_first, int has_second) {
    unsigned seen = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int last = end + half * 8 < left ? end + half * 8 : left;
        if (half ? !has_second : !has_first) continue;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                if (n * 8 + c >= begin + half * 8 && n * 8 + c < last)
                    seen |= 1u << (n * 4 + half * 2 + c);
    }
    return seen;
}
#endif

// ---- Sums -------------------------------------------------------------------------------------

// Stores this warp's 16 rows of an accumulator: rows [first, end) of a head whose row 0 is at `at`. They go through the warp's own
// rows of a tile that is no longer read. Rows from `seen` on are 0.
DEVICE void store_sums(const float (*sums)[4], float scale, unsigned tile, void *data, long long at,
                       long long stride, int first, int seen, int end, int dims) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < SUMS; n += 2) {
        unsigned x[4];
        int piece = n + lane / 16;
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = pair_of_floats(sums[n + i / 2][i % 2 * 2] * scale,
                                  sums[n + i / 2][i % 2 * 2 + 1] * scale);
        store_matrices(
            tile + piece / 8 * OWNED_SLAB + lane % 16 * 128 + ((piece % 8 ^ lane % 8) * 16), x);
    }
    __syncwarp();
#pragma unroll 1
    for (int n = lane; n < 16 * PIECES; n += 32) {
        const int row = n / PIECES, piece = n % PIECES;
        if (first + row >= end || piece * 8 >= dims) continue;
        uint4 x =
            *(const uint4 *)(memory + (tile - shared_address(memory)) + piece / 8 * OWNED_SLAB +
                             row * 128 + ((piece % 8 ^ row % 8) * 16));
        if (first + row >= seen) x = make_uint4(0, 0, 0, 0);
        unsigned short *out = (unsigned short *)data + at + (first + row) * stride + piece * 8;
        if (piece * 8 + 8 <= dims) {
            *(uint4 *)out = x;
        } else {
            const unsigned words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int c = 0; c < 8; c++)
                if (piece * 8 + c < dims) out[c] = (unsigned short)(words[c / 2] >> c % 2 * 16);
        }
    }
}

#endif
