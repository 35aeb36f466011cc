// SPDX-License-Identifier: Apache-2.0
// DLPack: the layout of its structs, everything that producers may omit, and everything that is refused.
#include <tessera/dlpack.h>

#include "core/core_dlpack.h"
#include "test_support.h"

// From DLPack's header, versions 1.0 to 1.3, with pointers of 8 bytes.
#if UINTPTR_MAX == UINT64_MAX
_Static_assert(sizeof(struct dlpack_tensor) == 48, "DLTensor");
_Static_assert(offsetof(struct dlpack_tensor, device_type) == 8, "device");
_Static_assert(offsetof(struct dlpack_tensor, device_id) == 12, "device");
_Static_assert(offsetof(struct dlpack_tensor, ndim) == 16, "ndim");
_Static_assert(offsetof(struct dlpack_tensor, code) == 20, "dtype");
_Static_assert(offsetof(struct dlpack_tensor, bits) == 21, "dtype");
_Static_assert(offsetof(struct dlpack_tensor, lanes) == 22, "dtype");
_Static_assert(offsetof(struct dlpack_tensor, shape) == 24, "shape");
_Static_assert(offsetof(struct dlpack_tensor, strides) == 32, "strides");
_Static_assert(offsetof(struct dlpack_tensor, byte_offset) == 40, "byte_offset");
_Static_assert(sizeof(struct DLManagedTensor) == 64, "DLManagedTensor");
_Static_assert(offsetof(struct DLManagedTensor, manager_ctx) == 48, "manager_ctx");
_Static_assert(offsetof(struct DLManagedTensor, deleter) == 56, "deleter");
_Static_assert(sizeof(struct DLManagedTensorVersioned) == 80, "DLManagedTensorVersioned");
_Static_assert(offsetof(struct DLManagedTensorVersioned, manager_ctx) == 8, "manager_ctx");
_Static_assert(offsetof(struct DLManagedTensorVersioned, deleter) == 16, "deleter");
_Static_assert(offsetof(struct DLManagedTensorVersioned, flags) == 24, "flags");
_Static_assert(offsetof(struct DLManagedTensorVersioned, tensor) == 32, "dl_tensor");
#endif

static double memory[64];
static int64_t shape[6] = {2, 3, 4, 1, 1, 1}, strides[6] = {100, 5, 1, 0, 0, 0};

static struct DLManagedTensorVersioned good(void) {
    struct dlpack_tensor t = {memory, DLPACK_CPU, 0, 3, DLPACK_FLOAT, 32, 1, shape, strides, 0};
    return (struct DLManagedTensorVersioned){1, 3, NULL, NULL, 0, t};
}

static void views(void **state) {
    (void)state;
    struct DLManagedTensorVersioned m = good();
    tsr_tensor t;
    assert_ok(tsr_tensor_from_dlpack(&m, TSR_DLPACK_INPUT, TSR_DTYPE_NONE, &t));
    assert_ptr_equal(t.data, memory);
    assert_int_equal(t.dtype, TSR_F32);
    assert_int_equal(t.device.type, TSR_CPU);
    assert_int_equal(t.ndim, 3);
    assert_memory_equal(t.shape, shape, 3 * sizeof *shape);
    assert_memory_equal(t.stride, strides, 3 * sizeof *strides);

    m.tensor.strides = NULL;
    m.tensor.byte_offset = 12;
    m.tensor.device_type = DLPACK_CUDA;
    m.tensor.device_id = 3;
    assert_ok(tsr_tensor_from_dlpack(&m, TSR_DLPACK_OUTPUT, TSR_F32, &t));
    assert_ptr_equal(t.data, (char *)memory + 12);
    assert_int_equal(t.stride[0], 12);
    assert_int_equal(t.stride[2], 1);
    assert_int_equal(t.device.type, TSR_CUDA);
    assert_int_equal(t.device.index, 3);

    struct DLManagedTensor legacy = {m.tensor, NULL, NULL};
    tsr_tensor same;
    assert_ok(tsr_tensor_from_dlpack_legacy(&legacy, TSR_DLPACK_OUTPUT, TSR_F32, &same));
    assert_memory_equal(&same, &t, sizeof t);

    m = good();
    m.tensor.ndim = 0;
    m.tensor.shape = m.tensor.strides = NULL;
    assert_ok(tsr_tensor_from_dlpack(&m, TSR_DLPACK_OUTPUT, TSR_DTYPE_NONE, &t));
    assert_int_equal(tsr_tensor_numel(&t), 1);
}

