// SPDX-License-Identifier: Apache-2.0
// Refused safetensors: a table of malformed files, each with a sentence; truncation at every byte; any byte changed;
// and paths that are no files.
#include <fcntl.h>

#include "safetensors_case.h"

// ---- What is refused --------------------------------------------------------------------------

static const struct {
    const char *name, *header;
    size_t data_bytes;
    const char *word; // a word of the sentence
} malformed[] = {
    {"no object", "[1]", 0, "begins"},
    {"leading space", " " X(""), 24, "begins"},
    {"byte order mark", "\xef\xbb\xbf" X(""), 24, "begins"},
    {"behind the end", X("") "x", 24, "JSON"},
    {"two objects", X("") X(""), 24, "JSON"},
    {"not closed", "{\"x\":", 0, "JSON"},
    {"not closed string", "{\"x", 0, "JSON"},
    {"trailing comma", X(","), 24, "JSON"},
    {"comment", "{/**/}", 0, "JSON"},
    {"single quotes", "{'x':1}", 0, "JSON"},
    {"bare key", "{x:1}", 0, "JSON"},
    {"NaN", "{\"x\":NaN}", 0, "JSON"},
    {"Infinity", "{\"x\":Infinity}", 0, "JSON"},
    {"1e400", "{\"x\":1e400}", 0, "JSON"},
    {"2^63", "{\"x\":" TENSOR("F32", "[9223372036854775808,0]", "[0,0]") "}", 0, "JSON"},
    {"leading zero", "{\"x\":" TENSOR("U8", "[01]", "[0,1]") "}", 1, "JSON"},
    {"plus sign", "{\"x\":" TENSOR("U8", "[+1]", "[0,1]") "}", 1, "JSON"},
    {"decimal comma", "{\"x\":" TENSOR("U8", "[1,5]", "[0,1,5]") "}", 1, "data_offsets"},
    {"lone high surrogate", "{\"\\ud800\":" TENSOR("U8", "[1]", "[0,1]") "}", 1, "JSON"},
    {"lone low surrogate", "{\"\\udc00\":" TENSOR("U8", "[1]", "[0,1]") "}", 1, "JSON"},
    {"escaped NUL in a name", "{\"a\\u0000b\":" TENSOR("U8", "[1]", "[0,1]") "}", 1, "JSON"},
    {"escaped NUL in a dtype", "{\"a\":" TENSOR("F32\\u0000", "[1]", "[0,4]") "}", 4, "JSON"},
    {"bad escape", "{\"\\x41\":" TENSOR("U8", "[1]", "[0,1]") "}", 1, "JSON"},
    {"control character", "{\"a\nb\":" TENSOR("U8", "[1]", "[0,1]") "}", 1, "JSON"},
    {"invalid UTF-8", "{\"\xff\":" TENSOR("U8", "[1]", "[0,1]") "}", 1, "JSON"},
    {"overlong UTF-8", "{\"\xc0\xaf\":" TENSOR("U8", "[1]", "[0,1]") "}", 1, "JSON"},
    {"surrogate in UTF-8", "{\"\xed\xa0\x80\":" TENSOR("U8", "[1]", "[0,1]") "}", 1, "JSON"},
    {"beyond Unicode", "{\"\xf4\x90\x80\x80\":" TENSOR("U8", "[1]", "[0,1]") "}", 1, "JSON"},
    {"cut UTF-8", "{\"a\":1,\"\xe2\x82\":1}", 0, "JSON"},
    {"duplicate", X(",\"x\":" TENSOR("F32", "[2,3]", "[0,24]")), 24, "JSON"},
    {"escaped-equal", X(",\"\\u0078\":" TENSOR("F32", "[2,3]", "[24,48]")), 48, "JSON"},
    {"duplicate field",
     "{\"x\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],"
     "\"data_offsets\":[0,1]}}",
     1, "JSON"},
    {"duplicate metadata", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "JSON"},
    {"metadata array", "{\"__metadata__\":[]}", 0, "__metadata__"},
    {"metadata null", "{\"__metadata__\":null}", 0, "__metadata__"},
    {"metadata number", "{\"__metadata__\":{\"a\":1}}", 0, "'a'"},
    {"metadata null value", "{\"__metadata__\":{\"a\":null}}", 0, "'a'"},
    {"metadata object", "{\"__metadata__\":{\"a\":{}}}", 0, "'a'"},
    {"tensor null", "{\"x\":null}", 0, "'x'"},
    {"tensor array", "{\"x\":[\"F32\",[1],[0,4]]}", 4, "'x'"},
    {"tensor empty", "{\"x\":{}}", 0, "dtype"},
    {"no dtype", "{\"x\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
    {"dtype number", "{\"x\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
    {"no shape", "{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape"},
    {"shape object", "{\"x\":" TENSOR("F32", "{}", "[0,4]") "}", 4, "shape"},
    {"shape number", "{\"x\":" TENSOR("F32", "1", "[0,4]") "}", 4, "shape"},
    {"negative shape", "{\"x\":" TENSOR("F32", "[-1]", "[0,4]") "}", 4, "shape[0]"},
    {"two negatives", "{\"x\":" TENSOR("F32", "[-1,-1]", "[0,4]") "}", 4, "shape[0]"},
    {"real shape", "{\"x\":" TENSOR("F32", "[1.0]", "[0,4]") "}", 4, "shape[0]"},
    {"exponent shape", "{\"x\":" TENSOR("F32", "[1e0]", "[0,4]") "}", 4, "shape[0]"},
    {"string shape", "{\"x\":" TENSOR("F32", "[1,\"1\"]", "[0,4]") "}", 4, "shape[1]"},
    {"true shape", "{\"x\":" TENSOR("F32", "[true]", "[0,4]") "}", 4, "shape[0]"},
    {"nested shape", "{\"x\":" TENSOR("F32", "[[1]]", "[0,4]") "}", 4, "nesting"},
    {"no offsets", "{\"x\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets"},
    {"one offset", "{\"x\":" TENSOR("F32", "[1]", "[4]") "}", 4, "data_offsets"},
    {"three offsets", "{\"x\":" TENSOR("F32", "[1]", "[0,4,8]") "}", 4, "data_offsets"},
    {"offsets object", "{\"x\":" TENSOR("F32", "[1]", "{\"0\":0,\"1\":4}") "}", 4, "data_offsets"},
    {"negative offset", "{\"x\":" TENSOR("F32", "[1]", "[-4,0]") "}", 4, "data_offsets"},
    {"real offset", "{\"x\":" TENSOR("F32", "[1]", "[0,4.0]") "}", 4, "data_offsets"},
    {"reversed", "{\"x\":" TENSOR("F32", "[1]", "[4,0]") "}", 4, "[4, 0]"},
    {"too small a range", "{\"x\":" TENSOR("F32", "[2]", "[0,4]") "}", 4, "expected 8"},
    {"too large a range", "{\"x\":" TENSOR("F32", "[1]", "[0,8]") "}", 8, "expected 4"},
    {"scalar without bytes", "{\"x\":" TENSOR("F32", "[]", "[0,0]") "}", 0, "expected 4"},
    {"half a byte", "{\"x\":" TENSOR("F4", "[3]", "[0,2]") "}", 2, "whole number of bytes"},
    {"product 2^64", "{\"x\":" TENSOR("U8", "[4294967296,4294967296]", "[0,0]") "}", 0, "product"},
    {"product 2^64 + 4", "{\"x\":" TENSOR("F32", "[4611686018427387905,4]", "[0,4]") "}", 4,
     "product"},
    {"product 2^64 and 0", "{\"x\":" TENSOR("U8", "[0,4294967296,4294967296]", "[0,0]") "}", 0,
     "product"},
    {"product of unknown type", "{\"x\":" TENSOR("?", "[4294967296,4294967296]", "[0,0]") "}", 0,
     "product"},
    {"bytes 2^63", "{\"x\":" TENSOR("F64", "[1152921504606846976]", "[0,0]") "}", 0, "2^60"},
    {"offsets beyond the file",
     "{\"x\":" TENSOR("U8", "[9223372036854775807]", "[0,9223372036854775807]") "}", 0, "2^60"},
    {"offsets far beyond", "{\"x\":" TENSOR("U8", "[1099511627776]", "[0,1099511627776]") "}", 0,
     "cover"},
    {"does not start at 0", "{\"x\":" TENSOR("U8", "[1]", "[1,2]") "}", 2, "expected 0"},
    {"gap", "{\"x\":" TENSOR("U8", "[1]", "[0,1]") ",\"y\":" TENSOR("U8", "[1]", "[2,3]") "}", 3,
     "expected 1"},
    {"overlap", "{\"x\":" TENSOR("U8", "[2]", "[0,2]") ",\"y\":" TENSOR("U8", "[2]", "[1,3]") "}",
     3, "expected 2"},
    {"same range",
     "{\"x\":" TENSOR("U8", "[2]", "[0,2]") ",\"y\":" TENSOR("U8", "[2]", "[0,2]") "}", 2,
     "expected 2"},
    {"empty inside",
     "{\"x\":" TENSOR("U8", "[4]", "[0,4]") ",\"y\":" TENSOR("U8", "[0]", "[2,2]") "}", 4,
     "expected 4"},
    {"one byte missing", X(""), 23, "23 bytes of data"},
    {"one byte left over", X(""), 25, "25 bytes of data"},
    {"data without tensors", "{}", 1, "1 bytes of data"},
};

static void refuses_malformed(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(malformed); i++) {
        tsr_safetensors *file = (void *)&file; // must become NULL
        const char *header = malformed[i].header;
        tsr_status status = open_text(header, strlen(header), malformed[i].data_bytes, &file);
        bool is_right = status == TSR_IO && file == NULL &&
                        strstr(tsr_last_error(), "safetensors: test: ") == tsr_last_error() &&
                        strstr(tsr_last_error(), malformed[i].word) != NULL;
        if (!is_right)
            print_error("%s: %s, '%s', expected '%s'\n", malformed[i].name, tsr_status_name(status),
                        tsr_last_error(), malformed[i].word);
        assert_true(is_right);
    }
}

static void refuses_lengths(void **state) {
    (void)state;
    static const uint64_t lengths[] = {0,
                                       1,
                                       7,
                                       100000001,
                                       UINT64_C(1) << 31,
                                       UINT64_C(1) << 32,
                                       UINT64_C(1) << 63,
                                       UINT64_MAX,
                                       UINT64_MAX - 7,
                                       65,
                                       100000000};
    for (int i = 0; i < COUNT(lengths); i++) {
        struct bytes bytes = make_file(lengths[i], X(""), strlen(X("")), 0);
        tsr_safetensors *file;
        assert_status(tsr_safetensors_open_memory(bytes.data, bytes.count, NULL, &file), TSR_IO,
                      lengths[i] == 7 ? "JSON" : "header's length");
        assert_null(file);
        free(bytes.data);
    }
    tsr_safetensors *file;
    assert_status(open_text("{\0}", 3, 0, &file), TSR_IO, "JSON"); // NUL between tokens
    assert_status(open_text("{}\0\0\0\0\0\0", 8, 0, &file), TSR_IO, "JSON");
    assert_status(open_text("{\"a\0b\":1}", 9, 0, &file), TSR_IO, "JSON");
}

static void refuses_nesting(void **state) {
    (void)state;
    enum { DEPTH = 1000000 };
    char *header = malloc(DEPTH + 16);
    int used = sprintf(header, "{\"a\":");
    memset(header + used, '[', DEPTH);
    tsr_safetensors *file;
    assert_status(open_text(header, (size_t)used + DEPTH, 0, &file), TSR_IO, "nesting");
    for (int i = 0; i < DEPTH / 5 - 1; i++) memcpy(header + 5 * i, "{\"a\":", 5);
    assert_status(open_text(header, DEPTH - 5, 0, &file), TSR_IO, "nesting");
    // Brackets in strings do not count as nesting.
    free(header);
    assert_ok(open_text(X(",\"[[[[{{{{\\\"[[[[\":" TENSOR("F32", "[0]", "[0,0]")),
                        strlen(X(",\"[[[[{{{{\\\"[[[[\":" TENSOR("F32", "[0]", "[0,0]"))), 24,
                        &file));
    assert_int_equal(tsr_safetensors_find(file, "[[[[{{{{\"[[[["), 0);
    tsr_safetensors_close(file);
}

static void refuses_huge_rank(void **state) {
    (void)state;
    enum { RANK = 1000000 };
    char *header = malloc(2 * RANK + 100);
    tsr_safetensors *file;
    for (int rank = RANK; rank >= 5; rank = rank == RANK ? 65
                                            : rank == 65 ? 64
                                            : rank == 64 ? 6
                                                         : rank - 1) {
        int used = sprintf(header, "{\"x\":{\"dtype\":\"F32\",\"shape\":[");
        for (int i = 0; i < rank; i++) used += sprintf(header + used, i ? ",1" : "1");
        used += sprintf(header + used, "],\"data_offsets\":[0,4]}}");
        tsr_status status = open_text(header, (size_t)used, 4, &file);
        if (rank > 64) {
            assert_status(status, TSR_IO, "'x'", "dimensions");
            continue;
        }
        assert_ok(status);
        tsr_tensor tensor;
        tsr_safetensors_info info;
        assert_ok(tsr_safetensors_info_get(file, 0, &info));
        assert_int_equal(info.ndim, rank);
        if (rank > TSR_MAX_DIMS)
            assert_status(tsr_safetensors_tensor(file, "x", &tensor), TSR_UNSUPPORTED,
                          "dimensions");
        else
            assert_ok(tsr_safetensors_tensor(file, "x", &tensor));
        tsr_safetensors_close(file);
    }
    free(header);
}

// ---- Files that are cut, changed or none -------------------------------------------------------

static void refuses_every_truncation(void **state) {
    (void)state;
    write_small();
    struct bytes bytes = read_file();
    tsr_safetensors *file;
    for (size_t count = 0; count <= bytes.count; count++) {
        assert_return_code(truncate(path, 0), 0);
        FILE *out = fopen(path, "wb");
        fwrite(bytes.data, 1, count, out);
        fclose(out);
        if (count < bytes.count) {
            assert_status(tsr_safetensors_open(path, &file), TSR_IO, path);
            assert_null(file);
            assert_status(tsr_safetensors_open_memory(bytes.data, count, "m", &file), TSR_IO, "m:");
        } else {
            assert_ok(tsr_safetensors_open(path, &file));
            tsr_safetensors_close(file);
        }
    }
    free(bytes.data);
}

// Any single byte changed: the file is refused or read as something well-formed. The sanitizers check the rest.
static void survives_any_byte(void **state) {
    (void)state;
    write_small();
    struct bytes bytes = read_file();
    for (size_t i = 0; i < bytes.count; i++)
        for (int value = 0; value < 256; value++) {
            char kept = bytes.data[i];
            bytes.data[i] = (char)(unsigned char)value;
            tsr_safetensors *file;
            tsr_status status = tsr_safetensors_open_memory(bytes.data, bytes.count, "m", &file);
            assert_true(status == TSR_OK ? file != NULL : status == TSR_IO && file == NULL);
            tsr_safetensors_close(file);
            bytes.data[i] = kept;
        }
    free(bytes.data);
}

static void keeps_the_former_file(void **state) {
    (void)state;
    write_small();
    struct bytes before = read_file();
    float x[1] = {1};
    const tsr_tensor t = TSR_TENSOR(x, TSR_F32, 1), none = {0};
    tsr_tensor device = t, negative = t, null = t, huge = t;
    device.device.type = TSR_CUDA;
    negative.shape[0] = -1;
    null.data = NULL;
    huge.shape[0] = INT64_MAX / 2;
    double y[1] = {1};
    tsr_tensor large = TSR_TENSOR(y, TSR_F64, 1); // almost 2^63 bytes: two exceed it
    large.shape[0] = INT64_MAX / 8 - 1;
    const tsr_safetensors_entry bad[][2] = {
        {{"a", t}, {"a", t}},         {{"a", t}, {"\xff", t}},         {{"a", t}, {NULL, t}},
        {{"a", t}, {"b", none}},      {{"a", t}, {"__metadata__", t}}, {{"a", t}, {"b", device}},
        {{"a", t}, {"b", negative}},  {{"a", t}, {"b", null}},         {{"a", t}, {"b", huge}},
        {{"a", large}, {"b", large}},
    };
    for (int i = 0; i < COUNT(bad); i++)
        assert_status(tsr_safetensors_write(path, bad[i], 2, NULL, 0), TSR_INVALID_ARGUMENT, path);
    const tsr_safetensors_entry good = {"a", t};
    const tsr_safetensors_pair pairs[][2] = {
        {{"a", "b"}, {"a", "b"}}, {{"a", "b"}, {"b", "\xff"}}, {{"a", "b"}, {NULL, "b"}}};
    for (int i = 0; i < COUNT(pairs); i++)
        assert_status(tsr_safetensors_write(path, &good, 1, pairs[i], 2), TSR_INVALID_ARGUMENT,
                      path);
    struct bytes after = read_file();
    assert_int_equal(before.count, after.count);
    assert_memory_equal(before.data, after.data, before.count);
    free(before.data);
    free(after.data);

    assert_status(tsr_safetensors_write("/nonexistent/folder/f", &good, 1, NULL, 0), TSR_IO,
                  "/nonexistent/folder/f");
    assert_status(tsr_safetensors_write(folder, &good, 1, NULL, 0), TSR_IO, "regular file");
    assert_status(tsr_safetensors_write("/dev/null", &good, 1, NULL, 0), TSR_IO, "regular file");
    assert_status(tsr_safetensors_write("", &good, 1, NULL, 0), TSR_IO, "cannot be written");
    assert_status(tsr_safetensors_write(NULL, &good, 1, NULL, 0), TSR_INVALID_ARGUMENT, "NULL");

    // Through a symbolic link the target file is replaced and keeps its mode.
    char link[120];
    snprintf(link, sizeof link, "%s/link", folder);
    assert_return_code(symlink(path, link), 0);
    assert_return_code(chmod(path, 0640), 0);
    assert_ok(tsr_safetensors_write(link, &good, 1, NULL, 0));
    struct stat info;
    assert_return_code(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_return_code(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0640);
    unlink(link);
}

static void refuses_what_is_no_file(void **state) {
    (void)state;
    tsr_safetensors *file;
    assert_status(tsr_safetensors_open(folder, &file), TSR_IO, "directory");
    assert_status(tsr_safetensors_open("/dev/zero", &file), TSR_IO, "device");
    assert_status(tsr_safetensors_open("/nonexistent", &file), TSR_IO, "/nonexistent");
    assert_status(tsr_safetensors_open(NULL, &file), TSR_INVALID_ARGUMENT, "NULL");
    assert_status(tsr_safetensors_open(path, NULL), TSR_INVALID_ARGUMENT, "NULL");
    assert_status(tsr_safetensors_open_memory(NULL, 4, "m", &file), TSR_INVALID_ARGUMENT, "NULL");
    char fifo[120];
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    assert_return_code(mkfifo(fifo, 0600), 0);
    assert_status(tsr_safetensors_open(fifo, &file), TSR_IO, "FIFO"); // does not wait
    unlink(fifo);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_malformed),        cmocka_unit_test(refuses_lengths),
        cmocka_unit_test(refuses_nesting),          cmocka_unit_test(refuses_huge_rank),
        cmocka_unit_test(refuses_every_truncation), cmocka_unit_test(survives_any_byte),
        cmocka_unit_test(keeps_the_former_file),    cmocka_unit_test(refuses_what_is_no_file),
    };
    return cmocka_run_group_tests_name("safetensors refusals", tests, make_folder, remove_folder);
}
