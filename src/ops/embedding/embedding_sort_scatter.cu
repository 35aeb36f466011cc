// SPDX-License-Identifier: Apache-2.0
// Second half of a sorting pass: moves every token to its place. A block adds up the counts of the blocks before it;
// its warps, which have consecutive tokens, add the counts of the warps before them; within a warp, equal digits are
// ranked by lane. So tokens with the same digit stay in order, whichever thread runs first.
// Floor: key and number of each token read and written, 16 bytes, in the first pass 12.
// Figures of the whole sort: docs/kernels/embedding.md.
#include "ops/embedding/embedding_sort_device.cuh"

// Each thread has EACH digits.
enum { WARPS = EMBEDDING_THREADS / 32, EACH = 2, AHEAD = 4 };
static_assert(EACH * EMBEDDING_THREADS == EMBEDDING_MAX_DIGITS, "a thread has a pair of digits");

// Loads the keys of AHEAD times 32 tokens, this thread's AHEAD of them. The digit of a missing token is
// EMBEDDING_MAX_DIGITS.
static __device__ __forceinline__ void load_keys(const struct embedding_sort_params *p, int base,
                                                 int last, int key[AHEAD], int digit[AHEAD]) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        int t = base + i * 32 + threadIdx.x % 32;
        key[i] = t < last ? key_of(p, t) : 0;
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        int t = base + i * 32 + threadIdx.x % 32;
        digit[i] = t < last ? digit_of(p, key[i]) : EMBEDDING_MAX_DIGITS;
    }
}

// The first place of this block's tokens with digits EACH threadIdx.x and following: after all smaller digits, and
// after the same digit of earlier blocks.
static __device__ __forceinline__ void find_places(const struct embedding_sort_params *p,
                                                   int place[EACH]) {
    __shared__ int warp_total[WARPS];
    int total[EACH] = {0}, before[EACH] = {0}, sum = 0, lane = threadIdx.x % 32;
    const int2 *counts = (const int2 *)p->counts + threadIdx.x;
    if (threadIdx.x * EACH < p->digits)
#pragma unroll 8
        for (int b = 0; b < p->blocks; b++) {
            int2 count = counts[(long long)b * p->digits / EACH];
            int is_before = b < blockIdx.x;
            total[0] += count.x;
            total[1] += count.y;
            before[0] += is_before ? count.x : 0;
            before[1] += is_before ? count.y : 0;
        }
#pragma unroll
    for (int e = 0; e < EACH; e++) sum += total[e];
    int upto = sum; // inclusive prefix sum
    for (int i = 1; i < 32; i *= 2) {
        int other = __shfl_up_sync(0xffffffffu, upto, i);
        upto += lane >= i ? other : 0;
    }
    if (lane == 31) warp_total[threadIdx.x / 32] = upto;
    __syncthreads();
    int at = upto - sum;
    for (int w = 0; w < threadIdx.x / 32; w++) at += warp_total[w];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        place[e] = at + before[e];
        at += total[e];
    }
}

extern "C" __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_sort_scatter(const struct embedding_sort_params p) {
    __shared__ int next[WARPS][EMBEDDING_MAX_DIGITS]; // place of each digit's next token
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, place[EACH], key[AHEAD], digit[AHEAD];
    int each = p.chunk / WARPS, first = blockIdx.x * p.chunk + warp * each;
    int last = p.tokens - first < each ? p.tokens : first + each; // may be less than first
    for (int i = threadIdx.x; i < WARPS * EMBEDDING_MAX_DIGITS; i += EMBEDDING_THREADS)
        next[i / EMBEDDING_MAX_DIGITS][i % EMBEDDING_MAX_DIGITS] = 0;
    find_places(&p, place); // contains a barrier
    for (int base = first; base < last; base += 32 * AHEAD) {
        load_keys(&p, base, last, key, digit);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (digit[i] < EMBEDDING_MAX_DIGITS) atomicAdd(&next[warp][digit[i]], 1);
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; e++)
        for (int w = 0; w < WARPS; w++) {
            int count = next[w][threadIdx.x * EACH + e];
            next[w][threadIdx.x * EACH + e] = place[e];
            place[e] += count;
        }
    __syncthreads();
    for (int base = first; base < last; base += 32 * AHEAD) {
        load_keys(&p, base, last, key, digit);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int t = base + i * 32 + lane, is_there = digit[i] < EMBEDDING_MAX_DIGITS;
            unsigned same = __match_any_sync(0xffffffffu, digit[i]);
            int rank = __popc(same & ((1u << lane) - 1));
            int at = is_there ? next[warp][digit[i]] + rank : 0;
            __syncwarp();
            if (is_there) {
                if (rank == 0) next[warp][digit[i]] = at + __popc(same);
                p.keys_out[at] = key[i];
                p.tokens_out[at] = p.ids != 0 ? t : p.tokens_in[t];
            }
            __syncwarp();
        }
    }
}
