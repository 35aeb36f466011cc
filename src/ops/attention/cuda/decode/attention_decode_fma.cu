// SPDX-License-Identifier: Apache-2.0
// Decode of q of f32, with caches of f32 or e4m3: up to 4 query rows of a key head against a chunk of its keys, in fp32 throughout.
// Four warps take KEYS keys each in turn, 4 Ki elements of K and V together, as a lane holds 32 columns of its key. The lanes of a
// key add up their parts of the scores; weights go through shared memory to the lanes that hold the columns of V. The next keys are
// on their way while these are weighed, the next values while the next keys are. Softmax is online (arXiv:1805.02867) but for a
// reference that stays until a score exceeds it by SLACK.
// Floor: the caches read once, 8 head_dim bytes a key and key head, 2 of e4m3.
// Limit: reading memory; with many chunks the second launch.
// Figures: docs/kernels/attention_decode.md.
// The host defines
//     DTYPE (2), IS_E4M3 (of the caches), DIMS (64, 128, 256: columns of a head, at least as many as it has), BLOCKS (of an SM)
#include "ops/attention/cuda/decode/attention_decode_append.cuh"

#define WARPS 4
#define ROWS 4
#define SLACK 8
#define LANES_PER_KEY (DIMS / 32)
#define KEYS (32 / LANES_PER_KEY) // of a warp at a time
#define LOADS 8                   // of a lane: its key, and its part of KEYS values
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

// Load i of a lane's LOADS of its key is four elements at this column. Those of e4m3 are read four loads at a time.
#if IS_E4M3
#define KEY_COLUMN(i)                                                                              \
    ((i) / 4 * LANES_PER_KEY * 16 + (int)threadIdx.x % LANES_PER_KEY * 16 + (i) % 4 * 4)
#else
#define KEY_COLUMN(i) (((i)*LANES_PER_KEY + (int)threadIdx.x % LANES_PER_KEY) * 4)
#endif

// Lanes per value, by columns. With 64 columns two values are read at once; with 256 a value takes two loads.
#define V_LANES (DIMS == 64 ? 16 : 32)
#define V_PARTS (DIMS == 256 ? 2 : 1)
#define VALUE_OF(i) ((i) / V_PARTS * (32 / V_LANES) + (int)threadIdx.x % 32 / V_LANES)
#define COLUMN_OF(i) (((int)threadIdx.x % V_LANES + (i) % V_PARTS * 32) * 4)

struct shared {
    float queries[ROWS][DIMS];        // times softmax_scale
    float weights[WARPS][KEYS][ROWS]; // the weights of a key are adjacent
    float o[WARPS][ROWS][DIMS];
    float reference[WARPS][ROWS], sum[WARPS][ROWS];
    float slope[ROWS];
    int begin[ROWS], end[ROWS], diagonal[ROWS];
    const unsigned char *tree[ROWS];
    unsigned seen[WARPS][ROWS]; // bits of a warp's keys
    struct decode_item item;    // rarely used, so kept out of registers
};

// ---- Loads ------------------------------------------------------------------------------------

