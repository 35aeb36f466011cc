// SPDX-License-Identifier: Apache-2.0
// Tensors: strides of contiguous tensors, invalid ranks, and more than 2^63 elements.
#include "test_support.h"

static void contiguous_tensors(void **state) {
    (void)state;
    float data[1];
    tsr_tensor t = TSR_TENSOR(data, TSR_F32, 2, 3, 5);
    assert_ptr_equal(t.data, data);
    assert_int_equal(t.dtype, TSR_F32);
    assert_int_equal(t.device.type, TSR_CPU);
    assert_int_equal(t.ndim, 3);
    assert_true(t.shape[0] == 2 && t.shape[1] == 3 && t.shape[2] == 5);
    assert_true(t.stride[0] == 15 && t.stride[1] == 5 && t.stride[2] == 1);
    assert_true(tsr_tensor_numel(&t) == 30);

    t = tsr_tensor_contiguous(data, TSR_BF16, 0, NULL);
    assert_int_equal(t.ndim, 0);
    assert_true(tsr_tensor_numel(&t) == 1);

    t = TSR_TENSOR(data, TSR_F32, 4, 0, 7); // strides as if the 0 were 1
    assert_true(tsr_tensor_numel(&t) == 0 && t.stride[0] == 7 && t.stride[1] == 7);

    t = TSR_TENSOR(data, TSR_F32, 1, 2, 3, 4, 5);
    assert_int_equal(t.ndim, TSR_MAX_DIMS);
    assert_true(t.stride[0] == 120 && tsr_tensor_numel(&t) == 120);
}

static void ndim_out_of_range_is_absent(void **state) {
    (void)state;
    int64_t shape[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    static const int ndims[] = {TSR_MAX_DIMS + 1, 8, -1, INT32_MIN, INT32_MAX};
    for (int i = 0; i < COUNT(ndims); i++) {
        tsr_tensor t = tsr_tensor_contiguous(shape, TSR_F32, ndims[i], shape);
        assert_int_equal(t.dtype, TSR_DTYPE_NONE);
        assert_null(t.data);
    }
}

static void numel_does_not_overflow(void **state) {
    (void)state;
    tsr_tensor t = TSR_TENSOR(NULL, TSR_F32, INT64_C(1) << 31, INT64_C(1) << 31);
    assert_true(tsr_tensor_numel(&t) == INT64_C(1) << 62);
    t = TSR_TENSOR(NULL, TSR_F32, INT64_C(1) << 32, INT64_C(1) << 31);
    assert_true(tsr_tensor_numel(&t) == INT64_MAX);
    t = TSR_TENSOR(NULL, TSR_F32, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX);
    assert_true(tsr_tensor_numel(&t) == INT64_MAX && t.stride[0] == INT64_MAX);
    t = TSR_TENSOR(NULL, TSR_F32, INT64_MAX, INT64_MAX, 0);
    assert_true(tsr_tensor_numel(&t) == 0);
    static const int64_t negative[][3] = {{-1, 3, 4}, {2, -3, 4}, {-1, -1, 5}, {-7, 0, 2}};
    for (int i = 0; i < COUNT(negative); i++) {
        t = tsr_tensor_contiguous(NULL, TSR_F32, 3, negative[i]);
        assert_true(tsr_tensor_numel(&t) == 0);
    }
    // A tensor with an invalid rank has 0 elements.
    t = TSR_TENSOR(NULL, TSR_F32, 2);
    t.ndim = 1000000;
    assert_true(tsr_tensor_numel(&t) == 0);
    t.ndim = -1;
    assert_true(tsr_tensor_numel(&t) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contiguous_tensors),
        cmocka_unit_test(ndim_out_of_range_is_absent),
        cmocka_unit_test(numel_does_not_overflow),
    };
    return cmocka_run_group_tests_name("tensors", tests, NULL, NULL);
}
