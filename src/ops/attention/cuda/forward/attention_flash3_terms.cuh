// SPDX-License-Identifier: Apache-2.0
// flash3's softmax with softcap, ALiBi or dropout. While one warpgroup turns scores into weights, the other one's products run;
// only work that takes longer than these costs time. An exponential occupies the special-function unit for 8 cycles, and a maximum
// its unit for two, so both leave issue slots free. Softcap is computed during the exponentials. ALiBi's step is added during the
// maxima or, if weights use the maxima so far, during the exponentials.
//
// Scores are in the units of products, with softcap in log2; a->unit converts them to log2.
#ifndef TSRI_ATTENTION_FLASH3_TERMS_CUH
#define TSRI_ATTENTION_FLASH3_TERMS_CUH

// ---- Softcap ----------------------------------------------------------------------------------

// softcap tanh x minus a reference, as a polynomial. The error in tanh x is at most 1.3e-7 for |x| up to 0.9, with roundings. The
// coefficients are operands from the parameters and take no registers.
#define MOST_SMALL 0.9f
DEVICE float cap_small(float s, const struct attention_flash3_params *a, float zero) {
    const float x = s * a->to_x, y = x * x;
    float ratio = fmaf(y, a->cap[5], a->cap[4]);
    ratio = fmaf(y, ratio, a->cap[3]);
    ratio = fmaf(y, ratio, a->cap[2]);
    ratio = fmaf(y, ratio, a->cap[1]);
    return fmaf(x, fmaf(y, ratio, a->cap[0]), -zero);
}

// The same for any x, as tanh x = 1 - 2 / (e^2x + 1), also with an error of about 1e-7.
DEVICE float cap_any(float s, const struct attention_flash3_params *a) {
    float part;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(part) : "f"(exp2_fast(s * a->to_softcap) + 1));
    return fmaf(part, -2 * a->softcap, a->softcap);
}

// The same for four finite x, which share a reciprocal, as the special-function unit is the scarcest. Beyond e^2x = 2^30, tanh x
// is 1.
DEVICE void cap_four(float s[4], const struct attention_flash3_params *a) {
    float d[4], part;
#pragma unroll
    for (int i = 0; i < 4; i++) d[i] = exp2_fast(fminf(s[i] * a->to_softcap, 30)) + 1;
    const float low = d[0] * d[1], high = d[2] * d[3];
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(part) : "f"(low * high));
    part *= -2 * a->softcap;
    const float of_low = part * high, of_high = part * low;
    s[0] = fmaf(of_low, d[1], a->softcap);
    s[1] = fmaf(of_low, d[0], a->softcap);
    s[2] = fmaf(of_high, d[3], a->softcap);
    s[3] = fmaf(of_high, d[2], a->softcap);
}

