// SPDX-License-Identifier: Apache-2.0
// Opening, closing and querying a session.
#include "measure/measure_session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "system/heap.h"

struct measure_session *measure_open(const struct measure_options *options, char *error,
                                     size_t error_bytes) {
    struct measure_session *session = heap_get(1, sizeof *session);
    session->options = *options;
    if (session->options.budget_s <= 0) session->options.budget_s = 1;
    tsr_status status =
        tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = options->device, .isa = options->isa,
                                                .num_threads = options->num_threads,
                                                .tuning_file = options->tuning_file),
                           &session->ctx);
    if (status == TSR_OK && is_on_device(session)) {
        status = device_open(session);
    } else if (status == TSR_OK) {
        session->machine.num_threads = tsr_context_num_threads(session->ctx);
        session->machine.isa = tsr_context_isa(session->ctx);
        status = ceilings_open(session);
    }
    if (status == TSR_OK) return session;
    snprintf(error, error_bytes, "%s", tsr_last_error());
    measure_close(session);
    return NULL;
}

void measure_close(struct measure_session *session) {
    if (session == NULL) return;
    if (is_on_device(session))
        device_close(session);
    else
        ceilings_close(session);
    tsr_context_destroy(session->ctx);
    free(session->proofs);
    free(session);
}

const char *measure_error(const struct measure_session *session) {
    for (int i = 0; i < MAX_ERRORS; i++)
        if (session->errors[i][0] != '\0') return session->errors[i];
    return "";
}

const char *measure_error_of(const struct measure_session *session, int contender) {
    return contender >= 0 && contender < MAX_ERRORS ? session->errors[contender] : "";
}

const char *measure_tuning_key(const struct measure_session *session) {
    return session->tuning_key;
}

const char *measure_tuning_choice(struct measure_session *session, const struct op_case *c,
                                  int index, double *expected_ns) {
    if (index == 0) {
        if (isnan(measure_predict_bytes(session, c, NULL))) return NULL;
        snprintf(session->tuning_key, sizeof session->tuning_key, "%s",
                 tsr_context_tuning_key(session->ctx));
    }
    return tsr_context_tuning_choice(session->ctx, index, expected_ns);
}

struct measure_options *measure_options_of(struct measure_session *session) {
    return &session->options;
}

const struct machine *measure_machine(const struct measure_session *session) {
    return &session->machine;
}
