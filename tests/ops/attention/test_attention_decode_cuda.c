// SPDX-License-Identifier: Apache-2.0
// Decode on CUDA without a GPU: the number of launches, whether its blocks start early, and its workspace.
#include "kernel_pack_case.h"
#include "test_support.h"

// The address of a tensor, far from the others. It need not be mapped, because kernels do nothing.
static void *place(int which) {
    return (void *)((uintptr_t)(which + 1) << 40); // NOLINT(performance-no-int-to-ptr)
}

struct shape {
    int64_t batch, keys, heads, heads_kv;
    uint32_t flags;
    tsr_dtype dtype; // 0: bf16
};
enum { DIM = 64, SPLIT_ROWS = 8 };

static tsr_attention_decode_args args_of(const struct shape *s) {
    const tsr_dtype dtype = s->dtype != 0 ? s->dtype : TSR_BF16;
    return TSR_ATTENTION_DECODE_ARGS(
            .flags = s->flags,
            .q = on_cuda(TSR_TENSOR(place(0), dtype, s->batch, 1, s->heads, DIM)),
            .k_cache = on_cuda(TSR_TENSOR(place(1), dtype, s->batch, s->keys, s->heads_kv, DIM)),
            .v_cache = on_cuda(TSR_TENSOR(place(2), dtype, s->batch, s->keys, s->heads_kv, DIM)),
            .cache_seqlens = on_cuda(TSR_TENSOR(place(3), TSR_I32, s->batch)),
            .out = on_cuda(TSR_TENSOR(place(4), dtype, s->batch, 1, s->heads, DIM)));
}

static bool is_early(void) {
    bool is = false;
    for (unsigned i = 0; i < fake.launched.num_attributes; i++)
        is |= fake.attribute_ids[i] == CU_LAUNCH_EARLY;
    return is;
}

// 4 multiprocessors with four blocks each.
static void launches(void **state) {
    (void)state;
    static const struct {
        struct shape shape;
        int launches;
        unsigned blocks; // of the last launch
        bool is_early;
    } cases[] = {
        {{1, 256, 4, 1}, 1, 1, true},                       // not worth a merge
        {{1, 600, 4, 1}, 1, 4, true},                       // the last chunk's block merges
        {{2, 600, 8, 2}, 1, 16, true},                      // also with the maximum of rows
        {{2, 600, 10, 2}, 2, 2 * 2 * 8, true},              // too many rows
        {{1, 4096, 4, 1}, 2, 8, true},                      // too many chunks
        {{1, 3000, 4, 1, TSR_BATCH_INVARIANT}, 2, 8, true}, // independent of other rows
        {{16, 5000, 4, 1}, 1, 16, false},                   // caches of 20 MB, one chunk each
        {{1, 256, 4, 1, 0, TSR_F32}, 2, 4, false},
        {{1, 600, 4, 1, 0, TSR_F32}, 2, 4, false},
    };
    tsr_context *ctx = cuda_context();
    for (int i = 0; i < COUNT(cases); i++) {
        tsr_attention_decode_args args = args_of(&cases[i].shape);
        fake.num_launches = 0;
        assert_ok(tsr_attention_decode(ctx, &args));
        assert_string_equal(tsr_context_last_variant(ctx), "cuda-split");
        if (fake.num_launches != cases[i].launches || fake.launched.grid_x != cases[i].blocks)
            print_error("case %d: %d launches, %u blocks\n", i, fake.num_launches,
                        fake.launched.grid_x);
        assert_int_equal(fake.num_launches, cases[i].launches);
        assert_int_equal(fake.launched.grid_x, cases[i].blocks);
        assert_int_equal(is_early(), cases[i].is_early);
    }
    tsr_context_destroy(ctx);
}

// Four chunks: each has rows of results, a maximum, a sum and a flag.
static void workspace(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    const struct shape shape = {1, 600, 4, 1, 0, 0};
    const tsr_attention_decode_args args = args_of(&shape);
    size_t bytes;
    assert_ok(tsr_attention_decode_prepare(ctx, &args, &bytes));
    assert_int_equal(bytes, 4 * (SPLIT_ROWS * (DIM + 2) * sizeof(float) + sizeof(uint64_t)));
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches),
        cmocka_unit_test(workspace),
    };
    return cmocka_run_group_tests_name("attention decode on cuda", tests, setup_pack,
                                       teardown_pack);
}
