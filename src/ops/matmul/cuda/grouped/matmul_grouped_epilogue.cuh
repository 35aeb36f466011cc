// SPDX-License-Identifier: Apache-2.0
// From accumulators to c, for matmul_grouped_sm90.cu: alpha, bias, activation, gate, accumulation, in the order of
// tessera/matmul_grouped.h.
#ifndef TSRI_MATMUL_GROUPED_EPILOGUE_CUH
#define TSRI_MATMUL_GROUPED_EPILOGUE_CUH

#include "ops/matmul/cuda/grouped/matmul_grouped_tiles.cuh"

// Tiles of 16 rows of 128 bytes that each warp fills in turns while the copy engine reads the others: two, or four in the place
// of the last stage.
DEVICE int tiles_of_warp(const struct matmul_grouped_params *w) {
    return w->stages < STAGES ? 4 : 2;
}
DEVICE int staging_of_warp(const struct matmul_grouped_params *w, int warp) {
    return w->stages * STAGE_BYTES + warp * tiles_of_warp(w) * STAGED_BYTES;
}
static_assert(3 * STAGE_BYTES + WARPS * 4 * STAGED_BYTES <= FULL_AT,
              "four tiles a warp do not fit");

// Waits until the copy engine has read all but the last tiles - 1 of this warp's stores.
DEVICE void wait_for_tile(int tiles) {
    if (!elect_one()) return;
    if (tiles == 4)
        TMA_STORES_READ(3);
    else
        TMA_STORES_READ(1);
}

// Columns [32 quarter, + 32) of c in this warp's 16 rows, after the epilogue.
DEVICE void make_quarter(float v[4][4], const struct matmul_params *p, const struct place *place,
                         float alpha, float acc[TILES_M][EIGHTS][4], int quarter, int lane) {
    const int of_b = is_gated(p) ? quarter / 2 * 4 + quarter % 2 : quarter;
    float add[4][2] = {};
    const int col = place->col + quarter * 32 + lane % 4 * 2;
    if (p->bias != 0)
        load_bias(add, p->bias, place->group * p->groups.bias, p->bias_is_f32, col, (int)p->n);
    pick(v, acc, of_b, alpha, add);
    activate_all(v, p->activation, p->c_is_f32);
    if (!is_gated(p)) return;
    float up[4][4], add_up[4][2] = {};
    if (p->bias_up != 0)
        load_bias(add_up, p->bias_up, place->group * p->groups.bias_up, p->bias_up_is_f32, col,
                  (int)p->n);
    pick(up, acc, of_b + 2, alpha, add_up);
    gate_all(v, up, p->activation);
}

// Writes to a staged tile: columns of 16 bits from 32 * part on, or of fp32.
DEVICE void stage_quarter(float v[4][4], unsigned tile, int is_f32, int part, int lane) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (is_f32) {
            const int piece = i * 2 + lane % 4 / 2, at = lane % 2 * 8;
            store_pair(tile + matmul_wgmma_piece(lane / 4, piece) + at, v[i][0], v[i][1]);
            store_pair(tile + matmul_wgmma_piece(lane / 4 + 8, piece) + at, v[i][2], v[i][3]);
        } else if (i % 2 == 0) {
            stage_halves(tile + matmul_wgmma_piece(lane % 16, part * 4 + i + lane / 16), v + i);
        }
    }
}

// Stores a staged tile to c at (row, col) element by element, up to the group's last row.
DEVICE void store_elements(const struct matmul_params *p, const struct place *place, int matrix,
                           unsigned staging, int row, int col, int lane) {
    const unsigned char *tile = shared + (staging - shared_address(shared));
    __syncwarp();
#pragma unroll 4
    for (int i = 0; i < 32; i++) {
        const int r = row + i / 2, j = i % 2 * 32 + lane;
        if (r >= place->end_row || col + j >= p->n) continue;
        const long long at = matrix * p->c.batch[2] + r * p->c.line + (col + j);
        if (!p->c_is_f32) {
            ((unsigned short *)p->c.data)[at] =
                *(const unsigned short *)(tile + matmul_wgmma_piece(i / 2, j / 8) + j % 8 * 2);
        } else if (i % 2 == 0) {
            const float x = *(const float *)(tile + matmul_wgmma_piece(i / 2, j / 4) + j % 4 * 4);
            float *to = (float *)p->c.data + at;
            *to = p->is_accumulating ? *to + x : x;
        }
    }
    __syncwarp();
}

