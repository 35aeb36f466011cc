// SPDX-License-Identifier: Apache-2.0
// Rows of dweight (vocab, hidden) from dy (tokens, hidden) and the sorted tokens, in fp32, each written once. A warp
// has some rows and some columns, and adds up to EMBEDDING_SEGMENT tokens of a row in order. A row with more tokens is
// cut into segments of that length, each summed by its own warp into `partial`; embedding_join.cu adds those sums. So
// the order of additions depends on the ids only.
// Floor: dy read once, dweight written once, zero rows included.
// Limit: chains of loads that wait for each other (starts, tokens, rows).
// Figures: docs/kernels/embedding.md.
// The host defines
//     DTYPE: the dtype of dy; dweight may be fp32
#include "cuda/device/numbers.cuh"
#include "ops/embedding/embedding_params.h"

#define ALL_LANES 0xffffffffu
#define LANE ((int)(threadIdx.x % 32))
#define FLOATS (EMBEDDING_GROUPS * GROUP)
#define EACH_GROUP(v) _Pragma("unroll") for (int v = 0; v < EMBEDDING_GROUPS; v++)
#define EACH_FLOAT(e) _Pragma("unroll") for (int e = 0; e < FLOATS; e++)

// Column of a lane's element e: adjacent groups if rows are aligned, else single elements.
DEVICE int column_of(int first, int e, int is_aligned) {
    return is_aligned ? first + (e / GROUP * 32 + LANE) * GROUP + e % GROUP : first + e * 32 + LANE;
}

// sum += rows of dy for `count` of the tokens that the lanes hold, starting with token `from`, in order;
// EMBEDDING_AHEAD rows are loaded at once.
DEVICE void add_tokens(float sum[FLOATS], const struct embedding_sum_params *p, int token, int from,
                       int count, int first) {
    for (int k = 0; k < count; k += EMBEDDING_AHEAD) {
        long long row[EMBEDDING_AHEAD];
#pragma unroll
        for (int j = 0; j < EMBEDDING_AHEAD; j++)
            row[j] = __shfl_sync(ALL_LANES, token, (from + k + j) & 31) * p->dy_stride;
        if (p->is_aligned) {
            uint4 raw[EMBEDDING_AHEAD][EMBEDDING_GROUPS];
#pragma unroll
            for (int j = 0; j < EMBEDDING_AHEAD; j++) EACH_GROUP(v) {
                    int col = column_of(first, v * GROUP, 1);
                    raw[j][v] = make_uint4(0, 0, 0, 0);
                    if (k + j < count && col < p->hidden)
                        raw[j][v] = load_bytes(p->dy, row[j] + col);
                }
#pragma unroll
            for (int j = 0; j < EMBEDDING_AHEAD; j++) EACH_GROUP(v) {
                    float x[GROUP];
                    widen(raw[j][v], x);
#pragma unroll
                    for (int i = 0; i < GROUP; i++) sum[v * GROUP + i] += x[i];
                }
        } else {
#pragma unroll
            for (int j = 0; j < EMBEDDING_AHEAD; j++) EACH_FLOAT(e) {
                    int col = column_of(first, e, 0);
                    if (k + j < count && col < p->hidden) sum[e] += load(p->dy, row[j] + col);
                }
        }
    }
}

