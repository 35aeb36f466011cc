// SPDX-License-Identifier: Apache-2.0
// safetensors: round trips in every dtype and layout; a table of malformed files, each refused
// with a sentence; truncation at every byte; memory in proportion to the file, by counting what is
// asked for.
#include <fcntl.h>
#include <jansson.h>
#include <locale.h>
#include <sys/stat.h>
#include <tessera/safetensors.h>
#include <unistd.h>

#include "model/safetensors_format.h"
#include "test_support.h"

// ---- Files in memory --------------------------------------------------------------------------

struct bytes {
    char *data;
    size_t count;
};

static struct bytes make_file(uint64_t length, const char *header, size_t header_bytes,
                              size_t data_bytes) {
    struct bytes file = {NULL, 8 + header_bytes + data_bytes};
    file.data = malloc(file.count);
    for (int i = 0; i < 8; i++) file.data[i] = (char)(unsigned char)(length >> 8 * i);
    memcpy(file.data + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) file.data[8 + header_bytes + i] = (char)i;
    return file;
}

static tsr_status open_text(const char *header, size_t header_bytes, size_t data_bytes,
                            tsr_safetensors **file) {
    struct bytes bytes = make_file(header_bytes, header, header_bytes, data_bytes);
    tsr_status status = tsr_safetensors_open_memory(bytes.data, bytes.count, "test", file);
    free(bytes.data);
    return status;
}

#define TENSOR(dtype, shape, offsets)                                                              \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define X(rest) "{\"x\":" TENSOR("F32", "[2,3]", "[0,24]") rest "}"

// ---- What is refused --------------------------------------------------------------------------

