// SPDX-License-Identifier: Apache-2.0
// c = a b for groups of few rows, in 16 bits, where lines of a and b run along k: decoding with a mixture of experts. b is read
// once, from memory to registers: a lane's 16 bytes of a line are its part of two fragments, because the order of k within a step
// may be any that a and b share. So a tile's 16 lines of b are the rows of mma's a, and 8 rows of a its columns. With a gate 8 of
// the lines are of b_up, and a lane has both factors. The warps of a block take turns along k; their sums meet in shared memory, in
// one order. Rows beyond BLOCK_M of a group are another tile, which the host places near: it finds b in the second-level cache.
// Floor: b read once.
// Limit: that reading. Figures: docs/kernels/matmul_grouped.md.
// The host defines
//     DTYPE
#include "cuda/device/mma.cuh"
#include "ops/matmul/cuda/matmul_epilogue.cuh"

#define WARPS 8 // as in matmul_grouped_skinny.c, like the next two
#define BLOCK_M 16
#define BLOCK_N 16 // lines of b and b_up
#define STEP_K 32  // four lanes of 8
#define AHEAD 4    // steps whose b is on its way
#define PROMOTE 64 // steps of a warp that tensor cores sum: 2,048 of k
#define PARTS (BLOCK_M / 8)
#define STRIDE (BLOCK_N + 4) // floats from row to row of sums
#define BLOCKS                                                                                     \
    (__CUDA_ARCH__ >= 900 ? 3 : 2) // of a multiprocessor; three would spill on others than Hopper
static_assert(AHEAD % 2 == 0 && PROMOTE % AHEAD == 0,
              "a's pieces alternate; sums move after whole rounds");

// Where a lane reads: its pieces of two lines of b, and of a row of a in each part.
struct reader {
    const char *b[2], *a[PARTS]; // a 0: no such row
    int left;                    // of k, from the piece on
};

DEVICE struct reader find_pieces(const struct matmul_params *p, const struct tile *t) {
    const int line = threadIdx.x % 32 / 4;
    const int first = (int)threadIdx.x / 32 * STEP_K + (int)threadIdx.x % 4 * GROUP;
    struct reader r;
    r.left = (int)p->k - first;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const struct matmul_operand *b = is_gated(p) && i == 1 ? &p->b_up : &p->b;
        long long col = t->col + line + (is_gated(p) ? 0 : i * 8);
        if (col >= p->n) col = p->n - 1; // read, but not stored
        r.b[i] = (const char *)b->data +
                 (batch_offset(b, t->index) + col * b->line + first) * ELEMENT_BYTES;
    }
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        const long long row = t->row + i * 8 + line;
        const int at = row < t->end_row ? line_of(&p->groups.of_a, row) : -1;
        r.a[i] = (const char *)p->a.data +
                 (batch_offset(&p->a, t->index) + at * p->a.line + first) * ELEMENT_BYTES;
        if (at < 0) r.a[i] = 0;
    }
    return r;
}

DEVICE uint4 load_piece(const char *piece, int is_there, const int is_read_once) {
    uint4 raw;
#define LOAD_PIECE(how)                                                                            \
    asm volatile("{\n"                                                                             \
                 ".reg .pred p;\n"                                                                 \
                 "setp.ne.b32 p, %5, 0;\n"                                                         \
                 "mov.b32 %0, 0;\n"                                                                \
                 "mov.b32 %1, 0;\n"                                                                \
                 "mov.b32 %2, 0;\n"                                                                \
                 "mov.b32 %3, 0;\n"                                                                \
                 "@p ld.global" how ".v4.u32 {%0, %1, %2, %3}, [%4];\n"                            \
                 "}"                                                                               \
                 : "=&r"(raw.x), "=&r"(raw.y), "=&r"(raw.z), "=&r"(raw.w)                          \
                 : "l"(piece), "r"(is_there)                                                       \
                 : "memory")
    if (is_read_once)
        LOAD_PIECE(".L1::no_allocate");
    else
        LOAD_PIECE("");
    return raw;
}

