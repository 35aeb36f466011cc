// SPDX-License-Identifier: Apache-2.0
// safetensors: accepted files, and round trips in every dtype and layout. Refusals and memory have their own test
// files.
#include <jansson.h>
#include <locale.h>

#include "safetensors_case.h"

// ---- What is accepted -------------------------------------------------------------------------

static void reads(void **state) {
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"\xc3\xa9\":\"\\ud83d\\ude00\"},"
        "\"b\":" TENSOR("F32", "[2,3]", "[1,25]") ", \"a\":" TENSOR(
            "U8", "[]", "[0,1]") ","
                                 "\"e\":" TENSOR("BF16", "[0,7]", "[25,25]") ",\"q\":" TENSOR(
                                     "NEW7", "[3]", "[25,30]") ","
                                                               "\"f\":" TENSOR("F4", "[2,3]",
                                                                               "[30,33]") "}   ";
    tsr_safetensors *file;
    assert_ok(open_text(header, sizeof header - 1, 33, &file));
    assert_int_equal(tsr_safetensors_count(file), 5);
    static const char *const order[] = {"a", "b", "e", "q", "f"};
    tsr_safetensors_info info;
    for (int i = 0; i < 5; i++) {
        assert_ok(tsr_safetensors_info_get(file, i, &info));
        assert_string_equal(info.name, order[i]);
        assert_int_equal(tsr_safetensors_find(file, order[i]), i);
    }
    assert_string_equal(info.dtype_name, "F4");
    assert_int_equal(info.dtype, TSR_DTYPE_NONE);
    assert_int_equal(info.bytes, 3);
    assert_int_equal(((const char *)info.data)[2], 32);

    tsr_tensor b;
    assert_ok(tsr_safetensors_tensor(file, "b", &b)); // misaligned in the file
    assert_int_equal((uintptr_t)b.data % 4, 0);
    assert_int_equal(b.ndim, 2);
    assert_int_equal(b.shape[0], 2);
    assert_int_equal(b.stride[0], 3);
    for (int i = 0; i < 24; i++) assert_int_equal(((const char *)b.data)[i], i + 1);
    tsr_tensor e;
    assert_ok(tsr_safetensors_tensor(file, "e", &e));
    assert_int_equal(tsr_tensor_numel(&e), 0);
    assert_int_equal((uintptr_t)e.data % 2, 0);

    assert_ok(tsr_safetensors_tensor(file, "a", &b));
    assert_int_equal(b.dtype, TSR_U8);
    assert_status(tsr_safetensors_tensor(file, "q", &b), TSR_UNSUPPORTED, "'q'", "NEW7");
    assert_status(tsr_safetensors_tensor(file, "none", &b), TSR_INVALID_ARGUMENT, "'none'");
    assert_status(tsr_safetensors_info_get(file, -1, &info), TSR_INVALID_ARGUMENT, "index");
    assert_status(tsr_safetensors_tensor_at(file, 5, &b), TSR_INVALID_ARGUMENT, "index");

    assert_int_equal(tsr_safetensors_metadata_count(file), 2);
    assert_string_equal(tsr_safetensors_metadata(file, "format"), "pt");
    assert_string_equal(tsr_safetensors_metadata(file, "\xc3\xa9"), "\xf0\x9f\x98\x80");
    assert_null(tsr_safetensors_metadata(file, "none"));
    tsr_safetensors_pair pair;
    assert_ok(tsr_safetensors_metadata_get(file, 0, &pair));
    assert_string_equal(pair.key, "format");
    assert_status(tsr_safetensors_metadata_get(file, 2, &pair), TSR_INVALID_ARGUMENT, "index");
    tsr_safetensors_close(file);

    assert_ok(open_text("{}", 2, 0, &file));
    assert_int_equal(tsr_safetensors_count(file), 0);
    assert_int_equal(tsr_safetensors_find(file, "x"), -1);
    tsr_safetensors_close(file);
    tsr_safetensors_close(NULL);
    static const char unknown_field[] =
        "{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"new\":1.5}}";
    assert_ok(open_text(unknown_field, sizeof unknown_field - 1, 1, &file));
    tsr_safetensors_close(file);
}

