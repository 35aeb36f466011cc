// SPDX-License-Identifier: Apache-2.0
// Which sequences have few queries, and how many rows these have at most. The keys of such sequences are split.
#include "ops/attention/cpu/decode/attention_decode_split.h"

// A single query is always few, whatever its group, so that its keys are split.
bool attention_decode_is_few(const struct attention_problem *a, int64_t len_q) {
    return len_q <= 1 || decode_group_of(a) * len_q <= DECODE_FEW_ROWS;
}

int64_t decode_most_few_rows(const struct attention_problem *a) {
    return tsri_max(decode_group_of(a),
                    tsri_min(decode_group_of(a) * a->seqlen_q, DECODE_FEW_ROWS));
}
