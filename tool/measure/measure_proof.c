// SPDX-License-Identifier: Apache-2.0
// A benchmark verifies first. The oracle is one slow thread, so for a large case a smaller, similar one
// is verified. Several sizes of a sweep may share it, so outcomes are remembered.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/measure_session.h"
#include "system/heap.h"
#include "verify/trial.h"

// The oracle takes some tenths of a second for this.
static const double proof_elements = 1.5e6, proof_flops = 1e8;
enum { SMALLEST_HALVED = 64 }; // so head dims, expert counts and the like stay unchanged

static double elements_of(const struct op_case *c) {
    double elements = 0;
    for (int s = 0; c->spec->slots[s].name != NULL; s++)
        if (c->is_present[s]) elements += case_elements(c, s);
    return elements;
}

struct op_case case_reduced(const struct op_case *c, double max_elements, double max_flops,
                            bool in_order) {
    struct op_case reduced = *c;
    while (elements_of(&reduced) > max_elements || c->spec->flops(&reduced) > max_flops) {
        int chosen = -1;
        for (int i = 0; c->spec->params[i].name != NULL; i++)
            if (c->spec->params[i].kind == PARAM_SIZE && reduced.param[i] >= SMALLEST_HALVED &&
                (chosen < 0 || (!in_order && reduced.param[i] > reduced.param[chosen])))
                chosen = i;
        if (chosen < 0) break;
        reduced.param[chosen] = floor(reduced.param[chosen] / 2);
    }
    return reduced;
}

static struct proof *add_proof(struct measure_session *session, const char *key) {
    session->proofs =
        heap_grow(session->proofs, (size_t)(session->num_proofs + 1), sizeof *session->proofs);
    struct proof *proof = &session->proofs[session->num_proofs++];
    *proof = (struct proof){.outcome = MEASURE_OK,
                            .max_abs_err = NAN,
                            .mean_abs_err = NAN,
                            .max_rel_err = NAN,
                            .err_over_bound = NAN};
    snprintf(proof->key, sizeof proof->key, "%s", key);
    return proof;
}

enum measure_outcome outcome_of(tsr_status status) {
    switch (status) {
    case TSR_OK: return MEASURE_OK;
    case TSR_UNSUPPORTED: return MEASURE_UNSUPPORTED;
    case TSR_INVALID_ARGUMENT: return MEASURE_INVALID;
    default: return MEASURE_FAILED;
    }
}

static tsr_status try_case(struct measure_session *session, const struct op_case *c,
                           const char *variant, const char *tuning_file, struct verdict *verdict,
                           char *why, size_t why_bytes) {
    struct trial trial;
    tsr_context *ctx = session->ctx;
    *verdict = (struct verdict){0};
    tsr_status status =
        trial_create(&trial, c, session->options.seed, FILL_NORMAL, LAYOUT_CONTIGUOUS);
    if (status != TSR_OK) {
        snprintf(why, why_bytes, "%s", trial.refusal);
        return status;
    }
    if (tuning_file != NULL)
        status = tsr_context_create(
            &TSR_CONTEXT_OPTIONS(.device = session->options.device, .isa = session->options.isa,
                                 .num_threads = session->options.num_threads,
                                 .tuning_file = tuning_file),
            &ctx);
    if (status == TSR_OK) status = trial_run(ctx, NULL, &trial, variant, verdict);
    if (status != TSR_OK) snprintf(why, why_bytes, "%s", tsr_last_error());
    if (tuning_file != NULL) tsr_context_destroy(ctx);
    trial_release(&trial);
    return status;
}

// Halving may break a rule between sizes (one divides another); then the other order of halving is tried.
static void prove(struct measure_session *session, const struct op_case *c, const char *variant,
                  const char *tuning_file, struct proof *proof) {
    struct verdict verdict;
    tsr_status status = TSR_OK;
    for (int in_order = 0; in_order < 2; in_order++) {
        struct op_case reduced = case_reduced(c, proof_elements, proof_flops, in_order);
        status = try_case(session, &reduced, variant, tuning_file, &verdict, proof->sentence,
                          sizeof proof->sentence);
        if (status != TSR_INVALID_ARGUMENT) break;
    }
    proof->outcome = outcome_of(status);
    if (status != TSR_OK) return;
    *proof->sentence = '\0';
    proof->max_abs_err = verdict.max_abs_err;
    proof->mean_abs_err = verdict.mean_abs_err;
    proof->max_rel_err = verdict.max_rel_err;
    proof->err_over_bound = verdict.err_over_bound;
    if (verdict.num_failed == 0 && verdict.err_over_bound <= 1) return;
    proof->outcome = MEASURE_WRONG;
    snprintf(proof->sentence, sizeof proof->sentence, "%.500s", verdict.failure);
}

const struct proof *proof_of(struct measure_session *session, const struct op_case *c,
                             const char *variant, const char *tuning_file) {
    struct op_case reduced = case_reduced(c, proof_elements, proof_flops, false);
    char key[sizeof session->proofs->key], text[1024];
    snprintf(key, sizeof key, "%s %s %.128s %s %s %s", c->spec->op, variant != NULL ? variant : "",
             tuning_file != NULL ? tuning_file : "", case_text(&reduced, text, sizeof text),
             tsr_dtype_name(c->dtype), tsr_dtype_name(c->small_dtype));
    for (int i = 0; i < session->num_proofs; i++)
        if (strcmp(session->proofs[i].key, key) == 0) return &session->proofs[i];
    struct proof *proof = add_proof(session, key);
    prove(session, c, variant, tuning_file, proof);
    return proof;
}
