// SPDX-License-Identifier: Apache-2.0
// flash3's backward with terms: ALiBi and dropout (TERMS 1), softcap (TERMS 2), a bias in DTYPE (TERMS 3) or in fp32 (TERMS 4).
// Code that changes accumulators must not stand under a branch, or the assembler serialises the products. So softcap has its own
// kernel, a slope of 0 means no ALiBi, and dropout works on narrowed operands. Registers do not suffice for all terms together.
#ifndef TSRI_ATTENTION_BACKWARD_FLASH3_TERMS_CUH
#define TSRI_ATTENTION_BACKWARD_FLASH3_TERMS_CUH

#if TERMS == 1
// A thread's values for one step.
struct terms {
    float slope, from;    // from: distance from its first query's diagonal to its first key
    unsigned kept[PARTS]; // dropout: bit 4 n + c for element c of group n of an accumulator
};

// Dropout for 64 queries from `query` on. Four keys share a counter; they belong to four lanes, and each lane computes a quarter
// of the queries. Bit n of byte k is the result for the lane with the k-th of the four keys.
DEVICE unsigned find_kept(const struct attention_params *p, int batch, int head, int query,
                          int key) {
    const unsigned thread = thread_now() - 128, lane = thread % 32, own = lane / 4 % 4;
    const int quad = key / 4 + (int)(thread / 32 * 4 + lane / 16);
    const unsigned least = (unsigned)p->dropout_threshold;
    unsigned found = 0, kept = 0;
#pragma unroll 1
    for (int n = 0; n < 8; n++) {
        const int i = query + (n / 4 * 4 + (int)own) * 8 + (int)(lane % 4) * 2 + n % 2;
        const uint4 x = attention_philox(p, batch, head, i, quad + n / 2 % 2 * 2);
        found |= ((x.x >= least ? 1u : 0) | (x.y >= least ? 1u << 8 : 0) |
                  (x.z >= least ? 1u << 16 : 0) | (x.w >= least ? 1u << 24 : 0))
                 << n;
    }
#pragma unroll
    for (unsigned far = 0; far < 4; far++) {
        const unsigned got = __shfl_xor_sync(0xffffffff, found, far * 4) >> own * 8;
        kept |= ((got & 0xf) | (got & 0xf0) << 12) << (own ^ far) * 4;
    }
    return p->dropout_threshold >> 32 != 0 ? 0 : kept;
}

DEVICE struct terms find_terms(const struct attention_params *p, const struct task *t,
                               unsigned stage) {
    const struct passing *passing =
        (const struct passing *)(memory + STEPS_AT + STEP_BYTES * stage);
    const int thread = (int)thread_now() - 128, query = passing->query;
    const int row = t->key + thread / 32 * 16 + thread % 32 / 4;
    struct terms terms = {passing->slope, (float)(row - query - thread % 4 * 2 - t->s.shift)};
    if (p->dropout_threshold != 0) {
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            terms.kept[i] = find_kept(p, t->batch, passing->head, query + i * 64, t->key);
    }
    return terms;
}

// Turns scores of 64 queries, from query `query` of the tile on, into weights, as operands.
DEVICE void weigh_terms(float (*s)[4], unsigned (*a)[4], unsigned lse,
                        const struct attention_backward_flash3_params *f, const struct terms *terms,
                        int query) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float row[2];
        load_two_floats(row, lse + n * 32);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float far = terms->from + (float)(c / 2 * 8 - (query + n * 8 + c % 2));
            const float beside = fmaf(fabsf(far), -terms->slope, row[c % 2] * -LOG2_E);
            s[n][c] = exp2_fast(fmaf(s[n][c], f->scale_log2, beside));
        }
    }
    pack(a, s);
    if (f->b.p.dropout_threshold != 0) mask(a, terms->kept[query / 64]);
}

// Where a weight was dropped, the gradient of its score is -weight delta.
DEVICE void drop_grads(unsigned (*a)[4], const float (*weights)[4], unsigned delta, unsigned kept) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float row[2];
        load_two_floats(row, delta + n * 32);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float *weight = weights[n] + 2 * half;
            const unsigned two = kept >> (4 * n + 2 * half);
            const unsigned here = (two & 1 ? 0xffffu : 0u) | (two & 2 ? 0xffff0000u : 0u);
            unsigned *to = &a[n / 2][n % 2 * 2 + half];
            *to = (*to & here) | (pair_of_floats(weight[0] * -row[0], weight[1] * -row[1]) & ~here);
        }
    }
}