// Four elements of a cache as they lie there. gather loads one by one, if rows are not aligned.
#if IS_E4M3
typedef unsigned decode_four;
#define NO_FOUR 0
DEVICE decode_four gather(const void *row, int col, int dims) {
    unsigned word = 0;
    EACH(i, 4) {
        if (col + i < dims) word |= (unsigned)((const unsigned char *)row)[col + i] << i * 8;
    }
    return word;
}
DEVICE float4 widened(decode_four x) {
    float low[2], high[2];
    floats_of_e4m3(low, x);
    floats_of_e4m3(high, x >> 16);
    return make_float4(low[0], low[1], high[0], high[1]);
}
// The loads of one group of 16 bytes.
DEVICE void fetch_key_loads(decode_four k[LOADS], const char *row, int dims) {
    EACH(i, LOADS / 4) {
        uint4 group = make_uint4(0, 0, 0, 0);
        fetch_group(&group, row + KEY_COLUMN(4 * i), KEY_COLUMN(4 * i) < dims);
        k[4 * i] = group.x, k[4 * i + 1] = group.y;
        k[4 * i + 2] = group.z, k[4 * i + 3] = group.w;
    }
}
DEVICE void fetch_four(decode_four *four, const char *row, int col, int dims) {
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "setp.ne.s32 p, %2, 0;\n\t"
                 "@p ld.global.L1::no_allocate.u32 %0, [%1];\n\t"
                 "}"
                 : "+r"(*four)
                 : "l"(row + col), "r"((int)(col < dims))
                 : "memory");
}
#else
typedef uint4 decode_four;
#define NO_FOUR make_uint4(0, 0, 0, 0)
DEVICE decode_four gather(const void *row, int col, int dims) {
    unsigned word[4];
    EACH(i, 4) { word[i] = col + i < dims ? ((const unsigned *)row)[col + i] : 0; }
    return make_uint4(word[0], word[1], word[2], word[3]);
}
DEVICE float4 widened(decode_four x) {
    return make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z),
                       __uint_as_float(x.w));
}
DEVICE void fetch_four(decode_four *four, const char *row, int col, int dims) {
    fetch_group(four, row + col * 4, col < dims);
}
DEVICE void fetch_key_loads(decode_four k[LOADS], const char *row, int dims) {
    EACH(i, LOADS) { fetch_four(&k[i], row, KEY_COLUMN(i), dims); }
}
#endif

// Lane i knows the row of key i % KEYS. Columns that the head does not have are zero.
DEVICE void fetch_keys(decode_four k[LOADS], const struct attention_decode_params *p,
                       struct decode_row rows) {
    const int lane = threadIdx.x % 32;
    const char *row = (const char *)__shfl_sync(0xffffffffu, rows.k, lane / LANES_PER_KEY);
    if (p->is_aligned)
        fetch_key_loads(k, row, p->a.head_dim);
    else
        EACH(i, LOADS) { k[i] = gather(row, KEY_COLUMN(i), p->a.head_dim); }
}

DEVICE void fetch_values(decode_four v[LOADS], const struct attention_decode_params *p,
                         struct decode_row rows) {
    EACH(i, LOADS) {
        const char *row = (const char *)__shfl_sync(0xffffffffu, rows.v, VALUE_OF(i));
        if (p->is_aligned)
            fetch_four(&v[i], row, COLUMN_OF(i), p->a.head_dim_v);
        else
            v[i] = gather(row, COLUMN_OF(i), p->a.head_dim_v);
    }
}

DEVICE void load_query(const struct attention_decode_params *p, const struct decode_item *item,
                       int row, struct shared *shared) {
    int lane = threadIdx.x % 32, is_there = row < item->num_rows;
    int query = decode_query_of(p, item, row), head = decode_head_of(p, item, row);
    long long at = attention_at(&p->a.q, item->batch, item->s.q_first + query, head);
    long long angle = p->cos != 0 ? decode_angle(p, query + item->s.shift) : 0;
    const struct decode_norm norm = decode_norm_of(p, &p->q_norm, p->a.q.data, is_there ? at : 0);
    const float scale =
        p->a.softmax_scale * decode_scale_at(p, &p->k_scale, item->batch, item->head);
    for (int c = lane; c < DIMS; c += 32) {
        float x = is_there && c < p->a.head_dim ? decode_query_element(p, &norm, at, c, angle) : 0;
        shared->queries[row][c] = x * scale;
    }
    if (lane != 0) return;
    shared->slope[row] =
        is_there && p->a.slopes.data != 0 ? decode_value(p, &p->a.slopes, item->batch, head) : 0;
    int end = is_there ? attention_end_key(&p->a, &item->s, query) : 0;
    shared->diagonal[row] = query + item->s.shift;
    shared->tree[row] = decode_tree_of(p, &item->s, item->batch, query);
    shared->begin[row] = is_there ? attention_first_key(&p->a, &item->s, query) : 0;
    shared->end[row] = end < item->end ? end : item->end;
}

// ---- Products ---------------------------------------------------------------------------------

