// SPDX-License-Identifier: Apache-2.0
// Finishes rows of dweight with more tokens than a segment: adds the sums of their segments, which embedding_sum.cu
// stored. A block searches a few tiles of the sorted list for the beginnings of such rows. Its warps add consecutive
// segments each, in order; then the warps' sums are added in order.
// Floor: the segments' sums read once, 4 hidden bytes for each EMBEDDING_SEGMENT tokens, and the rows written once.
// Figures: docs/kernels/embedding.md.
// The host defines
//     DTYPE (2: dweight's dtype is known at run time)
#include "cuda/device/any_dtype.cuh"
#include "ops/embedding/embedding_params.h"

enum { WARPS = EMBEDDING_THREADS / 32, EACH = EMBEDDING_JOIN_COLS / 32 };
#define LANE ((int)(threadIdx.x % 32))
#define EACH_COLUMN(i) _Pragma("unroll") for (int i = 0; i < EACH; i++)

// The row that begins in a tile and has more tokens than a segment; -1 if there is none. The whole warp must call it.
DEVICE int find_row(const struct embedding_sum_params *p, int tile) {
    int at = tile * EMBEDDING_SEGMENT + LANE;
    int key = tile < p->tiles && at < p->num_tokens ? p->keys[at] : p->vocab;
    int is_it =
        key < p->vocab && p->starts[key] == at && p->starts[key + 1] - at > EMBEDDING_SEGMENT;
    unsigned found = __ballot_sync(0xffffffffu, is_it);
    return found == 0 ? -1 : __shfl_sync(0xffffffffu, key, __ffs(found) - 1);
}

DEVICE void join_row(const struct embedding_sum_params *p, int row, int first,
                     float (*sums)[EMBEDDING_JOIN_COLS]) {
    int start = p->starts[row], warp = threadIdx.x / 32;
    int segments = (p->starts[row + 1] - start + EMBEDDING_SEGMENT - 1) / EMBEDDING_SEGMENT;
    int each = (segments + WARPS - 1) / WARPS, last = (warp + 1) * each;
    float sum[EACH] = {0};
    if (last > segments) last = segments;
#pragma unroll 4
    for (int j = warp * each; j < last; j++) {
        long long slot = 2LL * ((start + j * EMBEDDING_SEGMENT) / EMBEDDING_SEGMENT) + (j == 0);
        EACH_COLUMN(i) {
            int col = first + i * 32 + LANE;
            if (col < p->hidden) sum[i] += p->partial[slot * p->hidden + col];
        }
    }
    EACH_COLUMN(i) sums[warp][i * 32 + LANE] = sum[i];
    __syncthreads();
    int col = first + threadIdx.x;
    if (threadIdx.x < EMBEDDING_JOIN_COLS && col < p->hidden) {
        long long at = row * p->dweight_stride + col;
        float x = 0;
        for (int w = 0; w < WARPS; w++) x += sums[w][threadIdx.x];
        if (p->is_accumulating) x += load_any(p->dweight, at, p->dweight_dtype);
        store_any(p->dweight, at, x, p->dweight_dtype);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_join(const struct embedding_sum_params p) {
    __shared__ float sums[WARPS][EMBEDDING_JOIN_COLS];
    __shared__ int rows[WARPS];
    int chunks = (p.hidden + EMBEDDING_JOIN_COLS - 1) / EMBEDDING_JOIN_COLS;
    long long blocks = (long long)((p.tiles + WARPS - 1) / WARPS) * chunks;
    for (long long block = blockIdx.x; block < blocks; block += gridDim.x) {
        int row = find_row(&p, (int)(block / chunks) * WARPS + threadIdx.x / 32);
        if (LANE == 0) rows[threadIdx.x / 32] = row;
        __syncthreads();
        for (int w = 0; w < WARPS; w++)
            if (rows[w] >= 0)
                join_row(&p, rows[w], (int)(block % chunks) * EMBEDDING_JOIN_COLS, sums);
        __syncthreads();
    }
}
