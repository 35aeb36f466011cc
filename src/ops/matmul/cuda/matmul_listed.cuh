// SPDX-License-Identifier: Apache-2.0
// For matmul_mma.cu if groups cut k: copies of operands whose steps of k may be any lines, by a list. The lines of a tile are
// read when the tile before it is copied, so that no copy waits for them.
#ifndef TSRI_MATMUL_LISTED_CUH
#define TSRI_MATMUL_LISTED_CUH

#include "ops/matmul/cuda/matmul_tiles.cuh"

#define DEFINE_COPIER(name, copies, block)                                                         \
    struct name {                                                                                  \
        const char *from;  /* the thread's piece of line 0 */                                      \
        int line[copies];  /* of the next tile; -1: zeros */                                       \
        int bytes;         /* of a piece that there are; the rest is 0 */                          \
        int k;             /* in the tile, of the first line */                                    \
        long long first_k; /* of the tile after the next one */                                    \
        unsigned to;                                                                               \
    };                                                                                             \
    DEVICE void name##_read(struct name *c, const struct matmul_list_params *list, int k_left) {   \
        const int lines = THREADS / (block / 8);                                                   \
        _Pragma("unroll") for (int i = 0; i < copies; i++) {                                       \
            const int k = c->k + i * lines;                                                        \
            c->line[i] = k < k_left ? line_of(list, c->first_k + k) : -1;                          \
        }                                                                                          \
        c->first_k += BLOCK_K;                                                                     \
    }                                                                                              \
    DEVICE void name##_start(struct name *c, const struct matmul_params *p,                        \
                             const struct matmul_operand *x, const struct matmul_operand *up,      \
                             const struct tile *t, long long first, long long end, int is_mn) {    \
        const int pieces = block / 8, piece = (int)threadIdx.x % pieces;                           \
        const long long at = first + piece * 8, left = end - at;                                   \
        c->k = (int)threadIdx.x / pieces;                                                          \
        c->to = swizzled(c->k, piece, pieces);                                                     \
        c->bytes = left <= 0 ? 0 : left < 8 ? (int)left * 2 : 16;                                  \
        c->from = (const char *)x->data + 2 * (batch_offset(x, t->index) + (left > 0 ? at : 0));   \
        c->first_k = t->first_k;                                                                   \
        name##_read(c, up == 0 ? &p->groups.of_a : &p->groups.of_b, (int)(t->end_k - t->first_k)); \
    }                                                                                              \
    DEVICE void name##_copy(struct name *c, const struct matmul_operand *x,                        \
                            const struct matmul_list_params *list, unsigned stage, int k_left,     \
                            int is_mn) {                                                           \
        _Pragma("unroll") for (int i = 0; i < copies; i++) {                                       \
            const int line = c->line[i];                                                           \
            copy_async(stage + c->to + i * (THREADS * 16),                                         \
                       c->from + 2 * (line < 0 ? 0 : line) * x->line, line < 0 ? 0 : c->bytes);    \
        }                                                                                          \
        name##_read(c, list, k_left - BLOCK_K);                                                    \
    }

#endif
