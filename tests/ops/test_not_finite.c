// SPDX-License-Identifier: Apache-2.0
// A NaN or an infinity of an input must reach exactly the elements that the headers name under NaN. For each
// instruction set.
#include "test_support.h"

#include <math.h>

static tsr_context *ctx;
static uint64_t seed = 1;

static void draw(float *values, int count) {
    for (int i = 0; i < count; i++) values[i] = test_float(&seed) / 4;
}

#define F32(data, ...) TSR_TENSOR(data, TSR_F32, __VA_ARGS__)

// Checks that element i < count is NaN exactly if i / cols is in [row, end_row) and i % cols in [col, end_col).
static void expect_nan_at(const char *what, const float *values, int count, int cols, int row,
                          int end_row, int col, int end_col) {
    for (int i = 0; i < count; i++) {
        int r = i / cols, c = i % cols;
        bool is_there = r >= row && r < end_row && c >= col && c < end_col;
        if (isnan(values[i]) != is_there || (!is_there && isinf(values[i])))
            fail_msg("%s: element (%d, %d) is %g", what, r, c, (double)values[i]);
    }
}
#define NOWHERE 0, 0, 0, 0

// ---- Norms --------------------------------------------------------------------------------------

enum { ROWS = 40, COLS = 37, ROW = 21, COL = 30 };
static struct {
    float x[ROWS][COLS], weight[COLS], dy[ROWS][COLS], dresidual_out[ROWS][COLS], y[ROWS][COLS];
    float mean[ROWS], rstd[ROWS], dx[ROWS][COLS], dweight[COLS], dbias[COLS];
} n;

static void norm_of(bool is_rms, float *place, float value) {
    draw(n.x[0], ROWS * COLS), draw(n.weight, COLS), draw(n.dy[0], ROWS * COLS);
    draw(n.dresidual_out[0], ROWS * COLS);
    *place = value;
    memset(n.dbias, 0, sizeof n.dbias);
    tsr_tensor x = F32(n.x, ROWS, COLS), y = F32(n.y, ROWS, COLS), weight = F32(n.weight, COLS);
    tsr_tensor mean = F32(n.mean, ROWS), rstd = F32(n.rstd, ROWS), dy = F32(n.dy, ROWS, COLS);
    tsr_tensor dres = F32(n.dresidual_out, ROWS, COLS), dx = F32(n.dx, ROWS, COLS);
    tsr_tensor dweight = F32(n.dweight, COLS), dbias = F32(n.dbias, COLS);
    if (is_rms) {
        assert_ok(tsr_rmsnorm_forward(
            ctx, &TSR_RMSNORM_FORWARD_ARGS(.x = x, .weight = weight, .y = y, .rstd = rstd)));
        assert_ok(tsr_rmsnorm_backward(
            ctx, &TSR_RMSNORM_BACKWARD_ARGS(.x = x, .weight = weight, .rstd = rstd, .dy = dy,
                                            .dresidual_out = dres, .dx = dx, .dweight = dweight)));
        return;
    }
    assert_ok(
        tsr_layernorm_forward(ctx, &TSR_LAYERNORM_FORWARD_ARGS(.x = x, .weight = weight, .y = y,
                                                               .mean = mean, .rstd = rstd)));
    assert_ok(tsr_layernorm_backward(
        ctx, &TSR_LAYERNORM_BACKWARD_ARGS(.x = x, .weight = weight, .mean = mean, .rstd = rstd,
                                          .dy = dy, .dresidual_out = dres, .dx = dx,
                                          .dweight = dweight, .dbias = dbias)));
}

#define A_ROW ROW, ROW + 1, 0, COLS
#define A_COLUMN 0, ROWS, COL, COL + 1
static void expect_norm(const char *what, int row, int end, int col, int end_col) {
    expect_nan_at(what, n.y[0], ROWS * COLS, COLS, row, end, col, end_col);
}
static void expect_dx(const char *what, int row, int end, int col, int end_col) {
    expect_nan_at(what, n.dx[0], ROWS * COLS, COLS, row, end, col, end_col);
}
static void expect_sums(const char *what, const float *sums, int col, int end_col) {
    expect_nan_at(what, sums, COLS, COLS, 0, 1, col, end_col);
}

static void norms(void **state) {
    (void)state;
    for (int is_rms = 0; is_rms < 2; is_rms++) {
        norm_of(is_rms, &n.x[ROW][COL], NAN);
        expect_norm("x: y", A_ROW);
        expect_nan_at("x: rstd", n.rstd, ROWS, 1, ROW, ROW + 1, 0, 1);
        expect_dx("x: dx", A_ROW);
        expect_sums("x: dweight", n.dweight, 0, COLS);
        expect_sums("x: dbias", n.dbias, 0, 0);
        norm_of(is_rms, &n.weight[COL], NAN);
        expect_norm("weight: y", A_COLUMN);
        expect_dx("weight: dx", 0, ROWS, 0, COLS);
        expect_sums("weight: dweight", n.dweight, 0, 0);
        norm_of(is_rms, &n.dy[ROW][COL], NAN);
        expect_dx("dy: dx", A_ROW);
        expect_sums("dy: dweight", n.dweight, COL, COL + 1);
        if (!is_rms) expect_sums("dy: dbias", n.dbias, COL, COL + 1);
        norm_of(is_rms, &n.dresidual_out[ROW][COL], NAN);
        expect_norm("dresidual_out: y", NOWHERE);
        expect_dx("dresidual_out: dx", ROW, ROW + 1, COL, COL + 1);
        expect_sums("dresidual_out: dweight", n.dweight, 0, 0);
    }
}

