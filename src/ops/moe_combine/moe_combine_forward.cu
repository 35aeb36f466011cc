// SPDX-License-Identifier: Apache-2.0
// The weighted sum of each token's rows, and the shared expert and the residual. A warp takes a span of a token's columns. A lane
// loads 16 bytes of AT_ONCE rows, or of more columns of fewer rows, before it uses the first, and adds rows in order. Rows and
// weights of the token are read once a span, by lanes, and passed on by shuffles.
// Floor: each row read once, each token written once.
// Limit: memory; with few tokens the latency of two loads, of row numbers and of rows.
// Figures: docs/kernels/moe.md.
// The host defines
//     DTYPE: the dtype of rows, shared and y; the residual may be fp32
#include "ops/moe_combine/moe_combine_device.cuh"

// sum += rows [k, k + num) of the assignments.
DEVICE void add_rows(float sum[GROUP], const struct moe_combine_forward_params *p,
                     const struct batch *batch, const uint4 *raw, int k, const int num) {
    EACH_ROW(j) {
        float x[GROUP];
        if (j >= num || k + j >= p->assignments.top_k) continue;
        widen(raw[j], x);
        EACH_ELEMENT(i) sum[i] = fmaf(batch->weight[j], x[i], sum[i]);
    }
}

// A group of the residual: one of DTYPE or, with fp32 beside 16 bits, two of fp32.
struct residual {
    uint4 raw[2];
};

DEVICE int has_two(const struct moe_combine_forward_params *p) {
    return ELEMENT_BYTES == 2 && p->is_residual_f32;
}

DEVICE struct residual fetch_residual(const struct moe_combine_forward_params *p, long long token,
                                      int col, int count) {
    struct residual r = {{make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)}};
    const long long at = token * p->residual.stride + col;
    if (p->residual.data == 0 || !p->is_aligned) return r;
    load_bytes_if(&r.raw[0], p->residual.data, has_two(p) ? 2 * at : at, count > 0);
    if (has_two(p)) load_bytes_if(&r.raw[1], p->residual.data, 2 * at + GROUP, count > 0);
    return r;
}

DEVICE void add_residual(float sum[GROUP], const struct moe_combine_forward_params *p,
                         const struct residual *r, long long token, int col, int count) {
    float x[GROUP];
    if (!p->is_aligned) {
        const long long at = token * p->residual.stride + col;
        EACH_ELEMENT(i)
        x[i] = i < count ? load_either(p->residual.data, at + i, p->is_residual_f32) : 0;
    } else if (has_two(p)) {
        const unsigned word[8] = {r->raw[0].x, r->raw[0].y, r->raw[0].z, r->raw[0].w,
                                  r->raw[1].x, r->raw[1].y, r->raw[1].z, r->raw[1].w};
        EACH_ELEMENT(i) x[i] = __uint_as_float(word[i]);
    } else {
        widen(r->raw[0], x);
    }
    EACH_ELEMENT(i) sum[i] += x[i];
}

// Adds the shared expert and the residual, and stores.
DEVICE void end_group(float sum[GROUP], const struct moe_combine_forward_params *p, uint4 shared,
                      float gate, const struct residual *residual, long long token, int col) {
    const int count = count_at(col, p->hidden);
    if (p->shared.data != 0) {
        float x[GROUP];
        widen(shared, x);
        EACH_ELEMENT(i) sum[i] = fmaf(gate, x[i], sum[i]);
    }
    if (p->residual.data != 0) add_residual(sum, p, residual, token, col, count);
    put(p->y.data, token * p->y.stride + col, sum, count, p->is_aligned, 0);
}

DEVICE uint4 fetch_shared(const struct moe_combine_forward_params *p, long long token, int col) {
    if (p->shared.data == 0) return make_uint4(0, 0, 0, 0);
    return fetch(p->shared.data, token * p->shared.stride + col, count_at(col, p->hidden),
                 p->is_aligned);
}

