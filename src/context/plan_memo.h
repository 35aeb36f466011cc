// SPDX-License-Identifier: Apache-2.0
// The plans that a context on CUDA made last. Comparing the ways to compute a product takes longer than launching one,
// and models repeat the same few problems.
#ifndef TSRI_PLAN_MEMO_H
#define TSRI_PLAN_MEMO_H

#include <stddef.h>

#include "context/op_table.h"

enum { TSRI_PLAN_MEMO_ENTRIES = 64 }; // a layer with gradients uses about 8

// One per context. Zero: empty.
struct tsri_plan_memo {
    struct {
        struct tsri_plan plan;
        const struct tsri_op *op; // NULL: empty
        _Alignas(max_align_t) char key[TSRI_TUNING_PROBLEM_BYTES];
    } entries[TSRI_PLAN_MEMO_ENTRIES];
    int next; // the entry to replace next
};

// For plan_key: keeps of a pointer only whether it is NULL and its alignment.
static inline void *tsri_place_of(const void *pointer) {
    enum { ALIGNMENT = 16, IS_THERE = ALIGNMENT }; // no plan depends on more alignment
    uintptr_t rest = (uintptr_t)pointer % ALIGNMENT;
    return (void *)(pointer != NULL ? rest + IS_THERE : 0); // NOLINT(performance-no-int-to-ptr)
}

// NULL if there is no such plan. key: what op->plan_key made of a problem; plan.flags are the call's flags.
const struct tsri_plan *tsri_plan_recall(const struct tsri_plan_memo *memo,
                                         const struct tsri_op *op, const void *key, uint32_t flags);
void tsri_plan_remember(struct tsri_plan_memo *memo, const struct tsri_op *op, const void *key,
                        const struct tsri_plan *plan);

#endif
