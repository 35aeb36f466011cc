// SPDX-License-Identifier: Apache-2.0
// A pass of the layer: its calls, or their bytes of workspace.
#include <string.h>

#include "compose/moe/moe_problem.h"

static tsr_status make_pass(struct moe_pass *pass, const char *variant) {
    bool is_reference = variant != NULL && strcmp(variant, "reference") == 0;
    pass->variant = is_reference ? "reference" : NULL;
    pass->at = pass->base;
    (pass->p->is_backward ? moe_backward_pass : moe_forward_pass)(pass);
    return tsri_name_op(pass->p->op, pass->status);
}

tsr_status moe_workspace(const struct moe_problem *p, const char *variant, uint32_t flags,
                         size_t *bytes) {
    struct moe_pass pass = {.p = p, .flags = flags, .base = MOE_NOWHERE};
    TSRI_TRY(make_pass(&pass, variant));
    *bytes = (size_t)(pass.at - pass.base) + pass.most;
    return TSR_OK;
}

tsr_status moe_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                   void *workspace) {
    (void)ctx;
    struct moe_pass pass = {.p = problem,
                            .flags = plan->flags,
                            .is_running = true,
                            .base = workspace,
                            .bytes = plan->workspace_bytes};
    return make_pass(&pass, plan->variant->name);
}