static void views_empty_and_repeated(void **state) {
    (void)state;
    tsr_tensor t;
    struct DLManagedTensorVersioned m = good();
    int64_t empty[3] = {2, 0, 4}, one[3] = {2, 1, 4}, repeat[3] = {0, 4, 1}, odd[3] = {4, -7, 1};
    m.tensor.shape = empty;
    m.tensor.data = NULL;
    m.tensor.byte_offset = 4;
    assert_ok(tsr_tensor_from_dlpack(&m, TSR_DLPACK_OUTPUT, TSR_DTYPE_NONE, &t));
    assert_null(t.data);
    assert_int_equal(tsr_tensor_numel(&t), 0);
    m = good();
    m.tensor.strides = repeat;
    assert_ok(tsr_tensor_from_dlpack(&m, TSR_DLPACK_INPUT, TSR_DTYPE_NONE, &t));
    assert_int_equal(t.stride[0], 0);
    assert_status(tsr_tensor_from_dlpack(&m, TSR_DLPACK_OUTPUT, TSR_DTYPE_NONE, &t),
                  TSR_INVALID_ARGUMENT, "stride[0]");
    m.tensor.shape = one;
    m.tensor.strides = odd;
    assert_ok(tsr_tensor_from_dlpack(&m, TSR_DLPACK_OUTPUT, TSR_DTYPE_NONE, &t));
    assert_int_equal(t.stride[1], 4);
}

static void maps_types(void **state) {
    (void)state;
    static const struct {
        int code, bits;
        tsr_dtype given, expected; // NONE expected: refused
    } cases[] = {
        {2, 64, TSR_DTYPE_NONE, TSR_F64},
        {2, 32, TSR_DTYPE_NONE, TSR_F32},
        {2, 16, TSR_DTYPE_NONE, TSR_F16},
        {4, 16, TSR_DTYPE_NONE, TSR_BF16},
        {10, 8, TSR_DTYPE_NONE, TSR_E4M3},
        {12, 8, TSR_DTYPE_NONE, TSR_E5M2},
        {0, 32, TSR_DTYPE_NONE, TSR_I32},
        {1, 8, TSR_E4M3, TSR_E4M3},
        {1, 8, TSR_E5M2, TSR_E5M2},
        {1, 16, TSR_BF16, TSR_BF16},
        {1, 16, TSR_F16, TSR_F16},
        {10, 8, TSR_E4M3, TSR_E4M3},
        {1, 8, TSR_DTYPE_NONE, TSR_U8},
        {1, 8, TSR_U8, TSR_U8},
        {0, 8, TSR_DTYPE_NONE, TSR_DTYPE_NONE},
        {1, 8, TSR_F32, TSR_DTYPE_NONE},
        {1, 16, TSR_E4M3, TSR_DTYPE_NONE},
        {1, 32, TSR_F32, TSR_DTYPE_NONE},
        {0, 8, TSR_E4M3, TSR_DTYPE_NONE},
        {10, 8, TSR_E5M2, TSR_DTYPE_NONE},
        {2, 32, TSR_BF16, TSR_DTYPE_NONE},
        {2, 8, TSR_DTYPE_NONE, TSR_DTYPE_NONE},
        {7, 8, TSR_DTYPE_NONE, TSR_DTYPE_NONE},
        {8, 8, TSR_DTYPE_NONE, TSR_DTYPE_NONE},
        {11, 8, TSR_DTYPE_NONE, TSR_DTYPE_NONE},
        {13, 8, TSR_DTYPE_NONE, TSR_DTYPE_NONE},
        {17, 4, TSR_DTYPE_NONE, TSR_DTYPE_NONE},
        {6, 8, TSR_DTYPE_NONE, TSR_DTYPE_NONE},
        {5, 64, TSR_DTYPE_NONE, TSR_DTYPE_NONE},
        {0, 64, TSR_DTYPE_NONE, TSR_DTYPE_NONE},
        {4, 32, TSR_DTYPE_NONE, TSR_DTYPE_NONE},
        {255, 255, TSR_F32, TSR_DTYPE_NONE},
        {2, 32, (tsr_dtype)99, TSR_DTYPE_NONE},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        struct DLManagedTensorVersioned m = good();
        m.tensor.code = (uint8_t)cases[i].code;
        m.tensor.bits = (uint8_t)cases[i].bits;
        tsr_tensor t;
        tsr_status status = tsr_tensor_from_dlpack(&m, TSR_DLPACK_INPUT, cases[i].given, &t);
        assert_int_equal(t.dtype, cases[i].expected);
        if (cases[i].expected != TSR_DTYPE_NONE)
            assert_ok(status);
        else
            assert_int_not_equal(status, TSR_OK);
    }
}

