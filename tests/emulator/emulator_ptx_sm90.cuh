// SPDX-License-Identifier: Apache-2.0
// Instructions of Hopper: barriers in shared memory, bulk copies, products of a warpgroup.
#ifndef EMULATOR_PTX_SM90_CUH
#define EMULATOR_PTX_SM90_CUH

// ---- Barriers in shared memory ----------------------------------------------------------------

static inline void ptx_mbarrier_init_shared_cta_b64(unsigned barrier, unsigned arrivals) {
    emulator->mbarrier_start(barrier, arrivals);
}
static inline void ptx_mbarrier_inval_shared_cta_b64(unsigned barrier) {
    emulator->mbarrier_end(barrier);
}
static inline void ptx_mbarrier_arrive_shared_cta_b64(emulator_nothing, unsigned barrier) {
    emulator->mbarrier_arrive(barrier, 1, 0);
}
static inline void ptx_mbarrier_arrive_shared_cluster_b64(emulator_nothing, unsigned barrier) {
    emulator->mbarrier_arrive(barrier, 1, 0);
}
static inline void ptx_mbarrier_arrive_release_cluster_shared_cluster_b64(emulator_nothing,
                                                                          unsigned barrier) {
    emulator->mbarrier_arrive(barrier, 1, 0);
}
static inline void ptx_mbarrier_arrive_expect_tx_shared_cta_b64(emulator_nothing, unsigned barrier,
                                                                unsigned bytes) {
    emulator->mbarrier_arrive(barrier, 1, bytes);
}
static inline void ptx_mbarrier_arrive_expect_tx_shared_cluster_b64(emulator_nothing,
                                                                    unsigned barrier,
                                                                    unsigned bytes) {
    emulator->mbarrier_arrive(barrier, 1, bytes);
}
static inline void ptx_mbarrier_expect_tx_relaxed_cta_shared_cta_b64(unsigned barrier,
                                                                     unsigned bytes) {
    emulator->mbarrier_arrive(barrier, 0, bytes);
}
static inline void ptx_mbarrier_try_wait_parity_shared_cta_b64(bool &done, unsigned barrier,
                                                               unsigned parity) {
    done = emulator->mbarrier_test(barrier, parity, 1) != 0;
}
static inline void ptx_mbarrier_test_wait_parity_shared_cta_b64(bool &done, unsigned barrier,
                                                                unsigned parity) {
    done = emulator->mbarrier_test(barrier, parity, 0) != 0;
}
static inline void ptx_mbarrier_try_wait_parity_acquire_cluster_shared_cta_b64(bool &done,
                                                                               unsigned barrier,
                                                                               unsigned parity) {
    done = emulator->mbarrier_test(barrier, parity, 1) != 0;
}

template <class D>
static inline void ptx_mapa_shared_cluster_u32(D &d, unsigned address, unsigned rank) {
    d = (D)emulator->map_shared(address, rank);
}

// ---- Copies -----------------------------------------------------------------------------------

static inline void ptx_cp_async_cg_shared_global(unsigned to, unsigned long long from, int size,
                                                 int bytes = 16) {
    emulator->copy(to, (const void *)from, bytes, size);
}
static inline void ptx_cp_async_ca_shared_global(unsigned to, unsigned long long from, int size,
                                                 int bytes = -1) {
    emulator->copy(to, (const void *)from, bytes < 0 ? size : bytes, size);
}
static inline void ptx_cp_async_cg_shared_global_L2_128B(unsigned to, unsigned long long from,
                                                         int size, int bytes = 16) {
    emulator->copy(to, (const void *)from, bytes, size);
}
static inline void ptx_cp_async_commit_group(void) { emulator->copy_commit(); }
static inline void ptx_cp_async_wait_group(int groups) { emulator->copy_wait(groups); }
static inline void ptx_cp_async_wait_all(void) { emulator->copy_wait(-1); }

static inline void ptx_prefetch_tensormap(unsigned long long) {}
template <int N, class C>
static inline void ptx_cp_async_bulk_prefetch_tensor_5d_L2_global(unsigned long long,
                                                                  const ptx_pack<C, N> &) {}
static inline void ptx_cp_async_bulk_prefetch_L2_global(unsigned long long, unsigned) {}

#define PTX_AT(place, at)                                                                          \
    int place[N];                                                                                  \
    for (int i = 0; i < N; i++) place[i] = (int)at[i]
#define PTX_TENSOR_COPIES(n)                                                                                \
    template <int N, class C>                                                                               \
    static inline void                                                                                      \
        ptx_cp_async_bulk_tensor_##n##d_shared_cluster_global_mbarrier_complete_tx_bytes(                   \
            unsigned to, unsigned long long map, const ptx_pack<C, N> &at, unsigned barrier) {              \
        static_assert(N == n, "coordinates");                                                               \
        PTX_AT(place, at);                                                                                  \
        emulator->load_tensor(to, (const void *)map, place, N, barrier, 0);                                 \
    }                                                                                                       \
    template <int N, class C>                                                                               \
    static inline void                                                                                      \
        ptx_cp_async_bulk_tensor_##n##d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster( \
            unsigned to, unsigned long long map, const ptx_pack<C, N> &at, unsigned barrier,                \
            unsigned blocks) {                                                                              \
        static_assert(N == n, "coordinates");                                                               \
        PTX_AT(place, at);                                                                                  \
        emulator->load_tensor(to, (const void *)map, place, N, barrier, blocks);                            \
    }                                                                                                       \
    template <int N, class C>                                                                               \
    static inline void ptx_cp_async_bulk_tensor_##n##d_global_shared_cta_bulk_group(                        \
        unsigned long long map, const ptx_pack<C, N> &at, unsigned from) {                                  \
        static_assert(N == n, "coordinates");                                                               \
        PTX_AT(place, at);                                                                                  \
        emulator->store_tensor((const void *)map, place, N, from, 0);                                       \
    }                                                                                                       \
    template <int N, class C>                                                                               \
    static inline void                                                                                      \
        ptx_cp_reduce_async_bulk_tensor_##n##d_global_shared_cta_add_tile_bulk_group(                       \
            unsigned long long map, const ptx_pack<C, N> &at, unsigned from) {                              \
        static_assert(N == n, "coordinates");                                                               \
        PTX_AT(place, at);                                                                                  \
        emulator->store_tensor((const void *)map, place, N, from, 1);                                       \
    }