static const struct {
    const char *name, *header;
    size_t data_bytes;
    const char *word; // in the sentence
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
    // Brackets in strings are no nesting.
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

    assert_status(tsr_safetensors_tensor(file, "a", &b), TSR_UNSUPPORTED, "'a'", "U8");
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
    for (int cut = 0; cut < 8; cut++) { // characters of 4 bytes, cut at every place
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
}

static void is_deaf_to_locale(void **state) {
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "tr_TR.UTF-8"};
    for (int i = 0; i < COUNT(names); i++) { // where they are installed
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

static char folder[] = "/tmp/tessera_safetensors_XXXXXX";
static char path[100];

static int make_folder(void **state) {
    (void)state;
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(path, sizeof path, "%s/file.safetensors", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder); // fails when a temporary file is left behind
}

static struct bytes read_file(void) {
    struct bytes bytes = {malloc(1 << 20), 0};
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    bytes.count = fread(bytes.data, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

// Every dtype and rank, permuted, stepped, reversed and repeated, against an index computed here.
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

static void write_small(void) {
    static float x[6] = {1, 2, 3, 4, 5, 6};
    static uint16_t y[3] = {7, 8, 9};
    const tsr_safetensors_entry entries[] = {{"x", TSR_TENSOR(x, TSR_F32, 2, 3)},
                                             {"y", TSR_TENSOR(y, TSR_F16, 3)}};
    assert_ok(tsr_safetensors_write(path, entries, 2, &(tsr_safetensors_pair){"k", "v"}, 1));
}

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

// Any one byte changed: refused, or read as something well-formed; the sanitizers watch.
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
    const tsr_safetensors_entry bad[][2] = {
        {{"a", t}, {"a", t}},        {{"a", t}, {"\xff", t}},         {{"a", t}, {NULL, t}},
        {{"a", t}, {"b", none}},     {{"a", t}, {"__metadata__", t}}, {{"a", t}, {"b", device}},
        {{"a", t}, {"b", negative}}, {{"a", t}, {"b", null}},         {{"a", t}, {"b", huge}},
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

    // Through a symbolic link the file behind it is replaced, and keeps its mode.
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
    assert_status(tsr_safetensors_open(fifo, &file), TSR_IO, "FIFO"); // and does not wait
    unlink(fifo);
}

// ---- Memory -----------------------------------------------------------------------------------

static size_t held, peak, num_allocations, fail_at; // fail_at: 0 for never

static void *counted(void *block, size_t bytes) {
    if (block == NULL) return NULL;
    *(size_t *)block = bytes;
    held += bytes;
    if (held > peak) peak = held;
    return (char *)block + 64;
}

static bool is_refused(void) { return ++num_allocations == fail_at; }

static void *count_alloc(size_t alignment, size_t bytes) {
    assert_true(alignment <= 64);
    return is_refused() ? NULL : counted(aligned_alloc(64, 64 + (bytes + 63) / 64 * 64), bytes);
}

static void *count_malloc(size_t bytes) { return count_alloc(16, bytes); }

static void count_free(void *pointer) {
    if (pointer == NULL) return;
    size_t *block = (size_t *)(void *)((char *)pointer - 64);
    held -= *block;
    free(block);
}

static void start_counting(void) {
    tsri_safetensors_memory.alloc = count_alloc;
    tsri_safetensors_memory.free = count_free;
    json_set_alloc_funcs(count_malloc, count_free);
    held = peak = num_allocations = fail_at = 0;
}

static void stop_counting(void) {
    assert_int_equal(held, 0); // nothing leaks, whatever was refused
    tsri_safetensors_memory.alloc = aligned_alloc;
    tsri_safetensors_memory.free = free;
    json_set_alloc_funcs(malloc, free);
}

// What the JSON library makes the most of: the shortest of each kind of value, over and over.
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
            if (ratio > 64)
                print_error("%s x %d: %.1f bytes a byte\n", shapes[i].each, repeats, ratio);
            assert_true(status == TSR_OK || status == TSR_IO);
            assert_true(ratio <= 64);
        }
    }
}

// A file that claims much and has little gets little.
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

static void survives_every_refused_allocation(void **state) {
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"a\":\"b\"},\"a\":" TENSOR(
        "U8", "[1]", "[0,1]") ",\"b\":" TENSOR("F32", "[2,3]", "[1,25]") "}";
    tsr_safetensors *file;
    start_counting();
    for (size_t n = 1;; n++) {
        num_allocations = 0;
        fail_at = n;
        tsr_status status = open_text(header, sizeof header - 1, 25, &file);
        if (num_allocations < n) break;
        // Jansson's tokeniser takes a refused allocation for a bad token: IO is possible as well.
        assert_true(status == TSR_OUT_OF_MEMORY || status == TSR_IO);
        assert_null(file);
        assert_int_equal(held, 0);
    }
    assert_non_null(file);
    tsr_safetensors_close(file);

    float x[6] = {1, 2, 3, 4, 5, 6};
    const tsr_safetensors_entry entry = {"x", TSR_TENSOR(x, TSR_F32, 2, 3)};
    const tsr_safetensors_pair pair = {"k", "v"};
    for (size_t n = 1;; n++) {
        num_allocations = 0;
        fail_at = n;
        tsr_status status = tsr_safetensors_write(path, &entry, 1, &pair, 1);
        if (num_allocations < n) break;
        assert_int_not_equal(status, TSR_OK);
        assert_int_equal(held, 0);
    }
    stop_counting();
    assert_ok(tsr_safetensors_open(path, &file));
    tsr_safetensors_close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_malformed),
        cmocka_unit_test(refuses_lengths),
        cmocka_unit_test(refuses_nesting),
        cmocka_unit_test(refuses_huge_rank),
        cmocka_unit_test(reads),
        cmocka_unit_test(quotes_names),
        cmocka_unit_test(is_deaf_to_locale),
        cmocka_unit_test(writes_any_strides),
        cmocka_unit_test(refuses_every_truncation),
        cmocka_unit_test(survives_any_byte),
        cmocka_unit_test(keeps_the_former_file),
        cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(memory_follows_the_file),
        cmocka_unit_test(claims_cost_nothing),
        cmocka_unit_test(survives_every_refused_allocation),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