DEVICE float dot(float4 a, float4 b, float sum) {
    sum = fmaf(a.w, b.w, sum);
    sum = fmaf(a.z, b.z, sum);
    sum = fmaf(a.y, b.y, sum);
    return fmaf(a.x, b.x, sum);
}

// Scores of this lane's key; all lanes of the key get them.
DEVICE void score(float s[ROWS], const decode_four k[LOADS], const struct shared *shared) {
    float sums[ROWS][2]; // of even and odd loads
    EACH(r, ROWS) { sums[r][0] = sums[r][1] = 0; }
    EACH(i, LOADS) {
        const float4 key = widened(k[i]);
        EACH(r, ROWS) {
            const float4 query = *(const float4 *)&shared->queries[r][KEY_COLUMN(i)];
            sums[r][i % 2] = dot(query, key, sums[r][i % 2]);
        }
    }
    EACH(r, ROWS) { s[r] = sums[r][0] + sums[r][1]; }
    EACH(r, ROWS) {
        for (int i = 1; i < LANES_PER_KEY; i *= 2) s[r] += __shfl_xor_sync(0xffffffffu, s[r], i);
    }
}

// As 0 times NaN is NaN, a row skips the values that it does not see, unless is_whole is set.
DEVICE void add_values(float o[ROWS][4 * V_PARTS], const decode_four v[LOADS],
                       const float weights[KEYS][ROWS], int is_whole, const struct shared *shared) {
    EACH(i, LOADS) {
        const float4 four = *(const float4 *)weights[VALUE_OF(i)];
        const float weight[ROWS] = {four.x, four.y, four.z, four.w};
        const float4 value = widened(v[i]);
        EACH(r, ROWS) {
            if (!is_whole && !(shared->seen[threadIdx.x / 32][r] >> VALUE_OF(i) & 1)) continue;
            float *sum = o[r] + i % V_PARTS * 4, w = weight[r];
            sum[0] = fmaf(w, value.x, sum[0]);
            sum[1] = fmaf(w, value.y, sum[1]);
            sum[2] = fmaf(w, value.z, sum[2]);
            sum[3] = fmaf(w, value.w, sum[3]);
        }
    }
}

// ---- Softmax ----------------------------------------------------------------------------------

// j: the warp's first key. A row sees all of its keys if is_whole is set, else those that shared->seen has.
DEVICE void finish_scores(float s[ROWS], const struct attention_decode_params *p,
                          const struct shared *shared, int is_whole, int j) {
    const int warp = threadIdx.x / 32, of_warp = threadIdx.x % 32 / LANES_PER_KEY,
              key = j + of_warp;
    EACH(r, ROWS) {
        float x = p->a.has_terms
                      ? decode_score(p, shared->slope[r], key - shared->diagonal[r], s[r])
                      : s[r] * LOG2_E;
        s[r] = is_whole || shared->seen[warp][r] >> of_warp & 1 ? x : -INFINITE;
    }
}

DEVICE void raise_reference(const float s[ROWS], float o[ROWS][4 * V_PARTS], float reference[ROWS],
                            float sum[ROWS]) {
    EACH(r, ROWS) {
        float top = s[r];
        for (int i = LANES_PER_KEY; i < 32; i *= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
        if (!(top > reference[r] + SLACK)) continue;
        float weight = decode_weight(reference[r], top);
        reference[r] = top;
        sum[r] *= weight;
        EACH(c, 4 * V_PARTS) { o[r][c] *= weight; }
    }
}

// Turns scores into weights; each key's first lane passes them to the others.
DEVICE void weigh(float s[ROWS], float o[ROWS][4 * V_PARTS], float reference[ROWS], float sum[ROWS],
                  float weights[KEYS][ROWS]) {
    int grows = 0, lane = threadIdx.x % 32;
    EACH(r, ROWS) { grows |= s[r] > reference[r] + SLACK; }
    if (__any_sync(0xffffffffu, grows)) raise_reference(s, o, reference, sum);
    EACH(r, ROWS) {
        s[r] = exp2_fast(s[r] - (reference[r] == -INFINITE ? 0 : reference[r]));
        sum[r] += s[r];
    }
    __syncwarp(); // all lanes have used the previous weights
    if (lane % LANES_PER_KEY == 0) {
        float4 *to = (float4 *)weights[lane / LANES_PER_KEY];
        *to = make_float4(s[0], s[1], s[2], s[3]);
    }
    __syncwarp();
}

// ---- Results ----------------------------------------------------------------------------------

DEVICE void share(float o[ROWS][4 * V_PARTS], const float reference[ROWS], const float sum[ROWS],
                  struct shared *shared) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    EACH(r, ROWS) {
        float all = sum[r];
        for (int i = LANES_PER_KEY; i < 32; i *= 2) all += __shfl_xor_sync(0xffffffffu, all, i);
        if (lane == 0) {
            shared->reference[warp][r] = reference[r];
            shared->sum[warp][r] = all;
        }
        for (int i = V_LANES; i < 32; i *= 2) {
            EACH(c, 4 * V_PARTS) { o[r][c] += __shfl_xor_sync(0xffffffffu, o[r][c], i); }
        }
        EACH(part, V_PARTS) {
            *(float4 *)&shared->o[warp][r][COLUMN_OF(part)] = make_float4(
                o[r][part * 4], o[r][part * 4 + 1], o[r][part * 4 + 2], o[r][part * 4 + 3]);
        }
    }
}

