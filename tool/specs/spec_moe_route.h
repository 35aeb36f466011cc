// SPDX-License-Identifier: Apache-2.0
// What the two passes of moe_route share: the first parameters, random sizes, a token's scores in double.
#ifndef TOOL_SPEC_MOE_ROUTE_H
#define TOOL_SPEC_MOE_ROUTE_H

#include "specs/spec.h"

#define moe_u32 0x1p-24 // unit roundoff of fp32
enum { MOE_MOST_EXPERTS = 1024, MOE_MOST_TOP_K = 32 };

enum { MOE_TOKENS, MOE_EXPERTS, MOE_TOP_K, MOE_SCORING, MOE_RAW, MOE_SCALING };
#define MOE_ROUTE_SIZES(kind, source)                                                              \
    {"tokens", "tokens", PARAM_SIZE, 32768, NULL},                                                 \
        {"num_experts", "experts, at most 1024", PARAM_SIZE, 128, NULL}, {                         \
        "top_k", "experts of a token", kind, 8, NULL, source                                       \
    }

// A token's logits (slot 0) and what follows from them.
struct moe_route_row {
    const double *x;
    int num;
    double softmax[MOE_MOST_EXPERTS], score[MOE_MOST_EXPERTS],
        prob[MOE_MOST_EXPERTS];  // prob: normalised
    double max, lse, normaliser; // normaliser: 1 for softmax
};
void moe_route_read(const struct op_case *c, int64_t token, struct moe_route_row *row);

// The field; 0 where the default serves.
static inline float moe_route_scaling(const struct op_case *c) {
    return c->param[MOE_SCALING] != 1 ? (float)c->param[MOE_SCALING] : 0;
}

void moe_route_randomize(struct rng *rng, struct op_case *c);

#endif
