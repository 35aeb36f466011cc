// SPDX-License-Identifier: Apache-2.0
#include "verify/mirror.h"

// A sparse mapping is much larger than its content, so this copies only the elements, one slab of the outermost dimension
// at a time.
static tsr_status copy_slabs(const struct mirror *mirror, int s, bool is_to_device) {
    const tsr_tensor *host = &mirror->host->c.tensor[s];
    size_t element = tsr_dtype_bytes(host->dtype), inner = 1;
    int far = 0;
    for (int i = 1; i < host->ndim; i++)
        if (host->stride[i] > host->stride[far]) far = i;
    for (int i = 0; i < host->ndim; i++)
        if (i != far) inner += (size_t)((host->shape[i] - 1) * host->stride[i]);
    for (int64_t i = 0; i < host->shape[far]; i++) {
        size_t at = (size_t)(i * host->stride[far]) * element;
        char *here = (char *)host->data + at, *there = (char *)mirror->c.tensor[s].data + at;
        tsr_status status = is_to_device
                                ? tsr_memory_copy(mirror->ctx, there, here, inner * element)
                                : tsr_memory_copy(mirror->ctx, here, there, inner * element);
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

static tsr_status copy(const struct mirror *mirror, int s, bool is_to_device) {
    const struct buffer *buffer = &mirror->host->buffer[s];
    if (buffer->is_mapped) return copy_slabs(mirror, s, is_to_device);
    return is_to_device
               ? tsr_memory_copy(mirror->ctx, mirror->base[s], buffer->base, buffer->bytes)
               : tsr_memory_copy(mirror->ctx, buffer->base, mirror->base[s], buffer->bytes);
}

tsr_status mirror_create(struct mirror *mirror, tsr_context *ctx, const struct tensors *host) {
    *mirror = (struct mirror){.ctx = ctx, .host = host, .c = host->c};
    for (int s = 0; host->c.spec->slots[s].name != NULL; s++) {
        if (!host->c.is_present[s]) continue;
        const struct buffer *buffer = &host->buffer[s];
        tsr_tensor *t = &mirror->c.tensor[s];
        tsr_status status = tsr_memory_alloc(ctx, buffer->bytes, &mirror->base[s]);
        if (status != TSR_OK) return status;
        t->device = tsr_context_device(ctx);
        if (t->data != NULL) // it may be NULL for an empty tensor
            t->data = (char *)mirror->base[s] + ((char *)t->data - (char *)buffer->base);
        status = copy(mirror, s, true);
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

tsr_status mirror_fetch(struct mirror *mirror) {
    tsr_status status = tsr_context_synchronize(mirror->ctx);
    for (int s = 0; status == TSR_OK && mirror->c.spec->slots[s].name != NULL; s++)
        if (mirror->c.is_present[s]) status = copy(mirror, s, false);
    return status == TSR_OK ? tsr_context_synchronize(mirror->ctx) : status;
}

void mirror_release(struct mirror *mirror) {
    for (int s = 0; s < SPEC_MAX_SLOTS; s++) (void)tsr_memory_free(mirror->ctx, mirror->base[s]);
    *mirror = (struct mirror){0};
}
