// SPDX-License-Identifier: Apache-2.0
// Which outputs a pass of `apply` gives, and in which dtype: those that the inputs imply, or those of --results.
#include <stdio.h>
#include <string.h>

#include "apply/apply.h"
#include "commands/command.h"

// ---- --results --------------------------------------------------------------------------------

static const struct apply_result *find_asked(const struct apply *apply, const char *name) {
    for (int i = 0; i < apply->num_results; i++)
        if (strcmp(apply->results[i].name, name) == 0) return &apply->results[i];
    return NULL;
}

static bool is_output(const struct op_spec *spec, const char *name) {
    int slot = spec != NULL ? spec_slot(spec, name) : -1;
    return slot >= 0 && spec->slots[slot].role != SLOT_IN;
}

static bool fail_unknown(struct apply *apply, const char *name) {
    char names[400] = "";
    size_t used = 0;
    const struct op_spec *const passes[] = {apply->forward, apply->backward};
    for (int p = 0; p < 2 && passes[p] != NULL; p++)
        for (int s = 0; passes[p]->slots[s].name != NULL && used < sizeof names; s++)
            if (is_output(passes[p], passes[p]->slots[s].name))
                used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                         used ? ", " : "", passes[p]->slots[s].name);
    return apply_fail(apply, EXIT_USAGE, "--results: %s has no output '%s', expected among %s",
                      apply->command, name, names);
}

bool apply_ask(struct apply *apply, const char *list) {
    for (const char *item = list;; item++) {
        size_t length = strcspn(item, ",");
        char word[APPLY_MAX_NAME];
        snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word),
                 item);
        char *colon = strchr(word, ':');
        if (colon != NULL) *colon = '\0';
        if (!is_output(apply->forward, word) && !is_output(apply->backward, word))
            return fail_unknown(apply, word);
        if (find_asked(apply, word) != NULL)
            return apply_fail(apply, EXIT_USAGE, "--results has '%s' twice", word);
        tsr_dtype dtype = colon != NULL ? tsr_dtype_from_name(colon + 1) : TSR_DTYPE_NONE;
        if (colon != NULL && (dtype == TSR_DTYPE_NONE || dtype >= TSR_I32))
            return apply_fail(apply, EXIT_USAGE,
                              "--results: the dtype of %s is '%s', expected f32, bf16, f16, f64, "
                              "e4m3 or e5m2",
                              word, colon + 1);
        struct apply_result *result = &apply->results[apply->num_results++];
        snprintf(result->name, sizeof result->name, "%s", word);
        result->dtype = dtype;
        item += length;
        if (*item == '\0') return true;
    }
}

bool apply_is_asked(const struct apply *apply, const char *name) {
    return apply->num_results == 0 || find_asked(apply, name) != NULL;
}

bool apply_has_asked(struct apply *apply) {
    for (int i = 0; i < apply->num_results; i++) {
        const char *name = apply->results[i].name;
        const struct apply_value *value = apply_find(apply, name);
        if (value == NULL || !value->is_result)
            return apply_fail(apply, EXIT_USAGE,
                              "--results: %s gives no '%s' for the tensors of %s", apply->command,
                              name, apply->input_path);
    }
    return true;
}

// ---- --help -----------------------------------------------------------------------------------

// "\n\nsoftmax_backward reads y, dy and writes dx." Brackets: optional, or only read with some options.
static size_t pass_notes(const struct op_spec *spec, char *text, size_t bytes) {
    size_t used = (size_t)snprintf(text, bytes, "\n\n%s reads", spec->op);
    for (int writes = 0; writes < 2; writes++) {
        bool is_first = true;
        if (writes && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, ",\nand writes");
        for (const struct slot_spec *slot = spec->slots; slot->name != NULL && used < bytes;
             slot++) {
            if (slot->role == (writes ? SLOT_IN : SLOT_OUT)) continue;
            bool is_added_to =
                !writes && slot->role == SLOT_INOUT && spec_param(spec, "accumulate") >= 0;
            bool is_optional =
                slot->is_optional || is_added_to || apply_is_of_activation(spec, slot->name);
            used += (size_t)snprintf(text + used, bytes - used, "%s %s%s%s", is_first ? "" : ",",
                                     is_optional ? "[" : "", slot->name, is_optional ? "]" : "");
            is_first = false;
        }
    }
    return used;
}

const char *apply_notes(const struct apply *apply, char *text, size_t bytes) {
    const struct op_spec *const passes[] = {apply->forward, apply->backward};
    size_t used = (size_t)snprintf(text, bytes,
                                   "Tensors have the names of the C call's fields. The call gets "
                                   "them as they are in the file and reports what does not fit.\n"
                                   "An output has the dtype of the main tensors, the gradient of "
                                   "a small tensor that tensor's dtype; --results changes it.\n"
                                   "Tensors that the call updates (param, k_cache; c with "
                                   "--accumulate) are read from the input and written to the "
                                   "output.\n"
                                   "If the file has the gradient of the output (dy, dc), the "
                                   "backward pass runs too. OP may also be a single pass,\n"
                                   "such as softmax_backward. %s",
                                   apply->command == NULL
                                       ? "'tessera apply OP --help' lists its options and tensors."
                                       : "Brackets mark optional tensors:");
    for (int p = 0; p < 2 && apply->command != NULL && passes[p] != NULL && used < bytes; p++)
        used += pass_notes(passes[p], text + used, bytes - used);
    return text;
}

// ---- Outputs of a pass ------------------------------------------------------------------------

const struct apply_value *apply_model(struct apply *apply, const struct slot_spec *slot) {
    return slot->model != NULL ? apply_find(apply, slot->model) : NULL;
}

// Whether a backward pass follows and reads this output of forward.
static bool is_for_backward(const struct apply *apply, const struct op_spec *spec,
                            const char *name) {
    if (!apply->runs_backward || spec != apply->forward) return false;
    for (const struct slot_spec *slot = apply->backward->slots; slot->name != NULL; slot++)
        if (slot->role != SLOT_OUT && (strcmp(slot->name, name) == 0 ||
                                       (slot->alias != NULL && strcmp(slot->alias, name) == 0)))
            return true;
    return false;
}

bool apply_is_wanted(struct apply *apply, const struct op_spec *spec, int slot,
                     enum slot_role role) {
    const struct slot_spec *output = &spec->slots[slot];
    if (!output->is_optional) return true;
    if (role == SLOT_NONE) return false;
    if (role != SLOT_OUT) return apply_find(apply, output->name) != NULL;
    bool has_model = output->model == NULL || apply_model(apply, output) != NULL;
    if (is_for_backward(apply, spec, output->name) && has_model) return true;
    if (apply->num_results > 0) return find_asked(apply, output->name) != NULL;
    if (output->comes_with != NULL && apply_find(apply, output->comes_with) == NULL) return false;
    return has_model || apply_input_slot(apply, output->model) == NULL;
}

tsr_dtype apply_output_dtype(struct apply *apply, const struct op_case *c, int slot,
                             const struct apply_value *before) {
    const struct slot_spec *output = &c->spec->slots[slot];
    const struct apply_result *asked = find_asked(apply, output->name);
    if (asked != NULL && asked->dtype != TSR_DTYPE_NONE) return asked->dtype;
    if (before != NULL) return before->tensor.dtype;
    const struct apply_value *model = apply_model(apply, output);
    if (output->kind == SLOT_SMALL && model != NULL) return model->tensor.dtype;
    return case_slot_dtype(c, slot);
}
