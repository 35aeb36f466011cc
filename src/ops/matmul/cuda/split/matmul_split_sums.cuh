// SPDX-License-Identifier: Apache-2.0
// From the sums of a part of k to c, for matmul_split_sm90.cu, which first defines ROWS, EIGHTS and STRIDE.
//
// Each block that shares a tile finishes some eights of the tile's rows. It sends the eights that others finish to them
// directly from registers, in the same layout, so every thread finds what its counterparts in the other blocks sent.
// Nothing is transposed or fenced, and only the bytes themselves are waited for. A sender may end before they arrive,
// because it no longer needs to do anything; the receiver waits for all.
#ifndef TSRI_MATMUL_SPLIT_SUMS_CUH
#define TSRI_MATMUL_SPLIT_SUMS_CUH

#include "cuda/device/cluster.cuh"
#include "cuda/device/tma.cuh"
#include "ops/matmul/cuda/matmul_columns.cuh"
#include "ops/matmul/cuda/split/matmul_split_params.h"

enum { OF_EIGHT = MATMUL_SPLIT_EIGHT };

// The eights of the tile's rows that the block finishes. They end up in acc[0] and following.
struct eights {
    int first, count;
};

// Sends 16 bytes to another block of the cluster; they count at that block's barrier.
DEVICE void cluster_send(unsigned there, const float x[4], unsigned barrier_there) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                 "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
                 "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier_there)
                 : "memory");
}

// The index of part `part` among the parts that a block receives, or sends.
DEVICE int other(int part, int mine) { return part < mine ? part : part - 1; }

// num_splits is a constant, so that every accumulator has a register known to the compiler. at, arrived: addresses of
// the received data and of its barrier.
DEVICE void exchange_parts(float acc[EIGHTS][4], int part, unsigned at, unsigned arrived, int group,
                           const int num_splits) {
    const int most = matmul_split_most(EIGHTS, num_splits);
    at += (unsigned)(group * (num_splits - 1) * most * OF_EIGHT) + threadIdx.x % 128 * 16;
#pragma unroll
    for (int q = 0; q < num_splits; q++) {
        const int first = EIGHTS * q / num_splits, next = EIGHTS * (q + 1) / num_splits;
        if (q == part) continue;
        const unsigned there = cluster_address(at + other(part, q) * (most * OF_EIGHT), q);
        const unsigned barrier = cluster_address(arrived, q);
#pragma unroll
        for (int i = 0; i < most; i++)
            if (first + i < next) cluster_send(there + i * OF_EIGHT, acc[first + i], barrier);
    }
    barrier_wait(arrived, 0);
    const unsigned char *mine = shared + (at - shared_address(shared));
#pragma unroll
    for (int q = 0; q < num_splits; q++) {
        const int first = EIGHTS * q / num_splits, next = EIGHTS * (q + 1) / num_splits;
        if (q != part) continue;
#pragma unroll
        for (int i = 0; i < most; i++) {
            if (first + i >= next) continue;
            float sum[4] = {0, 0, 0, 0};
#pragma unroll
            for (int from = 0; from < num_splits; from++) { // in the order of k
                const int slot = from < q ? from : from - 1;
                float x[4] = {acc[first + i][0], acc[first + i][1], acc[first + i][2],
                              acc[first + i][3]};
                if (from != q) {
                    const float4 y = *(const float4 *)(mine + (slot * most + i) * OF_EIGHT);
                    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
                }
#pragma unroll
                for (int j = 0; j < 4; j++) sum[j] += x[j];
            }
#pragma unroll
            for (int j = 0; j < 4; j++) acc[i][j] = sum[j];
        }
    }
}

// ---- To c -----------------------------------------------------------------------------------------

// Stores numbers times alpha in 16 bits; a warp has 16 columns of c and transposes them itself.
DEVICE void store_halves(const struct matmul_split_params *w, const long long index[3], int row,
                         int col, float acc[EIGHTS][4], float alpha, int count, int warp,
                         int lane) {
    const struct matmul_params *p = &w->matmul;
    const int at = warp * ((EIGHTS + 1) / 2 * 512), piece = lane / 8 % 2;
    const unsigned to = shared_address(shared) + at;
#pragma unroll
    for (int i = 0; i < EIGHTS; i += 2) {
        if (i < count) { // no break, or the compiler could not unroll the loop
            const int r = i * 8 + lane / 16 * 8 + lane % 8;
            unsigned x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float *v = acc[i + j / 2 < EIGHTS ? i + j / 2 : i] + j % 2 * 2;
                x[j] = pair_of_floats(v[0] * alpha, v[1] * alpha);
            }
            store_matrices_transposed(to + matmul_split_piece(r, piece), x);
        }
    }
    __syncwarp();
    const int end = col + w->tile.cols < (int)p->n ? col + w->tile.cols : (int)p->n;
    col += warp * 16 + lane % 2 * 8;
    if (col >= end) return;
    const int left = (int)p->m - row, rows = count * 8 < left ? count * 8 : left;
    unsigned short *c = (unsigned short *)p->c.data + batch_offset(&p->c, index) + col;
#pragma unroll 4
    for (int r = lane / 2; r < rows; r += 16)
        *(uint4 *)(c + (row + r) * p->c.line) =
            *(const uint4 *)(shared + at + matmul_split_piece(r, lane % 2));
}

// Stages the block's rows of all warps' columns of c as floats: 64 columns per group.
DEVICE void stage_floats(float acc[EIGHTS][4], int count, int warp, int lane) {
    float *to = (float *)(shared + warp / 4 * matmul_split_sums(ROWS));
    to += lane % 4 * 2 * STRIDE + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < EIGHTS; i++) {
        if (i < count)
#pragma unroll
            for (int j = 0; j < 4; j++) to[(i * 8 + j % 2) * STRIDE + j / 2 * 8] = acc[i][j];
    }
}

// Applies the complete epilogue to staged floats; row: the row of c of the first of them.
DEVICE void finish_floats(const struct matmul_split_params *w, const long long index[3], int row,
                          int col, int count) {
    const struct matmul_params *p = &w->matmul;
    const int pieces = w->tile.cols / COLS; // per row
    const int left = (int)p->m - row, rows = count * 8 < left ? count * 8 : left;
    for (int i = threadIdx.x; i < rows * pieces; i += w->tile.groups * 128) {
        const int r = i / pieces, j = (i - r * pieces) * COLS;
        const float *from = (const float *)(shared + j / 64 * matmul_split_sums(ROWS));
        float v[COLS], up[COLS];
        load_cols(v, from, r * STRIDE + j % 64, 1, COLS, 1);
        from = (const float *)(shared + matmul_split_sums(ROWS));
        if (is_gated(p)) load_cols(up, from, r * STRIDE + j, 1, COLS, 1);
        finish(p, index, row + r, col + j, v, up);
    }
}

#endif