#elif TERMS == 2
// Turns scores of 64 queries into weights, as operands. s then holds weights times the slope of the softcap.
DEVICE void weigh_capped(float (*s)[4], unsigned (*a)[4], unsigned lse,
                         const struct attention_backward_flash3_params *f) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float row[2], weight[4];
        load_two_floats(row, lse + n * 32);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            // tanh x = 1 - 2 / (e^2x + 1); its slope is 1 - tanh^2.
            float part;
            asm("rcp.approx.ftz.f32 %0, %1;"
                : "=f"(part)
                : "f"(exp2_fast(s[n][c] * f->to_softcap) + 1));
            weight[c] =
                exp2_fast(fmaf(part, -2 * f->softcap, fmaf(row[c % 2], -LOG2_E, f->softcap)));
            s[n][c] = weight[c] * (4 * fmaf(-part, part, part));
        }
        a[n / 2][n % 2 * 2] = pair_of_floats(weight[0], weight[1]);
        a[n / 2][n % 2 * 2 + 1] = pair_of_floats(weight[2], weight[3]);
        if (weight[0] + weight[2] < 0)
            asm volatile("nanosleep.u32 1;"); // never: but the next ones wait, as registers are few
    }
}

#else
// A tile of the bias has queries as rows; its 8 x 8 matrices are loaded transposed, as threads have keys as rows. The tile's dbias
// is stored the same way in its place: every warp reads and writes only its own 16 keys.
//
// Address of the columns of this thread's keys.
DEVICE unsigned own_bias(unsigned tile) {
    const unsigned thread = thread_now() - 128;
    return tile + thread / 32 * 16 / BIAS_COLUMNS * PASSING_SLAB;
}
#if HAS_F32_BIAS
// Address of element 0 for the first 8 queries; the next 8 are 1024 bytes further.
DEVICE unsigned own_float(unsigned at, int is_one) {
    const unsigned thread = thread_now() - 128, query = is_one ? 0 : thread % 4 * 2;
    const unsigned key = thread / 32 % 2 * 16 + thread % 32 / 4;
    return at + query * 128 + (key / 4 ^ query) * 16 + key % 4 * 4;
}
// Address of element c: the other query and 8 keys further flip bits of the permuted address.
DEVICE unsigned float_at(unsigned own, int n, int c, int is_one) {
    const unsigned of_key = own ^ c / 2 * 32;
    return is_one ? of_key : (of_key ^ c % 2 * 16) + n * 1024 + c % 2 * 128;
}
#else
// Address of the matrices of queries 16 n to 16 n + 15.
DEVICE unsigned own_matrix(unsigned at, int n, int is_one) {
    const unsigned thread = thread_now() - 128, row = n * 16 + thread % 32 / 16 * 8 + thread % 8;
    const unsigned piece = thread % 128 / 32 * 2 + thread % 16 / 8;
    return is_one ? at + piece * 16 : at + row * 128 + (piece ^ row % 8) * 16;
}

#endif

// lse_low of two queries, in the nth 8 of 64 of a step: from shared memory next to lse if it fits there. Otherwise from memory,
// where `at` is the index of the turn; 0 if `at` is below 0.
DEVICE int lows_at(unsigned stage, int part) {
    return *(const int *)(memory + STEPS_AT + STEP_BYTES * stage + 4) + part;
}
DEVICE void load_low(float low[2], const struct attention_backward_flash3_params *f, unsigned lse,
                     int at, int n) {
#if HAS_SHARED_LOW
    (void)f, (void)at;
    load_two_floats(low, lse + (LSE_LOW_AT - LSE_AT) + n * 32);
#else
    (void)lse;
    low[0] = low[1] = 0;
    if (at < 0) return;
    const float2 two = *(const float2 *)(f->b.lse_low + ((long long)at * FLASH3_TURN_ROWS + n * 8 +
                                                         thread_now() % 4 * 2));
    low[0] = two.x;
    low[1] = two.y;
#endif
}

// Turns scores of 64 queries into weights, as operands. Subtracts lse before the step to log2, as both may be the lowest finite
// number.
DEVICE void weigh_biased(float (*s)[4], unsigned (*a)[4], unsigned lse,
                         const struct attention_backward_flash3_params *f, int lows, unsigned bias,
                         int is_one) {
    const float scale = f->b.p.softmax_scale;
#if HAS_F32_BIAS
    const unsigned own = own_float(bias, is_one);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float row[2], low[2];
        load_two_floats(row, lse + n * 32);
        load_low(low, f, lse, lows, n);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float beside = load_float(float_at(own, n, c, is_one));
            s[n][c] =
                exp2_fast(fmaf(fmaf(s[n][c], scale, beside) - row[c % 2], LOG2_E, -low[c % 2]));
        }
    }
