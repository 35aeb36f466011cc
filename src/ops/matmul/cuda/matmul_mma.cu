// SPDX-License-Identifier: Apache-2.0
// c (m x n) = a (m x k) b (k x n) on tensor cores through mma.sync, for 16-bit dtypes from sm_80 on. Asynchronous
// copies of 16 bytes bring tiles of a and b through STAGES buffers of shared memory, in the layout of global memory;
// ldmatrix transposes if lines run along m or n. The line number permutes the pieces of a line, so that neither copies
// nor loads have bank conflicts. A warp has WARP_M x 64 of c in registers; the fragments of the next step are loaded
// while those of this step are multiplied. Tensor cores truncate sums instead of rounding: the error grows with k. So
// for larger k, sums of PROMOTE columns are added up in shared memory, with rounding.
// Floor: 2 m n k FLOPs at the rate of mma.sync.
// Limit: at 1024^3 and with few rows, latency. Figures: docs/kernels/matmul_cuda.md.
// The host defines
//     DTYPE, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, and LISTED if groups cut k and lines of a or b come by a list
#include "cuda/device/mma.cuh"
#include "ops/matmul/cuda/matmul_epilogue.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(STAGES)
#error "BLOCK_M, BLOCK_N, BLOCK_K and STAGES are not all defined"
#endif

#define THREADS 128 // four warps
#define WARPS_N (BLOCK_N / 64)
#define WARP_M (BLOCK_M * WARPS_N / 4)
#define BLOCKS_PER_SM 2
#define TILES_M (WARP_M / 16)
#define TILES_N 8
#define STEPS (BLOCK_K / 16)

#define A_BYTES (BLOCK_M * BLOCK_K * 2)
#define B_BYTES (BLOCK_N * BLOCK_K * 2)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define A_COPIES (A_BYTES / 16 / THREADS)
#define B_COPIES (B_BYTES / 16 / THREADS)
#define PROMOTE 2048 // as in matmul_cuda_layout.c
#ifdef LISTED
#include "ops/matmul/cuda/matmul_listed.cuh"
#else

// ---- From memory to shared memory ---------------------------------------------------------------

// What a thread copies of an operand, from tile to tile: pieces of 16 bytes at the same place of their lines.
#define DEFINE_COPIER(name, copies, block)                                                         \
    struct name {                                                                                  \
        const char *from[copies];                                                                  \
        unsigned mask; /* of pieces that there are */                                              \
        int bytes;     /* of each; the rest is 0 */                                                \
        unsigned to;                                                                               \
        int k; /* where in the tile the first one is */                                            \
    };                                                                                             \
    DEVICE void name##_start(struct name *c, const struct matmul_params *p,                        \
                             const struct matmul_operand *x, const struct matmul_operand *up,      \
                             const struct tile *t, long long first, long long end, int is_mn) {    \
        int pieces = is_mn ? block / 8 : BLOCK_K / 8, line = (int)threadIdx.x / pieces;            \
        int piece = (int)threadIdx.x % pieces, lines = THREADS / pieces;                           \
        c->to = swizzled(line, piece, pieces);                                                     \
        c->k = is_mn ? line : piece * 8;                                                           \
        c->mask = 0;                                                                               \
        c->bytes = 16;                                                                             \
        _Pragma("unroll") for (int i = 0; i < copies; i++) {                                       \
            int j = is_mn ? piece * 8 : line + i * lines;                                          \
            const struct matmul_operand *from = up != 0 && is_of_up(p, j) ? up : x;                \
            long long at = first + (up != 0 ? column_in_c(p, j) : j), left = end - at;             \
            long long k = t->first_k + c->k + (is_mn ? i * lines : 0);                             \
            if (!is_mn && up == 0 && left > 0 && p->groups.of_a.lines != 0)                        \
                if ((at = line_of(&p->groups.of_a, at)) < 0) left = 0;                             \
            if (is_mn && left < 8) c->bytes = (int)left * 2;                                       \
            if (left > 0) c->mask |= 1u << i;                                                      \
            if (left <= 0) at = 0, k = 0;                                                          \
            at = is_mn ? k * from->line + at : at * from->line + k;                                \
            c->from[i] = (const char *)from->data + 2 * (batch_offset(from, t->index) + at);       \
        }                                                                                          \
    }                                                                                              \
    /* The tile with k_left columns of k to go, to a stage; the next call copies the next tile. */ \
    DEVICE void name##_copy(struct name *c, const struct matmul_operand *x,                        \
                            const struct matmul_list_params *list, unsigned stage, int k_left,     \
                            int is_mn) {                                                           \
        (void)list;                                                                                \
        long long step = (is_mn ? x->line : 1) * (BLOCK_K * 2);                                    \
        int lines = THREADS / (block / 8);                                                         \
        _Pragma("unroll") for (int i = 0; i < copies; i++) {                                       \
            int bytes = c->mask >> i & 1 ? c->bytes : 0;                                           \
            int left = 2 * (k_left - c->k - (is_mn ? i * lines : 0));                              \
            if (left <= 0)                                                                         \
                bytes = 0;                                                                         \
            else if (!is_mn && left < bytes)                                                       \
                bytes = left;                                                                      \
            copy_async(stage + c->to + i * (THREADS * 16), c->from[i], bytes);                     \
            c->from[i] += step;                                                                    \
        }                                                                                          \
    }

