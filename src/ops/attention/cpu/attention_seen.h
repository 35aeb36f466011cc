// SPDX-License-Identifier: Apache-2.0
#ifndef TSRI_ATTENTION_SEEN_H
#define TSRI_ATTENTION_SEEN_H

#include "ops/attention/attention_problem.h"

// The same problem without keys before the first and behind the last that a query sees, and without the first queries that see
// none, in *part, or p itself. Forward alone: gradients of the others would not be written.
const struct attention_problem *attention_seen_part(const struct attention_problem *p,
                                                    uint32_t flags, struct attention_problem *part);

// Queries of each sequence that the part lacks, and what they have as results: who runs the part writes these.
int64_t attention_unseen_rows(const struct attention_problem *p, uint32_t flags);
void attention_clear_unseen(tsr_context *ctx, const struct attention_problem *p, uint32_t flags);

#endif
