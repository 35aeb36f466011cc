// SPDX-License-Identifier: Apache-2.0
// A trial is one configuration with its inputs, the oracle's outputs in double on the already
// rounded inputs, and the bound of every output element. Each variant then runs on poisoned,
// guarded tensors in a drawn layout and is compared element by element.
#include "trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_option.h"
#include "mirror.h"

static bool is_output(const struct op_case *c, int s) {
    return c->is_present[s] && c->spec->slots[s].role != SLOT_IN;
}

// ---- Roundoff ---------------------------------------------------------------------------------

struct format {
    double roundoff, smallest, largest; // unit roundoff, smallest subnormal, largest finite
    bool saturates;                     // what lies beyond the largest becomes it, infinity too
};

static struct format format_of(tsr_dtype dtype) {
    switch (dtype) {
    case TSR_F64: return (struct format){0x1p-53, 0x1p-1074, 0x1.fffffffffffffp1023};
    case TSR_BF16: return (struct format){0x1p-8, 0x1p-133, 0x1.fep127};
    case TSR_F16: return (struct format){0x1p-11, 0x1p-24, 65504};
    case TSR_E4M3: return (struct format){0x1p-4, 0x1p-9, 448, true};
    case TSR_E5M2: return (struct format){0x1p-3, 0x1p-16, 57344, true};
    case TSR_I32: return (struct format){0, 0, 2147483647};
    default: return (struct format){0x1p-24, 0x1p-149, 0x1.fffffep127};
    }
}

// ---- Comparing --------------------------------------------------------------------------------

void trial_fail(struct verdict *verdict, const struct trial *trial, const char *variant,
                const tsr_context *ctx, const char *what) {
    verdict->num_failed++;
    if (verdict->failure[0] != '\0') return;
    char text[512];
    snprintf(verdict->failure, sizeof verdict->failure,
             "%s %s, variant %s, %s, %s, %d threads%s%s (seed %llu): %s", trial->c.spec->op,
             case_text(&trial->c, text, sizeof text), variant != NULL ? variant : "(default)",
             tsr_dtype_name(trial->c.dtype), device_arch(ctx), (int)tsr_context_num_threads(ctx),
             trial->edge != NULL ? ", edge " : "", trial->edge != NULL ? trial->edge : "",
             (unsigned long long)trial->seed, what);
}

// Error of one element over what is allowed; INFINITY where a NaN, an infinity or the sign of one of
// them is wrong. *error is the distance from what the element may be at best.
static double compare_element(double got, double expected, double bound, struct format format,
                              bool keeps_nan_sign, double *error) {
    *error = 0;
    if (isnan(expected)) {
        bool is_same_sign = !keeps_nan_sign || !signbit(got) == !signbit(expected);
        return isnan(got) && is_same_sign ? 0 : INFINITY;
    }
    if (format.saturates && fabs(expected) > format.largest &&
        got == copysign(format.largest, expected))
        return 0;
    if (isinf(expected)) return got == expected && !format.saturates ? 0 : INFINITY;
    if (isnan(bound) || isnan(got)) return INFINITY;
    double allowed = bound + fmax(format.roundoff * (fabs(expected) + bound), format.smallest / 2);
    if (isinf(got)) // right where the exact value may round beyond the largest finite one
        return fabs(expected) + allowed >= format.largest && !format.saturates &&
                       !signbit(got) == !signbit(expected)
                   ? 0
                   : INFINITY;
    *error = fabs(got - expected);
    return *error == 0 ? 0 : allowed > 0 ? *error / allowed : INFINITY;
}

