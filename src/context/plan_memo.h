// SPDX-License-Identifier: Apache-2.0
// The plans that a context on CUDA made last. To weigh the ways in which a product can be computed takes longer than to launch
// one of them, and models ask for the same few again and again.
#ifndef TSRI_PLAN_MEMO_H
#define TSRI_PLAN_MEMO_H

#include <stddef.h>

#include "context/op_table.h"

enum { TSRI_PLAN_MEMO_ENTRIES = 64 }; // a layer with its gradients asks for some 5

// A context's. Zero: empty.
struct tsri_plan_memo {
    struct {
        struct tsri_plan plan;
        const struct tsri_op *op; // NULL: none
        _Alignas(max_align_t) char key[TSRI_TUNING_PROBLEM_BYTES];
    } entries[TSRI_PLAN_MEMO_ENTRIES];
    int next; // to be replaced
};

// For plan_key: of a pointer, whether it is there and how far it is aligned.
static inline void *tsri_place_of(const void *pointer) {
    enum { ALIGNMENT = 16, IS_THERE = ALIGNMENT }; // more nobody asks for
    uintptr_t rest = (uintptr_t)pointer % ALIGNMENT;
    return (void *)(pointer != NULL ? rest + IS_THERE : 0); // NOLINT(performance-no-int-to-ptr)
}

// NULL: it is not there. key: what op->plan_key made of a problem; plan.flags are the call's.
const struct tsri_plan *tsri_plan_recall(const struct tsri_plan_memo *memo,
                                         const struct tsri_op *op, const void *key, uint32_t flags);
void tsri_plan_remember(struct tsri_plan_memo *memo, const struct tsri_op *op, const void *key,
                        const struct tsri_plan *plan);

#endif
