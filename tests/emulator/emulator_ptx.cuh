// SPDX-License-Identifier: Apache-2.0
// The instructions of inline PTX by their names, with underscores for dots and double colons
// (emulator_translate_ptx.c). A new instruction needs a new function here.
#ifndef EMULATOR_PTX_CUH
#define EMULATOR_PTX_CUH

// ---- Operands ---------------------------------------------------------------------------------

struct emulator_nothing {
    template <class T> void operator=(T) const {}
};
static const emulator_nothing ptx_nothing;

template <class T, int N> struct ptx_pack {
    T *at[N];
    T &operator[](int i) const { return *at[i]; }
};
template <class T, class... R>
static inline ptx_pack<T, 1 + sizeof...(R)> ptx_list(T &x, R &...more) {
    return {{&x, &more...}};
}
static inline float ptx_float(unsigned bits) { return emulator_float(bits); }
template <class T> static inline void ptx_forget(T &x) { __builtin_memset(&x, 0xff, sizeof x); }

// ---- Loads and stores -------------------------------------------------------------------------

enum ptx_space { PTX_GENERIC, PTX_SHARED };

template <ptx_space space, class A> static inline void *ptx_place(A at, unsigned bytes) {
    if (space == PTX_SHARED) {
        if ((unsigned)at % bytes != 0) emulator->fail("an address of shared memory is not aligned");
        return emulator->shared((unsigned)at, bytes);
    }
    if ((unsigned long long)at % bytes != 0) emulator->fail("an address is not aligned");
    return (void *)at;
}
template <class T, class D> static inline void ptx_take(D &x, const T *from) {
    if (sizeof(D) == sizeof(T))
        __builtin_memcpy(&x, from, sizeof(T));
    else
        x = (D)*from;
}
template <class T, class S> static inline void ptx_put(T *to, const S &x) {
    if (sizeof(S) == sizeof(T)) {
        __builtin_memcpy(to, &x, sizeof(T));
    } else {
        T narrow = (T)x;
        __builtin_memcpy(to, &narrow, sizeof(T));
    }
}
// A thread that waits for another's store polls.
template <ptx_space space, class T, int N, int is_ordered, class D, class A>
static inline void ptx_ld(D &x, A at) {
    static_assert(N == 1, "one element");
    if (is_ordered) emulator->poll();
    ptx_take<T>(x, (const T *)ptx_place<space>(at, sizeof(T)));
}
template <ptx_space space, class T, int N, int is_ordered, class D, class A>
static inline void ptx_ld(const ptx_pack<D, N> &x, A at) {
    if (is_ordered) emulator->poll();
    const T *from = (const T *)ptx_place<space>(at, N * sizeof(T));
    for (int i = 0; i < N; i++) ptx_take<T>(x[i], from + i);
}
template <ptx_space space, class T, int N, int is_ordered, class A, class S>
static inline void ptx_st(A at, const S &x) {
    static_assert(N == 1, "one element");
    ptx_put<T>((T *)ptx_place<space>(at, sizeof(T)), x);
}
template <ptx_space space, class T, int N, int is_ordered, class A, class S>
static inline void ptx_st(A at, const ptx_pack<S, N> &x) {
    T *to = (T *)ptx_place<space>(at, N * sizeof(T));
    for (int i = 0; i < N; i++) ptx_put<T>(to + i, x[i]);
}
#define PTX_ATOMIC(name, after)                                                                    \
    template <ptx_space space, class T, int N, int is_ordered, class A, class S>                   \
    static inline void ptx_red_##name(A at, const S &operand) {                                    \
        T *to = (T *)ptx_place<space>(at, sizeof(T)), old = *to, x = (T)operand;                   \
        *to = after;                                                                               \
    }                                                                                              \
    template <ptx_space space, class T, int N, int is_ordered, class A, class S>                   \
    static inline void ptx_red_##name(A at, const ptx_pack<S, N> &operand) {                       \
        T *to = (T *)ptx_place<space>(at, N * sizeof(T));                                          \
        for (int i = 0; i < N; i++, to++) {                                                        \
            T old = *to, x = (T)operand[i];                                                        \
            *to = after;                                                                           \
        }                                                                                          \
    }                                                                                              \
    template <ptx_space space, class T, int N, int is_ordered, class D, class A, class S>          \
    static inline void ptx_atom_##name(D &result, A at, const S &operand) {                        \
        if (is_ordered) emulator->poll();                                                          \
        T *to = (T *)ptx_place<space>(at, sizeof(T)), old = *to, x = (T)operand;                   \
        *to = after;                                                                               \
        result = (D)old;                                                                           \
    }
