// SPDX-License-Identifier: Apache-2.0
// Groups of rows on a real GPU by offsets that the host cannot check. Nothing outside c is written. Good groups that
// share no rows with bad ones are right, and so are later calls. NaN in the rows of one group, or of none, affects only
// these. Lists of rows: what they do not name in a group is not read, and a row that does not exist counts as zeros.
#include <math.h>

#include "cuda_case.h"

enum { ROWS = 330, K = 72, N = 136, GROUPS = 6, GUARD = 1024 };

static tsr_context *ctx;
static void *on_a, *on_b[2], *on_c, *on_dc, *on_starts, *on_lists[2];
static const int32_t *lists[2]; // of a and dc, or NULL
static int is_transposed;       // whether b is, on_b[1]
static uint16_t a[ROWS * K], b[2][GROUPS * K * N], dc[ROWS * N];
static unsigned char c[GROUPS * K * N * 4 + 2 * GUARD];

static int number(int64_t x, int salt) {
    uint64_t state = (uint64_t)x * 1000003u + (uint64_t)salt;
    return (int)(test_bits(&state) % 5) - 2;
}

static void *device_memory(size_t bytes) {
    void *memory;
    assert_ok(tsr_memory_alloc(ctx, bytes, &memory));
    return memory;
}

static int setup(void **state) {
    (void)state;
    assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}), &ctx));
    on_a = device_memory(sizeof a);
    for (int i = 0; i < 2; i++) on_b[i] = device_memory(sizeof b[i]);
    on_c = device_memory(sizeof c);
    on_dc = device_memory(sizeof dc);
    on_starts = device_memory((GROUPS + 1) * sizeof(int32_t));
    for (int i = 0; i < 2; i++) on_lists[i] = device_memory(ROWS * sizeof(int32_t));
    lists[0] = lists[1] = NULL;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    void *const all[] = {on_a, on_b[0], on_b[1], on_c, on_dc, on_starts, on_lists[0], on_lists[1]};
    for (int i = 0; i < COUNT(all); i++) assert_ok(tsr_memory_free(ctx, all[i]));
    tsr_context_destroy(ctx);
    return 0;
}

static void put(void *to, const void *from, size_t bytes) {
    assert_ok(tsr_memory_copy(ctx, to, from, bytes));
}

#define GPU(data, dtype, ...) on_cuda(TSR_TENSOR(data, dtype, __VA_ARGS__))

// Rows outside [first, end) are NaN.
static void put_values(int64_t first, int64_t end) {
    for (int64_t i = 0; i < ROWS * K; i++)
        tsr_store(TSR_BF16, a, i, i / K >= first && i / K < end ? number(i, 1) : (double)NAN);
    for (int64_t i = 0; i < ROWS * N; i++)
        tsr_store(TSR_BF16, dc, i, i / N >= first && i / N < end ? number(i, 3) : (double)NAN);
    for (int64_t i = 0; i < GROUPS * K * N; i++) {
        tsr_store(TSR_BF16, b[0], i, number(i, 2));
        tsr_store(TSR_BF16, b[1], i / (K * N) * (K * N) + i % N * K + i / N % K, number(i, 2));
    }
    put(on_a, a, sizeof a);
    for (int i = 0; i < 2; i++) put(on_b[i], b[i], sizeof b[i]);
    put(on_dc, dc, sizeof dc);
}

static tsr_tensor matrices(void) {
    return GPU(on_b[is_transposed], TSR_BF16, GROUPS, is_transposed ? N : K, is_transposed ? K : N);
}