#include "ops/attention/cuda/decode/attention_decode_combine.cuh"

// ---- One item ---------------------------------------------------------------------------------

DEVICE void attend(const struct attention_decode_params *p, const struct decode_item *given,
                   struct shared *shared) {
    const struct decode_item *item = &shared->item;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int j = given->begin + warp * KEYS, end = given->end, of_warp = lane % KEYS;
    float o[ROWS][4 * V_PARTS], reference[ROWS], sum[ROWS];
    decode_four k[LOADS], v[LOADS];
    struct decode_row rows = {0, 0};
    // Keys beyond the end are replaced by the last key, which exists; they are masked as others are.
#define ROW_OF(j)                                                                                  \
    decode_row_at(p, item->batch, item->head,                                                      \
                  (unsigned)item->s.k_first +                                                      \
                      (unsigned)((j) + of_warp < end ? (j) + of_warp : end - 1))
    EACH(i, LOADS) { k[i] = v[i] = NO_FOUR; }
    __syncthreads(); // waits for the previous item
    if (threadIdx.x == 0) shared->item = *given;
    __syncthreads();
    append_of_item(p, item);
    if (j < end) {
        rows = ROW_OF(j);
        fetch_keys(k, p, rows);
        fetch_values(v, p, rows);
        rows = ROW_OF(j + WARPS * KEYS);
    }
    for (int row = warp; row < ROWS; row += WARPS) load_query(p, item, row, shared);
    __syncthreads();
    EACH(r, ROWS) {
        EACH(c, 4 * V_PARTS) { o[r][c] = 0; }
        reference[r] = -INFINITE;
        sum[r] = 0;
    }
    for (; j < end; j += WARPS * KEYS) {
        int is_last = j + WARPS * KEYS >= end;
        int is_whole = j >= item->whole_begin && j + KEYS <= item->whole_end;
        float s[ROWS], (*weights)[ROWS] = shared->weights[warp];
        if (!is_whole) note_seen(p, shared, j);
        score(s, k, shared);
        if (!is_last) fetch_keys(k, p, rows);
        if (p->a.has_terms || !is_whole)
            finish_scores(s, p, shared, is_whole, j);
        else
            EACH(r, ROWS) { s[r] *= LOG2_E; }
        weigh(s, o, reference, sum, weights);
        if (is_whole)
            add_values(o, v, weights, 1, shared);
        else
            add_values(o, v, weights, 0, shared);
        if (is_last) break;
        fetch_values(v, p, rows);
        rows = ROW_OF(j + 2 * WARPS * KEYS);
    }
    share(o, reference, sum, shared);
    __syncthreads();
    combine(p, item, shared);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    attention_decode_fma(const struct attention_decode_params p) {
    __shared__ struct shared shared;
    struct decode_cursor at = decode_first(&p);
    struct decode_item item;
    while (decode_next(&p, &at, &item)) attend(&p, &item, &shared);
}
