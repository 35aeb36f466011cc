// SPDX-License-Identifier: Apache-2.0
// Rotary embedding, forward and backward, x (batch, seqlen, heads, head_dim). A thread has one pair of runs of a token
// in several heads. So it reads its cosines and sines, from the caches, once for all these heads, and starts the loads
// of all heads before it uses the first. A position outside the tables gives NaN.
// Floor: x read once, y written once; 3 FLOPs an element.
// Limit: memory; a single head has fewer loads on their way.
// Figures: docs/kernels/rope.md.
// The host defines
//     DTYPE
#include "cuda/device/numbers.cuh"
#include "ops/rope/rope_params.h"

#define EACH_HEAD(u) _Pragma("unroll") for (int u = 0; u < ROPE_HEADS; u++)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

// Where a thread works: the first elements of its first head in x and y, and the columns of its two runs.
struct place {
    long long x, y, position;
    int head, first, second;
    int is_turning, pair;
};

DEVICE struct place find_place(const struct rope_params *p, long long thread) {
    struct place at;
    int of_head = p->pairs + p->rests;
    unsigned of_token = (unsigned)(p->head_slots * of_head);
    long long token = p->threads >> 32 == 0 ? (unsigned)thread / of_token : thread / of_token;
    int item = (int)(thread - token * of_token), run = item % of_head;
    long long b = token >> 32 == 0 && p->seqlen >> 32 == 0 ? (unsigned)token / (unsigned)p->seqlen
                                                           : token / p->seqlen;
    long long s = token - b * p->seqlen;
    at.head = item / of_head;
    at.x = b * p->x_stride[0] + s * p->x_stride[1];
    at.y = b * p->y_stride[0] + s * p->y_stride[1];
    at.is_turning = run < p->pairs;
    at.pair = run;
    at.position = s;
    if (p->positions != 0 && at.is_turning)
        at.position = p->positions[b * p->positions_stride[0] + s * p->positions_stride[1]];
    if (!at.is_turning) {
        at.first = p->rotary_dim + (run - p->pairs) * p->width;
        at.second = at.first + p->rests * p->width;
    } else if (p->width == 1 && p->is_interleaved) {
        at.first = 2 * run;
        at.second = at.first + 1;
    } else {
        at.first = run * p->width;
        at.second = at.first + p->rotary_dim / 2;
    }
    return at;
}

DEVICE int is_in_tables(const struct rope_params *p, const struct place *at) {
    return at->position >= 0 && at->position < p->num_positions;
}

// ---- Runs of 16 bytes ---------------------------------------------------------------------------

// Loads half a group of a table.
DEVICE void load_half(float x[GROUP / 2], const float *table) {
#if GROUP == 8
    float4 four = *(const float4 *)table;
    x[2] = four.z;
    x[3] = four.w;
#else
    float2 four = *(const float2 *)table;
#endif
    x[0] = four.x;
    x[1] = four.y;
}

// The factors of both runs. Pair i of an interleaved group uses factor i; then the second run has the factors of the
// head's second half.
DEVICE void load_factors(float c[GROUP], const float *table, const struct rope_params *p,
                         const struct place *at) {
    int second = p->is_interleaved ? p->rotary_dim / 4 : GROUP / 2;
    table += at->pair * (p->is_interleaved ? GROUP / 2 : GROUP);
    load_half(c, table);
    load_half(c + GROUP / 2, table + second);
}

DEVICE void turn_halves(float a[GROUP], float b[GROUP], const float c[GROUP],
                        const float s[GROUP]) {
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        float left = a[i], right = b[i];
        a[i] = left * c[i] - right * s[i];
        b[i] = right * c[i] + left * s[i];
    }
}

DEVICE void turn_neighbours(float a[GROUP], const float c[GROUP / 2], const float s[GROUP / 2]) {
#pragma unroll
    for (int i = 0; i < GROUP / 2; i++) {
        float left = a[2 * i], right = a[2 * i + 1];
        a[2 * i] = left * c[i] - right * s[i];
        a[2 * i + 1] = right * c[i] + left * s[i];
    }
}

DEVICE void rotate_groups(const struct rope_params *p, const struct place *at) {
    uint4 first[ROPE_HEADS], second[ROPE_HEADS];
    float c[GROUP], s[GROUP];
    int has_second = at->second < p->head_dim;
    EACH_HEAD(u) {
        int head = at->head + u * p->head_slots;
        long long x = at->x + head * p->x_stride[2];
        if (head < p->num_heads) first[u] = load_bytes(p->x, x + at->first);
        if (head < p->num_heads && has_second) second[u] = load_bytes(p->x, x + at->second);
    }
#pragma unroll
    for (int i = 0; i < GROUP; i++) c[i] = s[i] = NOT_A_NUMBER;
    if (at->is_turning && is_in_tables(p, at)) {
        load_factors(c, p->cos + at->position * p->cos_stride, p, at);
        load_factors(s, p->sin + at->position * p->sin_stride, p, at);
#pragma unroll
        for (int i = 0; i < GROUP; i++) s[i] *= p->sign;
    }
    EACH_HEAD(u) {
        int head = at->head + u * p->head_slots;
        long long y = at->y + head * p->y_stride[2];
        if (head >= p->num_heads) break;
        if (at->is_turning) {
            float a[GROUP], b[GROUP];
            widen(first[u], a);
            widen(second[u], b);
            if (p->is_interleaved) {
                turn_neighbours(a, c, s);
                turn_neighbours(b, c + GROUP / 2, s + GROUP / 2);
            } else {
                turn_halves(a, b, c, s);
            }
            first[u] = narrow(a);
            second[u] = narrow(b);
        }
        store_bytes(p->y, y + at->first, first[u]);
        if (has_second) store_bytes(p->y, y + at->second, second[u]);
    }
}

// ---- Single elements ----------------------------------------------------------------------------

DEVICE void rotate_elements(const struct rope_params *p, const struct place *at) {
    float a[ROPE_HEADS], b[ROPE_HEADS], c = NOT_A_NUMBER, s = NOT_A_NUMBER;
    int has_second = at->second < p->head_dim;
    EACH_HEAD(u) {
        int head = at->head + u * p->head_slots;
        long long x = at->x + head * p->x_stride[2];
        if (head < p->num_heads) a[u] = load(p->x, x + at->first);
        if (head < p->num_heads && has_second) b[u] = load(p->x, x + at->second);
    }
    if (at->is_turning && is_in_tables(p, at)) {
        c = p->cos[at->position * p->cos_stride + at->pair];
        s = p->sin[at->position * p->sin_stride + at->pair] * p->sign;
    }
    EACH_HEAD(u) {
        int head = at->head + u * p->head_slots;
        long long y = at->y + head * p->y_stride[2];
        if (head >= p->num_heads) break;
        float left = a[u], right = b[u];
        if (at->is_turning) {
            left = a[u] * c - b[u] * s;
            right = b[u] * c + a[u] * s;
        }
        store(p->y, y + at->first, left);
        if (has_second) store(p->y, y + at->second, right);
    }
}

extern "C" __global__ void __launch_bounds__(ROPE_THREADS) rope_rotate(const struct rope_params p) {
    long long step = (long long)gridDim.x * ROPE_THREADS;
    long long thread = (long long)blockIdx.x * ROPE_THREADS + threadIdx.x;
    for (; thread < p.threads; thread += step) {
        struct place at = find_place(&p, thread);
        if (p.width == GROUP)
            rotate_groups(&p, &at);
        else
            rotate_elements(&p, &at);
    }
}
