// SPDX-License-Identifier: Apache-2.0
// Tensors for a measurement. Drawing and rounding every element of gigabytes would take longer than the
// measurement, so a large tensor is drawn in a smaller size and repeated.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "measure/measure_session.h"
#include "system/heap.h"
#include "verify/tensors.h"

static const double drawn_elements = 4e6;

double inputs_bytes(const struct op_case *c) {
    double bytes = 0;
    for (int s = 0; c->spec->slots[s].name != NULL; s++)
        if (c->is_present[s])
            bytes += case_elements(c, s) * (double)tsr_dtype_bytes(case_slot_dtype(c, s));
    return bytes;
}

void inputs_release(struct inputs *inputs) {
    for (int s = 0; s < SPEC_MAX_SLOTS; s++)
        allocation_release(&inputs->memory, inputs->c.tensor[s].data, inputs->bytes[s]);
    *inputs = (struct inputs){0};
}

// Converts the drawn elements, then doubles them until the tensor is full.
static void fill_slot(tsr_tensor *t, size_t bytes, const tsr_tensor *drawn) {
    int64_t numel = tsr_tensor_numel(t), num_drawn = tsr_tensor_numel(drawn);
    if (num_drawn > numel) num_drawn = numel;
    if (num_drawn == 0) return;
    for (int64_t i = 0; i < num_drawn; i++)
        tsr_store(t->dtype, t->data, i, tsr_load(drawn->dtype, drawn->data, i));
    size_t done = (size_t)num_drawn * tsr_dtype_bytes(t->dtype);
    while (done < bytes) {
        size_t more = done < bytes - done ? done : bytes - done;
        memcpy((char *)t->data + done, t->data, more);
        done += more;
    }
}

// Lengths, offsets and indices are drawn in full size: those of a smaller case would belong to shorter sequences, or to a
// table that fits into the caches. So is what an operation's description names: logits, for example.
static bool is_whole(const struct op_case *c, int s) {
    return case_kind(c, s) >= SLOT_I32 ||
           (c->spec->is_drawn_whole != NULL && c->spec->is_drawn_whole(c, s));
}

static void fill_whole(struct inputs *inputs, int s, struct rng *rng) {
    const struct op_spec *spec = inputs->c.spec;
    tsr_tensor *t = &inputs->c.tensor[s];
    int64_t numel = tsr_tensor_numel(t);
    double *values = heap_get((size_t)numel + 1, sizeof *values);
    // The fill of such a slot uses sizes and the index slots before it.
    if (spec->fill != NULL) (void)spec->fill(rng, &inputs->c, s, FILL_NORMAL, values);
    for (int64_t i = 0; i < numel; i++) tsr_store(t->dtype, t->data, i, values[i]);
    free(values);
}

// Uses made-up addresses, as far apart as real tensors would be: _prepare compares addresses but reads nothing.
double measure_predict_bytes(struct measure_session *session, const struct op_case *given,
                             const char *variant) {
    struct op_case c = *given;
    const struct op_spec *spec = c.spec;
    double at = 0x1p40;
    if (!(inputs_bytes(&c) < 0x1p46)) return NAN;
    for (int s = 0; spec->slots[s].name != NULL; s++) {
        if (!c.is_present[s]) continue;
        if (spec->slots[s].kind == SLOT_I32 && !spec->is_composed) return NAN; // depends on lengths
        int64_t shape[TSR_MAX_DIMS];
        int ndim = spec->shape(&c, s, shape);
        tsr_dtype dtype = case_slot_dtype(&c, s);
        c.tensor[s] = tsr_tensor_contiguous((void *)(uintptr_t)at, dtype, ndim, shape);
        c.tensor[s].device = session->options.device;
        at += 4096 * (1 + ceil(case_elements(&c, s) * (double)tsr_dtype_bytes(dtype) / 4096));
    }
    size_t workspace_bytes = 0;
    if (spec->call(session->ctx, &c, variant, NULL, 0, &workspace_bytes) != TSR_OK) return NAN;
    double predicted =
        spec->predict != NULL ? spec->predict(session->ctx, &c, variant) : (double)NAN;
    return isnan(predicted) ? inputs_bytes(&c) + (double)workspace_bytes : predicted;
}

bool inputs_create(struct inputs *inputs, const struct op_case *c, uint64_t seed) {
    *inputs = (struct inputs){.c = *c};
    memset(inputs->c.tensor, 0, sizeof inputs->c.tensor);
    const struct op_spec *spec = c->spec;
    if (!(inputs_bytes(c) < 0x1p62)) return false; // the code below counts bytes in integers
    for (int s = 0; spec->slots[s].name != NULL; s++) {
        if (!c->is_present[s]) continue;
        int64_t shape[TSR_MAX_DIMS];
        int ndim = spec->shape(c, s, shape);
        tsr_dtype dtype = case_slot_dtype(c, s);
        inputs->bytes[s] = (size_t)case_numel(c, s) * tsr_dtype_bytes(dtype);
        void *data = allocation_get(&inputs->memory, inputs->bytes[s]);
        inputs->c.tensor[s] = tsr_tensor_contiguous(data, dtype, ndim, shape);
        if (data == NULL) {
            inputs_release(inputs);
            return false;
        }
        if (case_role(c, s) == SLOT_OUT) memset(data, 0x3f, inputs->bytes[s]);
    }
    struct op_case reduced = case_reduced(c, drawn_elements, 1e300, false);
    struct tensors drawn;
    struct rng rng = {seed};
    bool is_drawn = tensors_create_f64(&drawn, &reduced);
    is_drawn = is_drawn && tensors_fill_f64(&drawn, &reduced, &rng, FILL_NORMAL, LAYOUT_CONTIGUOUS);
    for (int s = 0; is_drawn && spec->slots[s].name != NULL; s++)
        if (c->is_present[s] && is_whole(c, s) && case_role(c, s) != SLOT_OUT)
            fill_whole(inputs, s, &rng);
        else if (c->is_present[s] && case_role(c, s) != SLOT_OUT)
            fill_slot(&inputs->c.tensor[s], inputs->bytes[s], &drawn.c.tensor[s]);
    tensors_release(&drawn);
    if (!is_drawn) inputs_release(inputs);
    return is_drawn;
}
