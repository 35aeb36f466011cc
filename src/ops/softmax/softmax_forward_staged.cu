// SPDX-License-Identifier: Apache-2.0
// y = softmax(x) over the columns of (rows, cols), for rows that begin anywhere and have any width. A row of -inf gives
// zeros; a row with +inf or NaN becomes NaN throughout, like its sum. A row that is wider than its stage goes through it in
// chunks, twice; the second time from the last one, which is still there, to the first.
// Floor: x read once, y written once.
// Limit: memory; of rows in several chunks the second-level cache, from which all but the last one come again.
// Figures: docs/kernels/softmax.md.
// The host defines
//     DTYPE, THREADS_PER_ROW
#include "cuda/device/staged_rows.cuh"
#include "ops/softmax/softmax_params.h"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
    softmax_forward_staged(const struct softmax_params p) {
    extern __shared__ __align__(16) char memory[];
    __shared__ float slots[BLOCK_THREADS];
    DECLARE_REDUCER(reducer);
    struct stage x = {memory + ROW_OF_BLOCK * p.stage_bytes, 0};
    const int last = (p.cols - 1) / p.chunk * p.chunk;
    begin_early();
    for (long long row = (long long)blockIdx.x * ROWS_PER_BLOCK + ROW_OF_BLOCK; row < p.rows;
         row += (long long)gridDim.x * ROWS_PER_BLOCK) {
        const long long from = row * p.in_stride[0], to = row * p.out_stride;
        float v[GROUP];
        float max = -INFINITE, sum = 0; // of the row's columns so far; of those of this thread
        for (int first = 0; first <= last; first += p.chunk) {
            const int cols = first < last ? p.chunk : p.cols - last;
            float larger = max;
            stage_row(&x, p.in[0], from + first, cols, -INFINITE);
            wait_for_stages();
            EACH_GROUP(col, x.shift, cols) {
                load_staged(v, &x, col);
#pragma unroll
                for (int i = 0; i < GROUP; i++) larger = fmaxf(larger, v[i]);
            }
            larger = reduce_max(larger, &reducer);
            const float zero = larger == -INFINITE ? 0 : larger; // nothing yet: terms are 0 or NaN
            sum *= exp2_fast((max - zero) * LOG2_E);
            if (p.is_aligned) {
                EACH_GROUP(col, 0, cols) {
                    load_staged(v, &x, col);
#pragma unroll
                    for (int i = 0; i < GROUP; i++) sum += exp2_fast((v[i] - zero) * LOG2_E);
                }
            } else {
                const int odd = is_stage_odd(&x);
                float word[PER_WORD], more[PER_WORD] = {0};
#pragma unroll 4
                EACH_STAGED_WORD(col, odd, cols) {
                    load_staged_word(word, &x, col);
#pragma unroll
                    for (int i = 0; i < PER_WORD; i++)
                        more[i] += exp2_fast((word[i] - zero) * LOG2_E);
                }
                sum += sum_of_words(more, odd, slots);
            }
            max = larger;
            if (first < last) wait_for_stages(); // before the next chunk takes its place
        }
        const float all = max == -INFINITE ? 0 : max;
        sum = reduce_sum(sum, &reducer);
        const float inverse = sum == 0 ? 0 : 1 / sum;
        for (int first = last; first >= 0; first -= p.chunk) {
            const int cols = first < last ? p.chunk : p.cols - last;
            if (first < last) {
                stage_row(&x, p.in[0], from + first, cols, -INFINITE);
                wait_for_stages();
            }
            const int shift = shift_of(p.out, to + first), edge = edge_column(shift, cols);
            EACH_WHOLE_GROUP(col, shift, cols) {
                load_staged(v, &x, col);
#pragma unroll
                for (int i = 0; i < GROUP; i++) v[i] = exp2_fast((v[i] - all) * LOG2_E) * inverse;
                store_bytes(p.out, to + first + col, narrow(v));
            }
            if (edge >= 0 && edge < cols)
                store(p.out, to + first + edge,
                      exp2_fast((staged_element(&x, edge) - all) * LOG2_E) * inverse);
            wait_for_stages(); // before what comes next takes its place
        }
    }
}
