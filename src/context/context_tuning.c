// SPDX-License-Identifier: Apache-2.0
// What a context tells of the call that was prepared last, for those who write tuning files. Prepare keeps what it takes
// to say it; words are made when somebody asks.
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

// The context is its owner's: what they ask for is written into it.
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
    if (ctx->prepared.flags != 0) return NULL; // the built-in choice stays
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
