// SPDX-License-Identifier: Apache-2.0
// The outputs that sum over tokens, from the sums. A call without tokens gives zeros.
#include "ops/moe_route/moe_route_problem.h"

void moe_route_finish(const struct moe_route_problem *p, const struct moe_route_sums *sums) {
    const tsr_dtype real = p->logits.dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    const double num_experts = moe_num_experts(p), tokens = (double)tsri_max(p->logits.rows, 1);
    const double assignments = tokens * moe_top_k(p);
    double balance = 0, variance = 0;
    for (int e = 0; e < moe_num_experts(p); e++) {
        const double f = sums->counts[e] / assignments, mean = sums->probs[e] / tokens;
        balance += num_experts * f * mean;
        if (p->logits.rows > 0) variance += (f - 1 / num_experts) * (f - 1 / num_experts);
        if (p->tokens_per_expert != NULL) p->tokens_per_expert[e] = sums->counts[e];
        if (p->mean_probs != NULL) tsr_store(real, p->mean_probs, e, mean);
    }
    if (p->balance_loss != NULL) tsr_store(real, p->balance_loss, 0, balance);
    if (p->z_loss != NULL) tsr_store(real, p->z_loss, 0, sums->z / tokens);
    if (p->usage_variance != NULL) tsr_store(real, p->usage_variance, 0, variance / num_experts);
    if (p->num_nan_rows != NULL) *p->num_nan_rows = (int32_t)tsri_min(sums->num_nan, INT32_MAX);
}