bool trial_compare(const struct trial *trial, int s, const tsr_tensor *got, struct verdict *verdict,
                   char *what, size_t what_bytes) {
    const double *expected = trial->oracle.c.tensor[s].data;
    int64_t numel = tsr_tensor_numel(got);
    struct format format = format_of(got->dtype);
    tsr_tensor plain = trial->oracle.c.tensor[s];
    plain.dtype = TSR_F64;
    double *values = malloc((size_t)(numel > 0 ? numel : 1) * sizeof *values);
    if (values == NULL) abort();
    plain.data = values;
    tensor_copy(got, &plain);
    double worst = 0;
    int64_t worst_at = 0;
    bool is_index = trial->c.spec->slots[s].kind == SLOT_I32;
    for (int64_t i = 0; i < numel; i++) {
        double error, ratio;
        double reference = is_index ? tsr_load(TSR_I32, expected, i) : expected[i];
        ratio = compare_element(values[i], reference, trial->bound[s][i], format,
                                trial->c.spec->keeps_nan_sign, &error);
        if (ratio > worst) worst = ratio, worst_at = i;
        if (error > verdict->max_abs_err) verdict->max_abs_err = error;
        verdict->sum_abs_err += error;
        if (error > verdict->max_rel_err * fabs(reference) && fabs(reference) >= 1e-3 &&
            isfinite(reference))
            verdict->max_rel_err = error / fabs(reference);
    }
    verdict->num_elements += (double)numel;
    verdict->err_over_bound = fmax(verdict->err_over_bound, worst);
    if (worst > 1)
        snprintf(what, what_bytes, "%s[%lld] is %.9g, expected %.9g within %.3g (%.3g times over)",
                 trial->c.spec->slots[s].name, (long long)worst_at, values[worst_at],
                 is_index ? tsr_load(TSR_I32, expected, worst_at) : expected[worst_at],
                 trial->bound[s][worst_at], worst);
    free(values);
    return worst <= 1;
}

// ---- Hashes -----------------------------------------------------------------------------------

static uint64_t hash_bytes(const void *data, size_t bytes) {
    const unsigned char *p = data;
    uint64_t hash = 0xcbf29ce484222325u;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    for (; bytes > 0; bytes--, p++) hash = (hash ^ *p) * 0x100000001b3u;
    return hash;
}

static uint64_t hash_inputs(const struct trial *trial) {
    uint64_t hash = 0;
    for (int s = 0; trial->c.spec->slots[s].name != NULL; s++) {
        const struct buffer *buffer = &trial->given.buffer[s];
        if (trial->c.is_present[s] && !is_output(&trial->c, s) && !buffer->is_mapped)
            hash = hash * 31 + hash_bytes(buffer->base, buffer->bytes);
    }
    return hash;
}

// ---- Trials -----------------------------------------------------------------------------------

void trial_release(struct trial *trial) {
    tensors_release(&trial->oracle);
    tensors_release(&trial->given);
    for (int s = 0; s < SPEC_MAX_SLOTS; s++) {
        free(trial->bound[s]);
        free(trial->initial[s]);
    }
}

// Asks the oracle for the outputs of its inputs, and the spec for their bounds. Releases the trial where that fails.
static tsr_status ask_oracle(struct trial *trial) {
    static tsr_context *oracle_context; // the tool is single-threaded
    const struct op_case *c = &trial->c;
    tsr_status status = TSR_OK;
    if (oracle_context == NULL)
        status = tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 1, .isa = TSR_ISA_SCALAR),
                                    &oracle_context);
    for (int s = 0; status == TSR_OK && c->spec->slots[s].name != NULL; s++) {
        if (!is_output(c, s)) continue;
        int64_t numel = tsr_tensor_numel(&trial->oracle.c.tensor[s]);
        trial->bound[s] = calloc((size_t)numel + 1, sizeof(double));
        if (trial->bound[s] == NULL) abort();
        if (c->spec->slots[s].role != SLOT_INOUT) continue;
        trial->initial[s] = malloc((size_t)(numel + 1) * sizeof(double));
        if (trial->initial[s] == NULL) abort();
        memcpy(trial->initial[s], trial->oracle.c.tensor[s].data, (size_t)numel * sizeof(double));
    }
    if (status == TSR_OK)
        status = c->spec->call(oracle_context, &trial->oracle.c, "reference", NULL, 0, NULL);
    // The bound may look at the dtype under test and, for in-out tensors, at their outcome.
    struct op_case view = trial->oracle.c;
    view.dtype = c->dtype;
    view.small_dtype = c->small_dtype;
    for (int s = 0; status == TSR_OK && c->spec->slots[s].name != NULL; s++)
        if (is_output(c, s) && c->spec->slots[s].kind != SLOT_I32)
            c->spec->bound(&view, s, trial->bound[s]);
    if (status != TSR_OK) trial_release(trial);
    return status;
}

