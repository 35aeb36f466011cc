// SPDX-License-Identifier: Apache-2.0
// Shared by the norms' kernels: sums over a row of one block or, with IS_CLUSTER, of a cluster of blocks with one slab
// of columns each.
#ifndef TSRI_NORM_DEVICE_CUH
#define TSRI_NORM_DEVICE_CUH

#ifndef IS_CLUSTER
#define IS_CLUSTER 0
#endif

#include "cuda/device/reduce.cuh"
#include "ops/norm/norm_params.h"
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

#endif
