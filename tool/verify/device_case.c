// SPDX-License-Identifier: Apache-2.0
#include "verify/device_case.h"

static size_t bytes_of(const struct op_case *c, int s) {
    return (size_t)tsr_tensor_numel(&c->tensor[s]) * tsr_dtype_bytes(c->tensor[s].dtype);
}

static bool is_input(const struct op_case *c, int s) {
    return c->is_present[s] && case_role(c, s) != SLOT_OUT;
}

static bool is_output(const struct op_case *c, int s) {
    return c->is_present[s] && case_role(c, s) != SLOT_IN;
}

tsr_status device_case_create(struct device_case *device, tsr_context *ctx,
                              const struct op_case *host) {
    *device = (struct device_case){.ctx = ctx, .host = *host, .c = *host};
    for (int s = 0; s < SPEC_MAX_SLOTS; s++) device->c.tensor[s].data = NULL;
    for (int s = 0; host->spec->slots[s].name != NULL; s++) {
        if (!host->is_present[s]) continue;
        tsr_tensor *t = &device->c.tensor[s];
        t->device = tsr_context_device(ctx);
        tsr_status status = tsr_memory_alloc(ctx, bytes_of(host, s), &t->data);
        if (status == TSR_OK && is_output(host, s)) // so that outputs have defined values
            status = tsr_memory_fill(ctx, t->data, 0, bytes_of(host, s));
        if (status != TSR_OK) return status;
    }
    return device_case_copy_in(device);
}

void device_case_release(struct device_case *device) {
    for (int s = 0; s < SPEC_MAX_SLOTS; s++)
        if (device->c.is_present[s]) (void)tsr_memory_free(device->ctx, device->c.tensor[s].data);
    *device = (struct device_case){0};
}

tsr_status device_case_copy_in(const struct device_case *device) {
    const struct op_case *host = &device->host;
    tsr_status status = TSR_OK;
    for (int s = 0; host->spec->slots[s].name != NULL && status == TSR_OK; s++)
        if (is_input(host, s))
            status = tsr_memory_copy(device->ctx, device->c.tensor[s].data, host->tensor[s].data,
                                     bytes_of(host, s));
    return status;
}

tsr_status device_case_copy_out(const struct device_case *device) {
    const struct op_case *host = &device->host;
    tsr_status status = TSR_OK;
    for (int s = 0; host->spec->slots[s].name != NULL && status == TSR_OK; s++)
        if (is_output(host, s))
            status = tsr_memory_copy(device->ctx, host->tensor[s].data, device->c.tensor[s].data,
                                     bytes_of(host, s));
    return status == TSR_OK ? tsr_context_synchronize(device->ctx) : status;
}
