// SPDX-License-Identifier: Apache-2.0
// Products of tiles in fp32 by fused multiply-adds, for any dtype, head and alignment: 64 queries against BLOCK_N keys or
// values, all widened in shared memory. 128 threads lie over a tile of scores as 8 x 16: thread (ty, tx) has rows
// 8 ty to 8 ty + 7, keys tx + 16 c, and of the output columns 64 c + 4 tx to + 3. Rows are 4 floats longer than the
// head, so that 16 bytes of eight rows lie in different banks. The host defines
//     DTYPE, HEAD_DIM (64, 128, 256: at least both head dims), BLOCK_N (16, 32, 64: keys of a tile)
#ifndef TSRI_ATTENTION_FMA_CUH
#define TSRI_ATTENTION_FMA_CUH

#include "cuda/device/mma.cuh"
#include "ops/attention/cuda/attention_tasks.cuh"

#if !defined(HEAD_DIM) || !defined(BLOCK_N)
#error "HEAD_DIM or BLOCK_N is not defined"
#endif
#define THREADS 128
#define BLOCK_M 64
#define PITCH (HEAD_DIM + 4)
#define WEIGHT_PITCH (BLOCK_N + 4)
#define ROWS 8
#define KEYS (BLOCK_N / 16)
#define COLS (HEAD_DIM / 64)
#define THREAD_X ((int)(threadIdx.x % 16))
#define FIRST_ROW ((int)(threadIdx.x / 16 * ROWS))
#define UNSEEN (-1.0f) // stands for the weight of an unseen key: no weight is below 0

#define EACH_ROW(r) _Pragma("unroll") for (int r = 0; r < ROWS; r++)
#define EACH_KEY(c) _Pragma("unroll") for (int c = 0; c < KEYS; c++)
#define EACH_COL(c) _Pragma("unroll") for (int c = 0; c < COLS; c++)

// Queries, keys or values, weights, and the task.
extern __shared__ __align__(16) float shared_floats[];
#define SHARED_TASK                                                                                \
    ((struct attention_task *)(shared_floats + (BLOCK_M + BLOCK_N) * PITCH +                       \
                               BLOCK_M * WEIGHT_PITCH))

// Copies rows [0, num_rows) of `rows`, with zeros in the other rows. Row 0 is at element `at`, each next row a stride further.
// Columns are filled up to a multiple of 4. Complete after COPY_WAIT(0) and a barrier.
DEVICE void load_rows(float *tile, int rows, const struct attention_tensor *t, long long at,
                      int num_rows, int dims, int is_aligned) {
    if (is_aligned) {
        int per_row = (dims + GROUP - 1) / GROUP;
        for (int index = threadIdx.x; index < rows * per_row; index += THREADS) {
            int row = index / per_row, col = (index - row * per_row) * GROUP;
            long long from = at + row * t->seq + col;
            float *to = tile + row * PITCH + col;
#if DTYPE == DTYPE_F32
            int bytes = row >= num_rows ? 0 : dims - col >= GROUP ? 16 : (dims - col) * 4;
            copy_async(shared_address(to), (const float *)t->data + from, bytes);
#else
            float x[GROUP];
            if (row < num_rows && col + GROUP <= dims) {
                widen(load_bytes(t->data, from), x);
            } else {
#pragma unroll
                for (int i = 0; i < GROUP; i++)
                    x[i] = row < num_rows && col + i < dims ? load(t->data, from + i) : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < GROUP; i += 4)
                *(float4 *)(to + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
#endif
        }
    } else {
        int padded = (dims + 3) / 4 * 4;
        for (int row = threadIdx.x / 32; row < rows; row += THREADS / 32)
            for (int col = threadIdx.x % 32; col < padded; col += 32)
                tile[row * PITCH + col] =
                    row < num_rows && col < dims ? load(t->data, at + row * t->seq + col) : 0.0f;
    }
}

// s = q k^T.
DEVICE void multiply_keys(float s[ROWS][KEYS], const float *q, const float *k, int dims) {
    EACH_ROW(r) EACH_KEY(c) s[r][c] = 0;
#pragma unroll 1
    for (int d = 0; d < dims; d += 4) {
        float4 b[KEYS];
        EACH_KEY(c) b[c] = *(const float4 *)(k + (THREAD_X + 16 * c) * PITCH + d);
        EACH_ROW(r) {
            float4 a = *(const float4 *)(q + (FIRST_ROW + r) * PITCH + d);
            EACH_KEY(c) {
                s[r][c] += a.x * b[c].x;
                s[r][c] += a.y * b[c].y;
                s[r][c] += a.z * b[c].z;
                s[r][c] += a.w * b[c].w;
            }
        }
    }
}

// o += weights v. With has_unseen, nothing is added for a weight of UNSEEN, not even 0 times NaN.
#define DEFINE_MULTIPLY_VALUES(name, condition)                                                    \
    DEVICE void name(float o[ROWS][4 * COLS], const float *weights, const float *v, int dims) {    \
        _Pragma("unroll 1") for (int key = 0; key < BLOCK_N; key += 4) {                           \
            float a[ROWS][4];                                                                      \
            EACH_ROW(r) {                                                                          \
                float4 four = *(const float4 *)(weights + (FIRST_ROW + r) * WEIGHT_PITCH + key);   \
                a[r][0] = four.x;                                                                  \
                a[r][1] = four.y;                                                                  \
                a[r][2] = four.z;                                                                  \
                a[r][3] = four.w;                                                                  \
            }                                                                                      \
            _Pragma("unroll") for (int i = 0; i < 4; i++) EACH_COL(c) {                            \
                if (c * 64 >= dims) continue;                                                      \
                float4 b = *(const float4 *)(v + (key + i) * PITCH + c * 64 + THREAD_X * 4);       \
                EACH_ROW(r) {                                                                      \
                    if (!(condition)) continue;                                                    \
                    o[r][4 * c] += a[r][i] * b.x;                                                  \
                    o[r][4 * c + 1] += a[r][i] * b.y;                                              \
                    o[r][4 * c + 2] += a[r][i] * b.z;                                              \
                    o[r][4 * c + 3] += a[r][i] * b.w;                                              \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
DEFINE_MULTIPLY_VALUES(multiply_values, 1)
DEFINE_MULTIPLY_VALUES(multiply_seen_values, !(a[r][i] < 0))

// The thread's part of row r, times factor.
DEVICE void store_output(const struct attention_forward_params *f, const struct attention_task *t,
                         int r, const float o[4 * COLS], float factor) {
    const struct attention_params *p = &f->p;
    long long at =
        attention_at(&p->out, t->batch, t->s.q_first + t->first + FIRST_ROW + r, t->head);
    EACH_COL(c) {
        int col = c * 64 + THREAD_X * 4;
        if (f->is_aligned && col + 4 <= p->head_dim_v) {
            const float *x = o + 4 * c;
#if DTYPE == DTYPE_F32
            *(float4 *)((float *)p->out.data + at + col) =
                make_float4(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor);
#else
            *(uint2 *)((unsigned short *)p->out.data + at + col) =
                make_uint2(pair_of_floats(x[0] * factor, x[1] * factor),
                           pair_of_floats(x[2] * factor, x[3] * factor));
#endif
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (col + i < p->head_dim_v)
                    store(p->out.data, at + col + i, o[4 * c + i] * factor);
        }
    }
}

#endif
