// SPDX-License-Identifier: Apache-2.0
// The clock of a CUDA device: two events before and after a piece of work on the session's stream.
#include <math.h>

#include "measure/measure_session.h"

bool is_on_device(const struct measure_session *session) {
    return session->options.device.type != TSR_CPU;
}

void device_start(struct measure_session *session) {
    (void)tsr_event_record(session->ctx, session->start);
}

double device_seconds(struct measure_session *session) {
    double ms;
    if (tsr_event_record(session->ctx, session->end) != TSR_OK) return NAN;
    if (tsr_event_elapsed(session->ctx, session->start, session->end, &ms) != TSR_OK) return NAN;
    return 1e-3 * ms;
}