PTX_ATOMIC(add, old + x)
PTX_ATOMIC(min, (x < old ? x : old))
PTX_ATOMIC(max, (old < x ? x : old))
PTX_ATOMIC(exch, x)
template <ptx_space space, class T, int N, int is_ordered, class D, class A, class S>
static inline void ptx_atom_cas(D &result, A at, const S &is, const S &x) {
    emulator->poll();
    T *to = (T *)ptx_place<space>(at, sizeof(T)), old = *to;
    if (old == (T)is) *to = (T)x;
    result = (D)old;
}

// ---- Registers and logic ----------------------------------------------------------------------

static inline unsigned ptx_register_tid_x(void) { return threadIdx.x; }
static inline unsigned ptx_register_tid_y(void) { return threadIdx.y; }
static inline unsigned ptx_register_ctaid_x(void) { return blockIdx.x; }
static inline unsigned ptx_register_nctaid_x(void) { return gridDim.x; }
static inline unsigned ptx_register_laneid(void) { return (unsigned)emulator->now->lane; }
static inline unsigned ptx_register_cluster_ctarank(void) { return emulator->now->cluster_rank; }
static inline unsigned ptx_register_cluster_nctarank(void) { return emulator->now->cluster_size; }
static inline unsigned ptx_register_clusterid_x(void) { return emulator->now->cluster_number; }

template <class D, class S> static inline void ptx_move(D &d, const S &s) {
    static_assert(sizeof(D) == sizeof(S), "a move keeps the number of bits");
    __builtin_memcpy(&d, &s, sizeof d);
}
#define PTX_MOVE(type)                                                                             \
    template <class D, class S> static inline void ptx_mov_##type(D &d, const S &s) {              \
        ptx_move(d, s);                                                                            \
    }
PTX_MOVE(b32)
PTX_MOVE(u32)
PTX_MOVE(s32)
PTX_MOVE(f32)
PTX_MOVE(b64)
PTX_MOVE(u64)
PTX_MOVE(b16)
PTX_MOVE(pred)

#define PTX_COMPARE(name, operation)                                                               \
    static inline void ptx_setp_##name##_b32(bool &d, unsigned a, unsigned b) {                    \
        d = a operation b;                                                                         \
    }                                                                                              \
    static inline void ptx_setp_##name##_u32(bool &d, unsigned a, unsigned b) {                    \
        d = a operation b;                                                                         \
    }                                                                                              \
    static inline void ptx_setp_##name##_s32(bool &d, int a, int b) { d = a operation b; }         \
    static inline void ptx_setp_##name##_f32(bool &d, float a, float b) { d = a operation b; }
PTX_COMPARE(ne, !=)
PTX_COMPARE(eq, ==)
PTX_COMPARE(lt, <)
PTX_COMPARE(le, <=)
PTX_COMPARE(gt, >)
PTX_COMPARE(ge, >=)
#define PTX_SELECT(type)                                                                           \
    template <class D, class A, class B>                                                           \
    static inline void ptx_selp_##type(D &d, A a, B b, bool p) {                                   \
        d = p ? (D)a : (D)b;                                                                       \
    }
PTX_SELECT(s32)
PTX_SELECT(u32)
PTX_SELECT(b32)
PTX_SELECT(f32)
template <class D>
static inline void ptx_lop3_b32(D &d, unsigned a, unsigned b, unsigned c, int table) {
    unsigned result = 0;
    for (int i = 0; i < 8; i++)
        if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    d = (D)result;
}
template <class D> static inline void ptx_prmt_b32(D &d, unsigned a, unsigned b, unsigned choice) {
    d = (D)__byte_perm(a, b, choice);
}

