// SPDX-License-Identifier: Apache-2.0
// The error bounds of matmul: fp32 sums with Higham and Mary's square root, epilogues to first order, the numbers that bf16
// units count as 0, and the truncation of fp8 units.
#include <math.h>
#include <stdlib.h>

#include "specs/matmul/spec_matmul.h"
#include "system/heap.h"

static const double u32 = 0x1p-24;   // unit roundoff of fp32
static const double tiny = 0x1p-126; // its least normal number

struct strides {
    int64_t batch, row, col;
};

// Strides of an operand of `rows` x `cols` in the oracle's contiguous tensors.
static struct strides strides_of(int64_t rows, int64_t cols, bool is_transposed, bool is_shared) {
    struct strides s = {is_shared ? 0 : rows * cols, is_transposed ? 1 : cols,
                        is_transposed ? rows : 1};
    return s;
}

struct dot {
    double sum, magnitude, error; // magnitude: sum |a b|
};

// Scales along k, one for each 128 steps; if they are absent all are 1.
struct scales {
    const double *data;
    int64_t step;
};

static struct scales scales_at(const double *data, int64_t offset, int64_t step) {
    return data != NULL ? (struct scales){data + offset, step} : (struct scales){NULL, 0};
}

static double scale(const struct scales *s, int64_t p) {
    return s->data != NULL ? s->data[p / 128 * s->step] : 1;
}

// fp8 units add 32 terms at a time to a sum, and truncate each term and the sum 13 bits below the leading bit of the
// largest. The sum leaves the unit after 256 of k (128 with block scales), or with fast_accumulate at the end.
struct cut {
    double term[32], sum, lost; // lost: the largest possible loss, without the scales
};

static void cut_off(struct cut *cut, int count) {
    double most = fabs(cut->sum), now = 0;
    for (int i = 0; i < count; i++) most = fmax(most, fabs(cut->term[i]));
    if (most == 0 || !isfinite(most)) return;
    double least = ldexp(1, ilogb(most) - 13);
    for (int i = 0; i < count; i++) {
        cut->lost += fmin(fabs(cut->term[i]), least);
        now += cut->term[i];
    }
    cut->lost += fmin(fabs(cut->sum), least);
    cut->sum += now;
}

static const double steepest = 1.13; // the largest slope of the activations

// ---- Forward ----------------------------------------------------------------------------------

// Tensor cores truncate instead of rounding, so long sums with 16-bit results may lose this share.
static double long_sum_loss(const struct op_case *c, int slot, int64_t length) {
    return length > 8192 ? eighth_of_rounding(c, slot) : 0;
}

// The terms of an element of c. up NULL: no gate.
struct element {
    const double *a, *b, *up;
    int64_t a_step, b_step, k;
    double alpha, bias, bias_up, residual, y;
    tsr_activation activation;
    bool is_accumulating, is_fp8, is_fast;
    bool has_blocks; // of fp8: sums leave the unit after 128 of k
    tsr_matmul_math math;
    double tail_loss, sum_loss;
    struct matmul_rounding rounding;
    struct scales a_scale, b_scale, up_scale;
};

