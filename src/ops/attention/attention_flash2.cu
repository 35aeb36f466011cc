// SPDX-License-Identifier: Apache-2.0
// Attention's forward by the tensor cores' m16n8k16, for 16-bit dtypes: FlashAttention-2 (Dao, arXiv:2307.08691). A block
// keeps 128 queries of a head, each warp 16 or 32 of them with their output in registers, and goes over the keys in tiles,
// the next of which is on its way into shared memory meanwhile. Weights never leave the registers: two accumulators of
// the first product are an operand of the second. The maximum that weights are relative to is renewed only where it grows by
// more than 8 in log2, which no weight minds and most tiles do not (Zadouri et al.: FlashAttention-4, 2026).
// The host defines
//     DTYPE (bf16, f16), HEAD_DIM (64, 128, 256: at least both head dims), BLOCK_N (keys of a tile),
//     FEATURES (1: softcap, bias, ALiBi, dropout, any softmax_scale)
#include "cuda/device/mma.cuh"
#include "ops/attention/attention_tasks.cuh"

#if !defined(HEAD_DIM) || !defined(BLOCK_N) || !defined(FEATURES)
#error "HEAD_DIM, BLOCK_N or FEATURES is not defined"
#endif

// Rows of a warp, in units of 16: two share each fragment of keys and values, where registers suffice.
#if HEAD_DIM == 256 || FEATURES
#define UNITS 1
#else
#define UNITS 2
#endif
#define BLOCK_M 128
#define NUM_WARPS (BLOCK_M / 16 / UNITS)
#define THREADS (NUM_WARPS * 32)
#define PIECES (HEAD_DIM / 8) // of 16 bytes in a row
#define ROW_BYTES (HEAD_DIM * 2)
#define Q_BYTES (BLOCK_M * ROW_BYTES)
#define TILE_BYTES (BLOCK_N * ROW_BYTES)
#define COLUMN_TILES (BLOCK_N / 8)
#define DIM_TILES (HEAD_DIM / 8)
#define RENEW_AT 8.0f
#define LN_2 0.6931471805599453f
#if HEAD_DIM == 64 && !FEATURES
#define BLOCKS_PER_SM 2
#elif HEAD_DIM == 256
#define BLOCKS_PER_SM 1
#else
#define BLOCKS_PER_SM (256 / THREADS)
#endif

extern __shared__ __align__(1024) unsigned char shared_tiles[];

// ---- Loads ------------------------------------------------------------------------------------

// This thread's pieces of a tile: one column of pieces, every THREADS / PIECES-th row.
#define ROW_STEP (THREADS / PIECES) // a multiple of 8
#define MY_PIECE ((int)(threadIdx.x % PIECES))
#define MY_ROW ((int)(threadIdx.x / PIECES))

// Of this thread's piece, what lies within dims columns.
DEVICE int piece_bytes(int dims) {
    int bytes = (dims - MY_PIECE * 8) * 2;
    return bytes < 0 ? 0 : bytes > 16 ? 16 : bytes;
}

// Rows [0, num_rows) of a tile of `rows`, from where `from` has this thread's first piece; the others are 0.
DEVICE void load_tile(unsigned tile, const char *from, long long row_bytes, int rows, int num_rows,
                      int bytes) {
    unsigned to = tile + swizzled(MY_ROW, MY_PIECE, PIECES);
    const char *at = from;
#pragma unroll
    for (int r = 0; r < rows; r += ROW_STEP) {
        // Rows that are a multiple of 8 apart have the same permutation.
        copy_async(to + r * ROW_BYTES, at, MY_ROW + r < num_rows ? bytes : 0);
        at += ROW_STEP * row_bytes;
    }
}

// ---- Values that are not finite -----------------------------------------------------------------
// A query must not meet the NaN of a key that it does not see, not even times 0. Where a tile is seen in part and holds
// such values, they are taken out of it and added to those who see them.

#if DTYPE == DTYPE_BF16
#define EXPONENT 0x7f80u
#else
#define EXPONENT 0x7c00u
#endif
DEVICE int is_low_nonfinite(unsigned pair) { return (pair & EXPONENT) == EXPONENT; }
DEVICE int is_high_nonfinite(unsigned pair) { return is_low_nonfinite(pair >> 16); }

// The pairs of this thread's pieces.
#define EACH_OWN_WORD(word)                                                                        \
    for (int r_ = MY_ROW; r_ < BLOCK_N; r_ += ROW_STEP)                                            \
        for (unsigned *word = (unsigned *)(v_tile + swizzled(r_, MY_PIECE, PIECES)),               \
                      *end_ = word + 4;                                                            \
             word < end_; word++)