// ---- Arithmetic -------------------------------------------------------------------------------

// With .ftz, subnormal operands and results become zero.
static inline float ptx_flush(float x) {
    return (emulator_bits(x) & 0x7f800000u) == 0 ? copysignf(0, x) : x;
}
#define PTX_FUNCTION(name, formula)                                                                \
    static inline void ptx_##name##_f32(float &d, float x) { d = formula; }                        \
    static inline void ptx_##name##_ftz_f32(float &d, float x) {                                   \
        x = ptx_flush(x);                                                                          \
        d = ptx_flush(formula);                                                                    \
    }
PTX_FUNCTION(ex2_approx, exp2f(x))
PTX_FUNCTION(lg2_approx, log2f(x))
PTX_FUNCTION(rcp_approx, 1 / x)
PTX_FUNCTION(rsqrt_approx, 1 / sqrtf(x))
PTX_FUNCTION(sqrt_approx, sqrtf(x))
PTX_FUNCTION(sin_approx, sinf(x))
PTX_FUNCTION(cos_approx, cosf(x))
static inline void ptx_tanh_approx_f32(float &d, float x) { d = tanhf(x); }
static inline void ptx_abs_f32(float &d, float x) { d = fabsf(x); }

#define PTX_OF_TWO(name, formula)                                                                  \
    static inline void ptx_##name##_f32(float &d, float x, float y) { d = formula; }
PTX_OF_TWO(min, fminf(x, y))
PTX_OF_TWO(max, fmaxf(x, y))
PTX_OF_TWO(min_NaN, x != x || y != y ? emulator_float(0x7fffffffu) : fminf(x, y))
PTX_OF_TWO(max_NaN, x != x || y != y ? emulator_float(0x7fffffffu) : fmaxf(x, y))
PTX_OF_TWO(add_rn, __fadd_rn(x, y))
PTX_OF_TWO(mul_rn, __fmul_rn(x, y))
PTX_OF_TWO(add, __fadd_rn(x, y))
PTX_OF_TWO(mul, __fmul_rn(x, y))
PTX_OF_TWO(sub_rn, __fadd_rn(x, -y))
static inline void ptx_fma_rn_f32(float &d, float a, float b, float c) { d = fmaf(a, b, c); }
template <class D> static inline void ptx_add_u32(D &d, unsigned a, unsigned b) { d = (D)(a + b); }
template <class D> static inline void ptx_add_s32(D &d, int a, int b) { d = (D)(a + b); }

#define PTX_PAIRS(format)                                                                          \
    template <class D>                                                                             \
    static inline void ptx_fma_rn_##format##x2(D &d, unsigned a, unsigned b, unsigned c) {         \
        unsigned low = emulator_to_##format((float)fma((double)emulator_of_##format(a & 0xffff),   \
                                                       emulator_of_##format(b & 0xffff),           \
                                                       emulator_of_##format(c & 0xffff)));         \
        unsigned high = emulator_to_##format((float)fma((double)emulator_of_##format(a >> 16),     \
                                                        emulator_of_##format(b >> 16),             \
                                                        emulator_of_##format(c >> 16)));           \
        d = (D)(low | high << 16);                                                                 \
    }                                                                                              \
    template <class D>                                                                             \
    static inline void ptx_cvt_rn_##format##x2_f32(D &d, float high, float low) {                  \
        d = (D)(emulator_to_##format(low) | emulator_to_##format(high) << 16);                     \
    }                                                                                              \
    template <class D> static inline void ptx_cvt_rn_##format##_f32(D &d, float x) {               \
        d = (D)emulator_to_##format(x);                                                            \
    }                                                                                              \
    static inline void ptx_cvt_f32_##format(float &d, unsigned short x) {                          \
        d = emulator_of_##format(x);                                                               \
    }