tsr_status trial_create(struct trial *trial, const struct op_case *c, uint64_t seed,
                        enum edge_fill fill, enum edge_layout layout) {
    struct rng rng = {seed};
    *trial = (struct trial){.c = *c, .seed = seed, .layout = layout};
    memset(trial->c.tensor, 0, sizeof trial->c.tensor);
    if (!tensors_create_f64(&trial->oracle, c) || !tensors_create(&trial->given, c, layout, &rng)) {
        trial_release(trial);
        return TSR_OUT_OF_MEMORY;
    }
    tensors_fill_f64(&trial->oracle, c, &rng, fill, layout);
    for (int s = 0; c->spec->slots[s].name != NULL; s++)
        if (c->is_present[s] && c->spec->slots[s].role != SLOT_OUT)
            tensor_copy(&trial->oracle.c.tensor[s], &trial->given.c.tensor[s]);
    trial->inputs = hash_inputs(trial);
    return ask_oracle(trial);
}

tsr_status trial_create_of(struct trial *trial, const struct op_case *c) {
    *trial = (struct trial){.c = *c};
    memset(trial->c.tensor, 0, sizeof trial->c.tensor);
    if (!tensors_create_f64(&trial->oracle, c)) {
        trial_release(trial);
        return TSR_OUT_OF_MEMORY;
    }
    for (int s = 0; c->spec->slots[s].name != NULL; s++)
        if (c->is_present[s] && c->spec->slots[s].role != SLOT_OUT)
            tensor_copy(&c->tensor[s], &trial->oracle.c.tensor[s]);
    return ask_oracle(trial);
}

// Poisons outputs, restores in-out tensors.
static void reset_outputs(struct trial *trial) {
    for (int s = 0; trial->c.spec->slots[s].name != NULL; s++) {
        if (!is_output(&trial->c, s)) continue;
        tensor_poison(&trial->given.c.tensor[s]);
        if (trial->initial[s] == NULL) continue;
        tsr_tensor initial = trial->oracle.c.tensor[s];
        initial.data = trial->initial[s];
        tensor_copy(&initial, &trial->given.c.tensor[s]);
    }
}

// The values of all outputs; gaps between their rows are poison in every run. One NaN is as good as another: its
// sign follows the order of operands, which is the compiler's.
static uint64_t hash_outputs(const struct trial *trial) {
    uint64_t hash = 0;
    for (int s = 0; trial->c.spec->slots[s].name != NULL; s++) {
        const struct buffer *buffer = &trial->given.buffer[s];
        if (!is_output(&trial->c, s) || buffer->is_mapped) continue;
        tsr_dtype dtype = trial->given.c.tensor[s].dtype;
        int64_t count = (int64_t)(buffer->bytes / tsr_dtype_bytes(dtype));
        for (int64_t i = 0; i < count; i++) {
            double value = tsr_load(dtype, buffer->base, i);
            if (value != value) value = (double)NAN;
            hash = hash * 31 + hash_bytes(&value, sizeof value);
        }
    }
    return hash;
}

// The same on another device than the host's, of copies.
static tsr_status run_mirrored(tsr_context *ctx, struct trial *trial, const char *variant,
                               size_t need, bool *is_workspace_intact) {
    const struct op_spec *spec = trial->c.spec;
    struct mirror mirror;
    struct buffer guarded = {0};
    void *workspace = NULL, *base = NULL;
    tsr_status status = mirror_create(&mirror, ctx, &trial->given);
    if (status == TSR_OK && variant != NULL) {
        if (!buffer_create(&guarded, need, &workspace)) status = TSR_OUT_OF_MEMORY;
        if (status == TSR_OK) status = tsr_memory_alloc(ctx, guarded.bytes, &base);
        if (status == TSR_OK) status = tsr_memory_copy(ctx, base, guarded.base, guarded.bytes);
        workspace = (char *)base + ((char *)workspace - (char *)guarded.base);
    }
    if (status == TSR_OK) status = spec->call(ctx, &mirror.c, variant, workspace, need, NULL);
    if (status == TSR_OK) status = mirror_fetch(&mirror);
    if (status == TSR_OK && base != NULL) {
        status = tsr_memory_copy(ctx, guarded.base, base, guarded.bytes);
        if (status == TSR_OK) status = tsr_context_synchronize(ctx);
        *is_workspace_intact = buffer_guards_intact(&guarded, need);
    }
    (void)tsr_memory_free(ctx, base);
    buffer_release(&guarded);
    mirror_release(&mirror);
    return status;
}