#endif

DEFINE_COPIER(copier_a, A_COPIES, BLOCK_M)
DEFINE_COPIER(copier_b, B_COPIES, BLOCK_N)

// ---- From shared memory to fragments --------------------------------------------------------------

DEVICE void load_fragment(unsigned x[4], unsigned shared, int is_transposed) {
    if (is_transposed)
        load_matrices_transposed(x, shared);
    else
        load_matrices(x, shared);
}

// For a lane: the byte offset, in a tile of `block` lines or columns, where its row of the warp's first four matrices
// begins. half_mn and half_k select the matrix that the lane addresses.
DEVICE unsigned lane_offset(int block, int first, int half_mn, int half_k, int is_mn) {
    int row = threadIdx.x & 7;
    return is_mn ? swizzled(half_k * 8 + row, first / 8 + half_mn, block / 8)
                 : swizzled(first + half_mn * 8 + row, half_k, BLOCK_K / 8);
}

// The same for the 16 x 16 block number i of k-step `step`. The permutation and the two numbers use different bits.
DEVICE unsigned offset_of(unsigned lane, int block, int i, int step, int is_mn) {
    return is_mn ? (lane ^ (i << 5)) + step * (16 * block * 2)
                 : (lane ^ (step << 5)) + i * (16 * BLOCK_K * 2);
}

struct fragments {
    unsigned a[TILES_M][4], b[TILES_N / 2][4];
};

// ---- Sums of parts of k, in shared memory --------------------------------------------------------
// Each thread has its own. With plain loads and stores, whose addresses might be equal for all the compiler knows, the
// compiler takes longer than for all the rest.

DEVICE void clear_sum(unsigned sum) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(sum), "f"(0.0f));
}

DEVICE void add_to_sum(unsigned sum, float x) {
    asm volatile("{\n"
                 ".reg .f32 y;\n"
                 "ld.shared.f32 y, [%0];\n"
                 "add.rn.f32 y, y, %1;\n"
                 "st.shared.f32 [%0], y;\n"
                 "}" ::"r"(sum),
                 "f"(x));
}

DEVICE float load_sum(unsigned sum) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(sum));
    return x;
}

// ---- The products -----------------------------------------------------------------------------

// acc = a b for a tile of c, over its part of k. The layouts are constants after inlining.
DEVICE void multiply(const struct matmul_params *p, const struct tile *t, unsigned base,
                     unsigned sums, float acc[TILES_M][TILES_N][4], const int a_is_mn,
                     const int b_is_mn) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned a_lane =
        lane_offset(BLOCK_M, warp / WARPS_N * WARP_M, lane >> 3 & 1, lane >> 4, a_is_mn);
    const unsigned b_lane =
        A_BYTES + lane_offset(BLOCK_N, warp % WARPS_N * 64, lane >> 4, lane >> 3 & 1, b_is_mn);
    struct copier_a a;
    struct copier_b b;
    copier_a_start(&a, p, &p->a, 0, t, t->row, t->end_row, a_is_mn);
    copier_b_start(&b, p, &p->b, &p->b_up, t, t->col, p->n, b_is_mn);
    int k_left = (int)(t->end_k - t->first_k);
    const int num_k = (k_left + BLOCK_K - 1) / BLOCK_K;

#define COPY_TILE(stage)                                                                           \
    {                                                                                              \
        if (k_left > 0) {                                                                          \
            const unsigned to = base + (stage)*STAGE_BYTES;                                        \
            copier_a_copy(&a, &p->a, &p->groups.of_a, to, k_left, a_is_mn);                        \
            copier_b_copy(&b, &p->b, &p->groups.of_b, to + A_BYTES, k_left, b_is_mn);              \
        }                                                                                          \
        k_left -= BLOCK_K;                                                                         \
        copy_commit();                                                                             \
    }
#define LOAD_A(f, stage, i, step)                                                                  \
    load_fragment((f).a[i], (stage) + offset_of(a_lane, BLOCK_M, i, step, a_is_mn), a_is_mn)
#define LOAD_B(f, stage, i, step)                                                                  \
    load_fragment((f).b[i], (stage) + offset_of(b_lane, BLOCK_N, i, step, b_is_mn), b_is_mn)

