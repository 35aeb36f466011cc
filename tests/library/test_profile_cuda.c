// SPDX-License-Identifier: Apache-2.0
// Recordings on CUDA: records of a fake CUPTI are matched with the calls by the ids that were pushed around them. Runs
// without a GPU and without CUPTI.
#include <tessera/tessera.h>

#include "core/core_system.h"
#include "fake_cupti.h"
#include "profile_case.h"

static int setup(void **state) {
    (void)state;
    num_seen = 0;
    memset(&fake, 0, sizeof fake);
    return 0;
}

static tsr_context *cuda_context(void) {
    tsr_context *ctx;
    tsri_cuda_driver_replace(&driver);
    assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}), &ctx));
    return ctx;
}

static int num_enabled(void) {
    int count = 0;
    for (int i = 0; i < 64; i++) count += cupti.is_enabled[i];
    return count;
}

static void records_of_the_device(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    int64_t num_lost = 0, call = 0;
    unsetenv("TSR_LIBCUPTI");
    tsri_system.open_library = open_cupti;
    tsri_system.find_symbol = find_cupti;
    assert_ok(tsr_profile_start(ctx));
    assert_int_equal(num_enabled(), 5);
    tsr_profile_begin("range");
    (void)softmax(ctx, (tsr_device){TSR_CUDA, 0}); // no compiler, but still a call
    tsr_profile_end();
    assert_int_equal(cupti.depth, 0);
    assert_ok(tsr_profile_stop(ctx, see, &num_seen, &num_lost));
    assert_int_equal(num_enabled(), 0);
    assert_int_equal(num_lost, 4); // two per buffer
    assert_int_equal(num_seen, 2 + 4);
    assert_int_equal(cupti.num_pushed, 2);
    for (int i = 0; i < num_seen; i++) {
        const tsr_profile_record *r = &seen[i];
        if (r->kind == TSR_PROFILE_CALL) call = r->id;
        if (r->kind == TSR_PROFILE_DRIVER) {
            assert_string_equal(names[i], "cuLaunchKernelEx");
            assert_int_equal(r->launch, 3);
            assert_string_equal(r->op, "softmax_forward");
        } else if (r->kind == TSR_PROFILE_KERNEL) {
            assert_string_equal(names[i], "a_kernel");
            assert_string_equal(r->op, "softmax_forward");
            assert_int_equal(r->parent, call);
            assert_int_equal(r->launch, 3);
            assert_true(r->start_ns == 5000 && r->end_ns == 7000 && r->stream == 13);
            assert_true(r->num_blocks == 6 && r->block_threads == 128 && r->num_registers == 40);
            assert_int_equal(r->shared_bytes, 48);
        } else if (r->kind == TSR_PROFILE_COPY) {
            assert_string_equal(names[i], "copy host to device");
            assert_string_equal(r->op, "");
            assert_true(r->bytes == 4096 && r->parent == 0);
        } else if (r->kind == TSR_PROFILE_FILL) {
            assert_int_equal(r->bytes, 64);
        }
    }
    assert_true(call > 0);
    tsr_context_destroy(ctx);
}

// A span that is open at the stop leaves its id in CUPTI. Records of the next recording must not be inside it.
static void ids_of_an_earlier_recording(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    tsri_system.open_library = open_cupti;
    tsri_system.find_symbol = find_cupti;
    assert_ok(tsr_profile_start(ctx));
    tsr_profile_begin("still open");
    assert_ok(tsr_profile_stop(ctx, NULL, NULL, NULL));
    tsr_profile_end();
    assert_ok(tsr_profile_start(ctx));
    num_seen = 0;
    assert_ok(tsr_profile_stop(ctx, see, &num_seen, NULL));
    assert_true(num_seen > 0);
    for (int i = 0; i < num_seen; i++) {
        assert_int_equal(seen[i].parent, 0);
        assert_string_equal(seen[i].op, "");
    }
    tsr_context_destroy(ctx);
}

// A driver that reserves profiling for administrators is no error of the program, and every kind is disabled again.
static void without_privileges(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    cupti.fail_kind = CUPTI_KIND_KERNEL;
    assert_status(tsr_profile_start(ctx), TSR_UNSUPPORTED, "NOT_PRIVILEGED", "administrators");
    assert_int_equal(num_enabled(), 0);
    cupti.fail_kind = 0;
    assert_ok(tsr_profile_start(ctx));
    assert_ok(tsr_profile_stop(ctx, NULL, NULL, NULL));
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(records_of_the_device, setup),
        cmocka_unit_test_setup(ids_of_an_earlier_recording, setup),
        cmocka_unit_test_setup(without_privileges, setup),
    };
    setenv("TSR_KERNEL_PACK", "/dev/null", 1);
    setenv("TSR_LIBNVRTC", "/nowhere/libnvrtc.so", 1);
    setenv("TSR_CACHE_DIR", "/proc/nowhere", 1);
    return cmocka_run_group_tests_name("profile on CUDA", tests, NULL, NULL);
}
