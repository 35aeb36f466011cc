// SPDX-License-Identifier: Apache-2.0
// How decode's tensor core kernel loads keys, values and queries into registers, and multiplies them there.
// attention_decode_mma.cu describes which lane has what.
#ifndef TSRI_ATTENTION_DECODE_MMA_CUH
#define TSRI_ATTENTION_DECODE_MMA_CUH

#include "cuda/device/fp8.cuh"
#include "cuda/device/mma.cuh"
#include "ops/attention/cuda/decode/attention_decode_append.cuh"

#define WARPS 4
#define KEYS 16 // of a warp at a time
#define ROWS (8 * ROW_TILES)
#define K_STEPS (DIMS / 32)
#define V_STEPS (DIMS / 64)
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

// Weights are at most 2^SLACK, and the weight of a maximum at least 2^SHIFT: f16 ends at 2^16 and loses digits below 2^-14.
#if DTYPE == DTYPE_F16
#define SHIFT 8
#define SLACK 15
#else
#define SHIFT 0
#define SLACK 8
#endif

// If registers do not suffice for both, keys and values take turns in the same registers.
#define IS_TURNING (DIMS == 256)

#define QUERY_STRIDE (DIMS * 2 + 64) // bytes: rows of 8 lanes' quarters in different banks
#define O_STRIDE (DIMS + 4)
struct shared {
    union {
        // Parts whose sum is a normalised or rotated query; each part is the rounded rest of those before.
        char queries[3][ROWS][QUERY_STRIDE];
        float o[WARPS][ROWS][O_STRIDE];
    };
    float reference[WARPS][ROWS], sum[WARPS][ROWS];
    float factor[ROWS], slope[ROWS];
    int begin[ROWS], end[ROWS], diagonal[ROWS];
    const unsigned char *tree[ROWS];
    unsigned seen[WARPS][ROWS]; // bits of a warp's keys
    struct decode_item item;    // rarely used, so kept out of registers
};

// ---- Loads ------------------------------------------------------------------------------------

// Eight elements of a cache as they lie there. They become halves where they are used, so that their registers are few.
#if IS_E4M3
#define GROUP_BYTES 8
typedef uint2 decode_group;
#define NO_GROUP make_uint2(0, 0)
DEVICE void fetch_eight(decode_group *group, const char *from, int is_there) {
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "setp.ne.s32 p, %3, 0;\n\t"
                 "@p ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];\n\t"
                 "}"
                 : "+r"(group->x), "+r"(group->y)
                 : "l"(from), "r"(is_there)
                 : "memory");
}
// Word i of four: two halves, the values of two codes. Instructions are volatile, as a compiler that converts all groups before it
// uses them runs out of registers.
DEVICE unsigned word_of(decode_group x, int i) {
    const unsigned codes = i < 2 ? x.x : x.y;
#if __CUDA_ARCH__ >= 890
    unsigned halves;
    asm volatile("cvt.rn.f16x2.e4m3x2 %0, %1;"
                 : "=r"(halves)
                 : "h"((unsigned short)(codes >> i % 2 * 16)));
    return halves;
#else
    // The bits below the sign, shifted into place, are a half whose exponent is too small by 8. Only NaN carries into the sign.
    unsigned high, scaled;
    asm volatile("prmt.b32 %0, %1, %2, %3;"
                 : "=r"(high)
                 : "r"(codes), "r"(0), "r"(i % 2 == 0 ? 0x1404 : 0x3424));
    const unsigned size = high & 0x7f007f00u, nan = (size + 0x01000100u) & 0x80008000u;
    asm volatile("mul.f16x2 %0, %1, %2;" : "=r"(scaled) : "r"(size >> 1), "r"(0x5c005c00u)); // 2^8
    return scaled | (high & 0x80008000u) | (nan >> 15) * 0x7e00u;
#endif
}
DEVICE decode_group gather(const void *row, int col, int dims) {
    unsigned word[2] = {0, 0};
    EACH(i, 8) {
        if (col + i < dims)
            word[i / 4] |= (unsigned)((const unsigned char *)row)[col + i] << i % 4 * 8;
    }
    return make_uint2(word[0], word[1]);
}
#else
#define GROUP_BYTES 16
typedef uint4 decode_group;
#define NO_GROUP make_uint4(0, 0, 0, 0)
#define fetch_eight fetch_group
DEVICE unsigned word_of(decode_group x, int i) {
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}
// Loads element by element if rows are not aligned.
DEVICE decode_group gather(const void *row, int col, int dims) {
    unsigned word[4];
    EACH(i, 4) {
        unsigned low = 0, high = 0;
        if (col + 2 * i < dims) low = ((const unsigned short *)row)[col + 2 * i];
        if (col + 2 * i + 1 < dims) high = ((const unsigned short *)row)[col + 2 * i + 1];
        word[i] = low | high << 16;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}
#endif

// Lanes 0 to 15 know the rows of 16 keys. Columns that the head does not have are zero.
DEVICE void fetch_keys(decode_group k[2 * K_STEPS], const struct attention_decode_params *p,
                       struct decode_row rows) {
    int lane = threadIdx.x % 32, col = lane % 4 * 8;
    EACH(half, 2) {
        const char *row = (const char *)__shfl_sync(0xffffffffu, rows.k, lane / 4 + 8 * half);
        if (p->is_aligned) {
            EACH(v, K_STEPS) {
                fetch_eight(&k[half * K_STEPS + v], row + (v * 32 + col) / 8 * GROUP_BYTES,
                            v * 32 + col < p->a.head_dim);
            }
        } else {
            EACH(v, K_STEPS) { k[half * K_STEPS + v] = gather(row, v * 32 + col, p->a.head_dim); }
        }
    }
}

DEVICE void fetch_values(decode_group v[4 * V_STEPS], const struct attention_decode_params *p,
                         struct decode_row rows) {
    int lane = threadIdx.x % 32, col = lane / 4 * 8;
    EACH(i, 4) {
        int of_warp = lane % 4 * 2 + i % 2 + i / 2 * 8;
        const char *row = (const char *)__shfl_sync(0xffffffffu, rows.v, of_warp);
        if (p->is_aligned) {
            EACH(h, V_STEPS) {
                fetch_eight(&v[i * V_STEPS + h], row + (h * 64 + col) / 8 * GROUP_BYTES,
                            h * 64 + col < p->a.head_dim_v);
            }
        } else {
            EACH(h, V_STEPS) { v[i * V_STEPS + h] = gather(row, h * 64 + col, p->a.head_dim_v); }
        }
    }
}

// Clears the columns that the head does not have: values may lie there in registers, with NaN among them.
DEVICE void cut_keys(decode_group k[2 * K_STEPS], int dims) {
    EACH(v, K_STEPS) {
        if (v * 32 + (int)threadIdx.x % 4 * 8 < dims) continue;
        k[v] = k[K_STEPS + v] = NO_GROUP;
    }
}

// ---- Products ---------------------------------------------------------------------------------

DEVICE void add_scores(float s[ROW_TILES][4], const decode_group k[2 * K_STEPS],
                       const struct shared *shared, int num_parts) {
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int part = 0; part < num_parts; part++) {
        EACH(v, K_STEPS) {
            const decode_group a = k[v], b = k[K_STEPS + v];
            const unsigned first[4] = {word_of(a, 0), word_of(b, 0), word_of(a, 1), word_of(b, 1)},
                           second[4] = {word_of(a, 2), word_of(b, 2), word_of(a, 3), word_of(b, 3)};
            EACH(n, ROW_TILES) {
                const char *row = shared->queries[part][n * 8 + lane / 4];
                const uint4 q = *(const uint4 *)(row + v * 64 + lane % 4 * 16);
                mma(s[n], first, q.x, q.y);
                mma(s[n], second, q.z, q.w);
            }
        }
    }
}