// bf16 units count numbers below 2^-126 as 0, which is a separate loss: the products of such operands, and at most two
// such sums per term. The same holds for fp32 split into bf16 parts: six products of 8-bit parts lose a further 2^-26 of a
// term, which the 8 2^-24 include. For tf32, rounding to 11 bits loses up to 2^-11 of either operand. Its units add 8 terms
// at a time; up to 8,192 terms their sums lose up to k / 4 units, twice the average truncation of k / 8 steps, each of 9
// numbers to 2^-26 and a sum to 2^-23.
static struct dot dot(const struct op_case *c, const struct element *e, const double *b,
                      const struct scales *b_scale) {
    struct dot d = {0};
    struct cut cut = {{0}, 0, 0};
    double lost = 0, largest = 0;
    int64_t k = e->k;
    for (int64_t p = 0; p < k; p++) {
        double x = e->a[p * e->a_step], y = b[p * e->b_step];
        double factor = scale(&e->a_scale, p) * scale(b_scale, p), term = x * y * factor;
        d.sum += term;
        d.magnitude += fabs(term);
        if (fabs(x) < tiny || fabs(y) < tiny) lost += fabs(term);
        if (e->rounding.a_unit > 0 && p % 32 == 0) {
            largest = 0;
            for (int64_t i = p; i < k && i < p + 32; i++)
                largest = fmax(largest, fabs(e->a[i * e->a_step]));
        }
        if (e->rounding.a_unit > 0)
            d.error += (e->rounding.a_unit * largest + 0x1p-115) * fabs(y * factor);
        d.error += e->rounding.b_unit * fabs(term) + e->rounding.b_least * fabs(x);
        if (e->math != TSR_MATMUL_MATH_DEFAULT) d.error += tiny * (fabs(x) + fabs(y) + 2);
        if (!e->is_fp8) continue;
        cut.term[p % 32] = x * y;
        if (p % 32 == 31 || p == k - 1) cut_off(&cut, (int)(p % 32) + 1);
        if (p % 128 == 127 || p == k - 1) {
            d.error += fabs(factor) * cut.lost;
            cut.lost = 0;
            if (!e->is_fast && (e->has_blocks || p % 256 == 255)) cut.sum = 0;
        }
    }
    d.error += (8 + 4 * sqrt((double)k)) * u32 * d.magnitude + e->sum_loss * fabs(d.sum);
    if (e->math == TSR_MATMUL_MATH_TF32) d.error += (0x1p-10 + 0x1p-13) * d.magnitude;
    if (c->dtype == TSR_BF16 && !e->is_fp8) d.error += lost + 2 * (double)k * tiny;
    return d;
}

// gelu = max(v, 0) - |v| Phi(-|v|); this is the allowed relative error of that tail.
static double tail_loss(const struct op_case *c, int slot, int activation) {
    return c->param[activation] == TSR_ACTIVATION_GELU ? eighth_of_rounding(c, slot) : 0;
}

// With s = |alpha| sum|a b|, the error of the fp32 products is e = (8 + 4 sqrt(k)) u s, plus the losses in dot. The
// activation multiplies it by its slope (below 1.13; of relu2 2 v, and the error itself) and adds 20 u |v| and tail_loss. A
// gate adds the relative errors of both factors. Each further sum adds u of its terms.
static double element_bound(const struct op_case *c, const struct element *e) {
    struct dot d = dot(c, e, e->b, &e->b_scale);
    const bool is_clamped = e->activation == TSR_ACTIVATION_SWIGLU_CLAMPED;
    double v = e->alpha * d.sum + e->bias;
    double error = fabs(e->alpha) * d.error + 2 * u32 * fabs(v);
    if (e->activation == TSR_ACTIVATION_RELU2) {
        error = error * (2 * fmax(v, 0) + error) + 2 * u32 * v * v;
        v = v * v;
    } else if (is_clamped && isinf(v)) {
        v = v > 0 ? 7 : 0;
        error = 20 * u32 * v;
    } else if (e->activation != TSR_ACTIVATION_NONE)
        error = steepest * error + 20 * u32 * fabs(v) +
                e->tail_loss * fabs(v) * 0.5 * erfc(fabs(v) * sqrt(0.5));
    if (e->up != NULL) {
        struct dot gate = dot(c, e, e->up, &e->up_scale);
        double up = e->alpha * gate.sum + e->bias_up;
        double up_error = fabs(e->alpha) * gate.error + 2 * u32 * fabs(up);
        double factor = fabs(up);
        if (is_clamped) {
            factor = fabs((up > 7 ? 7 : up < -7 ? -7 : up) + 1);
            up_error = (isinf(up) ? 0 : up_error) + u32 * factor;
        }
        error = error * (factor + up_error) + fabs(v) * up_error + 4 * u32 * fabs(v) * factor;
    }
    error += 2 * u32 * fabs(e->residual) + 3 * u32 * fabs(e->y) + tiny;
    if (e->is_accumulating) // the old c is at most the new c plus the other terms
        error += 2 * u32 * (fabs(e->y) + fabs(v) + fabs(e->alpha) * d.magnitude);
    return error;
}

void matmul_forward_bound(const struct op_case *c, int slot, double *bound) {
    matmul_bound_of_rounded(c, slot, (struct matmul_rounding){0}, bound);
}