static void refuses(void **state) {
    (void)state;
    tsr_tensor t;
    struct DLManagedTensorVersioned m;
#define REFUSE(use, status, word, ...)                                                             \
    do {                                                                                           \
        m = good();                                                                                \
        __VA_ARGS__;                                                                               \
        t.dtype = TSR_F32;                                                                         \
        assert_status(tsr_tensor_from_dlpack(&m, TSR_DLPACK_##use, TSR_DTYPE_NONE, &t), status,    \
                      word);                                                                       \
        assert_int_equal(t.dtype, TSR_DTYPE_NONE);                                                 \
    } while (0)
    int64_t negative[3] = {100, -5, 1}, minus[3] = {2, -3, 4};
    int64_t huge[3] = {INT64_MAX, INT64_MAX, 4}, far[3] = {INT64_MAX, 5, 1};
    REFUSE(INPUT, TSR_UNSUPPORTED, "version is 2.", m.major = 2);
    REFUSE(INPUT, TSR_UNSUPPORTED, "version is 0.", m.major = 0);
    REFUSE(INPUT, TSR_UNSUPPORTED, "lanes is 4", m.tensor.lanes = 4);
    REFUSE(INPUT, TSR_UNSUPPORTED, "lanes is 0", m.tensor.lanes = 0);
    REFUSE(INPUT, TSR_UNSUPPORTED, "device_type is 3", m.tensor.device_type = 3);
    REFUSE(INPUT, TSR_UNSUPPORTED, "device_type is 13", m.tensor.device_type = 13);
    REFUSE(INPUT, TSR_INVALID_ARGUMENT, "device_id",
           (m.tensor.device_type = DLPACK_CUDA, m.tensor.device_id = -1));
    REFUSE(INPUT, TSR_UNSUPPORTED, "ndim is 6", m.tensor.ndim = 6);
    REFUSE(INPUT, TSR_INVALID_ARGUMENT, "ndim is -1", m.tensor.ndim = -1);
    REFUSE(INPUT, TSR_INVALID_ARGUMENT, "shape is NULL", m.tensor.shape = NULL);
    REFUSE(INPUT, TSR_INVALID_ARGUMENT, "shape[1] is -3", m.tensor.shape = minus);
    REFUSE(INPUT, TSR_INVALID_ARGUMENT, "strides[1] is -5", m.tensor.strides = negative);
    REFUSE(INPUT, TSR_INVALID_ARGUMENT, "span", (m.tensor.shape = huge, m.tensor.strides = NULL));
    REFUSE(INPUT, TSR_INVALID_ARGUMENT, "span", m.tensor.strides = far);
    REFUSE(INPUT, TSR_INVALID_ARGUMENT, "NULL", m.tensor.data = NULL);
    REFUSE(INPUT, TSR_INVALID_ARGUMENT, "multiple", m.tensor.byte_offset = 2);
    REFUSE(INPUT, TSR_INVALID_ARGUMENT, "byte_offset", m.tensor.byte_offset = UINT64_MAX);
    REFUSE(OUTPUT, TSR_INVALID_ARGUMENT, "read-only", m.flags = 1);
    m = good();
    m.flags = 1;
    assert_ok(tsr_tensor_from_dlpack(&m, TSR_DLPACK_INPUT, TSR_DTYPE_NONE, &t));
    assert_int_equal(tsr_dlpack_is_read_only(NULL), 1);
    assert_int_equal(tsr_dlpack_is_read_only(&m), 1);
    m.flags = 2; // a copy that the consumer owns
    assert_ok(tsr_tensor_from_dlpack(&m, TSR_DLPACK_OUTPUT, TSR_DTYPE_NONE, &t));
    assert_int_equal(tsr_dlpack_is_read_only(&m), 0);
    m.major = 2;
    assert_int_equal(tsr_dlpack_is_read_only(&m), 1);
    assert_status(tsr_tensor_from_dlpack(NULL, TSR_DLPACK_INPUT, TSR_F32, &t), TSR_INVALID_ARGUMENT,
                  "managed is NULL");
    assert_status(tsr_tensor_from_dlpack(&m, TSR_DLPACK_INPUT, TSR_F32, NULL), TSR_INVALID_ARGUMENT,
                  "tensor is NULL");
    assert_status(tsr_tensor_from_dlpack_legacy(NULL, TSR_DLPACK_INPUT, TSR_F32, &t),
                  TSR_INVALID_ARGUMENT, "managed is NULL");
}

static int num_deleted;
static void delete_versioned(struct DLManagedTensorVersioned *self) {
    num_deleted += self->manager_ctx == &num_deleted;
}
static void delete_legacy(struct DLManagedTensor *self) {
    num_deleted += self->manager_ctx == &num_deleted;
}

static void releases(void **state) {
    (void)state;
    struct DLManagedTensorVersioned m = good();
    struct DLManagedTensor legacy = {m.tensor, &num_deleted, NULL};
    m.major = 9; // for any version
    m.manager_ctx = &num_deleted;
    tsr_dlpack_release(&m);
    tsr_dlpack_release(NULL);
    tsr_dlpack_release_legacy(&legacy);
    tsr_dlpack_release_legacy(NULL);
    assert_int_equal(num_deleted, 0);
    m.deleter = delete_versioned;
    legacy.deleter = delete_legacy;
    tsr_dlpack_release(&m);
    tsr_dlpack_release_legacy(&legacy);
    assert_int_equal(num_deleted, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views),      cmocka_unit_test(views_empty_and_repeated),
        cmocka_unit_test(maps_types), cmocka_unit_test(refuses),
        cmocka_unit_test(releases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