// What the device's prepare needs: tensors that lie there.
static tsr_status prepare(tsr_context *ctx, const struct trial *trial, const char *variant,
                          size_t *need) {
    struct op_case c = trial->given.c;
    for (int s = 0; s < SPEC_MAX_SLOTS; s++) c.tensor[s].device = tsr_context_device(ctx);
    return c.spec->call(ctx, &c, variant, NULL, 0, need);
}

// One run with an exact, poisoned and guarded workspace (the arena's for the default variant).
static tsr_status run_once(tsr_context *ctx, struct trial *trial, const char *variant,
                           bool *is_workspace_intact) {
    const struct op_spec *spec = trial->c.spec;
    size_t need = 0;
    *is_workspace_intact = true;
    tsr_status status = prepare(ctx, trial, variant, &need);
    if (status == TSR_OK) reset_outputs(trial);
    if (tsr_context_device(ctx).type != TSR_CPU) {
        if (status == TSR_OK) status = run_mirrored(ctx, trial, variant, need, is_workspace_intact);
        // Tensors beyond 2^31 elements, for which a device has no memory, or none left by other processes.
        return status == TSR_OUT_OF_MEMORY && trial->layout == LAYOUT_FAR ? TSR_UNSUPPORTED
                                                                          : status;
    }
    if (status != TSR_OK) return status;
    if (variant == NULL) return spec->call(ctx, &trial->given.c, NULL, NULL, 0, NULL);
    struct buffer buffer;
    void *workspace;
    if (!buffer_create(&buffer, need, &workspace)) return TSR_OUT_OF_MEMORY;
    status = spec->call(ctx, &trial->given.c, variant, workspace, need, NULL);
    *is_workspace_intact = buffer_guards_intact(&buffer, need);
    buffer_release(&buffer);
    return status;
}

tsr_status trial_run(tsr_context *ctx, tsr_context *other, struct trial *trial, const char *variant,
                     struct verdict *verdict) {
    char what[256];
    bool is_workspace_intact;
    tsr_status status = run_once(ctx, trial, variant, &is_workspace_intact);
    if (status == TSR_UNSUPPORTED) return status;
    verdict->num_configs++;
    if (status != TSR_OK) {
        trial_fail(verdict, trial, variant, ctx, tsr_last_error());
        return status;
    }
    uint64_t outputs = other != NULL ? hash_outputs(trial) : 0;
    bool is_right = true;
    for (int s = 0; trial->c.spec->slots[s].name != NULL && is_right; s++)
        if (is_output(&trial->c, s))
            is_right =
                trial_compare(trial, s, &trial->given.c.tensor[s], verdict, what, sizeof what);
    if (is_right && other != NULL) {
        bool is_intact;
        status = run_once(other, trial, variant, &is_intact);
        bool has_no_room = status == TSR_UNSUPPORTED && trial->layout == LAYOUT_FAR;
        if (!has_no_room && (status != TSR_OK || !is_intact || hash_outputs(trial) != outputs)) {
            is_right = false;
            snprintf(what, sizeof what, "other values with %d threads and outputs past the caches",
                     (int)tsr_context_num_threads(other));
        }
    }
    if (is_right && !is_workspace_intact) {
        is_right = false;
        snprintf(what, sizeof what, "wrote outside of its workspace");
    }
    uint64_t inputs = hash_inputs(trial);
    if (is_right && inputs != trial->inputs) {
        is_right = false;
        snprintf(what, sizeof what, "wrote to an input");
    }
    for (int s = 0; trial->c.spec->slots[s].name != NULL && is_right; s++)
        if (is_output(&trial->c, s) &&
            !buffer_is_clean(&trial->given.buffer[s], &trial->given.c.tensor[s])) {
            is_right = false;
            snprintf(what, sizeof what, "wrote outside of %s", trial->c.spec->slots[s].name);
        }
    trial->inputs = inputs; // each variant answers for what it did itself
    if (!is_right) trial_fail(verdict, trial, variant, ctx, what);
    verdict->mean_abs_err =
        verdict->num_elements > 0 ? verdict->sum_abs_err / verdict->num_elements : 0;
    return TSR_OK;
}