// A lane's group of columns.
DEVICE void take_group(const struct moe_combine_forward_params *p, long long token,
                       struct held held, float gate, int col) {
    const int top_k = p->assignments.top_k, count = count_at(col, p->hidden);
    const struct residual residual = fetch_residual(p, token, col, count);
    const uint4 shared = fetch_shared(p, token, col);
    float sum[GROUP] = {0};
    for (int k = 0; k < top_k; k += AT_ONCE) {
        struct batch batch;
        uint4 raw[AT_ONCE];
        if (k > 0 && k % 32 == 0) held = hold_rows(&p->assignments, token, k);
        spread_rows(&batch, held, k % 32);
        fetch_rows(raw, AT_ONCE, &p->rows, &batch, col, count, p->is_aligned);
        add_rows(sum, p, &batch, raw, k, AT_ONCE);
    }
    end_group(sum, p, shared, gate, &residual, token, col);
}

// The same of `tiles` groups, 32 GROUP apart, where a token has at most AT_ONCE / tiles rows. tiles: a constant.
DEVICE void take_groups(const int tiles, const struct moe_combine_forward_params *p,
                        long long token, const struct batch *batch, float gate, int col) {
    const int num = AT_ONCE / tiles;
    uint4 raw[AT_ONCE];
#pragma unroll
    for (int t = 0; t < tiles; t++)
        fetch_rows(raw + t * num, num, &p->rows, batch, col + t * 32 * GROUP,
                   count_at(col + t * 32 * GROUP, p->hidden), p->is_aligned);
#pragma unroll
    for (int t = 0; t < tiles; t++) {
        const int at = col + t * 32 * GROUP;
        const struct residual residual = fetch_residual(p, token, at, count_at(at, p->hidden));
        float sum[GROUP] = {0};
        add_rows(sum, p, batch, raw + t * num, 0, num);
        end_group(sum, p, fetch_shared(p, token, at), gate, &residual, token, at);
    }
}

DEVICE void take_span(const struct moe_combine_forward_params *p, long long token, int first,
                      int last) {
    const struct held held = hold_rows(&p->assignments, token, 0);
    const int tiles = p->tiles;
    struct batch batch;
    float gate = 1, slope;
    spread_rows(&batch, held, 0);
    if (p->shared_gate != 0) gate = sigmoid_of(p->shared_gate[token * p->gate_stride], &slope);
    for (int base = first; base < last; base += tiles * 32 * GROUP) {
        const int col = base + LANE * GROUP;
        if (tiles == 4)
            take_groups(4, p, token, &batch, gate, col);
        else if (tiles == 2)
            take_groups(2, p, token, &batch, gate, col);
        else
            take_group(p, token, held, gate, col);
    }
}

// An element of narrow rows, in the same order.
DEVICE void take_element(const struct moe_combine_forward_params *p, long long token, int col) {
    const struct moe_combine_assignments *a = &p->assignments;
    float sum = 0, slope;
    for (int k = 0; k < a->top_k; k++) {
        const int row = a->rows[token * a->rows_stride + k];
        if (row >= 0 && row < a->num_rows)
            sum = fmaf(a->weights != 0 ? a->weights[token * a->weights_stride + k] : 1,
                       load_either(p->rows.data, row * p->rows.stride + col, 0), sum);
        else if (row != -1)
            sum = NOT_A_NUMBER;
    }
    if (p->shared.data != 0)
        sum = fmaf(p->shared_gate != 0 ? sigmoid_of(p->shared_gate[token * p->gate_stride], &slope)
                                       : 1,
                   load_either(p->shared.data, token * p->shared.stride + col, 0), sum);
    if (p->residual.data != 0)
        sum += load_either(p->residual.data, token * p->residual.stride + col, p->is_residual_f32);
    store(p->y.data, token * p->y.stride + col, sum);
}

extern "C" __global__ void __launch_bounds__(32 * MOE_COMBINE_FORWARD_WARPS)
    moe_combine_forward(const struct moe_combine_forward_params p) {
    const long long step = (long long)gridDim.x * MOE_COMBINE_FORWARD_WARPS;
    long long unit = (long long)blockIdx.x * MOE_COMBINE_FORWARD_WARPS + WARP;
    begin_early();
    if (p.spans == 0) {
        for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < p.num_units;
             i += (long long)gridDim.x * blockDim.x)
            take_element(&p, i / p.hidden, (int)(i % p.hidden));
        return;
    }
    for (; unit < p.num_units; unit += step) {
        const long long token = unit / p.spans;
        const int first = (int)(unit - token * p.spans) * p.span;
        take_span(&p, token, first, p.hidden - first < p.span ? p.hidden : first + p.span);
    }
}