static void quotes_names(void **state) {
    (void)state;
    tsr_safetensors *file;
    char header[2000];
    for (int cut = 0; cut < 8; cut++) { // cuts 4-byte characters at every position
        char name[1000];
        memset(name, 'n', sizeof name);
        for (int i = cut; i + 4 < 900; i += 4) memcpy(name + i, "\xf0\x9f\x98\x80", 4);
        snprintf(header, sizeof header, "{\"%.900s\":1}", name);
        assert_status(open_text(header, strlen(header), 0, &file), TSR_IO, "...");
        json_t *text = json_string(tsr_last_error()); // NULL for invalid UTF-8
        assert_non_null(text);
        json_decref(text);
    }
    assert_status(open_text("{\"a\\u001b[31m\\n\":1}", 19, 0, &file), TSR_IO, "'a?[31m?'");
    // U+009B is "\033[" in one character. U+00A0 and U+011B are allowed, though they share a byte with it.
    static const char upper[] = "{\"a\\u009b31m\\u00a0\\u011b\":1}";
    assert_status(open_text(upper, sizeof upper - 1, 0, &file), TSR_IO, "'a??31m\xc2\xa0\xc4\x9b'");
}

static void is_deaf_to_locale(void **state) {
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "tr_TR.UTF-8"};
    for (int i = 0; i < COUNT(names); i++) { // if these locales are installed
        setlocale(LC_ALL, names[i]);
        tsr_safetensors *file;
        static const char header[] =
            "{\"I\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1.5}}";
        assert_ok(open_text(header, sizeof header - 1, 4, &file));
        tsr_safetensors_close(file);
        assert_status(open_text("{\"x\":1,5}", 9, 0, &file), TSR_IO, "JSON");
    }
    setlocale(LC_ALL, "C");
}

// ---- Round trips ------------------------------------------------------------------------------

// Every dtype and rank, permuted, stepped, reversed and repeated, against indices computed here.
static void writes_any_strides(void **state) {
    (void)state;
    uint64_t seed = 7;
    static double pool[20000];
    for (size_t i = 0; i < sizeof pool; i++) ((char *)pool)[i] = (char)test_bits(&seed);
    for (int round = 0; round < 300; round++) {
        tsr_safetensors_entry entries[9];
        char names[9][8];
        int count = (int)(test_bits(&seed) % 10);
        for (int e = 0; e < count; e++) {
            tsr_tensor *t = &entries[e].tensor;
            *t = (tsr_tensor){.data = &pool[10000],
                              .dtype = (tsr_dtype)(1 + test_bits(&seed) % 7),
                              .ndim = (int32_t)(test_bits(&seed) % 6)};
            for (int i = 0; i < t->ndim; i++) {
                t->shape[i] = (int64_t)(test_bits(&seed) % 6);
                t->stride[i] = (int64_t)(test_bits(&seed) % 700) - 350;
                if (test_bits(&seed) % 4 == 0) t->stride[i] = (int64_t)(test_bits(&seed) % 2);
            }
            if (test_bits(&seed) % 2)
                *t = tsr_tensor_contiguous(t->data, t->dtype, t->ndim, t->shape);
            snprintf(names[e], sizeof names[e], "t%d", e);
            entries[e].name = names[e];
        }
        const tsr_safetensors_pair pairs[] = {{"a \"b\"", "\\ \n \xe2\x82\xac"}, {"", ""}};
        assert_ok(tsr_safetensors_write(path, entries, count, pairs, round % 3));
        struct bytes bytes = read_file();
        assert_int_equal(bytes.data[8], '{');
        assert_int_equal((unsigned char)bytes.data[0] % 8, 0);
        free(bytes.data);

        tsr_safetensors *file;
        assert_ok(tsr_safetensors_open(path, &file));
        assert_int_equal(tsr_safetensors_count(file), count);
        assert_int_equal(tsr_safetensors_metadata_count(file), round % 3);
        if (round % 3 > 0)
            assert_string_equal(tsr_safetensors_metadata(file, pairs[0].key), pairs[0].value);
        for (int e = 0; e < count; e++) {
            const tsr_tensor *t = &entries[e].tensor;
            tsr_tensor back;
            assert_ok(tsr_safetensors_tensor(file, names[e], &back));
            assert_int_equal(back.dtype, t->dtype);
            assert_int_equal(back.ndim, t->ndim);
            assert_memory_equal(back.shape, t->shape, sizeof back.shape);
            size_t bytes_each = tsr_dtype_bytes(t->dtype);
            for (int64_t n = 0; n < tsr_tensor_numel(t); n++) {
                int64_t rest = n, offset = 0;
                for (int i = t->ndim - 1; i >= 0; i--) {
                    offset += rest % t->shape[i] * t->stride[i];
                    rest /= t->shape[i];
                }
                assert_memory_equal((char *)back.data + (size_t)n * bytes_each,
                                    (char *)t->data + offset * (int64_t)bytes_each, bytes_each);
            }
        }
        tsr_safetensors_close(file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads),
        cmocka_unit_test(quotes_names),
        cmocka_unit_test(is_deaf_to_locale),
        cmocka_unit_test(writes_any_strides),
    };
    return cmocka_run_group_tests_name("safetensors", tests, make_folder, remove_folder);
}