void matmul_bound_of_rounded(const struct op_case *c, int slot, struct matmul_rounding rounding,
                             double *bound) {
    int64_t m = (int64_t)c->param[M], n = (int64_t)c->param[N], k = (int64_t)c->param[K];
    struct strides sa = strides_of(m, k, is(c, TRANSPOSE_A), false);
    struct strides sb = strides_of(k, n, is(c, TRANSPOSE_B), is(c, SHARED_B));
    const double *a = c->tensor[A].data, *b = c->tensor[B].data, *y = c->tensor[C].data;
    const double *up = case_values(c, "b_up"), *bias = case_values(c, "bias");
    const double *residual = case_values(c, "residual"), *bias_up = case_values(c, "bias_up");
    int64_t of_k = (k + 127) / 128, of_n = (n + 127) / 128;
    struct strides xa = strides_of(m, of_k, is(c, TRANSPOSE_A), false);
    struct strides xb = strides_of(of_k, of_n, is(c, TRANSPOSE_B), is(c, SHARED_B));
    if (!is(c, BLOCK_SCALES)) xa = xb = (struct strides){0};
    const double *of_a = case_values(c, "a_scale"), *of_b = case_values(c, "b_scale");
    const double *of_up = case_values(c, "b_up_scale");
    struct element e = {.a_step = sa.col,
                        .b_step = sb.row,
                        .k = k,
                        .alpha = c->param[ALPHA],
                        .activation = (tsr_activation)c->param[ACTIVATION],
                        .tail_loss = tail_loss(c, slot, ACTIVATION),
                        .sum_loss = long_sum_loss(c, slot, k),
                        .rounding = rounding,
                        .is_accumulating = is(c, ACCUMULATE),
                        .is_fp8 = is(c, FP8),
                        .is_fast = is(c, FAST_ACCUMULATE) && !is(c, BLOCK_SCALES),
                        .has_blocks = is(c, BLOCK_SCALES),
                        .math = (tsr_matmul_math)(c->dtype == TSR_F32 ? c->param[MATH] : 0)};
    for (int64_t x = 0; x < (int64_t)c->param[BATCH]; x++)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                int64_t at = (x * m + i) * n + j, col = x * sb.batch + j * sb.col;
                int64_t block = x * xb.batch + j / 128 * xb.col;
                e.a = a + x * sa.batch + i * sa.row;
                e.b = b + col;
                e.up = up != NULL ? up + col : NULL;
                e.a_scale = scales_at(of_a, x * xa.batch + i * xa.row, xa.col);
                e.b_scale = scales_at(of_b, block, xb.row);
                e.up_scale = scales_at(of_up, block, xb.row);
                e.bias = bias != NULL ? bias[j] : 0;
                e.bias_up = bias_up != NULL ? bias_up[j] : 0;
                e.residual = residual != NULL ? residual[at] : 0;
                e.y = y[at];
                bound[at] = element_bound(c, &e);
            }
}

// ---- Groups -----------------------------------------------------------------------------------

void matmul_grouped_rows(const struct op_case *c, int64_t group, int64_t *first, int64_t *end) {
    bool has_counts = c->is_present[COUNTS];
    const int32_t *starts = c->tensor[has_counts ? COUNTS : OFFSETS].data;
    *first = has_counts ? group * (int64_t)c->param[ROWS] : starts[group];
    *end = has_counts ? *first + starts[group] : starts[group + 1];
}

int64_t matmul_grouped_row(const struct op_case *c, int list, int64_t i) {
    return c->is_present[list] ? ((const int32_t *)c->tensor[list].data)[i] : i;
}

// The scales of a grouped product, and where an element's begin.
struct grouped_scales {
    const double *a, *b, *up;
    struct strides of_a, of_b;
    bool has_blocks; // kernels sum 128 of k before they multiply with a scale
};

