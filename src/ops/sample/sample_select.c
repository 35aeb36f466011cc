// SPDX-License-Identifier: Apache-2.0
// Which token is the last that a top-k or top-p filter leaves: a selection by radix, three digits of its key from the high end,
// each with the sum of weights of every digit. Only tokens with the right first digits go on, so the first pass is the one that
// counts.
#include <string.h>

#include "ops/sample/sample_problem.h"

static unsigned digit_of(uint32_t key, int shift) { return key >> shift & (SAMPLE_NUM_DIGITS - 1); }

// Leaves those with this digit, in order.
static void keep(struct sample_candidates *c, int shift, unsigned digit) {
    int64_t left = 0;
    for (int64_t i = 0; i < c->count; i++) {
        c->key[left] = c->key[i];
        c->index[left] = c->index[i];
        c->weight[left] = c->weight[i];
        left += digit_of(c->key[i], shift) == digit;
    }
    c->count = left;
}

bool sample_select(struct sample_candidates *c, uint64_t needed, uint32_t *key, uint32_t *index) {
    static const int shifts[] = {SAMPLE_FIRST_SHIFT, SAMPLE_SECOND_SHIFT, 0};
    uint64_t sums[SAMPLE_NUM_DIGITS];
    for (int pass = 0; pass < TSRI_COUNT(shifts); pass++) {
        unsigned digit = SAMPLE_NUM_DIGITS;
        memset(sums, 0, sizeof sums);
        for (int64_t i = 0; i < c->count; i++)
            sums[digit_of(c->key[i], shifts[pass])] += (uint64_t)(int64_t)c->weight[i];
        do {
            if (digit-- == 0) return false;
            if (sums[digit] >= needed) break;
            needed -= sums[digit];
        } while (true);
        keep(c, shifts[pass], digit);
    }
    int64_t at = 0; // all keys are equal
    for (uint64_t sum = 0; at < c->count; at++)
        if ((sum += (uint64_t)(int64_t)c->weight[at]) >= needed) break;
    *key = c->key[at];
    *index = c->index[at];
    return true;
}
