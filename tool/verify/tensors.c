// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "verify/tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GUARD = 256, POISON = 0xff };

// ---- Buffers ----------------------------------------------------------------------------------

static size_t round_up(size_t bytes, size_t multiple) {
    return (bytes + multiple - 1) / multiple * multiple;
}

bool buffer_create(struct buffer *buffer, size_t bytes, void **data) {
    *buffer = (struct buffer){.bytes = round_up(bytes + 2 * GUARD, 64)};
    buffer->base = aligned_alloc(64, buffer->bytes);
    if (buffer->base == NULL) return false;
    memset(buffer->base, POISON, buffer->bytes);
    *data = (char *)buffer->base + GUARD;
    return true;
}

// Reserves address space; memory comes only when it is touched.
static bool buffer_map(struct buffer *buffer, size_t bytes, void **data) {
    *buffer = (struct buffer){.bytes = bytes + 2 * GUARD, .is_mapped = true};
    buffer->base = mmap(NULL, buffer->bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (buffer->base == MAP_FAILED) {
        buffer->base = NULL;
        return false;
    }
    *data = (char *)buffer->base + GUARD;
    return true;
}

void buffer_release(struct buffer *buffer) {
    if (buffer->is_mapped && buffer->base != NULL)
        munmap(buffer->base, buffer->bytes);
    else
        free(buffer->base);
    *buffer = (struct buffer){0};
}

static bool is_poison(const unsigned char *bytes, size_t count) {
    return count == 0 || (bytes[0] == POISON && memcmp(bytes, bytes + 1, count - 1) == 0);
}

bool buffer_guards_intact(const struct buffer *buffer, size_t bytes) {
    const unsigned char *base = buffer->base;
    return is_poison(base, GUARD) && is_poison(base + GUARD + bytes, buffer->bytes - GUARD - bytes);
}

bool buffer_is_clean(const struct buffer *buffer, const tsr_tensor *t) {
    if (buffer->is_mapped) return true;
    tensor_poison(t);
    return is_poison(buffer->base, buffer->bytes);
}

// ---- Walking tensors run by run ---------------------------------------------------------------

// The elements of the last dimension, `step` apart; a tensor without dimensions is a run of one.
struct run {
    int64_t count, step;
};

static struct run run_of(const tsr_tensor *t) {
    int last = t->ndim - 1;
    return last < 0 ? (struct run){1, 1} : (struct run){t->shape[last], t->stride[last]};
}

// Advances the row-major index of a run; false after the last run.
static bool next_run(const tsr_tensor *t, int64_t *index) {
    for (int i = t->ndim - 2; i >= 0; i--) {
        if (++index[i] < t->shape[i]) return true;
        index[i] = 0;
    }
    return false;
}

static char *run_at(const tsr_tensor *t, const int64_t *index) {
    int64_t offset = 0;
    for (int i = 0; i < t->ndim - 1; i++) offset += index[i] * t->stride[i];
    return (char *)t->data + offset * (int64_t)tsr_dtype_bytes(t->dtype);
}

static double bf16_to_double(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
}

void load_run(tsr_dtype dtype, const void *from, int64_t step, double *to, int64_t count) {
    if (dtype == TSR_F64)
        for (int64_t i = 0; i < count; i++) to[i] = ((const double *)from)[i * step];
    else if (dtype == TSR_F32)
        for (int64_t i = 0; i < count; i++) to[i] = (double)((const float *)from)[i * step];
    else if (dtype == TSR_BF16)
        for (int64_t i = 0; i < count; i++)
            to[i] = bf16_to_double(((const uint16_t *)from)[i * step]);
    else
        for (int64_t i = 0; i < count; i++) to[i] = tsr_load(dtype, from, i * step);
}

static void store_run(tsr_dtype dtype, const double *from, void *to, int64_t step, int64_t count) {
    if (dtype == TSR_F32)
        for (int64_t i = 0; i < count; i++) ((float *)to)[i * step] = (float)from[i];
    else
        for (int64_t i = 0; i < count; i++) tsr_store(dtype, to, i * step, from[i]);
}

// The most frequent copies of verify, without a call for each element: outputs to double, and doubles to inputs.
static void copy_run(tsr_dtype from_dtype, const void *from, int64_t from_step, tsr_dtype to_dtype,
                     void *to, int64_t to_step, int64_t count) {
    if (to_dtype == TSR_F64 && to_step == 1)
        load_run(from_dtype, from, from_step, to, count);
    else if (from_dtype == TSR_F64 && from_step == 1)
        store_run(to_dtype, from, to, to_step, count);
    else
        for (int64_t i = 0; i < count; i++)
            tsr_store(to_dtype, to, i * to_step, tsr_load(from_dtype, from, i * from_step));
}

void tensor_copy(const tsr_tensor *from, const tsr_tensor *to) {
    int64_t index[TSR_MAX_DIMS] = {0};
    if (tsr_tensor_numel(from) == 0) return;
    struct run source = run_of(from), target = run_of(to);
    do
        copy_run(from->dtype, run_at(from, index), source.step, to->dtype, run_at(to, index),
                 target.step, source.count);
    while (next_run(from, index));
}

void tensor_poison(const tsr_tensor *t) {
    int64_t index[TSR_MAX_DIMS] = {0};
    if (tsr_tensor_numel(t) == 0) return;
    size_t bytes = tsr_dtype_bytes(t->dtype);
    struct run run = run_of(t);
    do {
        char *first = run_at(t, index);
        if (run.step == 1)
            memset(first, POISON, (size_t)run.count * bytes);
        else
            for (int64_t i = 0; i < run.count; i++)
                memset(first + i * run.step * (int64_t)bytes, POISON, bytes);
    } while (next_run(t, index));
}

// ---- Layouts ----------------------------------------------------------------------------------

// unit: every stride but the innermost is a multiple of it.
static void layout_random(const struct slot_spec *slot, tsr_tensor *t, int64_t unit,
                          struct rng *rng) {
    int64_t stride = 1;
    int order[TSR_MAX_DIMS]; // dimensions from the innermost out
    for (int i = 0; i < t->ndim; i++) order[i] = t->ndim - 1 - i;
    if (slot->may_be_transposed && t->ndim >= 2 && rng_chance(rng, 0.25)) {
        order[0] = t->ndim - 2;
        order[1] = t->ndim - 1;
    }
    if (t->ndim >= 3 && rng_chance(rng, 0.3)) { // a view such as (batch, heads, rows, columns)
        int a = (int)rng_int(rng, 1, t->ndim - 1), b = (int)rng_int(rng, 1, t->ndim - 1);
        int dimension = order[a];
        order[a] = order[b];
        order[b] = dimension;
    }
    for (int i = 0; i < t->ndim; i++) {
        if (i > 0) stride = (stride + unit - 1) / unit * unit;
        t->stride[order[i]] = stride;
        stride *= t->shape[order[i]] > 0 ? t->shape[order[i]] : 1;
        if (t->ndim > i + 1 && rng_chance(rng, 0.4)) stride += rng_int(rng, 1, 40);
    }
}

// Gives one dimension, any but the last, a stride so large that offsets exceed 2^31 elements and 2^32 bytes; it is the
// outermost in memory. Every variant supports this stride.
static void layout_far(tsr_tensor *t, struct rng *rng) {
    int far = t->ndim > 1 ? (int)rng_int(rng, 0, t->ndim - 2) : 0;
    int64_t stride = 1;
    if (t->ndim < 2 || t->shape[far] < 2) far = 0;
    if (t->ndim < 2 || t->shape[far] < 2) return;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (i == far) continue;
        t->stride[i] = stride;
        stride *= t->shape[i];
    }
    t->stride[far] = (((int64_t)1 << 31) / (t->shape[far] - 1) / 64 + 200) * 64;
}