// False if the variant takes no lists.
static bool run(bool is_forward, const char *variant, const int32_t *offsets) {
    put(on_starts, offsets, (GROUPS + 1) * sizeof *offsets);
    memset(c, 0x5a, sizeof c);
    put(on_c, c, sizeof c);
    void *out = (char *)on_c + GUARD;
    const tsr_tensor starts = GPU(on_starts, TSR_I32, GROUPS + 1),
                     rows = GPU(on_a, TSR_BF16, ROWS, K), none = {0};
    for (int i = 0; i < 2; i++)
        if (lists[i] != NULL) put(on_lists[i], lists[i], ROWS * sizeof(int32_t));
    const tsr_tensor a_rows = lists[0] ? GPU(on_lists[0], TSR_I32, ROWS) : none,
                     dc_rows = lists[1] ? GPU(on_lists[1], TSR_I32, ROWS) : none;
    tsr_status status;
    if (is_forward)
        status = tsr_matmul_grouped_forward(
            ctx, &TSR_MATMUL_GROUPED_FORWARD_ARGS(.variant = variant, .a = rows, .b = matrices(),
                                                  .transpose_b = is_transposed,
                                                  .c = GPU(out, TSR_BF16, ROWS, N),
                                                  .offsets = starts, .a_rows = a_rows));
    else
        status = tsr_matmul_grouped_backward(
            ctx, &TSR_MATMUL_GROUPED_BACKWARD_ARGS(.variant = variant, .a = rows,
                                                   .dc = GPU(on_dc, TSR_BF16, ROWS, N),
                                                   .db = GPU(out, TSR_F32, GROUPS, K, N),
                                                   .offsets = starts, .a_rows = a_rows,
                                                   .dc_rows = dc_rows));
    if (status == TSR_UNSUPPORTED && lists[0] != NULL) return false;
    assert_ok(status);
    assert_ok(tsr_memory_copy(ctx, c, on_c, sizeof c));
    assert_ok(tsr_context_synchronize(ctx));
    size_t bytes = is_forward ? ROWS * N * 2 : GROUPS * K * N * 4;
    assert_true(test_all_bytes_are(c, 0x5a, GUARD));
    assert_true(test_all_bytes_are(c + GUARD + bytes, 0x5a, sizeof c - GUARD - bytes));
    return true;
}

// Element j of the row of a (which 0) or dc (1) that row r is; 0 if there is no such row.
static int row_element(int which, int64_t r, int64_t j) {
    const int64_t row = lists[which] != NULL ? lists[which][r] : r;
    if (row < 0 || row >= ROWS) return 0;
    return which == 0 ? number(row * K + j, 1) : number(row * N + j, 3);
}

static double forward_element(int g, int64_t r, int64_t j) {
    double sum = 0;
    for (int64_t i = 0; i < K; i++)
        sum += row_element(0, r, i) * number((g * K + i) * (int64_t)N + j, 2);
    return sum;
}

static double backward_element(int64_t i, int64_t j, int64_t first, int64_t end) {
    double sum = 0;
    for (int64_t r = first; r < end; r++) sum += row_element(0, r, i) * row_element(1, r, j);
    return sum;
}

// Checks rows [first, end) of group g. If is_alone, all other results must be 0x5a5a or 0.
static void compare(bool is_forward, int g, int64_t first, int64_t end, bool is_alone) {
    for (int64_t r = 0; is_forward && r < ROWS; r++)
        for (int64_t j = 0; j < N; j++) {
            uint16_t got;
            memcpy(&got, c + GUARD + (r * N + j) * 2, sizeof got);
            if (r >= first && r < end)
                assert_same_number(tsr_load(TSR_BF16, &got, 0), forward_element(g, r, j));
            else if (is_alone)
                assert_int_equal(got, 0x5a5a);
        }
    for (int64_t i = 0; !is_forward && i < (int64_t)GROUPS * K; i++)
        for (int64_t j = 0; j < N; j++) {
            float got;
            memcpy(&got, c + GUARD + (i * N + j) * 4, sizeof got);
            if (i / K == g)
                assert_same_number(got, backward_element(i % K, j, first, end));
            else if (is_alone)
                assert_same_number(got, 0);
        }
}