// Word i of this lane's eight elements of each value, from column 64 h on, as the a operand: two columns by the warp's keys. A key
// whose bit in `kept` is not set counts as 0.
DEVICE void values_of(unsigned a[4], const decode_group v[4 * V_STEPS], int h, int i,
                      unsigned kept) {
    unsigned x[4];
    EACH(j, 4) { x[j] = kept >> j & 1 ? word_of(v[j * V_STEPS + h], i) : 0; }
    a[0] = __byte_perm(x[0], x[1], 0x5410);
    a[1] = __byte_perm(x[0], x[1], 0x7632);
    a[2] = __byte_perm(x[2], x[3], 0x5410);
    a[3] = __byte_perm(x[2], x[3], 0x7632);
}

// Weights are the b operand: its rows are the warp's keys, its columns queries.
DEVICE void add_values(float o[DIMS / 16][ROW_TILES][4], const decode_group v[4 * V_STEPS],
                       const unsigned weights[ROW_TILES][2]) {
    EACH(h, V_STEPS) {
        EACH(i, 4) {
            unsigned a[4];
            values_of(a, v, h, i, 0xf);
            EACH(n, ROW_TILES) { mma(o[h * 4 + i][n], a, weights[n][0], weights[n][1]); }
        }
    }
}

DEVICE int has_nonfinite(const decode_group v[4 * V_STEPS]) {
    const unsigned high = DTYPE == DTYPE_F16 ? 0x7c000000u : 0x7f800000u, low = high >> 16;
    int found = 0;
    EACH(j, 4 * V_STEPS) {
        EACH(i, 4) {
            unsigned x = word_of(v[j], i);
            found |= (x & high) == high || (x & low) == low;
        }
    }
    return __any_sync(0xffffffffu, found);
}

// As 0 times NaN is NaN, a query must not touch values that it does not see. So each query gets a product with only the values
// that it sees, and only its own columns of that product are used. A query's rows have its diagonal.
DEVICE void add_seen_values(float o[DIMS / 16][ROW_TILES][4], const decode_group v[4 * V_STEPS],
                            const unsigned weights[ROW_TILES][2], const struct shared *shared) {
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int row = 0; row < shared->item.num_rows; row++) {
        const int diagonal = shared->diagonal[row];
        if (row > 0 && diagonal == shared->diagonal[row - 1]) continue;
        // Of the keys 2 t, 2 t + 1, + 8.
        const unsigned seen = shared->seen[threadIdx.x / 32][row] >> lane % 4 * 2;
        const unsigned kept = (seen & 3) | (seen >> 6 & 12);
        unsigned own = 0;
        EACH(i, 2 * ROW_TILES) {
            int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
            own |= (unsigned)(shared->diagonal[column] == diagonal) << i;
        }
        EACH(h, V_STEPS) {
            EACH(i, 4) {
                unsigned a[4];
                values_of(a, v, h, i, kept);
                EACH(n, ROW_TILES) {
                    float c[4] = {0, 0, 0, 0};
                    mma(c, a, weights[n][0], weights[n][1]);
                    EACH(e, 4) {
                        if (own >> (2 * n + e % 2) & 1) o[h * 4 + i][n][e] += c[e];
                    }
                }
            }
        }
    }
}

DEVICE unsigned transposed(unsigned x) {
    unsigned y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

#endif