static struct grouped_scales grouped_scales(const struct op_case *c) {
    const int64_t of_k = ((int64_t)c->param[K] + 127) / 128,
                  of_n = ((int64_t)c->param[N] + 127) / 128;
    const int kind = (int)c->param[GROUPED_SCALES];
    struct grouped_scales s = {case_values(c, "a_scale"),
                               case_values(c, "b_scale"),
                               case_values(c, "b_up_scale"),
                               {0},
                               {0},
                               kind != SCALES_OF_TENSORS};
    if (kind == SCALES_OF_ROWS || kind == SCALES_OF_BLOCKS)
        s.of_a = strides_of((int64_t)c->param[ROWS], of_k, false, false);
    if (kind == SCALES_OF_BLOCKS)
        s.of_b = strides_of(of_k, of_n, is(c, GROUPED_TRANSPOSE_B), false);
    else if (s.has_blocks)
        s.of_b.batch = 1;
    return s;
}

// Element (i, j) of c, in group g; i counts through all groups.
static void scales_of_element(struct element *e, const struct grouped_scales *s, int64_t g,
                              int64_t i, int64_t j) {
    const int64_t block = g * s->of_b.batch + j / 128 * s->of_b.col;
    e->a_scale = scales_at(s->a, i * s->of_a.row, s->of_a.col);
    e->b_scale = scales_at(s->b, block, s->of_b.row);
    e->up_scale = scales_at(s->up, block, s->of_b.row);
    e->has_blocks = s->has_blocks;
}

// Rows that belong to no group stay unchanged: their bound is 0.
void matmul_grouped_forward_bound(const struct op_case *c, int slot, double *bound) {
    int64_t n = (int64_t)c->param[N], k = (int64_t)c->param[K], first, end;
    struct strides sb = strides_of(k, n, is(c, GROUPED_TRANSPOSE_B), false);
    const double *a = c->tensor[GROUPED_A].data, *b = c->tensor[GROUPED_B].data;
    const double *y = c->tensor[GROUPED_C].data, *up = case_values(c, "b_up");
    const double *bias = case_values(c, "bias"), *bias_up = case_values(c, "bias_up");
    struct element e = {.a_step = 1,
                        .b_step = sb.row,
                        .k = k,
                        .alpha = c->param[GROUPED_ALPHA],
                        .activation = (tsr_activation)c->param[GROUPED_ACTIVATION],
                        .tail_loss = tail_loss(c, slot, GROUPED_ACTIVATION),
                        .sum_loss = long_sum_loss(c, slot, k),
                        .is_accumulating = is(c, GROUPED_ACCUMULATE),
                        .is_fp8 = is(c, GROUPED_FP8)};
    const struct grouped_scales scales = grouped_scales(c);
    for (int64_t i = 0; i < case_numel(c, slot); i++) bound[i] = 0;
    for (int64_t g = 0; g < (int64_t)c->param[GROUPS]; g++) {
        matmul_grouped_rows(c, g, &first, &end);
        for (int64_t i = first; i < end; i++)
            for (int64_t j = 0; j < n; j++) {
                int64_t col = g * sb.batch + j * sb.col;
                e.a = a + matmul_grouped_row(c, A_ROWS, i) * k;
                e.b = b + col;
                e.up = up != NULL ? up + col : NULL;
                scales_of_element(&e, &scales, g, i, j);
                e.bias = bias != NULL ? bias[g * n + j] : 0;
                e.bias_up = bias_up != NULL ? bias_up[g * n + j] : 0;
                e.y = y[i * n + j];
                bound[i * n + j] = element_bound(c, &e);
            }
    }
}

// Column `col` of the rows [first, end) of a tensor with `cols` columns.
static void take_column(const struct op_case *c, int slot, int list, int64_t cols, int64_t col,
                        int64_t first, int64_t end, double *column) {
    const double *values = c->tensor[slot].data;
    for (int64_t i = first; i < end; i++)
        column[i - first] = values[matmul_grouped_row(c, list, i) * cols + col];
}