// Runs the check with every variant that this device has, and b either way. Returns how many served.
static int every_form(bool is_forward, void (*check)(bool is_forward, const char *variant)) {
    const char *op = is_forward ? "matmul_grouped_forward" : "matmul_grouped_backward";
    int num_runs = 0;
    for (int v = 0; v < tsr_variant_count(op); v++) {
        tsr_variant_info info;
        assert_ok(tsr_variant_info_get(op, v, &info));
        for (is_transposed = 0; is_transposed < (is_forward ? 2 : 1); is_transposed++) {
            const tsr_matmul_grouped_forward_args probe =
                TSR_MATMUL_GROUPED_FORWARD_ARGS(.variant = info.name,
                                                .a = GPU(on_a, TSR_BF16, ROWS, K), .b = matrices(),
                                                .transpose_b = is_transposed,
                                                .c = GPU(on_c, TSR_BF16, ROWS, N),
                                                .offsets = GPU(on_starts, TSR_I32, GROUPS + 1));
            size_t bytes;
            if (!(info.flags & TSR_VARIANT_CUDA) ||
                tsr_matmul_grouped_forward_prepare(ctx, &probe, &bytes) == TSR_UNSUPPORTED)
                continue; // not on this GPU, or not with b like this
            check(is_forward, info.name);
            num_runs++;
        }
    }
    is_transposed = 0;
    return num_runs;
}

static void every_variant(void (*check)(bool is_forward, const char *variant)) {
    assert_true(every_form(true, check) > 1);
    assert_true(every_form(false, check) > 0);
}

static void check_nan(bool is_forward, const char *variant) {
    static const int32_t offsets[GROUPS + 1] = {7, 7, 7, 7, 144, 144, 144};
    run(is_forward, variant, offsets);
    compare(is_forward, 3, 7, 144, true);
    // The same rows between other groups' rows of NaN.
    static const int32_t shared[GROUPS + 1] = {0, 3, 5, 7, 144, 300, 330};
    run(is_forward, variant, shared);
    compare(is_forward, 3, 7, 144, false);
}

static void nan_of_other_groups(void **state) {
    (void)state;
    put_values(7, 144);
    every_variant(check_nan);
}

static void check_bad(bool is_forward, const char *variant) {
    static const int32_t bad[][GROUPS + 1] = {
        {INT32_MIN, -1, 0, 100, 200, 331, INT32_MAX}, // clamped: group 3 has rows 100 to 199
        {INT32_MAX, INT32_MAX, INT32_MAX, 100, 200, 5, 3},
        {300, 200, 100, 100, 200, 100, 50},
        {-7, 400, -7, 100, 200, INT32_MAX, INT32_MIN},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        run(is_forward, variant, bad[i]);
        if (i == 0 || !is_forward) compare(is_forward, 3, 100, 200, false);
    }
    static const int32_t good[GROUPS + 1] = {100, 100, 100, 100, 200, 200, 200};
    run(is_forward, variant, good);
    compare(is_forward, 3, 100, 200, true);
}

static void offsets_that_are_none(void **state) {
    (void)state;
    put_values(0, ROWS);
    every_variant(check_bad);
}

// All rows named in a group are in [first, end) or do not exist. Nothing else is an index.
static void draw_list(int32_t *list, int64_t first, int64_t end, const int32_t *offsets) {
    static const int32_t none[] = {-1, ROWS, INT32_MAX, INT32_MIN};
    uint64_t state = test_number("TESSERA_TEST_SEED", 20261130);
    for (int64_t i = 0; i < ROWS; i++) {
        const uint64_t bits = test_bits(&state);
        const bool is_row = i >= offsets[0] && i < offsets[GROUPS] && bits % 9 > 0;
        list[i] =
            is_row ? (int32_t)(first + (int64_t)(bits >> 8) % (end - first)) : none[bits >> 8 & 3];
    }
}

