// SPDX-License-Identifier: Apache-2.0
// The self-attention module in f32: what is saved and who provides the workspace change no value, options are checked
// under the module's name, and gradients may be columns of one tensor, as in the module.
#include <math.h>

#include "self_attention_case.h"

static void plain_draw(struct plain *p) {
    uint64_t seed = 3;
    for (int i = 0; i < B * S * E; i++) p->x[i] = test_float(&seed) / 4;
    for (int i = 0; i < 3 * H * D * E; i++) p->w_qkv[i] = test_float(&seed) / 8;
    for (int i = 0; i < E * H * D; i++) p->w_out[i] = test_float(&seed) / 8;
}

// Neither the saved tensors nor the source of the workspace change y. With the caller's workspace the arena stays
// empty.
static void saving_and_workspace_change_nothing(void **state) {
    (void)state;
    static struct plain p, other;
    tsr_context *fresh = test_context(2);
    plain_draw(&p);
    plain_draw(&other);
    tsr_self_attention_forward_args saving = plain_args(&p, true),
                                    plain = plain_args(&other, false);
    size_t saving_bytes, plain_bytes;
    assert_ok(tsr_self_attention_forward_prepare(fresh, &saving, &saving_bytes));
    assert_ok(tsr_self_attention_forward_prepare(fresh, &plain, &plain_bytes));
    assert_true(plain_bytes >= saving_bytes + sizeof p.qkv + sizeof p.attention);
    plain.workspace = aligned_alloc(64, (plain_bytes + 63) / 64 * 64);
    plain.workspace_bytes = plain_bytes;
    assert_ok(tsr_self_attention_forward(fresh, &plain));
    assert_int_equal(tsr_context_arena_bytes(fresh), 0);
    assert_ok(tsr_self_attention_forward(fresh, &saving));
    assert_memory_equal(p.y, other.y, sizeof p.y);
    free(plain.workspace);
    tsr_context_destroy(fresh);
}

// Invalid options of the parts are refused under the module's name.
static void options_are_checked(void **state) {
    (void)state;
    static struct plain p;
    tsr_self_attention_forward_args args = plain_args(&p, true);
#define BAD(change, ...)                                                                           \
    do {                                                                                           \
        tsr_self_attention_forward_args bad = args;                                                \
        bad.change;                                                                                \
        assert_status(tsr_self_attention_forward(ctx, &bad), TSR_INVALID_ARGUMENT,                 \
                      "self_attention_forward: ", __VA_ARGS__);                                    \
    } while (0)
    BAD(mask = (tsr_mask)3, "mask");
    BAD(softmax_scale = NAN, "softmax_scale");
    BAD(softcap = -1, "softcap");
    BAD(dropout_p = 1, "dropout_p");
    BAD(has_window_left = 1; bad.window_left = -1, "window_left");
    BAD(num_heads = 0, "num_heads");
    BAD(num_heads = 5, "w_qkv");
    BAD(num_kv_heads = 3, "num_kv_heads");
    BAD(num_kv_heads = 1, "w_out"); // a wider head
    BAD(w_qkv.shape[0] = 0, "w_qkv");
    BAD(cos = TSR_TENSOR(p.y, TSR_F32, S, D / 2), "sin");
    BAD(cos = bad.sin = TSR_TENSOR(p.w_qkv, TSR_F32, S - 1, D / 2), "cos");
    BAD(cos = bad.sin = TSR_TENSOR(p.w_qkv, TSR_F32, S, D), "cos");
    BAD(y = bad.x, "y", "x");
    BAD(attention.data = p.qkv, "attention", "qkv");
}

// Gradients of q, k and v may be columns of one tensor.
static void attention_gradients_in_one_tensor(void **state) {
    (void)state;
    static float qkv[B][S][(H + 2) * D], dqkv[B][S][(H + 2) * D], out[B][S][H * D], lse[B][H][S];
    uint64_t seed = 5;
    for (int i = 0; i < B * S * (H + 2) * D; i++) (&qkv[0][0][0])[i] = test_float(&seed);
    tsr_tensor q = TSR_TENSOR(qkv, TSR_F32, B, S, H, D), k = TSR_TENSOR(qkv, TSR_F32, B, S, 1, D);
    q.stride[1] = k.stride[1] = (H + 2) * D;
    q.stride[0] = k.stride[0] = S * (H + 2) * D;
    k.data = &qkv[0][0][H * D];
    tsr_tensor v = k, dq = q, dk = k, dv = k, o = TSR_TENSOR(out, TSR_F32, B, S, H, D);
    v.data = &qkv[0][0][(H + 1) * D];
    dq.data = dqkv;
    dk.data = &dqkv[0][0][H * D];
    dv.data = &dqkv[0][0][(H + 1) * D];
    tsr_tensor l = TSR_TENSOR(lse, TSR_F32, B, H, S);
    assert_ok(tsr_attention_forward(
        ctx, &TSR_ATTENTION_FORWARD_ARGS(.q = q, .k = k, .v = v, .out = o, .lse = l)));
    tsr_attention_backward_args args =
        TSR_ATTENTION_BACKWARD_ARGS(.q = q, .k = k, .v = v, .out = o, .lse = l, .dout = o, .dq = dq,
                                    .dk = dk, .dv = dv);
    assert_ok(tsr_attention_backward(ctx, &args));
    args.dk.data = &dqkv[0][0][H * D - 1];
    assert_status(tsr_attention_backward(ctx, &args), TSR_INVALID_ARGUMENT, "dk", "overlaps", "dq");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saving_and_workspace_change_nothing),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(attention_gradients_in_one_tensor),
    };
    return cmocka_run_group_tests_name("self-attention options", tests, setup, teardown);
}