void matmul_grouped_backward_bound(const struct op_case *c, int slot, double *bound) {
    int64_t n = (int64_t)c->param[N], k = (int64_t)c->param[K], first, end;
    struct strides s = strides_of(k, n, is(c, GROUPED_TRANSPOSE_B), false);
    const double *db = c->tensor[GROUPED_DB].data;
    double *of_a = heap_get((size_t)c->param[ROWS] + 1, sizeof *of_a);
    double *of_dc = heap_get(((size_t)c->param[ROWS] + 1) * (size_t)(n + 1), sizeof *of_dc);
    struct element e = {.a_step = 1,
                        .b_step = 1,
                        .alpha = c->param[GROUPED_ALPHA],
                        .is_accumulating = is(c, GROUPED_ACCUMULATE)};
    for (int64_t g = 0; g < (int64_t)c->param[GROUPS]; g++) {
        matmul_grouped_rows(c, g, &first, &end);
        e.k = end - first;
        e.sum_loss = long_sum_loss(c, slot, e.k);
        for (int64_t j = 0; j < n; j++)
            take_column(c, GROUPED_DC, DC_ROWS, n, j, first, end, of_dc + j * e.k);
        for (int64_t i = 0; i < k; i++) {
            take_column(c, GROUPED_A, A_ROWS, k, i, first, end, of_a);
            for (int64_t j = 0; j < n; j++) {
                int64_t at = g * s.batch + i * s.row + j * s.col;
                e.a = of_a;
                e.b = of_dc + j * e.k;
                e.y = db[at];
                bound[at] = element_bound(c, &e);
            }
        }
    }
    free(of_a);
    free(of_dc);
}

// ---- Backward ---------------------------------------------------------------------------------

// Each term of a gradient's sum has an error of w |x y|, w = 1.13 (u + 24 u32), because with an activation g is rounded
// to the dtype. Sums of length len add (8 + 4 sqrt(len)) u32 of their terms' magnitudes. |g| counts as 1.13 |dc|, of relu2 as
// 2 max(preact, 0) |dc|. bf16
// units count operands and sums below 2^-126 as 0, so a term loses at most 2^-126 times each factor, plus twice 2^-126.
void matmul_backward_bound(const struct op_case *c, int slot, double *bound) {
    int64_t m = (int64_t)c->param[M], n = (int64_t)c->param[N], k = (int64_t)c->param[K];
    int64_t num_batches = (int64_t)c->param[BATCH];
    bool is_shared = is(c, SHARED_B);
    struct strides sa = strides_of(m, k, is(c, TRANSPOSE_A), false);
    struct strides sb = strides_of(k, n, is(c, TRANSPOSE_B), is_shared);
    const double *a = c->tensor[A].data, *b = c->tensor[B].data, *dc = c->tensor[DC].data;
    double u = c->dtype == TSR_BF16 ? 0x1p-8 : c->dtype == TSR_F16 ? 0x1p-11 : u32;
    const bool is_relu2 = c->param[ACTIVATION] == TSR_ACTIVATION_RELU2;
    double steep = is(c, ACTIVATION) ? steepest : 1, term = is(c, ACTIVATION) ? u + 24 * u32 : 0;
    int64_t numel = case_numel(c, slot);
    int64_t length = slot == DA ? n : m * (is_shared || slot == DBIAS ? num_batches : 1);
    double factor = term + (8 + 4 * sqrt((double)length)) * u32;
    for (int64_t i = 0; i < numel; i++) bound[i] = tiny;
    // g of f16 may be subnormal: an absolute error in each term.
    double subnormal = c->dtype == TSR_F16 && is(c, ACTIVATION) ? 0x1p-25 : 0;
    double lost = c->dtype == TSR_BF16 ? tiny : 0;
    for (int64_t x = 0; x < num_batches; x++)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                int64_t at = (x * m + i) * n + j;
                if (is_relu2) steep = 2 * fmax(((double *)c->tensor[PREACT].data)[at], 0);
                double y = fabs(dc[at]), g = y * steep * factor + subnormal;
                if (slot == DBIAS) {
                    bound[j] += g;
                    continue;
                }
                for (int64_t p = 0; p < k; p++) {
                    int64_t at_a = x * sa.batch + i * sa.row + p * sa.col;
                    int64_t at_b = x * sb.batch + p * sb.row + j * sb.col;
                    double other = fabs(slot == DA ? b[at_b] : a[at_a]);
                    bound[slot == DA ? at_a : at_b] += g * other + lost * (other + steep * y + 2);
                }
            }
    const double *result = c->tensor[slot].data;
    if (slot == DBIAS) return;
    for (int64_t i = 0; i < numel; i++)
        bound[i] += long_sum_loss(c, slot, length) * fabs(result[i]);
}
