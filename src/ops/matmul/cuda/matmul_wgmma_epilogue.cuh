// SPDX-License-Identifier: Apache-2.0
// From accumulators to c, for matmul_wgmma_sm90.cu: alpha, bias, activation, gate, residual, accumulation, in the order
// of tessera/matmul.h.
//
// Each warp has 16 rows of every 64 of its group. It stores them through the tiles of matmul_staged.cuh, into which the
// residual was loaded before.
#ifndef TSRI_MATMUL_WGMMA_EPILOGUE_CUH
#define TSRI_MATMUL_WGMMA_EPILOGUE_CUH

#include "ops/matmul/cuda/matmul_wgmma_block.cuh"

#define PICKED 8
#include "ops/matmul/cuda/matmul_staged.cuh"

// ---- Bias ---------------------------------------------------------------------------------------
// The bias of a group's tile is in shared memory. Each thread loads its part before the products and shares it after
// them.

enum { OF_LANE = (BLOCK_N + 127) / 128 };

DEVICE void fetch_bias(unsigned bias[OF_LANE], const struct matmul_wgmma_params *w,
                       const struct place *place, const struct worker *me) {
    const struct matmul_params *p = &w->matmul;
    const int col = place->col + me->warp * 32 + me->lane;
#pragma unroll
    for (int i = 0; i < OF_LANE; i++) {
        bias[i] = 0;
        if (p->bias != 0 && col + i * 128 < (int)p->n)
            bias[i] = fetch_either(p->bias, col + i * 128, p->bias_is_f32);
    }
}

DEVICE void meet_group(const struct worker *me) {
    asm volatile("bar.sync %0, 128;" ::"r"(3 + me->group) : "memory");
}

DEVICE float *bias_of(const struct worker *me) {
    return (float *)(shared + BIAS_AT + me->group * BIAS_BYTES);
}

DEVICE void give_bias(const unsigned bias[OF_LANE], const struct matmul_wgmma_params *w,
                      const struct worker *me) {
    meet_group(me); // all threads are done with the previous bias
#pragma unroll
    for (int i = 0; i < OF_LANE; i++) {
        const int col = i * 128 + me->warp * 32 + me->lane;
        if (BLOCK_N % 128 == 0 || col < BLOCK_N)
            bias_of(me)[col] = fetched_either(bias[i], w->matmul.bias_is_f32);
    }
    meet_group(me);
}

// ---- Tiles of 16 rows -------------------------------------------------------------------------------

// Returns the next tile, after all stores from it have been read.
DEVICE unsigned next_staged(struct worker *me) {
    if (elect_one()) TMA_STORES_READ(1);
    __syncwarp();
    return me->staging + (me->turn++ & 1) * STAGED_BYTES;
}

// Stores a staged tile to c at (row, col) by the copy engine.
DEVICE void store_staged(const struct matmul_wgmma_params *w, const struct place *place,
                         const struct worker *me, unsigned staged, int row, int col) {
    const int at[5] = {col, row, place->batch[0], place->batch[1], place->batch[2]};
    send_tile(staged, &w->c, at, w->matmul.is_accumulating);
}

// If c has no map, stores element by element, each lane down its column. A single warp cannot hide address arithmetic,
// so rows have a fixed step, and a few are stored together, as many as registers allow.
enum { ROWS_AT_ONCE = 4 };

DEVICE void store_column(float *to, long long line, int rows, const unsigned char *tile, int col,
                         int is_accumulating) {
#pragma unroll 1
    for (int r = 0; r < 16; r += ROWS_AT_ONCE, to += ROWS_AT_ONCE * line) {
        float x[ROWS_AT_ONCE];
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; i++) {
            x[i] = *(const float *)(tile + matmul_wgmma_piece(r + i, col / 4) + col % 4 * 4);
            if (is_accumulating && r + i < rows) x[i] += to[i * line];
        }
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; i++)
            if (r + i < rows) to[i * line] = x[i];
    }
}

DEVICE void store_column(unsigned short *to, long long line, int rows, const unsigned char *tile,
                         int col) {
#pragma unroll 1
    for (int r = 0; r < 16; r += ROWS_AT_ONCE, to += ROWS_AT_ONCE * line) {
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; i++)
            if (r + i < rows)
                to[i * line] = *(const unsigned short *)(tile + matmul_wgmma_piece(r + i, col / 8) +
                                                         col % 8 * 2);
    }
}

DEVICE void store_elements(const struct matmul_params *p, const struct place *place,
                           const struct worker *me, unsigned staged, int row, int col) {
    const unsigned char *tile = shared + (staged - me->base);
    const long long line = p->c.line, c = matrix_at(&p->c, place) + row * line + col;
    const int rows = (int)p->m - row, cols = (int)p->n - col;
    __syncwarp();
    if (p->c_is_f32) {
        float *to = (float *)p->c.data + c + me->lane;
        if (me->lane < cols) store_column(to, line, rows, tile, me->lane, p->is_accumulating);
    } else {
#pragma unroll 1
        for (int j = me->lane; j < 64 && j < cols; j += 32)
            store_column((unsigned short *)p->c.data + c + j, line, rows, tile, j);
    }
    __syncwarp();
}

