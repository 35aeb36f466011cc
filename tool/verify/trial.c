// SPDX-License-Identifier: Apache-2.0
// A trial is one configuration with its inputs, the oracle's outputs (in double, for the rounded
// inputs), and the bound of every output element. Each variant then runs on poisoned, guarded tensors
// in a random layout (trial_run.c) and is compared element by element (trial_compare.c).
#include "verify/trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure/allocation.h"
#include "system/heap.h"

enum { ASKED_FROM_BYTES = 64 << 20 };

void trial_release(struct trial *trial) {
    tensors_release(&trial->oracle);
    tensors_release(&trial->given);
    for (int s = 0; s < SPEC_MAX_SLOTS; s++) {
        free(trial->bound[s]);
        free(trial->initial[s]);
    }
}

static tsr_status refuse(struct trial *trial, tsr_status status, const char *why) {
    struct trial refused = {.c = trial->c, .seed = trial->seed};
    snprintf(refused.refusal, sizeof refused.refusal, "%s", why);
    trial_release(trial);
    *trial = refused;
    return status;
}

// The bytes of all tensors in double, of the bounds of outputs, and of the initial values of updated tensors.
static double reference_bytes(const struct op_case *c) {
    double bytes = 0;
    for (int s = 0; c->spec->slots[s].name != NULL; s++) {
        if (!c->is_present[s]) continue;
        double elements = case_elements(c, s);
        bool is_index = case_kind(c, s) >= SLOT_I32;
        bytes += elements * (double)(is_index ? sizeof(int32_t) : sizeof(double));
        if (trial_is_output(c, s)) bytes += elements * sizeof(double);
        if (case_role(c, s) == SLOT_INOUT) bytes += elements * sizeof(double);
    }
    return bytes;
}

static tsr_status refuse_bytes(struct trial *trial) {
    char why[128];
    snprintf(why, sizeof why, "no memory for the %.0f bytes that the reference needs",
             reference_bytes(&trial->c));
    return refuse(trial, TSR_OUT_OF_MEMORY, why);
}

// Small cases are not checked, because the check takes longer than they do.
static bool is_within_memory(const struct op_case *c) {
    double bytes = reference_bytes(c);
    return bytes < ASKED_FROM_BYTES || allocation_fits(bytes, allocation_available());
}

// Whether an element of an output is still as tensors_create_f64 left it, although a number bounds its error.
static bool is_unwritten(const struct trial *trial, int s) {
    const tsr_tensor *t = &trial->oracle.c.tensor[s];
    const uint64_t *bits = t->data;
    if (t->dtype != TSR_F64 || trial->initial[s] != NULL) return false;
    for (int64_t i = 0; i < tsr_tensor_numel(t); i++)
        if (bits[i] == UINT64_MAX && trial->bound[s][i] >= 0) return true;
    return false;
}

// Asks the oracle for the outputs of its inputs, and the spec for their bounds.
static tsr_status ask_oracle(struct trial *trial) {
    static tsr_context *oracle_context; // used by one thread at a time
    const struct op_case *c = &trial->c;
    tsr_status status = TSR_OK;
    if (oracle_context == NULL)
        status = tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 1, .isa = TSR_ISA_SCALAR),
                                    &oracle_context);
    for (int s = 0; status == TSR_OK && c->spec->slots[s].name != NULL; s++) {
        if (!trial_is_output(c, s)) continue;
        int64_t numel = tsr_tensor_numel(&trial->oracle.c.tensor[s]);
        trial->bound[s] = calloc((size_t)numel + 1, sizeof(double));
        if (trial->bound[s] == NULL) return refuse_bytes(trial);
        if (case_role(c, s) != SLOT_INOUT) continue;
        const tsr_tensor *t = &trial->oracle.c.tensor[s];
        trial->initial[s] = malloc((size_t)(numel + 1) * sizeof(double));
        if (trial->initial[s] == NULL) return refuse_bytes(trial);
        memcpy(trial->initial[s], t->data, (size_t)numel * tsr_dtype_bytes(t->dtype));
    }
    if (status == TSR_OK)
        status = c->spec->call(oracle_context, &trial->oracle.c, "reference", NULL, 0, NULL);
    // The bound may depend on the dtype under test and on the results of in-out tensors.
    struct op_case view = trial->oracle.c;
    view.dtype = c->dtype;
    view.small_dtype = c->small_dtype;
    for (int s = 0; status == TSR_OK && c->spec->slots[s].name != NULL; s++)
        if (trial_is_output(c, s) && c->spec->slots[s].kind < SLOT_I32)
            c->spec->bound(&view, s, trial->bound[s]);
    if (status != TSR_OK) return refuse(trial, status, tsr_last_error());
    for (int s = 0; c->spec->slots[s].name != NULL; s++) {
        char why[128];
        if (!trial_is_output(c, s) || !is_unwritten(trial, s)) continue;
        snprintf(why, sizeof why, "%s: the reference leaves elements of %s unwritten", c->spec->op,
                 c->spec->slots[s].name);
        return refuse(trial, TSR_INTERNAL, why);
    }
    return TSR_OK;
}

tsr_status trial_create(struct trial *trial, const struct op_case *c, uint64_t seed,
                        enum edge_fill fill, enum edge_layout layout) {
    struct rng rng = {seed};
    *trial = (struct trial){.c = *c, .seed = seed, .layout = layout};
    memset(trial->c.tensor, 0, sizeof trial->c.tensor);
    if (!is_within_memory(c) || !tensors_create_f64(&trial->oracle, c) ||
        !tensors_create(&trial->given, c, layout, &rng) ||
        !tensors_fill_f64(&trial->oracle, c, &rng, fill, layout))
        return refuse_bytes(trial);
    for (int s = 0; c->spec->slots[s].name != NULL; s++)
        if (c->is_present[s] && case_role(c, s) != SLOT_OUT)
            tensor_copy(&trial->oracle.c.tensor[s], &trial->given.c.tensor[s]);
    trial->inputs = trial_hash_inputs(trial);
    return ask_oracle(trial);
}

tsr_status trial_create_of(struct trial *trial, const struct op_case *c) {
    *trial = (struct trial){.c = *c};
    memset(trial->c.tensor, 0, sizeof trial->c.tensor);
    if (!is_within_memory(c) || !tensors_create_f64(&trial->oracle, c)) return refuse_bytes(trial);
    for (int s = 0; c->spec->slots[s].name != NULL; s++)
        if (c->is_present[s] && case_role(c, s) != SLOT_OUT)
            tensor_copy(&c->tensor[s], &trial->oracle.c.tensor[s]);
    return ask_oracle(trial);
}