static void norms_of_infinities(void **state) {
    (void)state;
    for (int sign = -1; sign <= 1; sign += 2) {
        norm_of(false, &n.x[ROW][COL], (float)sign * INFINITY);
        expect_norm("layernorm", A_ROW);
        expect_nan_at("layernorm: rstd", n.rstd, ROWS, 1, ROW, ROW + 1, 0, 1);
        norm_of(true, &n.x[ROW][COL], (float)sign * INFINITY);
        expect_norm("rmsnorm", ROW, ROW + 1, COL, COL + 1);
        assert_true(n.rstd[ROW] == 0);
        for (int c = 0; c < COLS; c++) assert_true(c == COL || n.y[ROW][c] == 0);
    }
}

// ---- Grouped products ---------------------------------------------------------------------------

enum {
    GROUPS = 3,
    K = 33,
    N = 29,
    FIRST = 13,
    END = 38
}; // group 2; group 1 is empty, the last rows have none

static void grouped_products(void **state) {
    (void)state;
    static float a[ROWS][K], b[GROUPS][K][N], dc[ROWS][N], c[ROWS][N], db[GROUPS][K][N];
    static const int32_t starts[GROUPS + 1] = {0, FIRST, FIRST, END};
    tsr_tensor offsets = TSR_TENSOR(starts, TSR_I32, GROUPS + 1);
    for (int which = 0; which < 4; which++) {
        draw(a[0], ROWS * K), draw(b[0][0], GROUPS * K * N), draw(dc[0], ROWS * N);
        draw(c[0], ROWS * N);
        *(which == 0   ? &a[ROW][5]
          : which == 1 ? &b[2][5][7]
          : which == 2 ? &dc[ROW][7]
                       : &a[END][5]) = NAN;
        assert_ok(tsr_matmul_grouped_forward(
            ctx, &TSR_MATMUL_GROUPED_FORWARD_ARGS(.a = F32(a, ROWS, K), .b = F32(b, GROUPS, K, N),
                                                  .offsets = offsets, .c = F32(c, ROWS, N))));
        assert_ok(tsr_matmul_grouped_backward(
            ctx,
            &TSR_MATMUL_GROUPED_BACKWARD_ARGS(.a = F32(a, ROWS, K), .dc = F32(dc, ROWS, N),
                                              .offsets = offsets, .db = F32(db, GROUPS, K, N))));
        const float *of_c = c[0], *of_db = db[0][0];
        const int rows = ROWS * N, depth = GROUPS * K * N, k = 2 * K; // db's first row of group 2
        if (which == 0) {
            expect_nan_at("a: c", of_c, rows, N, ROW, ROW + 1, 0, N);
            expect_nan_at("a: db", of_db, depth, N, k + 5, k + 6, 0, N);
        } else if (which == 1) {
            expect_nan_at("b: c", of_c, rows, N, FIRST, END, 7, 8);
            expect_nan_at("b: db", of_db, depth, N, NOWHERE);
        } else if (which == 2) {
            expect_nan_at("dc: c", of_c, rows, N, NOWHERE);
            expect_nan_at("dc: db", of_db, depth, N, k, k + K, 7, 8);
        } else {
            expect_nan_at("row of no group: c", of_c, rows, N, NOWHERE);
            expect_nan_at("row of no group: db", of_db, depth, N, NOWHERE);
        }
    }
}

// ---- Attention and its module -------------------------------------------------------------------

enum { SEQLEN = 9, TOKEN = 4, DIM = 8, HEADS = 2, EMBED = HEADS * DIM, QKV = 3 * EMBED };

static void attention(void **state) {
    (void)state;
    static float q[3][SEQLEN][DIM], out[SEQLEN][DIM], lse[SEQLEN];
    for (int which = 0; which < 4; which++) { // q, k, v, and a score of +inf
        draw(q[0][0], 3 * SEQLEN * DIM);
        q[which == 3 ? 1 : which][TOKEN][3] = which == 3 ? INFINITY : NAN;
        for (int i = 0; i < SEQLEN; i++) q[0][i][3] = which == 0 && i == TOKEN ? NAN : 1;
        assert_ok(tsr_attention_forward(
            ctx,
            &TSR_ATTENTION_FORWARD_ARGS(.q = F32(q[0], 1, SEQLEN, 1, DIM),
                                        .k = F32(q[1], 1, SEQLEN, 1, DIM),
                                        .v = F32(q[2], 1, SEQLEN, 1, DIM),
                                        .out = F32(out, 1, SEQLEN, 1, DIM),
                                        .lse = F32(lse, 1, 1, SEQLEN), .mask = TSR_MASK_CAUSAL)));
        int end = which == 0 ? TOKEN + 1 : SEQLEN; // later queries see the key
        int col = which == 2 ? 3 : 0, end_col = which == 2 ? 4 : DIM;
        expect_nan_at("out", out[0], SEQLEN * DIM, DIM, TOKEN, end, col, end_col);
        expect_nan_at("lse", lse, SEQLEN, 1, TOKEN, which == 2 ? TOKEN : end, 0, 1);
    }
}

