// SPDX-License-Identifier: Apache-2.0
#ifndef TSRI_ATTENTION_SEEN_H
#define TSRI_ATTENTION_SEEN_H

#include "ops/attention/attention_problem.h"

// The problem without the keys that no query sees at the start and the end, and without the first queries that see no key. Returns
// part, or p if nothing changes. Forward only: backward must write the gradients of the others.
const struct attention_problem *attention_seen_part(const struct attention_problem *p,
                                                    uint32_t flags, struct attention_problem *part);

// The number of queries of each sequence that the part lacks. attention_clear_unseen writes their results.
int64_t attention_unseen_rows(const struct attention_problem *p, uint32_t flags);
void attention_clear_unseen(tsr_context *ctx, const struct attention_problem *p, uint32_t flags);

#endif
