// SPDX-License-Identifier: Apache-2.0
// Plans from a context's cache equal newly made plans. Products are drawn from few sizes, layouts, alignments and
// flags, so that they repeat before and after others have replaced them.
#include <string.h>

#include "context/plan_memo.h"
#include "matmul_cuda_case.h"
#include "test_support.h"

extern const struct tsri_op tsri_matmul_forward_op;

static uint32_t drawn = 1;

static int draw(int choices) {
    drawn = drawn * 1664525u + 1013904223u;
    return (int)((drawn >> 8) % (uint32_t)choices);
}

static struct matmul_problem draw_problem(void) {
    static const int64_t sizes[] = {1, 40, 512, 1000, 1003, 4096};
    static const tsr_dtype dtypes[] = {TSR_BF16, TSR_F16, TSR_F32};
    tsr_dtype dtype = dtypes[draw(3)];
    struct matmul_problem p =
        product_of(dtype, dtype, dtype, sizes[draw(6)], sizes[draw(6)], sizes[draw(6)]);
    if (draw(4) == 0) p.a.data += 2 * draw(9); // another address and alignment
    if (draw(4) == 0) p.b = matmul_transposed(p.b);
    if (draw(4) == 0) p.bias = memory, p.bias_dtype = dtype;
    if (draw(4) == 0) p.residual = p.c;
    if (draw(4) == 0) p.b_up = p.b;
    if (draw(4) == 0) p.activation = TSR_ACTIVATION_GELU;
    return p;
}

static struct tsri_plan plan_of(const struct matmul_problem *p, struct tsri_plan_memo *memo,
                                uint32_t flags) {
    struct tsri_limits limits = hopper;
    limits.memo = memo;
    const struct tsri_call call = {.size = sizeof call, .flags = flags};
    struct tsri_plan plan;
    assert_ok(tsri_op_plan(&tsri_matmul_forward_op, p, &limits, &call, &plan));
    return plan;
}

static void assert_same(const struct tsri_plan *x, const struct tsri_plan *y) {
    assert_ptr_equal(x->variant, y->variant);
    assert_int_equal(x->workspace_bytes, y->workspace_bytes);
    assert_int_equal(x->num_tasks, y->num_tasks);
    assert_int_equal(x->grain, y->grain);
    assert_int_equal(x->block_m, y->block_m);
    assert_int_equal(x->block_n, y->block_n);
    assert_int_equal(x->block_k, y->block_k);
    assert_int_equal(x->is_streaming, y->is_streaming);
    assert_int_equal(x->flags, y->flags);
}

static void remembered_plans_are_those_that_are_made(void **state) {
    (void)state;
    enum { PROBLEMS = TSRI_PLAN_MEMO_ENTRIES * 3 / 2, CALLS = 4000 }; // more than the cache holds
    static struct tsri_plan_memo memo;
    struct matmul_problem problems[PROBLEMS];
    for (int i = 0; i < PROBLEMS; i++) problems[i] = draw_problem();
    int num_known = 0;
    for (int call = 0; call < CALLS; call++) {
        const struct matmul_problem *p = &problems[draw(PROBLEMS)];
        const uint32_t flags = draw(8) == 0 ? TSR_BATCH_INVARIANT : 0;
        const int next = memo.next;
        const struct tsri_plan remembered = plan_of(p, &memo, flags),
                               made = plan_of(p, NULL, flags);
        assert_same(&remembered, &made);
        num_known += memo.next == next;
    }
    assert_in_range(num_known, CALLS / 4, CALLS - PROBLEMS);
}

// Other tensors with the same sizes and alignment have the same plan. An additional tensor changes it.
static void what_a_plan_depends_on(void **state) {
    (void)state;
    static struct tsri_plan_memo memo;
    struct matmul_problem p = product_of(TSR_BF16, TSR_BF16, TSR_BF16, 512, 512, 512);
    (void)plan_of(&p, &memo, 0);
    p.a.data += 256, p.c.data += 512;
    (void)plan_of(&p, &memo, 0);
    assert_int_equal(memo.next, 1);
    p.a.data += 2;
    (void)plan_of(&p, &memo, 0);
    assert_int_equal(memo.next, 2);
    p.a.data -= 2, p.bias = memory, p.bias_dtype = TSR_BF16;
    (void)plan_of(&p, &memo, 0);
    assert_int_equal(memo.next, 3);
    (void)plan_of(&p, &memo, TSR_BATCH_INVARIANT);
    assert_int_equal(memo.next, 4);
    (void)plan_of(&p, &memo, 0);
    assert_int_equal(memo.next, 4);
}

// The products of a model's layers, repeated in the same order.
static void rounds_of_a_model(void **state) {
    (void)state;
    static struct tsri_plan_memo memo;
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < TSRI_PLAN_MEMO_ENTRIES; i++) {
            struct matmul_problem p =
                product_of(TSR_BF16, TSR_BF16, TSR_BF16, 64 + 8 * i, 512, 512);
            const int next = memo.next;
            p.a.data += 16 * round; // workspace may have any address
            (void)plan_of(&p, &memo, 0);
            assert_int_equal(memo.next != next, round == 0);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(remembered_plans_are_those_that_are_made),
        cmocka_unit_test(what_a_plan_depends_on),
        cmocka_unit_test(rounds_of_a_model),
    };
    return cmocka_run_group_tests_name("plan memo", tests, NULL, NULL);
}
