// SPDX-License-Identifier: Apache-2.0
// SHA-256 on the published examples of FIPS 180-4, in one piece and in many.
#include "core/core_sha256.h"
#include "test_support.h"

static void check(const char *text, int repeat, size_t piece, const char *expected) {
    struct tsri_sha256 hash;
    unsigned char digest[TSRI_SHA256_BYTES];
    char hex[TSRI_SHA256_HEX];
    size_t bytes = strlen(text);
    tsri_sha256_start(&hash);
    for (int i = 0; i < repeat; i++)
        for (size_t at = 0; at < bytes; at += piece)
            tsri_sha256_add(&hash, text + at, at + piece < bytes ? piece : bytes - at);
    tsri_sha256_finish(&hash, digest);
    tsri_sha256_hex(digest, hex);
    assert_string_equal(hex, expected);
}

static void published_examples(void **state) {
    (void)state;
    static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    for (size_t piece = 1; piece < 70; piece++) {
        check("", 1, piece, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        check("abc", 1, piece, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        check(two_blocks, 1, piece,
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    }
    check("aaaaaaaaaaaaaaaaaaaa", 50000, 20,
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void texts_do_not_run_together(void **state) {
    (void)state;
    unsigned char one[TSRI_SHA256_BYTES], other[TSRI_SHA256_BYTES];
    struct tsri_sha256 hash;
    tsri_sha256_start(&hash);
    tsri_sha256_add_text(&hash, "ab");
    tsri_sha256_add_text(&hash, "c");
    tsri_sha256_finish(&hash, one);
    tsri_sha256_start(&hash);
    tsri_sha256_add_text(&hash, "a");
    tsri_sha256_add_text(&hash, "bc");
    tsri_sha256_finish(&hash, other);
    assert_memory_not_equal(one, other, sizeof one);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_examples),
        cmocka_unit_test(texts_do_not_run_together),
    };
    return cmocka_run_group_tests_name("sha256", tests, NULL, NULL);
}
