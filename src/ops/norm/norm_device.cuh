// SPDX-License-Identifier: Apache-2.0
// What the norms' kernels share: sums over a row that one block has, or, where the host defines IS_CLUSTER, the blocks of
// a cluster, each a slab of columns.
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

// (x - mean) rstd by halves, whose difference no two finite numbers make overflow.
DEVICE float normalised(float x, float mean, float rstd) {
    return __fmaf_rn(x, 0.5f, -0.5f * mean) * (2 * rstd);
}

// Backward: rounding has taken so much of the mean that h is less its own (NORM_FAR_MEAN). Of what is not finite there is none.
DEVICE int is_mean_far(float mean, float rstd) { return fabsf(mean) * rstd > NORM_FAR_MEAN; }
DEVICE float rest_of(float sum_h, int cols) {
    float rest = sum_h / cols;
    return fabsf(rest) < 1e30f ? rest : 0;
}

// The columns of a row that this block has, and the blocks that share it.
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