static void check_lists(bool is_forward, const char *variant) {
    static const int32_t offsets[][GROUPS + 1] = {
        {7, 7, 7, 7, 144, 144, 144}, {0, 3, 5, 7, 144, 300, 330}, {9, 9, 9, 10, 11, 11, 12}};
    static int32_t drawn[2][ROWS];
    for (int i = 0; i < COUNT(offsets); i++) {
        lists[0] = drawn[0];
        lists[1] = i == 1 ? NULL : drawn[1];
        draw_list(drawn[0], 40, 90, offsets[i]);
        draw_list(drawn[1], 60, 150, offsets[i]);
        if (!run(is_forward, variant, offsets[i])) break;
        for (int g = 0; g < GROUPS; g++)
            compare(is_forward, g, offsets[i][g], offsets[i][g + 1], false);
    }
    lists[0] = lists[1] = NULL;
}

static void lists_of_rows(void **state) {
    (void)state;
    put_values(0, ROWS);
    every_variant(check_lists);
}

static void nan_in_rows_that_no_list_names(void **state) {
    (void)state;
    put_values(40, 150);
    for (int64_t i = 0; i < ROWS * N; i++) // without a list of dc, all its rows count
        if (i / N < 40 || i / N >= 150) tsr_store(TSR_BF16, dc, i, number(i, 3));
    put(on_dc, dc, sizeof dc);
    every_variant(check_lists);
}

// The same bits as from a copy in the order of the lists.
static void check_bits(bool is_forward, const char *variant) {
    static const int32_t offsets[GROUPS + 1] = {3, 3, 20, 21, 160, 290, 320};
    static unsigned char first[sizeof c];
    static int32_t drawn[2][ROWS];
    uint64_t state = test_number("TESSERA_TEST_SEED", 20261130);
    for (int which = 0; which < 2; which++) {
        uint16_t *rows = which == 0 ? a : dc;
        const int64_t cols = which == 0 ? K : N;
        static uint16_t copy[ROWS * N];
        for (int64_t i = 0; i < ROWS * cols; i++) rows[i] = test_bf16(test_float(&state));
        memset(copy, 0, sizeof copy);
        for (int64_t i = 0; i < ROWS; i++) {
            const bool is_row = i >= offsets[0] && i < offsets[GROUPS];
            drawn[which][i] = is_row ? (int32_t)(test_bits(&state) % ROWS) : -1;
            if (is_row)
                memcpy(copy + i * cols, rows + drawn[which][i] * cols, (size_t)cols * sizeof *rows);
        }
        lists[which] = drawn[which];
        put(which == 0 ? on_a : on_dc, rows, (size_t)(ROWS * cols) * sizeof *rows);
        memcpy(rows, copy, (size_t)(ROWS * cols) * sizeof *rows);
    }
    if (run(is_forward, variant, offsets)) {
        memcpy(first, c, sizeof first);
        lists[0] = lists[1] = NULL;
        put(on_a, a, sizeof a);
        put(on_dc, dc, sizeof dc);
        assert_true(run(is_forward, variant, offsets));
        assert_memory_equal(first, c, sizeof first);
    }
    lists[0] = lists[1] = NULL;
}

static void bits_of_a_copy(void **state) {
    (void)state;
    put_values(0, ROWS); // b
    every_variant(check_bits);
}

int main(void) {
    int skip = cuda_case_skip(0);
    if (skip != 0) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nan_of_other_groups, setup, teardown),
        cmocka_unit_test_setup_teardown(offsets_that_are_none, setup, teardown),
        cmocka_unit_test_setup_teardown(lists_of_rows, setup, teardown),
        cmocka_unit_test_setup_teardown(nan_in_rows_that_no_list_names, setup, teardown),
        cmocka_unit_test_setup_teardown(bits_of_a_copy, setup, teardown),
    };
    return cmocka_run_group_tests_name("cuda matmul grouped", tests, NULL, NULL);
}
