// SPDX-License-Identifier: Apache-2.0
// Shared by the norms' kernels: sums over a row of one block or, with IS_CLUSTER, of a cluster of blocks with one slab
// of columns each.
#ifndef TSRI_NORM_DEVICE_CUH
#define TSRI_NORM_DEVICE_CUH

#ifndef IS_CLUSTER
#define IS_CLUSTER 0
#endif

#include "cuda/device/reduce.cuh"
#include "ops/norm/cuda/norm_params.h"
#if IS_CLUSTER
#include "cuda/device/cluster.cuh"
#endif

// (x - mean) rstd from halves, so that the difference of finite numbers never overflows.
DEVICE float normalised(float x, float mean, float rstd) {
    return __fmaf_rn(x, 0.5f, -0.5f * mean) * (2 * rstd);
}

// Backward: whether the rounding of the mean matters, so that h is corrected by its own mean (NORM_FAR_MEAN). rest_of
// is 0 for values that are not finite.
DEVICE int is_mean_far(float mean, float rstd) { return fabsf(mean) * rstd > NORM_FAR_MEAN; }
DEVICE float rest_of(float sum_h, int cols) {
    float rest = sum_h / cols;
    return fabsf(rest) < 1e30f ? rest : 0;
}

// The columns of a row that this block has, and the number of blocks that share the row.
struct slab {
    int first, cols, num_blocks;
};

struct row_sums {
    struct reducer reducer;
#if IS_CLUSTER
    struct cluster cluster;
#endif
};

#if IS_CLUSTER
#define DECLARE_ROW_SUMS(name)                                                                     \
    DECLARE_REDUCER(name##_reducer);                                                               \
    DECLARE_CLUSTER(name##_cluster);                                                               \
    struct row_sums name = {name##_reducer, name##_cluster};                                       \
    cluster_barrier() /* all blocks have begun */

DEVICE struct slab slab_of(const struct row_sums *sums, int cols, int most) {
    int first = sums->cluster.rank * most;
    struct slab slab = {first, max(min(cols - first, most), 0), sums->cluster.size};
    return slab;
}
#else
#define DECLARE_ROW_SUMS(name)                                                                     \
    DECLARE_REDUCER(name##_reducer);                                                               \
    struct row_sums name = {name##_reducer}

DEVICE struct slab slab_of(const struct row_sums *sums, int cols, int most) {
    struct slab slab = {0, cols, 1};
    return slab;
}
#endif

DEVICE void sum_two(float *a, float *b, struct row_sums *sums) {
    reduce_two_sums(a, b, &sums->reducer);
#if IS_CLUSTER
    cluster_two_sums(a, b, &sums->cluster);
#endif
}

DEVICE float sum_one(float x, struct row_sums *sums) {
    x = reduce_sum(x, &sums->reducer);
#if IS_CLUSTER
    float none = 0;
    cluster_two_sums(&x, &none, &sums->cluster);
#endif
    return x;
}

DEVICE double sum_double(double x, struct row_sums *sums) {
    x = reduce_sum_double(x, &sums->reducer);
#if IS_CLUSTER
    x = cluster_sum_double(x, &sums->cluster);
#endif
    return x;
}

// ---- Rare rows of forward whose squares overflow or underflow fp32: in double, from memory ---------

struct moments {
    double mean, rstd;
};

#define EACH_COLUMN(col, cols)                                                                     \
    _Pragma("unroll 1") for (int col = ROW_THREAD; col < (cols); col += THREADS_PER_ROW)

// The row in double, read again from memory (with a residual: the sum that the row's threads have just written).
DEVICE struct moments wide_moments(const void *s, long long at, int cols,
                                   const struct norm_forward_params *p, struct row_sums *sums) {
    double squares = 0, mean = 0;
    __syncwarp(); // wider rows have passed a barrier since
    if (!p->is_rmsnorm) {
        EACH_COLUMN(col, cols) mean += load(s, at + col);
        mean = sum_double(mean, sums) * p->inverse_cols;
    }
    EACH_COLUMN(col, cols) {
        const double centred = load(s, at + col) - mean;
        squares += centred * centred;
    }
    squares = sum_double(squares, sums);
    struct moments moments = {mean, rsqrt(squares * p->inverse_cols + p->eps)};
    return moments;
}

DEVICE void store_wide(const struct norm_forward_params *p, int first, const void *s, long long at,
                       long long y_at, int cols, struct moments moments) {
    EACH_COLUMN(col, cols) {
        double h = (load(s, at + col) - moments.mean) * moments.rstd;
        if (p->weight != 0) h *= load_either(p->weight, first + col, p->weight_is_f32);
        if (p->bias != 0) h += load_either(p->bias, first + col, p->weight_is_f32);
        store(p->y, y_at + col, (float)h);
    }
}

DEVICE void store_moments(const struct norm_forward_params *p, int first, long long row, float mean,
                          float rstd) {
    if (ROW_THREAD != 0 || first != 0) return;
    if (p->mean != 0) p->mean[row] = mean;
    if (p->rstd != 0) p->rstd[row] = rstd;
}

// The row to normalise: x, or the sum with the residual that was just stored.
DEVICE const void *source_of(const struct norm_forward_params *p) {
    return p->residual != 0 ? p->residual_out : p->x;
}
DEVICE long long source_at(const struct norm_forward_params *p, long long row) {
    return row * (p->residual != 0 ? p->residual_out_stride : p->x_stride);
}

// Normalises a row again, in double, from memory.
DEVICE void norm_wide(const struct norm_forward_params *p, long long row, int cols, int is_wide,
                      struct row_sums *sums) {
    const void *source = source_of(p);
    const long long at = source_at(p, row);
    const struct moments moments = wide_moments(source, at, cols, p, sums);
    if (!is_wide) return;
    store_moments(p, 0, row, (float)moments.mean, (float)moments.rstd);
    store_wide(p, 0, source, at, row * p->y_stride, cols, moments);
}

#endif