PTX_TENSOR_COPIES(2)
PTX_TENSOR_COPIES(3)
PTX_TENSOR_COPIES(4)
PTX_TENSOR_COPIES(5)

static inline void ptx_cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(
    unsigned to, unsigned long long from, unsigned bytes, unsigned barrier) {
    emulator->load_bulk(to, (const void *)from, bytes, barrier);
}
static inline void ptx_cp_async_bulk_shared_cluster_shared_cta_mbarrier_complete_tx_bytes(
    unsigned to, unsigned from, unsigned bytes, unsigned barrier) {
    emulator->send_bulk(to, from, bytes, barrier);
}
template <class S>
static inline void
ptx_st_async_shared_cluster_mbarrier_complete_tx_bytes_v4_f32(unsigned to, const ptx_pack<S, 4> &x,
                                                              unsigned barrier) {
    const float four[4] = {x[0], x[1], x[2], x[3]};
    emulator->send(to, four, sizeof four, barrier);
}
static inline void ptx_cp_async_bulk_global_shared_cta_bulk_group(unsigned long long to,
                                                                  unsigned from, unsigned bytes) {
    emulator->store_bulk((void *)to, from, bytes, 0);
}
static inline void
ptx_cp_reduce_async_bulk_global_shared_cta_bulk_group_add_f32(unsigned long long to, unsigned from,
                                                              unsigned bytes) {
    emulator->store_bulk((void *)to, from, bytes, 1);
}
static inline void ptx_cp_async_bulk_commit_group(void) { emulator->bulk_commit(); }
static inline void ptx_cp_async_bulk_wait_group(int groups) { emulator->bulk_wait(groups, 0); }
static inline void ptx_cp_async_bulk_wait_group_read(int groups) { emulator->bulk_wait(groups, 1); }

// ---- Products of a warpgroup ------------------------------------------------------------------

static inline void ptx_wgmma_fence_sync_aligned(void) {
    emulator->warp(0xffffffffu, EMULATOR_WGMMA_FENCE, 0);
}
static inline void ptx_wgmma_commit_group_sync_aligned(void) {
    emulator->warp(0xffffffffu, EMULATOR_WGMMA_COMMIT, 0);
}
static inline void ptx_wgmma_wait_group_sync_aligned(int groups) {
    struct emulator_wait wait = {groups};
    emulator->warp(0xffffffffu, EMULATOR_WGMMA_WAIT, &wait);
}
template <int M, int N, int K, int R>
static inline void ptx_wgmma_order(const ptx_pack<float, R> &d, struct emulator_wgmma *lane) {
    static_assert(M == 64 && R == N / 2, "a shape");
    lane->d = d.at;
    lane->columns = N;
    lane->depth = K;
    emulator->warp(0xffffffffu, EMULATOR_WGMMA, lane);
}
// Both operands are in shared memory, or a is in registers. 8-bit formats have lines along k only.
#define PTX_WGMMA(name, format_a, format_b)                                                        \
    template <int M, int N, int K, int R>                                                          \
    static inline void ptx_wgmma_mma_async_sync_aligned_f32_##name(                                \
        const ptx_pack<float, R> &d, unsigned long long a, unsigned long long b, bool is_more,     \
        int sign_a, int sign_b, int a_is_mn = 0, int b_is_mn = 0) {                                \
        struct emulator_wgmma lane = {0, {}, a,       b,       0,       format_a, format_b,        \
                                      0, 0,  is_more, a_is_mn, b_is_mn, sign_a,   sign_b};         \
        ptx_wgmma_order<M, N, K>(d, &lane);                                                        \
    }                                                                                              \
    template <int M, int N, int K, int R, class S>                                                 \
    static inline void ptx_wgmma_mma_async_sync_aligned_f32_##name(                                \
        const ptx_pack<float, R> &d, const ptx_pack<S, 4> &a, unsigned long long b, bool is_more,  \
        int sign_a, int sign_b, int b_is_mn = 0) {                                                 \
        struct emulator_wgmma lane = {0,        {a[0], a[1], a[2], a[3]},                          \
                                      0,        b,                                                 \
                                      0,        format_a,                                          \
                                      format_b, 0,                                                 \
                                      1,        is_more,                                           \
                                      0,        b_is_mn,                                           \
                                      sign_a,   sign_b};                                           \
        ptx_wgmma_order<M, N, K>(d, &lane);                                                        \
    }
PTX_WGMMA(bf16_bf16, EMULATOR_BF16, EMULATOR_BF16)
PTX_WGMMA(f16_f16, EMULATOR_F16, EMULATOR_F16)
PTX_WGMMA(tf32_tf32, EMULATOR_TF32, EMULATOR_TF32)
PTX_WGMMA(e4m3_e4m3, EMULATOR_E4M3, EMULATOR_E4M3)
PTX_WGMMA(e4m3_e5m2, EMULATOR_E4M3, EMULATOR_E5M2)
PTX_WGMMA(e5m2_e4m3, EMULATOR_E5M2, EMULATOR_E4M3)
PTX_WGMMA(e5m2_e5m2, EMULATOR_E5M2, EMULATOR_E5M2)

#endif
