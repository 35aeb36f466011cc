// SPDX-License-Identifier: Apache-2.0
// Tensor maps: what the driver receives, and what is refused earlier.
#include "cuda/cuda_tensor_map.h"
#include "fake_driver.h"
#include "test_support.h"

static _Alignas(16) char data[64];

static struct tsri_tensor_map_args good(void) {
    return (struct tsri_tensor_map_args){.data = data,
                                         .dtype = TSR_BF16,
                                         .size = {100, 50, 4, 3, 2},
                                         .stride = {1, 104, 5200, 8, 104000},
                                         .box = {64, 32, 1, 1, 1},
                                         .is_swizzled = true};
}

static void what_the_driver_gets(void **state) {
    (void)state;
    struct tensor_map map;
    struct tsri_tensor_map_args args = good();
    fake.num_maps = 0;
    assert_ok(tsri_cuda_tensor_map("test", &driver, &args, &map));
    assert_int_equal(fake.num_maps, 1);
    assert_int_equal(map.words[0], 1);
    assert_int_equal(fake.maps[0].type, CU_MAP_BF16);
    assert_ptr_equal(fake.maps[0].data, data);
    assert_int_equal(fake.maps[0].swizzle, CU_MAP_SWIZZLE_128);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(fake.maps[0].size[i], args.size[i]);
        assert_int_equal(fake.maps[0].box[i], args.box[i]);
        if (i > 0) assert_int_equal(fake.maps[0].stride[i - 1], 2 * args.stride[i]); // bytes
    }
    args.dtype = TSR_F32;
    args.is_swizzled = false;
    assert_ok(tsri_cuda_tensor_map("test", &driver, &args, &map));
    assert_int_equal(fake.maps[1].type, CU_MAP_F32);
    assert_int_equal(fake.maps[1].swizzle, CU_MAP_SWIZZLE_NONE);
    assert_int_equal(fake.maps[1].stride[0], 4 * 104);
    args.is_tf32 = true;
    assert_ok(tsri_cuda_tensor_map("test", &driver, &args, &map));
    assert_int_equal(fake.maps[2].type, CU_MAP_TF32);
    fake.map_result = OTHER_ERROR;
    assert_status(tsri_cuda_tensor_map("test", &driver, &args, &map), TSR_DEVICE, "test",
                  "tensor_map_encode", "a refusal");
    fake.map_result = CU_OK;
}

// A queue caches maps: a map with the same args is not built again.
static void maps_of_a_queue(void **state) {
    (void)state;
    static struct tsri_cuda_memo memo;
    const struct tsri_cuda_queue queue = {.device = {.driver = &driver}, .memo = &memo};
    struct tensor_map map, again;
    struct tsri_tensor_map_args args = good(), others[16];
    fake.num_maps = 0;
    assert_ok(tsri_cuda_queue_map("test", &queue, &args, &map));
    assert_ok(tsri_cuda_queue_map("test", &queue, &args, &again));
    assert_int_equal(fake.num_maps, 1);
    assert_memory_equal(&map, &again, sizeof map);
    int num_others = 0;
#define OTHER(...)                                                                                 \
    do {                                                                                           \
        args = good();                                                                             \
        __VA_ARGS__;                                                                               \
        others[num_others++] = args;                                                               \
    } while (0)
    OTHER(args.data = data + 16);
    OTHER(args.dtype = TSR_F16);
    for (int i = 0; i < 5; i++) OTHER(args.size[i]++);
    for (int i = 1; i < 5; i++) OTHER(args.stride[i] += 8);
    OTHER(args.box[1] = 16);
    OTHER(args.box[4] = 2);
    OTHER(args.is_swizzled = false);
    OTHER(args.dtype = TSR_F32, args.is_swizzled = false);
    OTHER(args.dtype = TSR_F32, args.is_swizzled = false, args.is_tf32 = true);
    assert_int_equal(num_others, COUNT(others));
    for (int i = 0; i < num_others; i++) {
        assert_ok(tsri_cuda_queue_map("test", &queue, &others[i], &map));
        assert_int_equal(fake.num_maps, 2 + i);
        assert_int_equal(map.words[0], 2 + i);
    }
    // A map that fails or is refused is not cached.
    args = good(), args.box[0] = 32;
    assert_status(tsri_cuda_queue_map("test", &queue, &args, &map), TSR_INTERNAL, "test",
                  "128 bytes", "no tensor map");
    args = good(), args.size[0] = 99;
    fake.map_result = OTHER_ERROR;
    assert_status(tsri_cuda_queue_map("test", &queue, &args, &map), TSR_DEVICE, "test",
                  "tensor_map_encode", "a refusal");
    fake.map_result = CU_OK;
    fake.num_maps = 100;
    assert_ok(tsri_cuda_queue_map("test", &queue, &args, &map));
    assert_int_equal(map.words[0], 101);
}

#define REFUSES(words, ...)                                                                        \
    do {                                                                                           \
        struct tsri_tensor_map_args args = good();                                                 \
        struct tensor_map map;                                                                     \
        __VA_ARGS__;                                                                               \
        assert_false(tsri_tensor_map_fits(&args));                                                 \
        assert_status(tsri_cuda_tensor_map("test", &driver, &args, &map), TSR_INTERNAL, "test",    \
                      words, "no tensor map");                                                     \
    } while (0)

static void what_hardware_does_not_take(void **state) {
    (void)state;
    const struct tsri_tensor_map_args whole = good();
    assert_true(tsri_tensor_map_fits(&whole));
    fake.num_maps = 0;
    REFUSES("dtype", args.dtype = TSR_F64);
    REFUSES("data", args.data = data + 8);
    REFUSES("data", args.data = NULL);
    REFUSES("size", args.size[0] = 0);
    REFUSES("size", args.size[4] = (INT64_C(1) << 32) + 1);
    REFUSES("box", args.box[1] = 257);
    REFUSES("box", args.box[2] = 0);
    REFUSES("stride", args.stride[1] = 0);
    REFUSES("stride", args.stride[2] = INT64_C(1) << 39);
    REFUSES("multiple of 16", args.stride[1] = 100);
    REFUSES("128 bytes", args.box[0] = 32);
    REFUSES("row of the box", args.box[0] = 12, args.is_swizzled = false);
    assert_int_equal(fake.num_maps, 0);
}

int main(void) {
    tsri_cuda_driver_replace(&driver);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_driver_gets),
        cmocka_unit_test(maps_of_a_queue),
        cmocka_unit_test(what_hardware_does_not_take),
    };
    return cmocka_run_group_tests_name("cuda tensor map", tests, NULL, NULL);
}