static void self_attention(void **state) {
    (void)state;
    static float x[2][SEQLEN][EMBED], w_qkv[QKV][EMBED], w_out[EMBED][EMBED], y[2][SEQLEN][EMBED];
    static float qkv[2][SEQLEN][QKV], saved[2][SEQLEN][EMBED], lse[2][HEADS][SEQLEN];
    static float dy[2][SEQLEN][EMBED], dx[2][SEQLEN][EMBED];
    for (int which = 0; which < 2; which++) {
        draw(x[0][0], 2 * SEQLEN * EMBED), draw(dy[0][0], 2 * SEQLEN * EMBED);
        draw(w_qkv[0], QKV * EMBED), draw(w_out[0], EMBED * EMBED);
        (which == 0 ? x : dy)[0][TOKEN][3] = NAN;
        tsr_tensor of_qkv = F32(qkv, 2, SEQLEN, QKV), of_saved = F32(saved, 2, SEQLEN, EMBED);
        tsr_tensor of_x = F32(x, 2, SEQLEN, EMBED), of_lse = F32(lse, 2, HEADS, SEQLEN);
        tsr_tensor wqkv = F32(w_qkv, QKV, EMBED), wout = F32(w_out, EMBED, EMBED);
        assert_ok(tsr_self_attention_forward(
            ctx, &TSR_SELF_ATTENTION_FORWARD_ARGS(.x = of_x, .w_qkv = wqkv, .w_out = wout,
                                                  .y = F32(y, 2, SEQLEN, EMBED), .qkv = of_qkv,
                                                  .attention = of_saved, .lse = of_lse,
                                                  .num_heads = HEADS, .mask = TSR_MASK_CAUSAL)));
        assert_ok(tsr_self_attention_backward(
            ctx, &TSR_SELF_ATTENTION_BACKWARD_ARGS(.x = of_x, .w_qkv = wqkv, .w_out = wout,
                                                   .qkv = of_qkv, .attention = of_saved,
                                                   .lse = of_lse, .dy = F32(dy, 2, SEQLEN, EMBED),
                                                   .dx = F32(dx, 2, SEQLEN, EMBED),
                                                   .num_heads = HEADS, .mask = TSR_MASK_CAUSAL)));
        const int all = 2 * SEQLEN * EMBED;
        if (which == 0)
            expect_nan_at("y", y[0][0], all, EMBED, TOKEN, SEQLEN, 0, EMBED);
        else
            expect_nan_at("y", y[0][0], all, EMBED, NOWHERE);
        for (int i = 0; i < SEQLEN * EMBED; i++) assert_true(isfinite(dx[1][i / EMBED][i % EMBED]));
        assert_true(isnan(dx[0][TOKEN][0]));
    }
}

// ---- RoPE ---------------------------------------------------------------------------------------

static void rope(void **state) {
    (void)state;
    static float x[2][6], y[2][6], angles[2][2][3];
    assert_ok(tsr_rope_table(
        ctx, &TSR_ROPE_TABLE_ARGS(.cos = F32(angles[0], 2, 3), .sin = F32(angles[1], 2, 3))));
    draw(x[0], 12);
    x[0][1] = INFINITY; // position 0, the pair (1, 4)
    x[1][2] = NAN;      // the pair (2, 5)
    assert_ok(tsr_rope_forward(
        ctx, &TSR_ROPE_FORWARD_ARGS(.x = F32(x, 1, 2, 1, 6), .y = F32(y, 1, 2, 1, 6),
                                    .cos = F32(angles[0], 2, 3), .sin = F32(angles[1], 2, 3))));
    for (int i = 0; i < 12; i++)
        assert_int_equal(isnan(y[i / 6][i % 6]) != 0, i == 4 || i == 6 + 2 || i == 6 + 5);
    assert_true(isinf(y[0][1]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),
        cmocka_unit_test(norms_of_infinities),
        cmocka_unit_test(grouped_products),
        cmocka_unit_test(attention),
        cmocka_unit_test(self_attention),
        cmocka_unit_test(rope),
    };
    int failed = 0;
    for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
        if (!test_has_isa(isa)) continue;
        if (tsr_context_create(
                &TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa, .num_threads = 2, .tuning_file = ""),
                &ctx) != TSR_OK)
            return 1;
        failed += cmocka_run_group_tests_name(tsr_isa_name((tsr_isa)isa), tests, NULL, NULL);
        tsr_context_destroy(ctx);
    }
    return failed;
}