static int64_t span_of(const tsr_tensor *t) {
    int64_t last = 0;
    if (tsr_tensor_numel(t) == 0) return 0;
    for (int i = 0; i < t->ndim; i++) last += (t->shape[i] - 1) * t->stride[i];
    return last + 1;
}

// is_aligned: a random layout whose strides are multiples of 16 bytes, which some variants need.
static bool create_slot(struct tensors *t, int s, tsr_dtype dtype, enum edge_layout layout,
                        bool is_aligned, struct rng *rng) {
    const struct slot_spec *slot = &t->c.spec->slots[s];
    int64_t shape[TSR_MAX_DIMS] = {0};
    int ndim = t->c.spec->shape(&t->c, s, shape);
    tsr_tensor *tensor = &t->c.tensor[s];
    *tensor = tsr_tensor_contiguous(NULL, dtype, ndim, shape);
    size_t element = tsr_dtype_bytes(dtype), shift = 0;
    if (layout == LAYOUT_RANDOM && !slot->is_contiguous) {
        size_t unit = is_aligned ? 16 / element : 1;
        layout_random(slot, tensor, (int64_t)unit, rng);
        if (rng_chance(rng, 0.6)) shift = (size_t)rng_int(rng, 0, 63) * unit * element % 64;
    }
    if (layout == LAYOUT_REPEATED && case_role(&t->c, s) == SLOT_IN && ndim >= 2 &&
        !slot->is_contiguous)
        tensor->stride[0] = 0;
    if (layout == LAYOUT_FAR && !slot->is_contiguous) layout_far(tensor, rng);
    size_t bytes = (size_t)span_of(tensor) * element + shift;
    void *data;
    bool is_far = layout == LAYOUT_FAR && bytes > (size_t)1 << 31;
    if (!(is_far ? buffer_map : buffer_create)(&t->buffer[s], bytes, &data)) return false;
    tensor->data = (char *)data + shift;
    return true;
}

