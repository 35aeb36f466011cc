// SPDX-License-Identifier: Apache-2.0
#include "context/plan_memo.h"

#include <string.h>

const struct tsri_plan *tsri_plan_recall(const struct tsri_plan_memo *memo,
                                         const struct tsri_op *op, const void *key,
                                         uint32_t flags) {
    for (int i = 0; i < TSRI_PLAN_MEMO_ENTRIES; i++) {
        const struct tsri_plan *plan = &memo->entries[i].plan;
        if (memo->entries[i].op == op && plan->flags == flags &&
            memcmp(memo->entries[i].key, key, op->key_bytes) == 0)
            return plan;
    }
    return NULL;
}

void tsri_plan_remember(struct tsri_plan_memo *memo, const struct tsri_op *op, const void *key,
                        const struct tsri_plan *plan) {
    memo->entries[memo->next].op = op;
    memo->entries[memo->next].plan = *plan;
    memcpy(memo->entries[memo->next].key, key, op->key_bytes);
    memo->next = (memo->next + 1) % TSRI_PLAN_MEMO_ENTRIES;
}