// A lane's pieces of the warp's step number `turn` from here.
DEVICE void load_b(uint4 raw[2], const struct reader *r, int turn) {
    const int ahead = turn * WARPS * STEP_K;
#pragma unroll
    for (int i = 0; i < 2; i++)
        raw[i] = load_piece(r->b[i] + ahead * ELEMENT_BYTES, ahead < r->left, 1);
}

DEVICE void load_a(uint4 raw[PARTS], const struct reader *r, int turn) {
    const int ahead = turn * WARPS * STEP_K;
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        raw[i] = load_piece(r->a[i] + ahead * ELEMENT_BYTES, ahead < r->left && r->a[i] != 0, 0);
}

DEVICE void advance(struct reader *r, const int turns) {
    const int ahead = turns * WARPS * STEP_K;
    r->left -= ahead;
#pragma unroll
    for (int i = 0; i < 2; i++) r->b[i] += ahead * ELEMENT_BYTES;
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (r->a[i] != 0) r->a[i] += ahead * ELEMENT_BYTES;
}

DEVICE void multiply(float acc[4], const uint4 b[2], uint4 a) {
    const unsigned low[4] = {b[0].x, b[1].x, b[0].y, b[1].y};
    const unsigned high[4] = {b[0].z, b[1].z, b[0].w, b[1].w};
    mma(acc, low, a.x, a.y);
    mma(acc, high, a.z, a.w);
}

// Moves a warp's sums to its rows of `sums`: element (row of a, line of b).
DEVICE void flush(float *sums, float acc[PARTS][4], int is_first) {
    const int line = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < PARTS * 4; i++) {
        float *to = sums + (i / 4 * 8 + pair * 2 + i % 2) * STRIDE + line + i % 4 / 2 * 8;
        *to = is_first ? acc[i / 4][i % 4] : *to + acc[i / 4][i % 4];
        acc[i / 4][i % 4] = 0;
    }
}

DEVICE void add_products(const struct matmul_params *p, const struct tile *t, float *sums) {
    const int parts = t->end_row - t->row > 8 ? PARTS : 1;
    struct reader r = find_pieces(p, t);
    float acc[PARTS][4] = {{0}};
    uint4 b[AHEAD][2], a[2][PARTS];
#pragma unroll
    for (int u = 0; u < AHEAD; u++) load_b(b[u], &r, u);
    load_a(a[0], &r, 0);
    int turns = 0;
#pragma unroll 1
    for (int steps = ((int)p->k + STEP_K - 1) / STEP_K; steps > 0; steps -= AHEAD * WARPS) {
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            load_a(a[(u + 1) % 2], &r, u + 1);
            multiply(acc[0], b[u], a[u % 2][0]);
            if (parts > 1) multiply(acc[1], b[u], a[u % 2][1]);
            load_b(b[u], &r, u + AHEAD);
        }
        advance(&r, AHEAD);
        turns += AHEAD;
        if (turns % PROMOTE == 0) flush(sums, acc, turns == PROMOTE);
    }
    flush(sums, acc, turns < PROMOTE);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    matmul_grouped_skinny(const struct matmul_params p) {
    __shared__ __align__(16) float sums[WARPS][BLOCK_M * STRIDE];
    __shared__ struct tile kept; // here it takes no registers
    begin_early();
    {
        const struct tile found = find_tile(&p, blockIdx.x, BLOCK_M, BLOCK_N);
        if (found.row >= found.end_row) return;
        if (threadIdx.x == 0) kept = found;
        add_products(&p, &found, sums[threadIdx.x / 32]);
    }
    __syncthreads();
    const int at = threadIdx.x / BLOCK_N * STRIDE + threadIdx.x % BLOCK_N;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += sums[w][at];
    sums[0][at] = sum; // no other thread reads this element before the barrier
    __syncthreads();
    const int groups = is_gated(&p) ? 1 : BLOCK_N / COLS;
    const int row = threadIdx.x / groups, first = threadIdx.x % groups * COLS;
    if (row >= BLOCK_M) return;
    float v[COLS], up[COLS];
    load_cols(v, sums[0], row * STRIDE + first, 1, COLS, 1);
    load_cols(up, sums[0], row * STRIDE + COLS, 1, COLS, 1);
    const struct tile t = kept;
    emit(&p, &t, t.row + row, t.col + first, v, up);
}
