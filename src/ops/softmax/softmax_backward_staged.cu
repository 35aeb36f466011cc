// SPDX-License-Identifier: Apache-2.0
// dx = y * (dy - sum(y * dy)) over the columns of (rows, cols), for rows that begin anywhere and have any width. Rows that
// are wider than their stages go through them in chunks, twice; the second time from the last one, which is still there, to
// the first.
// Floor: y and dy read once, dx written once.
// Limit: memory; of rows in several chunks the second-level cache, from which all but the last one come again.
// Figures: docs/kernels/softmax.md.
// The host defines
//     DTYPE, THREADS_PER_ROW
#include "cuda/device/staged_rows.cuh"
#include "ops/softmax/softmax_params.h"

// This thread's part of the sum of y * dy, in words of y.
DEVICE float sum_of_products(const struct stage *y, const struct stage *dy, int cols,
                             float *slots) {
    const int odd = is_stage_odd(y), is_alike = is_stage_odd(dy) == odd;
    float v[PER_WORD], dv[PER_WORD], sum[PER_WORD] = {0};
#pragma unroll 2
    EACH_STAGED_WORD(col, odd, cols) {
        load_staged_word(v, y, col);
        if (is_alike) {
            load_staged_word(dv, dy, col);
        } else {
#pragma unroll
            for (int i = 0; i < PER_WORD; i++)
                dv[i] = col + i >= 0 && col + i < cols ? staged_element(dy, col + i) : 0;
        }
#pragma unroll
        for (int i = 0; i < PER_WORD; i++) sum[i] += v[i] * dv[i];
    }
    return sum_of_words(sum, odd, slots);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    softmax_backward_staged(const struct softmax_params p) {
    extern __shared__ __align__(16) char memory[];
    __shared__ float slots[BLOCK_THREADS];
    DECLARE_REDUCER(reducer);
    struct stage y = {memory + ROW_OF_BLOCK * 2 * p.stage_bytes, 0};
    struct stage dy = {y.memory + p.stage_bytes, 0};
    const int last = (p.cols - 1) / p.chunk * p.chunk;
    begin_early();
    for (long long row = (long long)blockIdx.x * ROWS_PER_BLOCK + ROW_OF_BLOCK; row < p.rows;
         row += (long long)gridDim.x * ROWS_PER_BLOCK) {
        const long long y_at = row * p.in_stride[0], dy_at = row * p.in_stride[1];
        const long long to = row * p.out_stride;
        float v[GROUP], dv[GROUP], sum = 0;
        for (int first = 0; first <= last; first += p.chunk) {
            const int cols = first < last ? p.chunk : p.cols - last;
            stage_row(&y, p.in[0], y_at + first, cols, 0);
            stage_row(&dy, p.in[1], dy_at + first, cols, 0);
            wait_for_stages();
            if (p.is_aligned) {
                EACH_GROUP(col, 0, cols) {
                    load_staged(v, &y, col);
                    load_staged(dv, &dy, col);
#pragma unroll
                    for (int i = 0; i < GROUP; i++) sum += v[i] * dv[i];
                }
            } else {
                sum += sum_of_products(&y, &dy, cols, slots);
            }
            if (first < last) wait_for_stages(); // before the next chunk takes its place
        }
        sum = reduce_sum(sum, &reducer);
        for (int first = last; first >= 0; first -= p.chunk) {
            const int cols = first < last ? p.chunk : p.cols - last;
            if (first < last) {
                stage_row(&y, p.in[0], y_at + first, cols, 0);
                stage_row(&dy, p.in[1], dy_at + first, cols, 0);
                wait_for_stages();
            }
            const int shift = shift_of(p.out, to + first), edge = edge_column(shift, cols);
            EACH_WHOLE_GROUP(col, shift, cols) {
                load_staged(v, &y, col);
                load_staged(dv, &dy, col);
#pragma unroll
                for (int i = 0; i < GROUP; i++) dv[i] = v[i] * (dv[i] - sum);
                store_bytes(p.out, to + first + col, narrow(dv));
            }
            if (edge >= 0 && edge < cols)
                store(p.out, to + first + edge,
                      staged_element(&y, edge) * (staged_element(&dy, edge) - sum));
            wait_for_stages(); // before what comes next takes its place
        }
    }
}
