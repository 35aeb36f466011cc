// SPDX-License-Identifier: Apache-2.0
// Embedding is a copy of bits, in every variant and dtype: signalling NaN, their payloads and signs.
#include "test_support.h"

enum { VOCAB = 5, HIDDEN = 37, TOKENS = 9 };

static void every_variant_keeps_the_bits(void **state) {
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16, TSR_F64};
    // The last is a signalling NaN with a payload, but for f16 and bf16, which have theirs.
    static const uint64_t patterns[] = {
        0x7f81, 0xff81, 0x7c01, 0x7fa00001, 0xffc01234, 0x7ff0000000000001, 0xfff8000000000123};
    static const int32_t ids[TOKENS] = {3, 0, 4, 4, 1, 2, 0, 3, 1};
    tsr_context *ctx = test_context(2);
    uint64_t random = 20260405;
    int num_runs = 0;
    for (int d = 0; d < COUNT(dtypes); d++) {
        static _Alignas(8) unsigned char table[VOCAB * HIDDEN * 8], y[TOKENS * HIDDEN * 8];
        size_t bytes = tsr_dtype_bytes(dtypes[d]);
        for (size_t i = 0; i < sizeof table; i++) table[i] = (unsigned char)test_bits(&random);
        for (int i = 0; i < COUNT(patterns); i++)
            memcpy(table + (size_t)(i * 7) * bytes, &patterns[i], bytes);
        for (int v = -1; v < tsr_variant_count("embedding_forward"); v++) {
            tsr_variant_info info = {.name = NULL};
            if (v >= 0) assert_ok(tsr_variant_info_get("embedding_forward", v, &info));
            if (info.flags & TSR_VARIANT_CUDA) continue;
            memset(y, 0, sizeof y);
            tsr_status status = tsr_embedding_forward(
                ctx,
                &TSR_EMBEDDING_FORWARD_ARGS(.variant = info.name,
                                            .ids = TSR_TENSOR(ids, TSR_I32, TOKENS),
                                            .weight = TSR_TENSOR(table, dtypes[d], VOCAB, HIDDEN),
                                            .y = TSR_TENSOR(y, dtypes[d], TOKENS, HIDDEN)));
            if (status == TSR_UNSUPPORTED && v >= 0) continue;
            assert_ok(status);
            for (int t = 0; t < TOKENS; t++)
                if (memcmp(y + (size_t)(t * HIDDEN) * bytes,
                           table + (size_t)(ids[t] * HIDDEN) * bytes, HIDDEN * bytes) != 0)
                    fail_msg("%s, variant %s: other bits in row %d", tsr_dtype_name(dtypes[d]),
                             info.name != NULL ? info.name : "(default)", t);
            num_runs++;
        }
    }
    assert_true(num_runs >= 3 * 3 + 1); // default, another and the oracle; f64 by the oracle
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_variant_keeps_the_bits)};
    return cmocka_run_group_tests_name("embedding", tests, NULL, NULL);
}