DEVICE void write_group(float x[GROUP], char *row, int col, const struct embedding_sum_params *p) {
    if (p->is_accumulating) {
        float old[GROUP];
        load_group_beside(old, row, col, p->dweight_is_f32);
#pragma unroll
        for (int i = 0; i < GROUP; i++) x[i] += old[i];
    }
    if (p->dweight_is_f32) {
#pragma unroll
        for (int i = 0; i < GROUP; i += 4)
            *(float4 *)((float *)row + col + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    } else {
        store_bytes(row, col, narrow(x));
    }
}

DEVICE void write_row(float sum[FLOATS], const struct embedding_sum_params *p, int row, int first) {
    long long at = row * p->dweight_stride;
    if (p->is_aligned) {
        char *data = (char *)p->dweight + at * (p->dweight_is_f32 ? 4 : ELEMENT_BYTES);
        EACH_GROUP(v) {
            int col = column_of(first, v * GROUP, 1);
            if (col < p->hidden) write_group(sum + v * GROUP, data, col, p);
        }
    } else {
        EACH_FLOAT(e) {
            int col = column_of(first, e, 0);
            float x = sum[e];
            if (col >= p->hidden) continue;
            if (p->is_accumulating) x += load_either(p->dweight, at + col, p->dweight_is_f32);
            store_either(p->dweight, at + col, x, p->dweight_is_f32);
        }
    }
}

// The rows of one warp. Their tokens are consecutive, so the lanes hold the tokens of several rows.
DEVICE void sum_rows(const struct embedding_sum_params *p, int first_row, int first) {
    int bound = first_row + LANE <= p->vocab ? p->starts[first_row + LANE] : p->num_tokens;
    int window = __shfl_sync(ALL_LANES, bound, 0), token = 0;
    if (window + LANE < p->num_tokens) token = p->tokens[window + LANE];
    for (int r = 0; r < EMBEDDING_ROWS && first_row + r < p->vocab; r++) {
        int start = __shfl_sync(ALL_LANES, bound, r);
        int count = __shfl_sync(ALL_LANES, bound, r + 1) - start;
        float sum[FLOATS] = {0};
        if (count > EMBEDDING_SEGMENT || (count == 0 && p->is_accumulating)) continue;
        if (start + count > window + 32) {
            window = start;
            token = window + LANE < p->num_tokens ? p->tokens[window + LANE] : 0;
        }
        add_tokens(sum, p, token, start - window, count, first);
        write_row(sum, p, first_row + r, first);
    }
}

// Sums the segments that begin in a tile of the sorted list and belong to rows with more than EMBEDDING_SEGMENT tokens.
// There are at most two: the first segment of a row, and a later one of the row before it. Each has its own slot of
// `partial`.
DEVICE void sum_segments(const struct embedding_sum_params *p, int tile, int first) {
    int at = tile * EMBEDDING_SEGMENT + LANE, start = 0, end = 0;
    int key = at < p->num_tokens ? p->keys[at] : p->vocab;
    if (key < p->vocab) {
        start = p->starts[key];
        end = p->starts[key + 1];
    }
    unsigned begins = __ballot_sync(ALL_LANES, end - start > EMBEDDING_SEGMENT &&
                                                   (at - start) % EMBEDDING_SEGMENT == 0);
    while (begins != 0) {
        int from = __ffs(begins) - 1, here = tile * EMBEDDING_SEGMENT + from;
        int count = __shfl_sync(ALL_LANES, end, from) - here;
        int is_first = __shfl_sync(ALL_LANES, start, from) == here;
        float sum[FLOATS] = {0};
        if (count > EMBEDDING_SEGMENT) count = EMBEDDING_SEGMENT;
        int token = LANE < count ? p->tokens[here + LANE] : 0;
        add_tokens(sum, p, token, 0, count, first);
        EACH_FLOAT(e) {
            int col = column_of(first, e, p->is_aligned);
            if (col < p->hidden) p->partial[(2LL * tile + is_first) * p->hidden + col] = sum[e];
        }
        begins &= begins - 1;
    }
}

extern "C" __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_sum(const struct embedding_sum_params p) {
    enum { WARPS = EMBEDDING_THREADS / 32 };
    long long step = (long long)gridDim.x * WARPS;
    long long warp = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    for (; warp < p.num_warps; warp += step) {
        int item = (int)(warp / p.chunks), first = (int)(warp % p.chunks) * 32 * FLOATS;
        if (item < p.tiles) // long rows first
            sum_segments(&p, item, first);
        else
            sum_rows(&p, (item - p.tiles) * EMBEDDING_ROWS, first);
    }
}