DEVICE float tanh_fast(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

enum { ANY, FINITE, SMALL }; // kinds of a tile's products

// Maxima of products in each lane; and the kind of all the warp's products in rows that exist: small enough for the polynomial,
// finite, or any. The sums of squares of half a row of the tile in a lane stand for the largest square.
DEVICE int find_tops_and_kind(float (*s)[4], float top[2], const float max[2], float to_x) {
    float squares[4] = {0, 0, 0, 0};
    int is_small = 1;
    top[0] = top[1] = -INFINITE;
    EACH_COLUMN_TILE(n) EACH_HALF(h) {
        float *x = s[n] + 2 * h;
        EACH_HALF(e) squares[2 * h + e] = fmaf(x[e], x[e], squares[2 * h + e]);
        top[h] = fmaxf(top[h], fmaxf(x[0], x[1]));
    }
    asm volatile("" : "+f"(top[0]), "+f"(top[1])); // with the squares, not after the vote
    int is_finite = 1;
    EACH_HALF(h) {
        const float to_y = to_x * to_x, most = MOST_SMALL * MOST_SMALL;
        const int is_of_row = squares[2 * h] * to_y <= most && squares[2 * h + 1] * to_y <= most;
        is_small &= is_of_row || max[h] == INFINITE;
        is_finite &= squares[2 * h] + squares[2 * h + 1] < INFINITE || max[h] == INFINITE;
    }
    if (__all_sync(ALL_LANES, is_small)) return SMALL;
    return __all_sync(ALL_LANES, is_finite) ? FINITE : ANY;
}

// ---- ALiBi ------------------------------------------------------------------------------------

// ALiBi's step in log2 from key to key. For larger steps distances are from the diagonal, as those from a tile's first key would
// lose digits.
#define MOST_STEP 1.6f

// Adds ALiBi minus base to scores, and finds each lane's maxima. If all seen keys are on one side of the diagonal, ALiBi changes
// by the same step from key to key, and base is its value at the lane's first key.
DEVICE void add_slope(float (*s)[4], float top[2], float base[2], float slope, int first, int row,
                      int is_before, int is_behind) {
    top[0] = top[1] = -INFINITE;
    if (is_before || is_behind) {
        if (!is_before) slope = -slope;
        EACH_HALF(h) base[h] = slope * (float)(first - (row + h * 8));
        EACH_COLUMN_TILE(n) EACH_HALF(h) {
            float *x = s[n] + 2 * h;
            EACH_HALF(e) x[e] = fmaf(slope, (float)(n * 8 + e), x[e]);
            top[h] = fmaxf(top[h], fmaxf(x[0], x[1]));
        }
        return;
    }
    EACH_HALF(h) {
        const float from = (float)(first - (row + h * 8));
        EACH_COLUMN_TILE(n) {
            float *x = s[n] + 2 * h;
            EACH_HALF(e) x[e] = fmaf(fabsf(from + (float)(n * 8 + e)), -slope, x[e]);
            top[h] = fmaxf(top[h], fmaxf(x[0], x[1]));
        }
    }
}

// ---- Dropout ----------------------------------------------------------------------------------

#if TERMS & 4
// Which weights of queries from i on and keys from j on stay: element e of key tile n in half h has bit n / 2 * 2 + h + 16 e of
// kept[n % 2]. Two lanes have the four keys of a counter; each computes every other tile and passes it to the other.
DEVICE void find_kept(unsigned kept[2], const struct attention_params *p,
                      const struct attention_task *t, int i, int j) {
    const int lane = find_lane(), is_odd = lane % 2;
    const unsigned least = (unsigned)p->dropout_threshold;
    unsigned low = 0, high = 0; // of the first two keys; of the other two
#pragma unroll 1
    for (int n = 0; n < BLOCK_N / 8; n++) {
        const int tile = n / 2 * 2 + is_odd;
        const uint4 x = attention_philox(p, t->batch, t->head, i + n % 2 * 8 + lane / 4,
                                         j / 4 + tile * 2 + lane % 4 / 2);
        low |= ((x.x >= least ? 1u : 0) | (x.y >= least ? 1u << 16 : 0)) << n;
        high |= ((x.z >= least ? 1u : 0) | (x.w >= least ? 1u << 16 : 0)) << n;
    }
    if (p->dropout_threshold >> 32 != 0) low = high = 0;
    const unsigned got = __shfl_xor_sync(ALL_LANES, is_odd ? low : high, 1);
    kept[0] = is_odd ? got : low;
    kept[1] = is_odd ? high : got;
}

// Sets operands of dropped weights to 0.
DEVICE void drop_operands(unsigned (*weights)[4], const unsigned kept[2]) {
#pragma unroll
    for (int n = 0; n < BLOCK_N / 16; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int bit = n * 2 + i % 2;
            // The bits of both elements become the highest bit of one byte each, which is spread over a half.
            unsigned here;
            asm("prmt.b32 %0, %1, 0, %2;"
                : "=r"(here)
                : "r"(kept[i / 2] << (7 - bit % 8)), "r"(bit < 8 ? 0xaa88 : 0xbb99));
            weights[n][i] &= here;
        }
}
#endif

// ---- Weights ----------------------------------------------------------------------------------

#define RENEW(top)                                                                                 \
    renew_where(IS_ABOVE((top)[0], max[0]) | IS_ABOVE((top)[1], max[1]), top, max, sum, alpha,     \
                scale_log2)

// Turns products of small x, for keys that are all seen, into weights. tanh is monotone, so the largest product has the largest
// score, and a reference need not be exact.
DEVICE int weigh_capped(float (*s)[4], float top[2], float max[2], float sum[2], float alpha[2],
                        const struct attention_flash3_params *a) {
    const float scale_log2 = 1;
    EACH_HALF(h) top[h] = tanh_fast(max_of_four(top[h]) * a->to_x) * a->softcap;
    const int is_renewed = RENEW(top);
    EACH_HALF(h) {
        float more[2] = {0, 0};
        EACH_COLUMN_TILE(n) EACH_HALF(e) {
            float *x = &s[n][2 * h + e];
            *x = exp2_fast(cap_small(*x, a, max[h]));
            more[e] += *x;
        }
        sum[h] += more[0] + more[1];
    }
    return is_renewed;
}

#if LAGS
// How far references move before a tile of keys if ALiBi grows by step (in log2) from key to key, for a row with `left` keys up to
// the diagonal. If it grows fast, by its growth; otherwise rarely, when some weights so far are large.
DEVICE float find_growth(const float max[2], const float sum[2], float step, int left) {
    const float most = 20, high = 1024;
    if (step <= 0) return 0;
    if (step * BLOCK_N > most)
        return step * (float)(left < 0 ? 0 : left < BLOCK_N ? left : BLOCK_N);
    const int is_high =
        (sum[0] > high && max[0] < INFINITE) || (sum[1] > high && max[1] < INFINITE);
    return __any_sync(ALL_LANES, is_high) ? most : 0;
}

// If all seen keys are on one side of the diagonal, weights are relative to the maxima so far. ALiBi grows by step (in log2) from
// key to key. Both rows of a lane have one reference, so that the same term is added to their products: step n - zero for the n-th
// key behind the lane's first. top is the first row's new maximum, alpha the factor of the output.
DEVICE struct forecast foresee(const float max[2], const float sum[2], float alpha[2],
                               const struct attention_flash3_params *a, const struct task *task,
                               int warp, int j) {
    const struct attention_params *p = &a->forward.p;
    const struct seen *seen = &task->by_group[warp / 4];
    const int lane = find_lane(), shift = task->a.s.shift,
              i = first_row(p, &task->a) + warp * 16 + shift, row = i + lane / 4;
    const float slope = task->slope * a->unit;
    const int is_gentle = fabsf(slope) <= MOST_STEP,
              is_before = p->window_right <= 0 || j + BLOCK_N - 1 <= i, is_behind = j >= i + 15;
    struct forecast f = {j + BLOCK_N > seen->end || j < seen->begin, has_maxima(max)};
    f.is_sloped =
        f.has_maxima && is_gentle && (is_before || is_behind) && !(TERMS & 2 && a->to_softcap > 0);
    if (!f.is_sloped) return f;
    f.step = is_before ? slope : -slope;
    const float apart = 8 * f.step, other = max[0] - apart;
    f.top = (max[1] > other && max[1] < INFINITE ? max[1] + apart : max[0]) +
            find_growth(max, sum, f.step, is_before ? row + 1 - j : BLOCK_N);
    f.zero = f.top - f.step * (float)(j + lane % 4 * 2 - row);
    alpha[0] = max[0] < INFINITE ? exp2_fast(max[0] - f.top) : 1;
    alpha[1] = max[1] < INFINITE ? exp2_fast(max[1] - (f.top - apart)) : 1;
    f.is_moved = __any_sync(ALL_LANES, alpha[0] != 1 || alpha[1] != 1);
    return f;
}

// False: weights are too large, or so small that digits would be lost.
DEVICE int weigh_sloped(float (*s)[4], float max[2], float sum[2], const float alpha[2],
                        const struct forecast *f, float scale_log2) {
    float more[4] = {0, 0, 0, 0}, total[2];
    EACH_COLUMN_TILE(n) EACH_HALF(e) {
        const float term = fmaf(f->step, (float)(n * 8 + e), -f->zero);
        EACH_HALF(h) {
            float *x = &s[n][2 * h + e];
            *x = exp2_fast(fmaf(*x, scale_log2, term));
            more[2 * h + e] += *x;
        }
    }
    int is_bad = 0;
    EACH_HALF(h) {
        const float of_tile = more[2 * h] + more[2 * h + 1];
        total[h] = fmaf(sum[h], alpha[h], of_tile);
        is_bad |= max[h] < INFINITE && (of_tile > MOST_WEIGHTS || total[h] < LEAST_WEIGHTS);
    }
    if (__any_sync(ALL_LANES, is_bad)) return 0;
    EACH_HALF(h) {
        if (max[h] < INFINITE) max[h] = f->top - h * 8 * f->step;
        sum[h] = total[h];
    }
    return 1;
}
#endif

// Turns products of the task's tile of keys from j on into weights. is_first: this is rare, and one code path is enough. Returns
// whether the output is to be scaled by alpha.
DEVICE int weigh_terms(float (*s)[4], float max[2], float sum[2], float alpha[2],
                       const struct attention_flash3_params *a, const struct task *task, int warp,
                       int j, int is_first, const struct forecast *f, unsigned q_tile,
                       unsigned k_tile) {
    (void)f, (void)q_tile, (void)k_tile;
#if LAGS
    if (f->is_sloped) {
        if (f->has_hidden) hide_scores(s, &a->forward.p, task, warp, j);
        if (weigh_sloped(s, max, sum, alpha, f, a->unit)) return f->is_moved;
        multiply_again(s, &a->forward.p, task, warp, j, q_tile, k_tile);
    }
#endif
    const struct attention_params *p = &a->forward.p;
    const struct attention_task *t = &task->a;
    const float slope = task->slope, scale_log2 = a->unit;
    const int i = first_row(p, t) + warp * 16, shift = t->s.shift;
    float top[2], base[2] = {0, 0}, zero[2];
    if (TERMS & 2 && a->to_softcap > 0) {
        // Memory behind the sequence's keys may belong to another sequence, and no code path may depend on it.
        const int is_alone = !a->is_ragged || j + BLOCK_N <= t->s.len_k;
        const int found = find_tops_and_kind(s, top, max, a->to_x), kind = is_alone ? found : ANY;
        if (!is_first && kind == SMALL && slope == 0 && !f->has_hidden)
            return weigh_capped(s, top, max, sum, alpha, a);
#define CAP_ALL(cap)                                                                               \
    EACH_COLUMN_TILE(n) EACH_HALF(h) EACH_HALF(e) {                                                \
        float *x = &s[n][2 * h + e];                                                               \
        *x = cap;                                                                                  \
    }
        if (kind == SMALL) {
            CAP_ALL(cap_small(*x, a, 0))
        } else if (kind == FINITE) {
            EACH_COLUMN_TILE(n) cap_four(s[n], a);
        } else {
            CAP_ALL(cap_any(*x, a))
        }
    }
    if (f->has_hidden) hide_scores(s, p, task, warp, j);
    const int lane = find_lane(), first = j + lane % 4 * 2 - shift, row = i + lane / 4,
              is_gentle = fabsf(slope * scale_log2) <= MOST_STEP,
              is_before = is_gentle && (p->window_right <= 0 || j + BLOCK_N - 1 <= i + shift),
              is_behind = is_gentle && j >= i + 15 + shift;
    add_slope(s, top, base, slope, first, row, is_before, is_behind);
    EACH_HALF(h) {
        top[h] = max_of_four(top[h] + base[h]);
        if (!IS_EXACT) {
            top[h] *= scale_log2;
            base[h] *= scale_log2;
        }
    }
    const int is_renewed = RENEW(top);
    EACH_HALF(h) zero[h] = max[h] - base[h];
    weigh(s, zero, sum, scale_log2);
    return is_renewed;
}

#endif
