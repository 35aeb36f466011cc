// SPDX-License-Identifier: Apache-2.0
// A contender's name, its failure, and the verification of its variant.
#include "measure/measure_contender.h"

#include <stdarg.h>
#include <stdio.h>

void contender_fail(struct contender *contender, enum measure_outcome outcome, const char *format,
                    ...) {
    va_list list;
    contender->outcome = outcome;
    va_start(list, format);
    vsnprintf(contender->sentence, sizeof contender->sentence, format, list);
    va_end(list);
}

const char *contender_name(const struct contender *contender) {
    return contender->variant != NULL ? contender->variant : "default";
}

void contender_check_proof(const struct op_case *c, struct contender *contender) {
    struct measure_session *session = contender->session;
    if (session->options.is_unproved) return;
    const struct proof *proof = proof_of(session, c, contender->variant, contender->tuning_file);
    contender->result->max_abs_err = proof->max_abs_err;
    contender->result->mean_abs_err = proof->mean_abs_err;
    contender->result->max_rel_err = proof->max_rel_err;
    contender->result->err_over_bound = proof->err_over_bound;
    // If the smaller case breaks a rule, that says nothing about this one; the call itself will show it.
    if (proof->outcome != MEASURE_OK && proof->outcome != MEASURE_INVALID)
        contender_fail(contender, proof->outcome, "%s", proof->sentence);
}
