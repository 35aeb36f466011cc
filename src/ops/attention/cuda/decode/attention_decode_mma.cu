// SPDX-License-Identifier: Apache-2.0
// Decode of q of 16 bits: up to 8 ROW_TILES query rows of a key head against a chunk of its keys, on tensor cores, so that groups
// of heads cost no more than one. Four warps take 16 keys each in turn, K and V go from memory to registers and from there into
// the products: s' = K q' and o' = V' p', with keys, then columns, as rows of a, so that queries fill only 8 columns of b. The
// next keys are on their way while these are weighed, the next values while the next keys are. Softmax is online
// (arXiv:1805.02867) but for a reference that stays until a score exceeds it by SLACK, which nearly none does.
// Which column of a head is which of a product is free to choose, as long as both factors agree: lane (g, t) reads eight elements
// of keys g and g + 8 at column 8 t, and of the values 2 t, 2 t + 1, + 8 at column 8 g.
// Caches of e4m3 are computed in f16, which holds their numbers, whatever 16 bits q has.
// Floor: the caches read once, 4 head_dim bytes a key and key head, 2 of e4m3. Limit: reading memory; with few keys a block's
// start, with many chunks the second launch. Figures: docs/kernels/attention_decode.md. The host defines
//     DTYPE (3, 4; e4m3: 4), IS_E4M3 (of the caches), DIMS (64, 128, 256: columns of a head, at least as many as it has),
//     ROW_TILES (1, 2), BLOCKS (of an SM)
#include "ops/attention/cuda/decode/attention_decode_mma.cuh"

// ---- Queries ----------------------------------------------------------------------------------

