// SPDX-License-Identifier: Apache-2.0
// Which passes of an operation `apply` runs, and the pre-activation that matmul's backward pass needs.
#include <string.h>

#include "apply/apply.h"
#include "commands/command.h"

// The first required input of backward that is neither in the file nor a result of forward; NULL if backward can run.
static const char *missing_for_backward(struct apply *apply) {
    const struct slot_spec *slots = apply->backward->slots;
    const struct op_spec *forward = apply->forward;
    for (int s = 0; slots[s].name != NULL; s++) {
        bool is_ours = apply_is_of_activation(apply->backward, slots[s].name); // made below
        if (!apply_reads(apply, apply->backward, s) || slots[s].is_optional || is_ours) continue;
        int result = spec_slot(forward, slots[s].name);
        bool is_result = result >= 0 && forward->slots[result].role != SLOT_IN;
        if (!is_result && apply_find(apply, slots[s].name) == NULL) return slots[s].name;
    }
    return NULL;
}

// The backward pass of a matmul with an activation reads the activation's input, op(a) op(b) + bias. A
// forward pass without the activation computes it. It is not written to the output file.
static bool make_preact(struct apply *apply) {
    bool has_activation = apply_option_value(apply, "activation", 0) != 0;
    if (apply_find(apply, "b_up") != NULL)
        return apply_fail(apply, EXIT_USAGE,
                          "matmul: dc is given with b_up, expected the gradient of a gated matmul "
                          "as two matmuls and an activation");
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
        apply_release(&plain);
        return apply_fail(apply, plain.exit_code, "%s", plain.error);
    }
    struct apply_value *result = apply_find(&plain, "c");
    struct apply_value *preact = apply_add(apply, "preact", &result->tensor, result->memory);
    if (preact != NULL) preact->is_result = false;
    if (preact != NULL) preact->is_used = true;
    return preact != NULL;
}

// The backward pass of grouped products takes the gradient of the product, without an epilogue.
static bool check_grouped(struct apply *apply) {
    if (apply_option_value(apply, "activation", 0) == 0 && apply_find(apply, "b_up") == NULL)
        return true;
    return apply_fail(
        apply, EXIT_USAGE,
        "matmul_grouped: dc is given with an activation or b_up, expected the gradient of the "
        "product itself in a call of matmul_grouped_backward");
}

static bool is_command(const struct apply *apply, const char *name) {
    return strcmp(apply->forward->command, name) == 0;
}

bool apply_passes(struct apply *apply) {
    const char *missing = apply->backward != NULL ? missing_for_backward(apply) : NULL;
    bool runs_backward = apply->backward != NULL && missing == NULL;
    if (runs_backward && is_command(apply, "matmul-grouped") && !check_grouped(apply)) return false;
    apply->runs_backward = runs_backward;
    if (!apply_pass(apply, apply->forward)) return false;
    apply->runs_backward = false;
    if (runs_backward && is_command(apply, "matmul") && !make_preact(apply)) return false;
    if (runs_backward && !apply_pass(apply, apply->backward)) return false;
    for (int i = 0; i < apply->num_values; i++) {
        const struct apply_value *value = &apply->values[i];
        if (value->is_result || value->is_used) continue;
        bool is_backward = missing != NULL && spec_slot(apply->forward, value->name) < 0;
        return apply_fail(apply, EXIT_USAGE, "%s: %s holds '%s', which %s%s%s", apply->command,
                          apply->input_path, value->name,
                          is_backward ? "is only used with '" : "these options do not use",
                          is_backward ? missing : "", is_backward ? "'" : "");
    }
    return apply_has_asked(apply);
}