// The same in pieces of 16 bytes, which c has if it has a map.
DEVICE void store_pieces(const struct matmul_params *p, const struct place *place, int matrix,
                         unsigned staging, int row, int col, int lane) {
    const unsigned char *tile = shared + (staging - shared_address(shared));
    const int bytes = p->c_is_f32 ? 4 : 2, piece = lane % 8, at_col = col + piece * (16 / bytes);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = i * 4 + lane / 8;
        if (row + r >= place->end_row || at_col >= p->n) continue;
        const long long at = matrix * p->c.batch[2] + (row + r) * p->c.line + at_col;
        float4 x = *(const float4 *)(tile + matmul_wgmma_piece(r, piece));
        float4 *to = (float4 *)((unsigned char *)p->c.data + at * bytes);
        if (p->is_accumulating) {
            const float4 y = *to;
            x = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
        }
        *to = x;
    }
    __syncwarp();
}

DEVICE int matrix_of_c(const struct matmul_params *p, const struct place *place) {
    return A_IS_MN || p->groups.are_counts ? place->group : 0;
}

DEVICE float find_alpha(const struct matmul_grouped_params *w, int size_k) {
    const int most = w->blocks_of_part * BLOCK_K, k = size_k < most ? size_k : most;
    return w->matmul.c_is_f32 ? w->matmul.alpha : w->matmul.alpha * (1 + matmul_wgmma_drift(k) / 2);
}

// Stores 16 rows of c from `row` on, all of them the group's, as products times alpha in 16 bits: store_rows without
// its other cases.
DEVICE void store_products(const struct matmul_grouped_params *w, const struct place *place,
                           float (*acc)[4], unsigned staging, int row, int lane) {
    const float alpha = find_alpha(w, place->size_k);
    const int matrix = matrix_of_c(&w->matmul, place), tiles = tiles_of_warp(w);
#pragma unroll
    for (int part = 0; part < EIGHTS / 8; part++) {
        const unsigned tile = staging + (part & (tiles - 1)) * STAGED_BYTES;
        const int col = place->col + part * 64;
        if (col >= (int)w->matmul.n) break;
        if (part == 0 && elect_one()) TMA_STORES_READ(0);
        if (part >= tiles) wait_for_tile(tiles);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            float v[2][4];
#pragma unroll
            for (int j = 0; j < 8; j++) v[j / 4][j % 4] = acc[part * 8 + i + j / 4][j % 4] * alpha;
            stage_halves(tile + matmul_wgmma_piece(lane % 16, i + lane / 16), v);
        }
        const int at[5] = {col, row, matrix, 0, 0};
        send_tile(tile, &w->c, at, 0);
    }
}

// Stores 16 rows of c from `row` on through tiles of 128 bytes per row: 64 columns of 16 bits, 32 of
// fp32. The copy engine stores them if all rows belong to the group.
DEVICE void store_rows(const struct matmul_grouped_params *w, const struct place *place,
                       float acc[TILES_M][EIGHTS][4], unsigned staging, int row, int is_whole,
                       int lane) {
    const struct matmul_params *p = &w->matmul;
    const int matrix = matrix_of_c(p, place);
    const int quarters = is_gated(p) ? 4 : 8, of_tile = p->c_is_f32 ? 1 : 2;
    const int tiles = tiles_of_warp(w);
    const float alpha = find_alpha(w, place->size_k);
#pragma unroll 1
    for (int quarter = 0; quarter < quarters; quarter++) {
        const int col = place->col + quarter * 32, part = quarter % of_tile;
        const unsigned tile = staging + (quarter / of_tile & (tiles - 1)) * STAGED_BYTES;
        if (part == 0 && col >= (int)p->n) break;
        float v[4][4];
        make_quarter(v, p, place, alpha, acc, quarter, lane);
        if (quarter == 0 && elect_one()) TMA_STORES_READ(0); // earlier rows ended with any tile
        if (part == 0) wait_for_tile(tiles);
        __syncwarp();
        stage_quarter(v, tile, p->c_is_f32, part, lane);
        if (part != of_tile - 1) continue;
        if (!is_whole) {
            if (w->has_c_map)
                store_pieces(p, place, matrix, tile, row, col - part * 32, lane);
            else
                store_elements(p, place, matrix, tile, row, col - part * 32, lane);
            continue;
        }
        const int at[5] = {col - part * 32, row, matrix, 0, 0};
        send_tile(tile, &w->c, at, p->is_accumulating);
    }
}

#endif