// Stores a row in DTYPE, or if it is normalised or rotated as num_query_parts numbers of DTYPE per column. These are scaled by a
// power of two, so that the last is not below the least f16.
DEVICE void load_query(const struct attention_decode_params *p, const struct decode_item *item,
                       int row, struct shared *shared) {
    int lane = threadIdx.x % 32, is_there = row < item->num_rows;
    int query = decode_query_of(p, item, row), head = decode_head_of(p, item, row);
    float x[DIMS / 32], top = 0, factor = 1;
    long long at = attention_at(&p->a.q, item->batch, item->s.q_first + query, head);
    long long angle = p->cos != 0 ? decode_angle(p, query + item->s.shift) : 0;
    const struct decode_norm norm = decode_norm_of(p, &p->q_norm, p->a.q.data, is_there ? at : 0);
    EACH(i, DIMS / 32) {
        int c = lane + 32 * i;
        x[i] = is_there && c < p->a.head_dim ? decode_query_element(p, &norm, at, c, angle) : 0;
        top = fmaxf(top, fabsf(x[i]));
    }
    if (p->num_query_parts > 1 || IS_E4M3) {
        for (int i = 16; i > 0; i /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
        unsigned exponent = __float_as_uint(top) & 0x7f800000u;
        if (IS_E4M3 && exponent == 0x7f000000u) exponent -= 1 << 23; // f16 holds less than q
        if (exponent != 0 && exponent < 0x7f000000u) {
            // With IS_E4M3 the row reaches far down in f16, as its least elements may have no other part.
            factor = __uint_as_float(exponent) / (IS_E4M3 ? 8192 : 1);
            EACH(i, DIMS / 32) {
                x[i] *= __uint_as_float(0x7f000000u - exponent);
                if (IS_E4M3) x[i] *= 8192;
            }
        }
    }
    for (int part = 0; part < p->num_query_parts; part++) {
        EACH(i, DIMS / 32) {
            store(shared->queries[part][row], lane + 32 * i, x[i]);
            x[i] -= as_stored(x[i]);
            if (!(fabsf(x[i]) < INFINITE)) x[i] = 0; // the first part is complete
        }
    }
    if (lane != 0) return;
    shared->factor[row] =
        factor * p->a.softmax_scale * decode_scale_at(p, &p->k_scale, item->batch, item->head);
    shared->slope[row] =
        is_there && p->a.slopes.data != 0 ? decode_value(p, &p->a.slopes, item->batch, head) : 0;
    int end = is_there ? attention_end_key(&p->a, &item->s, query) : 0;
    shared->diagonal[row] = query + item->s.shift;
    shared->tree[row] = decode_tree_of(p, &item->s, item->batch, query);
    shared->begin[row] = is_there ? attention_first_key(&p->a, &item->s, query) : 0;
    shared->end[row] = end < item->end ? end : item->end;
}

// ---- Softmax ----------------------------------------------------------------------------------

// Lane (g, t) has the scores of keys j + g and j + g + 8 for rows 2 t and 2 t + 1 of each tile.
// A row sees all of these keys if is_whole is set, else those that shared->seen has.
DEVICE void finish_scores(float s[ROW_TILES][4], const struct attention_decode_params *p,
                          const struct shared *shared, int is_whole, int j) {
    int lane = threadIdx.x % 32;
    EACH(n, ROW_TILES) {
        EACH(e, 4) {
            int row = n * 8 + lane % 4 * 2 + e % 2, key = j + lane / 4 + e / 2 * 8;
            float x = s[n][e] * shared->factor[row];
            x = p->a.has_terms ? decode_score(p, shared->slope[row], key - shared->diagonal[row], x)
                               : x * LOG2_E;
            s[n][e] =
                is_whole || shared->seen[threadIdx.x / 32][row] >> (key - j) & 1 ? x : -INFINITE;
        }
    }
}

DEVICE void raise_reference(const float s[ROW_TILES][4], float o[DIMS / 16][ROW_TILES][4],
                            float reference[ROW_TILES][2], float sum[ROW_TILES][2]) {
    EACH(n, ROW_TILES) {
        EACH(q, 2) {
            float top = fmaxf(s[n][q], s[n][2 + q]);
            for (int i = 4; i < 32; i *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
            if (!(top > reference[n][q] + SLACK)) continue;
            float weight = decode_weight(reference[n][q], top - SHIFT);
            reference[n][q] = top - SHIFT;
            sum[n][q] *= weight;
            EACH(e, DIMS / 16) {
                o[e][n][q] *= weight;
                o[e][n][2 + q] *= weight;
            }
        }
    }
}

// Turns scores into weights.
DEVICE void weigh(float s[ROW_TILES][4], float o[DIMS / 16][ROW_TILES][4],
                  float reference[ROW_TILES][2], float sum[ROW_TILES][2],
                  unsigned weights[ROW_TILES][2]) {
    int grows = 0;
    EACH(n, ROW_TILES) {
        EACH(e, 4) { grows |= s[n][e] > reference[n][e % 2] + SLACK; }
    }
    if (__any_sync(0xffffffffu, grows)) raise_reference(s, o, reference, sum);
    EACH(n, ROW_TILES) {
        EACH(e, 4) {
            float from = reference[n][e % 2];
            s[n][e] = exp2_fast(s[n][e] - (from == -INFINITE ? 0 : from));
            sum[n][e % 2] += s[n][e];
        }
        weights[n][0] = transposed(pair_of_floats(s[n][0], s[n][1]));
        weights[n][1] = transposed(pair_of_floats(s[n][2], s[n][3]));
    }
}

// ---- Results ----------------------------------------------------------------------------------

DEVICE void share(const float o[DIMS / 16][ROW_TILES][4], const float reference[ROW_TILES][2],
                  const float sum[ROW_TILES][2], struct shared *shared) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    EACH(n, ROW_TILES) {
        EACH(q, 2) {
            int row = n * 8 + lane % 4 * 2 + q;
            float all = sum[n][q];
            for (int i = 4; i < 32; i *= 2) all += __shfl_xor_sync(0xffffffffu, all, i);
            if (lane < 4) {
                shared->reference[warp][row] = reference[n][q];
                shared->sum[warp][row] = all;
            }
            EACH(e, DIMS / 16) {
                int c = e / 4 * 64 + lane / 4 * 8 + e % 4 * 2;
                *(float2 *)&shared->o[warp][row][c] = make_float2(o[e][n][q], o[e][n][2 + q]);
            }
        }
    }
}

#include "ops/attention/cuda/decode/attention_decode_combine.cuh"
#include "ops/attention/cuda/decode/attention_decode_ends.cuh"

// ---- One item ---------------------------------------------------------------------------------

DEVICE void attend(const struct attention_decode_params *p, const struct decode_item *given,
                   struct shared *shared) {
    const struct decode_item *item = &shared->item;
    int warp = threadIdx.x / 32, j = given->begin + warp * KEYS, end = given->end;
    int num_parts = p->num_query_parts, of_warp = threadIdx.x % KEYS;
    float o[DIMS / 16][ROW_TILES][4], reference[ROW_TILES][2], sum[ROW_TILES][2];
    decode_group k[2 * K_STEPS];
#if IS_TURNING
    decode_group *v = k;
#else
    decode_group v[4 * V_STEPS];
#endif
    struct decode_row rows = {0, 0};
    // Keys beyond the end are replaced by the last key, which exists; they are masked as others are.
#define ROW_OF(j)                                                                                  \
    decode_row_at(p, item->batch, item->head,                                                      \
                  (unsigned)item->s.k_first +                                                      \
                      (unsigned)((j) + of_warp < end ? (j) + of_warp : end - 1))
    EACH(i, 2 * K_STEPS) { k[i] = NO_GROUP; }
    EACH(i, 4 * V_STEPS) { v[i] = NO_GROUP; }
    __syncthreads(); // waits for the previous item
    if (threadIdx.x == 0) shared->item = *given;
    __syncthreads();
    append_of_item(p, item);
    if (j < end) {
        rows = ROW_OF(j);
        fetch_keys(k, p, rows);
        if (!IS_TURNING) {
            fetch_values(v, p, rows);
            rows = ROW_OF(j + WARPS * KEYS);
        }
    }
    for (int row = warp; row < ROWS; row += WARPS) load_query(p, item, row, shared);
    __syncthreads();
    EACH(e, DIMS / 16) {
        EACH(n, ROW_TILES) {
            EACH(i, 4) { o[e][n][i] = 0; }
        }
    }
    EACH(n, ROW_TILES) {
        EACH(q, 2) {
            reference[n][q] = -INFINITE;
            sum[n][q] = 0;
        }
    }
    float factor[ROW_TILES][2];
    EACH(n, ROW_TILES) {
        EACH(q, 2) { factor[n][q] = shared->factor[n * 8 + threadIdx.x % 4 * 2 + q] * LOG2_E; }
    }
    for (; j < end; j += WARPS * KEYS) {
        int is_last = j + WARPS * KEYS >= end;
        int is_whole = j >= item->whole_begin && j + KEYS <= item->whole_end;
        float s[ROW_TILES][4];
        unsigned weights[ROW_TILES][2];
        EACH(n, ROW_TILES) {
            EACH(e, 4) { s[n][e] = 0; }
        }
        if (!is_whole) note_seen(p, shared, j);
        if (IS_TURNING && p->a.head_dim < DIMS) cut_keys(k, p->a.head_dim);
        add_scores(s, k, shared, num_parts);
        if (IS_TURNING) {
            fetch_values(v, p, rows);
            rows = ROW_OF(j + WARPS * KEYS);
        } else if (!is_last) {
            fetch_keys(k, p, rows);
        }
        if (p->a.has_terms || !is_whole)
            finish_scores(s, p, shared, is_whole, j);
        else
            EACH(n, ROW_TILES) {
                EACH(e, 4) { s[n][e] *= factor[n][e % 2]; }
            }
        weigh(s, o, reference, sum, weights);
        if (!is_whole && has_nonfinite(v))
            add_seen_values(o, v, weights, shared);
        else
            add_values(o, v, weights);
        if (is_last) break;
        if (IS_TURNING) {
            fetch_keys(k, p, rows);
        } else {
            fetch_values(v, p, rows);
            rows = ROW_OF(j + 2 * WARPS * KEYS);
        }
    }
    __syncthreads(); // queries end where o begins
    share(o, reference, sum, shared);
    __syncthreads();
    combine(p, item, shared);
    merge_if_last(p, item);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    attention_decode_mma(const struct attention_decode_params p) {
    __shared__ struct shared shared;
    begin_early();
    struct decode_cursor at = decode_first(&p);
    struct decode_item item;
    while (decode_next(&p, &at, &item)) attend(&p, &item, &shared);
}