DEVICE int has_nonfinite(unsigned char *v_tile) {
    int found = 0;
    EACH_OWN_WORD(word) found |= is_low_nonfinite(*word) | is_high_nonfinite(*word);
    return found;
}

DEVICE void take_nonfinite_out(unsigned char *v_tile) {
    EACH_OWN_WORD(word) {
        unsigned low = is_low_nonfinite(*word) ? 0 : *word & 0xffffu;
        *word = low | (is_high_nonfinite(*word) ? 0 : *word & 0xffff0000u);
    }
}

// ---- The kernel -------------------------------------------------------------------------------

#define EACH_UNIT(u) _Pragma("unroll") for (int u = 0; u < UNITS; u++)
#define EACH_COLUMN_TILE(n) _Pragma("unroll") for (int n = 0; n < COLUMN_TILES; n++)
#define EACH_DIM_TILE(n) _Pragma("unroll") for (int n = 0; n < DIM_TILES; n++)
#define EACH_HALF(h) _Pragma("unroll") for (int h = 0; h < 2; h++)
#define ALL_LANES 0xffffffffu

DEVICE float max_of_four(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}
DEVICE float sum_of_four(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// Query of half h of unit u, counted from the first of the tile.
#define ROW_OF(u, h) ((warp * UNITS + (u)) * 16 + (h)*8 + lane / 4)
// Key of element e of column tile n, counted from the first of the tile.
#define KEY_OF(n, e) ((n)*8 + lane % 4 * 2 + (e))

static __device__ __forceinline__ void attend(const struct attention_forward_params *f,
                                              const struct attention_task *t) {
    const struct attention_params *p = &f->p;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int num_rows = t->s.len_q - t->first, kv_head = t->head / p->group;
    unsigned q_tile = shared_address(shared_tiles), stages = q_tile + Q_BYTES;
    int j = t->begin / BLOCK_N * BLOCK_N; // of the tile

    const char *k_from = (const char *)p->k.data +
                         (attention_at(&p->k, t->batch, t->s.k_first + j + MY_ROW, kv_head) +
                          MY_PIECE * 8) *
                             2,
               *v_from = (const char *)p->v.data +
                         (attention_at(&p->v, t->batch, t->s.k_first + j + MY_ROW, kv_head) +
                          MY_PIECE * 8) *
                             2;
    int k_bytes = piece_bytes(p->head_dim), v_bytes = piece_bytes(p->head_dim_v);
    {
        const char *q_from =
            (const char *)p->q.data +
            (attention_at(&p->q, t->batch, t->s.q_first + t->first + MY_ROW, t->head) +
             MY_PIECE * 8) *
                2;
        load_tile(q_tile, q_from, p->q.seq * 2, BLOCK_M, num_rows, k_bytes);
    }
    if (j < t->end) {
        load_tile(stages, k_from, p->k.seq * 2, BLOCK_N, t->s.len_k - j, k_bytes);
        load_tile(stages + TILE_BYTES, v_from, p->v.seq * 2, BLOCK_N, t->s.len_k - j, v_bytes);
    }
    copy_commit();

    // Where this lane's rows of matrices start (mma.cuh): a of q, b of k, and b of v by its transpose.
    unsigned q_at = q_tile + swizzled(warp * UNITS * 16 + lane % 16, lane / 16, PIECES);
    unsigned k_lane = swizzled(lane % 8 + lane / 16 * 8, lane / 8 % 2, PIECES);
    unsigned v_lane = swizzled(lane % 16, lane / 16, PIECES);

    float scale_log2 = f->scale_log2, o[UNITS][DIM_TILES][4], max[UNITS][2], sum[UNITS][2];
    (void)scale_log2;
    float sink =
        p->sinks.data != 0 ? attention_head_value(&p->sinks, t->batch, t->head) : -INFINITE;
    EACH_UNIT(u) {
        EACH_DIM_TILE(n) o[u][n][0] = o[u][n][1] = o[u][n][2] = o[u][n][3] = 0;
        EACH_HALF(h) {
            // In log2, but natural with features. The sink's weight is one lane's of the four that share a row.
            max[u][h] = FEATURES ? sink : sink * LOG2_E;
            sum[u][h] = sink > -INFINITE && lane % 4 == 0 ? 1.0f : 0.0f;
        }
    }

    for (unsigned stage = 0; j < t->end; j += BLOCK_N, stage ^= 1) {
        unsigned k_tile = stages + stage * 2 * TILE_BYTES, v_tile = k_tile + TILE_BYTES;
        COPY_WAIT(0);
        __syncthreads(); // this tile is there, and the one before is free
        if (j + BLOCK_N < t->end) {
            unsigned next = stages + (stage ^ 1) * 2 * TILE_BYTES;
            int rows = t->s.len_k - j - BLOCK_N;
            k_from += BLOCK_N * 2 * p->k.seq;
            v_from += BLOCK_N * 2 * p->v.seq;
            load_tile(next, k_from, p->k.seq * 2, BLOCK_N, rows, k_bytes);
            load_tile(next + TILE_BYTES, v_from, p->v.seq * 2, BLOCK_N, rows, v_bytes);
            copy_commit();
        }

        // s = q k^T. Bits of a piece's number are those of the address from 16 on, so that exclusive or steps along.
        float s[UNITS][COLUMN_TILES][4];
        EACH_UNIT(u) EACH_COLUMN_TILE(n) s[u][n][0] = s[u][n][1] = s[u][n][2] = s[u][n][3] = 0;
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++) {
            unsigned a[UNITS][4], b[4];
            EACH_UNIT(u) load_matrices(a[u], (q_at ^ (d * 32)) + u * 16 * ROW_BYTES);
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n += 2) {
                load_matrices(b, ((k_tile + k_lane) ^ (d * 32)) + n * 8 * ROW_BYTES);
                EACH_UNIT(u) {
                    mma(s[u][n], a[u], b[0], b[1]);
                    mma(s[u][n + 1], a[u], b[2], b[3]);
                }
            }
        }

        // What becomes of them, and what is not seen.
        int is_mixed = !attention_sees_all(f, t, BLOCK_M, j,
                                           j + BLOCK_N < t->s.len_k ? j + BLOCK_N : t->s.len_k);
        if (FEATURES || is_mixed || j + BLOCK_N > t->s.len_k) {
            EACH_UNIT(u) EACH_HALF(h) {
                int i = t->first + ROW_OF(u, h);
                int begin = attention_first_key(p, &t->s, i), end = attention_end_key(p, &t->s, i);
#if FEATURES
                if (i >= t->s.len_q) end = begin;
                struct attention_query query = {0};
                if (begin < end) query = attention_query_at(p, &t->s, t->batch, t->head, i);
#endif
                EACH_COLUMN_TILE(n) EACH_HALF(e) {
                    int key = j + KEY_OF(n, e);
                    float *x = &s[u][n][2 * h + e];
#if FEATURES
                    float unused;
                    if (key >= begin && key < end)
                        *x = attention_score(p, &query, key, *x * p->softmax_scale, &unused);
                    else
                        *x = -INFINITE;
#else
                    if (key < begin || key >= end) *x = -INFINITE;
#endif
                }
            }
        }

        // The maximum, and whether what is there must be brought under a new one.
        float top[UNITS][2];
        int is_renewed = 0;
        EACH_UNIT(u) EACH_HALF(h) {
            top[u][h] = -INFINITE;
            EACH_COLUMN_TILE(n)
            top[u][h] = fmaxf(top[u][h], fmaxf(s[u][n][2 * h], s[u][n][2 * h + 1]));
            top[u][h] = max_of_four(top[u][h]);
            if (!FEATURES) top[u][h] *= scale_log2;
            is_renewed |= top[u][h] > max[u][h] + RENEW_AT;
        }
        if (__any_sync(ALL_LANES, is_renewed)) {
            EACH_UNIT(u) EACH_HALF(h) {
                float next = fmaxf(top[u][h], max[u][h]);
                float shift = next == -INFINITE ? 0 : max[u][h] - next;
                float alpha = exp2_fast(FEATURES ? shift * LOG2_E : shift);
                max[u][h] = next;
                sum[u][h] *= alpha;
                EACH_DIM_TILE(n) {
                    o[u][n][2 * h] *= alpha;
                    o[u][n][2 * h + 1] *= alpha;
                }
            }
        }

        // Weights, in place.
        EACH_UNIT(u) EACH_HALF(h) {
            float zero = max[u][h] == -INFINITE ? 0 : max[u][h], more = 0;
            EACH_COLUMN_TILE(n) EACH_HALF(e) {
                float *x = &s[u][n][2 * h + e];
#if FEATURES
                *x = exp2_fast((*x - zero) * LOG2_E);
#else
                *x = exp2_fast(*x * scale_log2 - zero);
#endif
                more += *x;
            }
            sum[u][h] += more;
        }
#if FEATURES
        if (p->dropout_threshold != 0) EACH_UNIT(u) EACH_HALF(h) EACH_COLUMN_TILE(n) {
                int key = j + KEY_OF(n, 0);
                uint4 words =
                    attention_philox(p, t->batch, t->head, t->first + ROW_OF(u, h), key / 4);
                EACH_HALF(e)
                if (attention_keep(p, words, key + e) == 0) s[u][n][2 * h + e] = 0;
            }
#endif

        if (is_mixed) {
            unsigned char *v = shared_tiles + (v_tile - q_tile);
            if (__syncthreads_or(has_nonfinite(v))) {
#pragma unroll 1
                for (int key = 0; key < BLOCK_N; key++) EACH_UNIT(u) EACH_HALF(h) {
                        int i = t->first + ROW_OF(u, h);
                        if (j + key < attention_first_key(p, &t->s, i) ||
                            j + key >= attention_end_key(p, &t->s, i))
                            continue;
                        EACH_DIM_TILE(n) {
                            unsigned pair =
                                *(unsigned *)(v + swizzled(key, n, PIECES) + lane % 4 * 4);
                            if (is_low_nonfinite(pair))
                                o[u][n][2 * h] += float_of_half(pair & 0xffff);
                            if (is_high_nonfinite(pair))
                                o[u][n][2 * h + 1] += float_of_half(pair >> 16);
                        }
                    }
                __syncthreads();
                take_nonfinite_out(v);
                __syncthreads();
            }
        }

        // o += weights v.
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n += 2) {
            unsigned a[UNITS][4], b[4];
            EACH_UNIT(u) {
                a[u][0] = pair_of_floats(s[u][n][0], s[u][n][1]);
                a[u][1] = pair_of_floats(s[u][n][2], s[u][n][3]);
                a[u][2] = pair_of_floats(s[u][n + 1][0], s[u][n + 1][1]);
                a[u][3] = pair_of_floats(s[u][n + 1][2], s[u][n + 1][3]);
            }
#pragma unroll
            for (int d = 0; d < DIM_TILES; d += 2) {
                load_matrices_transposed(b, ((v_tile + v_lane) ^ (d * 16)) + n * 8 * ROW_BYTES);
                EACH_UNIT(u) {
                    mma(o[u][d], a[u], b[0], b[1]);
                    mma(o[u][d + 1], a[u], b[2], b[3]);
                }
            }
        }
    }
    COPY_WAIT(0);    // of q, where there was no tile
    __syncthreads(); // and q's tile takes the output, each warp in its own rows

    EACH_UNIT(u) EACH_HALF(h) {
        float total = sum_of_four(sum[u][h]), factor = total == 0 ? 0 : 1 / total;
        if (FEATURES) factor *= p->keep_scale;
        int row = ROW_OF(u, h);
        EACH_DIM_TILE(n) {
            unsigned at = swizzled(row, n, PIECES) + lane % 4 * 4;
            *(unsigned *)(shared_tiles + at) =
                pair_of_floats(o[u][n][2 * h] * factor, o[u][n][2 * h + 1] * factor);
        }
        if (p->lse != 0 && lane % 4 == 0 && row < num_rows)
            p->lse[attention_lse_at(p, t->batch, t->head, t->s.q_first + t->first + row)] =
                total == 0 ? -INFINITE : (FEATURES ? max[u][h] : max[u][h] * LN_2) + logf(total);
    }
    __syncwarp();
    // Lines of the output by whole pieces.
#pragma unroll 4
    for (int at = lane; at < UNITS * 16 * PIECES; at += 32) {
        int row = warp * UNITS * 16 + at / PIECES, piece = at % PIECES;
        int dims = p->head_dim_v - piece * 8;
        if (row >= num_rows || dims <= 0) continue;
        const unsigned char *from = shared_tiles + swizzled(row, piece, PIECES);
        long long to =
            attention_at(&p->out, t->batch, t->s.q_first + t->first + row, t->head) + piece * 8;
        if (dims >= 8)
            store_bytes(p->out.data, to, *(const uint4 *)from);
        else
            for (int c = 0; c < dims; c++)
                ((unsigned short *)p->out.data)[to + c] = ((const unsigned short *)from)[c];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    attention_flash2(const __grid_constant__ struct attention_forward_params f) {
    struct attention_task *task =
        (struct attention_task *)(shared_tiles + Q_BYTES + 4 * TILE_BYTES);
    EACH_TASK(&f, BLOCK_M, task) attend(&f, task);
}
