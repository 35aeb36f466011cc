// SPDX-License-Identifier: Apache-2.0
// Reports the last prepared call, for programs that write tuning files. Prepare keeps the data; the text is made on
// request.
#include <math.h>
#include <string.h>

#include "context/context_state.h"
#include "core/core_float.h"

void tsri_context_keep_prepared(tsr_context *ctx, const struct tsri_op *op, const void *problem,
                                uint32_t flags) {
    ctx->prepared.op = op->tuning != NULL ? op : NULL;
    if (op->tuning == NULL) return;
    ctx->prepared.flags = flags;
    ctx->prepared.key = (struct tsri_tuning_key){.dtype = TSR_DTYPE_NONE};
    op->tuning->key(problem, &ctx->prepared.key);
    if (op->tuning->choice != NULL)
        memcpy(ctx->prepared.problem, problem, op->tuning->problem_bytes);
}

// A context belongs to its caller, so the answer may be written into it.
static tsr_context *own(const tsr_context *ctx) { return (tsr_context *)(uintptr_t)ctx; }

const char *tsr_context_tuning_key(const tsr_context *ctx) {
    char *text = own(ctx)->prepared.text;
    text[0] = '\0';
    if (ctx->prepared.op != NULL)
        tsri_tuning_text(&ctx->tuning, ctx->prepared.op, &ctx->prepared.key, text,
                         sizeof ctx->prepared.text);
    return text;
}

static TSRI_NOT_INLINED const char *find_choice(const tsr_context *ctx, int index,
                                                double *expected_ns) {
    const struct tsri_op *op = ctx->prepared.op;
    if (!is_on_cuda(ctx) || op == NULL || op->tuning->choice == NULL || index < 0) return NULL;
    if (ctx->prepared.flags != 0) return NULL; // rows do not replace the built-in choice
    struct tsri_tuning_choice choice;
    for (int i = 0; op->tuning->choice(ctx->prepared.problem, &ctx->limits, i, &choice); i++) {
        if (!isfinite(choice.ns) || index-- > 0) continue;
        char *text = own(ctx)->prepared.text;
        tsri_tuning_choice_text(&choice, text, sizeof ctx->prepared.text);
        if (expected_ns != NULL) *expected_ns = choice.ns;
        return text;
    }
    return NULL;
}

const char *tsr_context_tuning_choice(const tsr_context *ctx, int index, double *expected_ns) {
    tsri_float_environment before;
    tsri_float_enter(&before);
    const char *text = find_choice(ctx, index, expected_ns);
    tsri_float_leave(&before);
    return text;
}
