// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm like norm_forward.cu, for rows that begin anywhere and have any width that the registers of a block
// hold: they move in words (cuda/device/row_words.cuh).
// Floor: x read once, y written once; with a residual that is read and residual_out written, too.
// Limit: memory; loads of 128 bytes a warp instead of 512.
// Figures: docs/kernels/norm.md.
// The host defines
//     DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD
#include "ops/norm/cuda/norm_moments.cuh"

// Threads for which a multiprocessor has registers.
#if DTYPE == DTYPE_F32
#define SM_THREADS (FLOATS_PER_THREAD < 32 ? 1024 : 512)
#else
#define SM_THREADS (FLOATS_PER_THREAD <= 32 && __CUDA_ARCH__ >= 900 ? 1024 : 768)
#endif

// A row in pairs of columns; with a residual, the sum, which is stored.
DEVICE void load_sum_pairs(unsigned s[NUM_WORDS + 1], const struct norm_forward_params *p,
                           long long row, int cols) {
    const long long x_at = row * p->x_stride, at = row * p->residual_stride;
    if (p->residual == 0) {
        load_pairs(s, p->x, x_at, cols, 0);
        return;
    }
    unsigned residual[NUM_WORDS + 1]; // both are loaded at once
    const int x_odd = is_odd(p->x, x_at), odd = is_odd(p->residual, at);
    load_words(s, p->x, x_at, x_odd, cols, 0);
    load_words(residual, p->residual, at, odd, cols, 0);
    join_words(s, x_odd);
    join_words(residual, odd);
    EACH_WORD(v) {
        float sum[PER_WORD], more[PER_WORD];
        widen_word(s[v], sum);
        widen_word(residual[v], more);
#pragma unroll
        for (int i = 0; i < PER_WORD; i++) sum[i] += more[i];
        s[v] = narrow_word(sum);
    }
    store_pairs(s, p->residual_out, row * p->residual_out_stride, cols);
}

// A row in registers as it is stored, widened for each of its three uses: 16-bit rows take half of the registers. Returns 1,
// and leaves the row alone, if it must be summed in double.
DEVICE int norm_in_words(const struct norm_forward_params p, long long row, int is_there, int cols,
                         struct row_sums *sums) {
    unsigned s[NUM_WORDS + 1];
    float x[PER_WORD], mean = 0, offset = 0, squares = 0;
    int left = cols - first_column();
    load_sum_pairs(s, &p, row, cols);
    if (!p.is_rmsnorm) {
        float sum[2] = {0, 0};
        EACH_WORD(v) {
            widen_word(s[v], x);
#pragma unroll
            for (int i = 0; i < PER_WORD; i++) sum[(v + i) % 2] += x[i];
        }
        mean = sum_one(sum[0] + sum[1], sums) * (float)p.inverse_cols;
        WIDEN_ANEW(s);
    }
    COMPARE_ANEW(left);
    EACH_WORD(v) {
        widen_word(s[v], x);
#pragma unroll
        for (int i = 0; i < PER_WORD; i++) {
            const float centred = v * WORD_STEP + i < left ? x[i] - mean : 0;
            offset += centred;
            squares += centred * centred;
        }
    }
    const struct row_moments moments =
        moments_of(mean, p.is_rmsnorm ? 0 : offset, squares, &p, sums);
    const int is_wide = moments.is_wide && is_there;
    if (is_wide) left = 0; // nothing is stored, but the shuffles need all lanes of a warp
    if (is_there && !is_wide) store_moments(&p, 0, row, moments.mean, moments.rstd);
    const int is_word = is_in_words(p.weight, p.weight_is_f32) &&
                        (p.bias == 0 || is_in_words(p.bias, p.weight_is_f32));
    WIDEN_ANEW(s);
    COMPARE_ANEW(left);
    EACH_WORD(v) {
        float scale[PER_WORD], shift[PER_WORD] = {0};
        widen_word(s[v], x);
#pragma unroll
        for (int i = 0; i < PER_WORD; i++) {
            x[i] = (x[i] - mean) * moments.rstd - moments.shift;
            scale[i] = 1;
        }
        if (p.weight != 0 && v * WORD_STEP < left) {
            load_word_beside(scale, p.weight, v, left, p.weight_is_f32, is_word);
            if (p.bias != 0) load_word_beside(shift, p.bias, v, left, p.weight_is_f32, is_word);
        }
#pragma unroll
        for (int i = 0; i < PER_WORD; i++) x[i] = x[i] * scale[i] + shift[i];
        s[v] = narrow_word(x);
    }
    store_pairs(s, p.y, row * p.y_stride, is_wide ? 0 : cols);
    return is_wide;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, SM_THREADS / BLOCK_THREADS)
    norm_forward_words(const struct norm_forward_params p) {
    DECLARE_ROW_SUMS(sums);
    const long long row = (long long)blockIdx.x * ROWS_PER_BLOCK + ROW_OF_BLOCK;
    const int is_there = ROWS_PER_BLOCK == 1 || row < p.rows; // missing rows take part in shuffles
    const int cols = is_there ? p.cols : 0;
    begin_early();
    const int is_wide = norm_in_words(p, row, is_there, cols, &sums);
    if (is_any_wide(is_wide)) norm_wide(&p, row, cols, is_wide, &sums);
}
