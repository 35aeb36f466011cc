// SPDX-License-Identifier: Apache-2.0
// safetensors: memory in proportion to the file, measured by counting the requests.
#define _GNU_SOURCE
#include <jansson.h>

#include "hostile_floats.h"

#include "model/safetensors_format.h"
#include "safetensors_case.h"

// ---- Memory -----------------------------------------------------------------------------------

static size_t held, peak;

// Includes malloc's overhead: a word, and rounding up to 16 bytes.
static size_t block_bytes(size_t bytes) { return (bytes + 8 + 15) / 16 * 16; }

static void *counted(void *block, size_t bytes) {
    if (block == NULL) return NULL;
    *(size_t *)block = bytes;
    held += block_bytes(bytes);
    if (held > peak) peak = held;
    return (char *)block + 64;
}

static void *count_alloc(size_t alignment, size_t bytes) {
    assert_true(alignment <= 64);
    return counted(aligned_alloc(64, 64 + (bytes + 63) / 64 * 64), bytes);
}

static void *count_malloc(size_t bytes) { return count_alloc(16, bytes); }

static void count_free(void *pointer) {
    if (pointer == NULL) return;
    size_t *block = (size_t *)(void *)((char *)pointer - 64);
    held -= block_bytes(*block);
    free(block);
}

static void start_counting(void) {
    tsri_model_system.alloc = count_alloc;
    tsri_model_system.free = count_free;
    json_set_alloc_funcs(count_malloc, count_free);
    held = peak = 0;
}

static void stop_counting(void) {
    assert_int_equal(held, 0); // nothing leaks
    tsri_model_system.alloc = aligned_alloc;
    tsri_model_system.free = free;
    json_set_alloc_funcs(malloc, free);
}

// Inputs for which the JSON library needs the most memory: the shortest value of each kind, repeated.
static void memory_follows_the_file(void **state) {
    (void)state;
    static const struct {
        const char *before, *each, *after;
    } shapes[] = {
        {"{\"a\":{\"b\":[", "0,", "0]}}"},
        {"{\"a\":{\"b\":[", "\"\",", "0]}}"},
        {"{\"a\":{\"b\":[", "1.,", "0]}}"},
        {"{\"a\":{\"b\":[", "[],", "0]}}"},
        {"{\"a\":{\"b\":[", "null,", "0]}}"},
        {"{\"a\":{\"b\":[", "{},", "0]}}"},
        {"{\"__metadata__\":{", "\"%x\":\"\",", "\"z\":\"\"}}"},
        {"{", "\"%x\":0,", "\"z\":0}"},
        {"{", "\"%x\":[],", "\"z\":0}"},
        {"{", "\"%x\":{},", "\"z\":0}"},
        {"{\"a\":{", "\"%x\":[],", "\"z\":0}}"},
        {"{", "\"%x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},",
         "\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}"},
        {"{\"", "\\u0041", "\":1}"},
        {"{\"a\":", "1", "}"},
        {"{", " ", "}"},
        {"{\"a\":0.", "1", "}"},
    };
    for (int i = 0; i < COUNT(shapes); i++) {
        for (int repeats = 1000; repeats <= 100000; repeats *= 10) {
            size_t capacity = strlen(shapes[i].each) + 16;
            char *header = malloc((size_t)repeats * capacity + 200);
            size_t used = (size_t)sprintf(header, "%s", shapes[i].before);
            for (int r = 0; r < repeats; r++) {
                const char *hole = strstr(shapes[i].each, "%x");
                if (hole == NULL) {
                    used += (size_t)sprintf(header + used, "%s", shapes[i].each);
                    continue;
                }
                used += (size_t)sprintf(header + used, "%.*s%x%s", (int)(hole - shapes[i].each),
                                        shapes[i].each, r, hole + 2);
            }
            used += (size_t)sprintf(header + used, "%s", shapes[i].after);
            start_counting();
            tsr_safetensors *file;
            tsr_status status = open_text(header, used, 0, &file);
            tsr_safetensors_close(file);
            double ratio = (double)peak / (double)used;
            stop_counting();
            free(header);
            if (ratio > 40)
                print_error("%s x %d: %.1f bytes a byte\n", shapes[i].each, repeats, ratio);
            assert_true(status == TSR_OK || status == TSR_IO);
            assert_true(ratio <= 40);
        }
    }
}

// A small file that claims much data gets little memory.
static void claims_cost_nothing(void **state) {
    (void)state;
    static const char *const claims[] = {
        "{\"x\":" TENSOR("U8", "[1099511627776]", "[0,1099511627776]") "}",
        "{\"x\":" TENSOR("?", "[9223372036854775807]", "[0,9223372036854775807]") "}",
    };
    for (int i = 0; i < COUNT(claims); i++) {
        start_counting();
        tsr_safetensors *file;
        assert_status(open_text(claims[i], strlen(claims[i]), 3, &file), TSR_IO, "cover");
        assert_true(peak < 64 * 1024);
        stop_counting();
    }
    struct bytes bytes = make_file(100000000, "{}", 2, 0);
    start_counting();
    tsr_safetensors *file;
    assert_status(tsr_safetensors_open_memory(bytes.data, bytes.count, "m", &file), TSR_IO,
                  "length");
    assert_true(peak < 4096);
    stop_counting();
    free(bytes.data);
}

// The caller's floating-point environment does not affect the conversion of a header's numbers and is not changed by
// it.
static void the_environment_stays(void **state) {
    (void)state;
    static const char header[] = "{\"x\":" TENSOR("F32", "[0.1]", "[0,1e-320]") "}";
    char expected[256];
    for (int i = 0; i < NUM_HOSTILE_FLOATS; i++) {
        tsr_safetensors *file = NULL;
        struct bytes bytes = make_file(strlen(header), header, strlen(header), 4);
        hostile_enter(&hostile_floats[i]);
        tsr_status status = tsr_safetensors_open_memory(bytes.data, bytes.count, "m", &file);
        struct hostile_floats after = hostile_now();
        hostile_leave();
        assert_int_equal(status, TSR_IO);
        assert_true(hostile_is(&after, &hostile_floats[i]));
        if (i == 0) snprintf(expected, sizeof expected, "%s", tsr_last_error());
        assert_string_equal(tsr_last_error(), expected);
        free(bytes.data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_environment_stays),
        cmocka_unit_test(memory_follows_the_file),
        cmocka_unit_test(claims_cost_nothing),
    };
    return cmocka_run_group_tests_name("safetensors memory", tests, make_folder, remove_folder);
}