#if !IS_F32
// Stores 16 rows of c in 16 bits: products times alpha and, unless is_plain, with bias and activation. is_plain and
// kind are constants. NONE and RELU share one kind, cut off below `least`.
DEVICE void store_rows(const struct matmul_wgmma_params *w, const struct place *place,
                       struct worker *me, float (*acc)[4], int row, int is_plain, int kind) {
    const struct matmul_params *p = &w->matmul;
    const float least = p->activation == ACTIVATION_RELU ? 0 : -INFINITE;
#pragma unroll
    for (int part = 0; part < EIGHTS / 8; part++) {
        const int col = place->col + part * 64;
        if (col >= (int)p->n) break;
        const unsigned staged = next_staged(me);
        const int lane = forgotten(me->lane);
        float v[8][4]; // all values before the first store, to hide latencies
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float2 add = make_float2(0, 0);
            if (!is_plain) add = *(const float2 *)(bias_of(me) + part * 64 + i * 8 + lane % 4 * 2);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float x = acc[part * 8 + i][j];
                v[i][j] = is_plain ? x * p->alpha : fmaf(x, p->alpha, j % 2 ? add.y : add.x);
                if (!is_plain)
                    v[i][j] = kind == ACTIVATION_NONE ? max_or_nan(v[i][j], least)
                                                      : activate_rounded(kind, v[i][j]);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i += 2)
            stage_halves(staged + matmul_wgmma_piece(lane % 16, i + lane / 16), v + i);
        store_staged(w, place, me, staged, row, col);
    }
}

DEVICE void store_tiles(const struct matmul_wgmma_params *w, const struct place *place,
                        struct worker *me, float acc[TILES_M][EIGHTS][4], int is_plain, int kind) {
#pragma unroll
    for (int t = 0; t < TILES_M; t++) {
        const int row =
            place->row + ((IN_TURNS ? 0 : me->group * TILES_M) + t) * UNIT + me->warp * 16;
        if (row < w->matmul.m) store_rows(w, place, me, acc[t], row, is_plain, kind);
    }
}

// One branch-free copy of the code per kind: a scheduler has one finishing warp beside one multiplying warp, so every
// wait would cost time.
DEVICE void finish_activated(const struct matmul_wgmma_params *w, const struct place *place,
                             struct worker *me, float acc[TILES_M][EIGHTS][4]) {
    switch (w->matmul.activation) {
    case ACTIVATION_GELU: store_tiles(w, place, me, acc, 0, ACTIVATION_GELU); break;
    case ACTIVATION_GELU_TANH: store_tiles(w, place, me, acc, 0, ACTIVATION_GELU_TANH); break;
    case ACTIVATION_SILU: store_tiles(w, place, me, acc, 0, ACTIVATION_SILU); break;
    default: store_tiles(w, place, me, acc, 0, ACTIVATION_NONE);
    }
}
#endif

// ---- The whole epilogue ---------------------------------------------------------------------------------
// 16 rows and 64 columns of c at a time: in each eight columns, a lane has 2 adjacent ones in 2 rows.

// Adds the residual element by element, if the copy engine does not load it.
DEVICE void add_residual(float v[8][4], const struct matmul_params *p, const struct place *place,
                         int row, int col) {
    const long long at = matrix_at(&p->residual, place);
    EACH_VALUE(i) {
        const int r = row + i % 4 / 2 * 8, j = col + i / 4 * 8 + i % 2;
        if (r < p->m && j < p->n)
            v[i / 4][i % 4] +=
                load_either(p->residual.data, at + r * p->residual.line + j, p->residual_is_f32);
    }
}

// A warp's chunks of 16 rows by 64 columns of c: `down` of them, 64 rows apart, by `beside` adjacent ones.
struct chunks {
    int row, down, beside;
};

DEVICE struct chunks find_chunks(const struct matmul_params *p, const struct place *place,
                                 const struct worker *me) {
    struct chunks c;
    const int width = is_gated(p) ? BLOCK_N / 2 : BLOCK_N, left = (int)p->n - place->col;
    c.row = place->row + (IN_TURNS ? 0 : me->group * TILES_M * UNIT) + me->warp * 16;
    c.down = 0;
#pragma unroll
    for (int t = 0; t < TILES_M; t++) c.down += c.row + t * UNIT < (int)p->m;
    c.beside = (left < width ? left + 63 : width) / 64;
    return c;
}

