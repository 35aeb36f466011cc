// SPDX-License-Identifier: Apache-2.0
// Dynamic shared memory of one kernel in several contexts, on a fake driver: a context that needs less does not lower
// the limit that another has set and relies on.
#include "kernel_pack_case.h"
#include "library/op_list.h"
#include "test_support.h"

static void launch(tsr_context *ctx, int shared_bytes) {
    struct tsri_cuda_program program;
    const char params[64] = {0};
    struct tsri_cuda_visit visit;
    assert_true(tsri_op_find("softmax_forward")->kernel(0, 90, &program));
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    assert_ok(tsri_cuda_enter("test", &queue->device, &visit));
    assert_ok(tsri_cuda_launch(
        "test", queue, &program,
        &(struct tsri_cuda_launch){
            .num_blocks = 1, .num_threads = 32, .shared_bytes = shared_bytes, .params = params}));
    tsri_cuda_leave(&queue->device, &visit);
    assert_int_equal(fake.launched.shared_bytes, shared_bytes);
    assert_true(shared_bytes <= 32 << 10 || shared_bytes <= fake.allowed_shared);
}

static void a_context_does_not_lower_it_for_another(void **state) {
    (void)state;
    static const struct {
        int context, kib, requests; // requests: to the driver, if the context knows the kernel
    } launches[] = {{0, 32, 0},  {0, 48, 1},  {0, 47, 0},  {0, 100, 1}, {1, 60, 1},
                    {0, 100, 0}, {1, 90, 0},  {1, 100, 0}, {0, 20, 0},  {1, 200, 1},
                    {0, 150, 1}, {0, 200, 0}, {1, 150, 0}};
    tsr_context *contexts[2];
    for (int i = 0; i < 2; i++) {
        assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}), &contexts[i]));
        launch(contexts[i], 1 << 10);
    }
    for (int i = 0; i < COUNT(launches); i++) {
        const int before = fake.num_requests_of_kernels;
        launch(contexts[launches[i].context], launches[i].kib << 10);
        assert_int_equal(fake.num_requests_of_kernels - before, launches[i].requests);
    }
    for (int i = 0; i < 2; i++) tsr_context_destroy(contexts[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_context_does_not_lower_it_for_another)};
    return cmocka_run_group_tests_name("shared memory", tests, setup_pack, teardown_pack);
}