PTX_PAIRS(bf16)
PTX_PAIRS(f16)
#define PTX_FP8(format)                                                                            \
    template <class D>                                                                             \
    static inline void ptx_cvt_rn_satfinite_##format##x2_f32(D &d, float high, float low) {        \
        d = (D)(emulator_to_##format(low) | emulator_to_##format(high) << 8);                      \
    }                                                                                              \
    template <class D> static inline void ptx_cvt_rn_f16x2_##format##x2(D &d, unsigned short x) {  \
        d = (D)(emulator_to_f16(emulator_of_##format(x & 0xff)) |                                  \
                emulator_to_f16(emulator_of_##format(x >> 8)) << 16);                              \
    }
PTX_FP8(e4m3)
PTX_FP8(e5m2)
template <class D> static inline void ptx_mul_f16x2(D &d, unsigned x, unsigned y) {
    d = (D)(emulator_to_f16(emulator_of_f16(x & 0xffff) * emulator_of_f16(y & 0xffff)) |
            emulator_to_f16(emulator_of_f16(x >> 16) * emulator_of_f16(y >> 16)) << 16);
}
template <class D> static inline void ptx_cvt_rn_tf32_f32(D &d, float x) {
    unsigned bits = emulator_bits(x);
    if (x == x && fabsf(x) < emulator_float(0x7f800000u))
        bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    __builtin_memcpy(&d, &bits, sizeof bits);
}
template <class D>
static inline void ptx_cvt_rna_tf32_f32(D &d, float x) { // ties round away from zero
    unsigned bits = emulator_bits(x);
    if (x == x && fabsf(x) < emulator_float(0x7f800000u)) bits = (bits + 0x1000) & ~0x1fffu;
    __builtin_memcpy(&d, &bits, sizeof bits);
}

// ---- Barriers of threads ----------------------------------------------------------------------

static inline void ptx_bar_sync(unsigned number, unsigned threads = 0) {
    emulator->barrier(number, threads, EMULATOR_MEET, 0);
}
static inline void ptx_barrier_sync(unsigned number, unsigned threads = 0) {
    ptx_bar_sync(number, threads);
}
static inline void ptx_bar_arrive(unsigned number, unsigned threads) {
    emulator->barrier(number, threads, EMULATOR_ARRIVE, 0);
}
static inline void ptx_barrier_arrive(unsigned number, unsigned threads) {
    ptx_bar_arrive(number, threads);
}
static inline void ptx_bar_red_or_pred(bool &d, unsigned number, unsigned threads, bool mine) {
    d = emulator->barrier(number, threads, EMULATOR_OR, mine) != 0;
}
static inline void ptx_bar_red_and_pred(bool &d, unsigned number, unsigned threads, bool mine) {
    d = emulator->barrier(number, threads, EMULATOR_AND, mine) != 0;
}
static inline void ptx_bar_warp_sync(unsigned mask) { emulator->warp(mask, EMULATOR_SYNC, 0); }
static inline void ptx_nanosleep_u32(unsigned) { emulator->poll(); }
static inline void ptx_griddepcontrol_wait(void) {}
static inline void ptx_griddepcontrol_launch_dependents(void) {}
static inline void ptx_setmaxnreg_inc_sync_aligned_u32(int) { __syncwarp(); }
static inline void ptx_setmaxnreg_dec_sync_aligned_u32(int) { __syncwarp(); }

static inline void ptx_barrier_cluster_arrive_release_aligned(void) { emulator->cluster_arrive(); }
static inline void ptx_barrier_cluster_arrive_relaxed_aligned(void) { emulator->cluster_arrive(); }
static inline void ptx_barrier_cluster_wait_acquire_aligned(void) { emulator->cluster_wait(); }
static inline void ptx_barrier_cluster_arrive_aligned(void) { emulator->cluster_arrive(); }
static inline void ptx_barrier_cluster_wait_aligned(void) { emulator->cluster_wait(); }

// Fences do nothing, because threads run one at a time and see all stores.
static inline void ptx_fence_proxy_async(void) {}
static inline void ptx_fence_proxy_async_shared_cta(void) {}
static inline void ptx_fence_proxy_async_global(void) {}
static inline void ptx_fence_mbarrier_init_release_cluster(void) {}
static inline void ptx_fence_acq_rel_gpu(void) {}
static inline void ptx_fence_acq_rel_cta(void) {}
static inline void ptx_fence_acq_rel_cluster(void) {}

template <class D> static inline void ptx_elect_sync(D &, bool &is_first, unsigned mask) {
    is_first = emulator->now->lane == __ffs((int)mask) - 1;
}

// ---- Products of a warp -----------------------------------------------------------------------

template <int N, class D>
static inline void ptx_matrices(int instruction, const ptx_pack<D, N> &x, unsigned address,
                                int is_transposed) {
    struct emulator_matrices lane = {address, {}, N, is_transposed};
    for (int i = 0; i < N; i++) lane.x[i] = (unsigned *)x.at[i];
    emulator->warp(0xffffffffu, instruction, &lane);
}
#define PTX_MATRICES(n, space)                                                                     \
    template <class D>                                                                             \
    static inline void ptx_ldmatrix_sync_aligned_m8n8_x##n##_##space##_b16(                        \
        const ptx_pack<D, n> &x, unsigned address) {                                               \
        ptx_matrices(EMULATOR_LOAD_MATRICES, x, address, 0);                                       \
    }                                                                                              \
    template <class D>                                                                             \
    static inline void ptx_ldmatrix_sync_aligned_m8n8_x##n##_trans_##space##_b16(                  \
        const ptx_pack<D, n> &x, unsigned address) {                                               \
        ptx_matrices(EMULATOR_LOAD_MATRICES, x, address, 1);                                       \
    }                                                                                              \
    template <class D>                                                                             \
    static inline void ptx_stmatrix_sync_aligned_m8n8_x##n##_##space##_b16(                        \
        unsigned address, const ptx_pack<D, n> &x) {                                               \
        ptx_matrices(EMULATOR_STORE_MATRICES, x, address, 0);                                      \
    }                                                                                              \
    template <class D>                                                                             \
    static inline void ptx_stmatrix_sync_aligned_m8n8_x##n##_trans_##space##_b16(                  \
        unsigned address, const ptx_pack<D, n> &x) {                                               \
        ptx_matrices(EMULATOR_STORE_MATRICES, x, address, 1);                                      \
    }