// Starts loading the residual of chunk `number` into a tile. Called by one lane.
DEVICE void load_residual(const struct matmul_wgmma_params *w, const struct place *place,
                          const struct chunks *c, const struct worker *me, int number, int turn) {
    const int down = number / c->beside, beside = number - down * c->beside;
    if (down >= c->down) return;
    const int at[5] = {place->col + beside * 64, c->row + down * UNIT, place->batch[0],
                       place->batch[1], place->batch[2]};
    const unsigned barrier = me->residual + (turn & 1) * 8;
    barrier_expect(barrier, STAGED_BYTES);
    tma_load(me->staging + (turn & 1) * STAGED_BYTES, &w->residual, at, barrier);
}

// Starts loading the first two residuals, before the products.
DEVICE void begin_residuals(const struct matmul_wgmma_params *w, unsigned number,
                            const struct worker *me) {
    if (!elect_one()) return;
    const struct place place = find_place(w, number, me->rank);
    const struct chunks chunks = find_chunks(&w->matmul, &place, me);
    TMA_STORES_READ(0);
    load_residual(w, &place, &chunks, me, 0, me->turn);
    load_residual(w, &place, &chunks, me, 1, me->turn + 1);
}

// Returns the next tile, after its residual has arrived.
DEVICE unsigned next_residual(struct worker *me) {
    const unsigned slot = me->turn++ & 1;
    barrier_wait(me->residual + slot * 8, me->parity >> slot & 1);
    me->parity ^= 1u << slot;
    return me->staging + slot * STAGED_BYTES;
}

// Stages all values in a tile of 16 bits, which may hold the residual.
DEVICE void stage_all(const struct worker *me, unsigned staged, float v[8][4], int has_residual) {
    const int lane = forgotten(me->lane);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        const unsigned to = staged + matmul_wgmma_piece(lane % 16, i + lane / 16);
        if (has_residual) {
            unsigned x[4];
            load_matrices(x, to);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                v[i + j / 2][j % 2 * 2] += float_of_half(x[j] & 0xffff);
                v[i + j / 2][j % 2 * 2 + 1] += float_of_half(x[j] >> 16);
            }
        }
        stage_halves(to, v + i);
    }
}

DEVICE void store_chunk(const struct matmul_wgmma_params *w, const struct place *place,
                        const struct worker *me, unsigned staged, int row, int col) {
    if (w->has_c_map)
        store_staged(w, place, me, staged, row, col);
    else
        store_elements(&w->matmul, place, me, staged, row, col);
}

DEVICE void finish_chunk(const struct matmul_wgmma_params *w, const struct place *place,
                         struct worker *me, float v[8][4], const struct chunks *c, int number,
                         int row, int col) {
    const struct matmul_params *p = &w->matmul;
    if (p->residual.data != 0 && !w->has_residual_map)
        add_residual(v, p, place, row + me->lane / 4, col + me->lane % 4 * 2);
    if (IS_F32 || p->c_is_f32) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const unsigned staged = next_staged(me);
            stage_floats(staged, v + half * 4, forgotten(me->lane));
            store_chunk(w, place, me, staged, row, col + half * 32);
        }
        return;
    }
    const unsigned staged = w->has_residual_map ? next_residual(me) : next_staged(me);
    stage_all(me, staged, v, w->has_residual_map);
    if (w->has_residual_map && number > 0 && elect_one()) {
        TMA_STORES_READ(0); // the previous use of this tile
        load_residual(w, place, c, me, number + 1, me->turn);
    }
    store_chunk(w, place, me, staged, row, col);
}

DEVICE void finish_chunks(const struct matmul_wgmma_params *w, const struct place *place,
                          struct worker *me, float acc[TILES_M][EIGHTS][4]) {
    const struct matmul_params *p = &w->matmul;
    const struct chunks c = find_chunks(p, place, me);
    int number = 0;
#pragma unroll 1
    for (int down = 0; down < c.down; down++)
#pragma unroll 1
        for (int beside = 0; beside < c.beside; beside++, number++) {
            const int chunk = down * CHUNKS + (is_gated(p) ? 2 * beside : beside);
            float v[8][4], add[8][2] = {};
            if (p->bias != 0) {
                const float *bias = bias_of(me) + beside * 64 + me->lane % 4 * 2;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const float2 two = *(const float2 *)(bias + i * 8);
                    add[i][0] = two.x;
                    add[i][1] = two.y;
                }
            }
            pick(v, acc, chunk, p->alpha, add);
            activate_all(v, p->activation, p->c_is_f32);
            if (is_gated(p)) {
                float up[8][4], add_up[8][2] = {};
                if (p->bias_up != 0)
                    load_bias(add_up, p->bias_up, 0, p->bias_up_is_f32,
                              place->col + beside * 64 + me->lane % 4 * 2, (int)p->n);
                pick(up, acc, chunk + 1, p->alpha, add_up);
                gate_all(v, up, p->activation);
            }
            finish_chunk(w, place, me, v, &c, number, c.row + down * UNIT,
                         place->col + beside * 64);
        }
}

#endif
