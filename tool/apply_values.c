// SPDX-License-Identifier: Apache-2.0
// What is around the passes of `apply`: the named values, which passes run, the pre-activation that
// backward of matmul asks for.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apply.h"
#include "command.h"

// ---- Failing ----------------------------------------------------------------------------------

bool apply_fail(struct apply *apply, int exit_code, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(apply->error, sizeof apply->error, format, list);
    va_end(list);
    apply->exit_code = exit_code;
    return false;
}

bool apply_fail_status(struct apply *apply, tsr_status status) {
    bool is_usage = status == TSR_INVALID_ARGUMENT || status == TSR_UNSUPPORTED;
    return apply_fail(apply, is_usage ? EXIT_USAGE : EXIT_COULD_NOT_RUN, "%s", tsr_last_error());
}

// ---- Values -----------------------------------------------------------------------------------

struct apply_value *apply_find(struct apply *apply, const char *name) {
    for (int i = apply->num_values - 1; i >= 0; i--) // results come last
        if (strcmp(apply->values[i].name, name) == 0) return &apply->values[i];
    return NULL;
}

struct apply_value *apply_add(struct apply *apply, const char *name, const tsr_tensor *tensor,
                              void *memory) {
    if (apply->num_values == APPLY_MAX_VALUES) {
        free(memory);
        apply_fail(apply, EXIT_COULD_NOT_RUN, "more than %d tensors", (int)APPLY_MAX_VALUES);
        return NULL;
    }
    struct apply_value *value = &apply->values[apply->num_values++];
    *value = (struct apply_value){name, *tensor, memory, .is_result = true};
    return value;
}

bool apply_allocate(struct apply *apply, const char *name, tsr_dtype dtype, int ndim,
                    const int64_t *shape, tsr_tensor *tensor) {
    *tensor = tsr_tensor_contiguous(NULL, dtype, ndim, shape);
    int64_t bytes;
    bool overflows =
        __builtin_mul_overflow(tsr_tensor_numel(tensor), (int64_t)tsr_dtype_bytes(dtype), &bytes) ||
        bytes > INT64_MAX - 64;
    size_t rounded = overflows ? 0 : ((size_t)bytes + 63) / 64 * 64;
    tensor->data = overflows ? NULL : aligned_alloc(64, rounded > 0 ? rounded : 64);
    if (tensor->data == NULL)
        return apply_fail(apply, EXIT_COULD_NOT_RUN, "no memory for %s: %lld elements of %s", name,
                          (long long)tsr_tensor_numel(tensor), tsr_dtype_name(dtype));
    memset(tensor->data, 0, rounded > 0 ? rounded : 64);
    return true;
}

double apply_option_value(const struct apply *apply, const char *name, double otherwise) {
    for (int i = 0; i < apply->num_options; i++) {
        const struct apply_option *option = &apply->options[i];
        if (!option->is_given) continue;
        if (strcmp(option->param->name, name) == 0) return option->value;
        // has_scale is set by giving scale.
        if (strncmp(name, "has_", 4) == 0 && strcmp(option->param->name, name + 4) == 0) return 1;
    }
    return otherwise;
}

bool apply_reads(const struct apply *apply, const struct op_spec *spec, int slot) {
    enum slot_role role = spec->slots[slot].role;
    if (role != SLOT_INOUT) return role == SLOT_IN;
    return spec_param(spec, "accumulate") < 0 || apply_option_value(apply, "accumulate", 0) != 0;
}

// ---- Passes -----------------------------------------------------------------------------------

// The first required input of backward that is neither in the file nor a result; NULL when it
// can run.
static const char *missing_for_backward(struct apply *apply) {
    const struct slot_spec *slots = apply->backward->slots;
    for (int s = 0; slots[s].name != NULL; s++) {
        bool is_ours = strcmp(slots[s].name, "preact") == 0; // made below
        if (!apply_reads(apply, apply->backward, s) || slots[s].is_optional || is_ours) continue;
        if (apply_find(apply, slots[s].name) == NULL) return slots[s].name;
    }
    return NULL;
}

// Backward of a matmul with an activation reads what the activation read: op(a) op(b) + bias, which
// a forward pass without the epilogue gives. It is no output.
static bool make_preact(struct apply *apply) {
    bool has_activation = apply_option_value(apply, "activation", 0) != 0;
    if (apply_find(apply, "b_up") != NULL)
        return apply_fail(apply, EXIT_USAGE,
                          "matmul: dc beside b_up: the gradient of a gated matmul is that of two "
                          "matmuls and an activation");
    if (apply_option_value(apply, "alpha", 1) != 1)
        return apply_fail(apply, EXIT_USAGE, "matmul: dc needs alpha 1, got %g",
                          apply_option_value(apply, "alpha", 1));
    if (!has_activation || apply_find(apply, "preact") != NULL) return true;
    struct apply plain = {.command = apply->command,
                          .input_path = apply->input_path,
                          .forward = apply->forward,
                          .flags = apply->flags,
                          .device = apply->device,
                          .ctx = apply->ctx};
    for (int i = 0; i < apply->num_options; i++) {
        struct apply_option option = apply->options[i];
        const char *name = option.param->name;
        if (strcmp(name, "activation") != 0 && strcmp(name, "accumulate") != 0)
            plain.options[plain.num_options++] = option;
    }
    static const char *const names[] = {"a", "b", "bias"};
    for (int i = 0; i < 3; i++) {
        const struct apply_value *value = apply_find(apply, names[i]);
        if (value != NULL) apply_add(&plain, value->name, &value->tensor, NULL);
    }
    if (!apply_pass(&plain, plain.forward)) {
        for (int i = 0; i < plain.num_values; i++) free(plain.values[i].memory);
        return apply_fail(apply, plain.exit_code, "%s", plain.error);
    }
    struct apply_value *result = apply_find(&plain, "c");
    struct apply_value *preact = apply_add(apply, "preact", &result->tensor, result->memory);
    if (preact != NULL) preact->is_result = false;
    if (preact != NULL) preact->is_used = true;
    return preact != NULL;
}

bool apply_passes(struct apply *apply) {
    if (!apply_pass(apply, apply->forward)) return false;
    const char *missing = apply->backward != NULL ? missing_for_backward(apply) : NULL;
    bool is_matmul = strcmp(apply->command, "matmul") == 0;
    if (apply->backward != NULL && missing == NULL &&
        ((is_matmul && !make_preact(apply)) || !apply_pass(apply, apply->backward)))
        return false;
    for (int i = 0; i < apply->num_values; i++) {
        const struct apply_value *value = &apply->values[i];
        if (value->is_result || value->is_used) continue;
        bool is_backward = missing != NULL && spec_slot(apply->forward, value->name) < 0;
        return apply_fail(apply, EXIT_USAGE, "%s: %s holds '%s', which %s%s%s", apply->command,
                          apply->input_path, value->name,
                          is_backward ? "is of use beside '" : "these options make no use of",
                          is_backward ? missing : "", is_backward ? "' only" : "");
    }
    return true;
}