PTX_MATRICES(1, shared)
PTX_MATRICES(2, shared)
PTX_MATRICES(4, shared)
PTX_MATRICES(1, shared_cta)
PTX_MATRICES(2, shared_cta)
PTX_MATRICES(4, shared_cta)
template <class D> static inline void ptx_movmatrix_sync_aligned_m8n8_trans_b16(D &d, unsigned x) {
    struct emulator_matrices lane = {0, {&x}, 1, 1};
    emulator->warp(0xffffffffu, EMULATOR_MOVE_MATRIX, &lane);
    d = (D)x;
}

template <class A> struct ptx_registers;
template <class T, int N> struct ptx_registers<ptx_pack<T, N>> {
    enum { count = N };
};
#define PTX_MMA(name, format, bits)                                                                \
    template <int M, int N, int K, class A, class B, class C>                                      \
    static inline void ptx_mma_sync_aligned_row_col_f32_##name##_f32(                              \
        const ptx_pack<float, 4> &d, const A &a, const B &b, const C &c) {                         \
        static_assert(M == 16 && N == 8 && ptx_registers<A>::count * 64 == K * bits, "a shape");   \
        static_assert(ptx_registers<B>::count * 2 == ptx_registers<A>::count, "a shape");          \
        struct emulator_mma lane = {{d.at[0], d.at[1], d.at[2], d.at[3]},                          \
                                    {c[0], c[1], c[2], c[3]},                                      \
                                    {},                                                            \
                                    {},                                                            \
                                    format,                                                        \
                                    format,                                                        \
                                    K};                                                            \
        for (int i = 0; i < ptx_registers<A>::count; i++) lane.a[i] = (unsigned)a[i];              \
        for (int i = 0; i < ptx_registers<B>::count; i++) lane.b[i] = (unsigned)b[i];              \
        emulator->warp(0xffffffffu, EMULATOR_MMA, &lane);                                          \
    }
PTX_MMA(bf16_bf16, EMULATOR_BF16, 16)
PTX_MMA(f16_f16, EMULATOR_F16, 16)
PTX_MMA(tf32_tf32, EMULATOR_TF32, 32)

#include "emulator_ptx_sm90.cuh"

#endif