#else
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        unsigned x[4];
        load_matrices_transposed(x, own_matrix(bias, n / 2, is_one));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float row[2], low[2];
            load_two_floats(row, lse + (n + i) * 32);
            load_low(low, f, lse, lows, n + i);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const unsigned pair = x[i * 2 + c / 2];
                const float beside = c % 2 ? high_of_pair(pair) : low_of_pair(pair);
                s[n + i][c] = exp2_fast(
                    fmaf(fmaf(s[n + i][c], scale, beside) - row[c % 2], LOG2_E, -low[c % 2]));
            }
        }
    }
#endif
    pack(a, s);
}

DEVICE void store_matrices_transposed(unsigned shared, const unsigned x[4]) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
        "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
        : "memory");
}

// If all queries share one row of the bias, a stage of it is empty except for its first lines. In the rest each thread keeps the
// sums of its two keys' gradients over the queries of a head, added tile after tile in one order.
DEVICE float2 *own_sums(void) { return (float2 *)(memory + BIAS_AT + 2048) + (thread_now() - 128); }
DEVICE void write_sums(const struct attention_backward_flash3_params *f, const struct task *t,
                       int head, const float sums[2]) {
    const struct attention_params *p = &f->b.p;
    const int thread = (int)thread_now() - 128;
    const int key = t->key + thread / 32 * 16 + thread % 32 / 4;
    float *to = f->bias.sums + ((long long)t->batch * p->num_heads_q + head) * p->seqlen_k + key;
    if (thread % 4 != 0) return;
    if (key < p->seqlen_k) to[0] = sums[0];
    if (key + 8 < p->seqlen_k) to[8] = sums[1];
}
// Adds gradients of scores of the part-th 64 queries of a step.
DEVICE void add_to_sums(const struct attention_backward_flash3_params *f, const struct task *t,
                        const float (*grads)[4], unsigned stage, int is_edge, int part) {
    const int query = *(const int *)(memory + STEPS_AT + STEP_BYTES * stage);
    const unsigned seen = is_edge ? seen_pairs(&f->b.p, t, query + part * 64) : 0xffffffff;
    float sums[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) sums[c / 2] += seen >> (4 * n + c) & 1 ? grads[n][c] : 0;
    float2 *own = own_sums();
    if (query < t->last || part > 0) {
        sums[0] += own->x;
        sums[1] += own->y;
    }
    *own = make_float2(sums[0], sums[1]);
}
// After a step, writes the sums if it was the last step of a head. steps: how many the task has left.
DEVICE void end_sums(const struct attention_backward_flash3_params *f, const struct task *t,
                     unsigned stage, int steps) {
    if (*(const int *)(memory + STEPS_AT + STEP_BYTES * stage) > t->first) return;
    const float2 *own = own_sums();
    float sums[2] = {own->x, own->y};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sums[i] += __shfl_xor_sync(0xffffffff, sums[i], 1);
        sums[i] += __shfl_xor_sync(0xffffffff, sums[i], 2);
    }
    const int heads_left = (steps - 1) / (t->num_steps / f->b.p.group);
    write_sums(f, t, (t->kv_head + 1) * f->b.p.group - 1 - heads_left, sums);
}
// Clears the sums of keys that no query sees.
DEVICE void clear_sums(const struct attention_backward_flash3_params *f, const struct task *t) {
    const float none[2] = {0, 0};
    for (int i = 0; i < f->b.p.group; i++) write_sums(f, t, t->kv_head * f->b.p.group + i, none);
}

// Stores gradients of scores of 64 queries; a: the same as operands. query: the first; below 0 if every pair sees each other.
DEVICE void store_dbias(unsigned tile, const unsigned (*a)[4], const float (*grads)[4],
                        const struct attention_params *p, const struct task *t, int query) {
#if HAS_F32_BIAS
    const unsigned own = own_float(tile, 0);
    const unsigned seen = query < 0 ? 0xffffffffu : seen_pairs(p, t, query);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            store_float(float_at(own, n, c, 0), seen >> (4 * n + c) & 1 ? grads[n][c] : 0);
#else
#pragma unroll
    for (int n = 0; n < 4; n++) store_matrices_transposed(own_matrix(tile, n, 0), a[n]);
#endif
}
#endif

#endif