#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) COPY_TILE(s)
    COPY_WAIT(STAGES - 2);
    __syncthreads();
    struct fragments f[2];
    int read = 0, write = STAGES - 1;
#pragma unroll
    for (int i = 0; i < TILES_M; i++) LOAD_A(f[0], base, i, 0);
#pragma unroll
    for (int i = 0; i < TILES_N / 2; i++) LOAD_B(f[0], base, i, 0);
#pragma unroll 1
    for (int tile = 0; tile < num_k; tile++) {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step == STEPS - 1) { // the next tile has arrived, and all are done with this one
                COPY_WAIT(STAGES - 2);
                __syncthreads();
                read = read == STAGES - 1 ? 0 : read + 1;
            }
            // The loads of the next step are placed between the products of this step; all at once would fill their
            // queue.
            const unsigned stage = base + read * STAGE_BYTES;
            struct fragments *now = &f[step % 2], *next = &f[(step + 1) % 2];
#pragma unroll
            for (int i = 0; i < TILES_M; i++) {
                LOAD_A(*next, stage, i, (step + 1) % STEPS);
#pragma unroll
                for (int j = 0; j < TILES_N / 2; j++)
                    if (j * TILES_M / (TILES_N / 2) == i)
                        LOAD_B(*next, stage, j, (step + 1) % STEPS);
                if (step == 0 && i == 0) {
                    COPY_TILE(write)
                    write = write == STAGES - 1 ? 0 : write + 1;
                }
#pragma unroll
                for (int j = 0; j < TILES_N; j++)
                    mma(acc[i][j], now->a[i], now->b[j / 2][j % 2 * 2],
                        now->b[j / 2][j % 2 * 2 + 1]);
            }
        }
        int done = (tile + 1) * BLOCK_K;
        if (p->has_sums && done % PROMOTE == 0 && tile + 1 < num_k) {
#pragma unroll
            for (int i = 0; i < TILES_M * TILES_N * 4; i++) {
                float *one = &acc[i / (TILES_N * 4)][i / 4 % TILES_N][i % 4];
                add_to_sum(sums + i * THREADS * 4, *one);
                *one = 0;
            }
        }
    }
    if (p->has_sums && num_k > PROMOTE / BLOCK_K) {
#pragma unroll
        for (int i = 0; i < TILES_M * TILES_N * 4; i++)
            acc[i / (TILES_N * 4)][i / 4 % TILES_N][i % 4] += load_sum(sums + i * THREADS * 4);
    }
}

// ---- The kernel -------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    matmul_mma(const struct matmul_params p) {
    extern __shared__ uint4 shared[];
    const unsigned base = shared_address(shared);
    const unsigned sums = base + STAGES * STAGE_BYTES + threadIdx.x * 4;
    const long long number = p.first_tile + blockIdx.x;
    struct tile t = find_tile(&p, number, BLOCK_M, BLOCK_N);
    if (t.row >= t.end_row) return;
    float acc[TILES_M][TILES_N][4];
#pragma unroll
    for (int i = 0; i < TILES_M * TILES_N * 4; i++)
        acc[i / (TILES_N * 4)][i / 4 % TILES_N][i % 4] = 0;
    if (p.has_sums)
        for (int i = 0; i < TILES_M * TILES_N * 4; i++) clear_sum(sums + i * THREADS * 4);

            // One loop for each layout: loads that choose at every step would cost a quarter of the rate.
#ifdef LISTED
    multiply(&p, &t, base, sums, acc, 1, 1);
#else
    if (p.a_is_mn && p.b_is_mn)
        multiply(&p, &t, base, sums, acc, 1, 1);
    else if (p.a_is_mn)
        multiply(&p, &t, base, sums, acc, 1, 0);
    else if (p.b_is_mn)
        multiply(&p, &t, base, sums, acc, 0, 1);
    else
        multiply(&p, &t, base, sums, acc, 0, 0);
#endif

    t = find_tile(&p, forgotten(number), BLOCK_M, BLOCK_N);
    COPY_WAIT(0);
    __syncthreads(); // shared memory is free for the epilogue
    const int thread = thread_again(), lane = thread % 32, warp = thread / 32;
    float *staging = (float *)shared + warp * STAGING_FLOATS(WARP_M);
    float *mine = staging + lane / 4 * STAGING_STRIDE + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < TILES_M; i++)
#pragma unroll
        for (int j = 0; j < TILES_N; j++) {
            float *to = mine + i * 16 * STAGING_STRIDE + j * 8;
            *(float2 *)to = make_float2(acc[i][j][0], acc[i][j][1]);
            *(float2 *)(to + 8 * STAGING_STRIDE) = make_float2(acc[i][j][2], acc[i][j][3]);
        }
    __syncwarp();
    emit_rows(&p, &t, staging, lane, WARP_M, t.row + warp / WARPS_N * WARP_M, warp % WARPS_N * 64);
}