bool tensors_create(struct tensors *t, const struct op_case *c, enum edge_layout layout,
                    struct rng *rng) {
    *t = (struct tensors){.c = *c};
    memset(t->c.tensor, 0, sizeof t->c.tensor);
    bool is_aligned = layout == LAYOUT_RANDOM && rng_chance(rng, 0.5);
    for (int s = 0; c->spec->slots[s].name != NULL; s++)
        if (c->is_present[s] && !create_slot(t, s, case_slot_dtype(c, s), layout, is_aligned, rng))
            return false;
    return true;
}

bool tensors_create_f64(struct tensors *t, const struct op_case *c) {
    *t = (struct tensors){.c = *c};
    t->c.dtype = t->c.small_dtype = TSR_F64;
    memset(t->c.tensor, 0, sizeof t->c.tensor);
    for (int s = 0; c->spec->slots[s].name != NULL; s++)
        if (c->is_present[s]) {
            const tsr_dtype integer = case_integer(c, s);
            if (!create_slot(t, s, integer != TSR_DTYPE_NONE ? integer : TSR_F64, LAYOUT_CONTIGUOUS,
                             false, NULL))
                return false;
        }
    return true;
}

void tensors_release(struct tensors *t) {
    for (int s = 0; s < SPEC_MAX_SLOTS; s++) buffer_release(&t->buffer[s]);
}

// ---- Filling ----------------------------------------------------------------------------------

static double draw(struct rng *rng, enum edge_fill fill, tsr_dtype dtype, bool is_odd_row) {
    bool is_f16 = dtype == TSR_F16;
    switch (fill) {
    case FILL_LARGE: return rng_normal(rng) * (is_f16 ? 1e2 : 1e4);
    case FILL_HUGE: return (2 * rng_uniform(rng) - 1) * (is_f16 ? 65504 : 3.3e38);
    case FILL_INFINITE:
        if (rng_chance(rng, 0.02)) return -INFINITY;
        return rng_chance(rng, 0.001) ? (double)INFINITY : rng_normal(rng);
    case FILL_NEGATIVE_INFINITE:
        return is_odd_row || rng_chance(rng, 0.1) ? -INFINITY : rng_normal(rng);
    case FILL_NAN: { // of both signs
        bool is_nan = rng_chance(rng, 0.002);
        double value = rng_normal(rng);
        return is_nan ? copysign((double)NAN, value) : value;
    }
    case FILL_SHIFTED: return rng_normal(rng) + (dtype == TSR_F32 ? 1e6 : is_f16 ? 1000 : 100);
    case FILL_ZERO: return 0;
    default: return rng_normal(rng);
    }
}

static double rounded(tsr_dtype dtype, double value) {
    char stored[8];
    if (dtype == TSR_F32) return (double)(float)value; // a shortcut for the most frequent dtype
    tsr_store(dtype, stored, 0, value);
    return tsr_load(dtype, stored, 0);
}

bool tensors_fill_f64(struct tensors *t, const struct op_case *like, struct rng *rng,
                      enum edge_fill fill, enum edge_layout layout) {
    const struct op_spec *spec = t->c.spec;
    for (int s = 0; spec->slots[s].name != NULL; s++) {
        if (!t->c.is_present[s] || case_role(&t->c, s) == SLOT_OUT) continue;
        tsr_tensor *tensor = &t->c.tensor[s];
        int64_t numel = tsr_tensor_numel(tensor);
        if (numel == 0) continue;
        int64_t row = tensor->ndim >= 2 ? numel / tensor->shape[0] : numel;
        tsr_dtype dtype = case_slot_dtype(like, s);
        double *values = tensor->data;
        bool is_index = case_kind(&t->c, s) >= SLOT_I32;
        if (is_index) { // drawn as doubles, stored as integers
            values = calloc((size_t)numel, sizeof *values);
            if (values == NULL) return false;
        }
        if (spec->fill == NULL || !spec->fill(rng, &t->c, s, fill, values))
            for (int64_t i = 0; i < numel; i++)
                values[i] = is_index ? 0 : draw(rng, fill, dtype, i / row % 2 == 1);
        if (layout == LAYOUT_REPEATED && case_role(&t->c, s) == SLOT_IN && tensor->ndim >= 2)
            for (int64_t i = row; i < numel; i++) values[i] = values[i - row];
        for (int64_t i = 0; i < numel; i++) values[i] = rounded(dtype, values[i]);
        for (int64_t i = 0; i < numel && is_index; i++)
            tsr_store(tensor->dtype, tensor->data, i, values[i]);
        if (is_index) free(values);
    }
    return true;
}
