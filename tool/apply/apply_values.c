// SPDX-License-Identifier: Apache-2.0
// The data of the passes of `apply`: the operation and its options, the named values, and the tensors of a file.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apply/apply.h"
#include "commands/command.h"
#include "files/run.h"
#include "measure/allocation.h"
#include "verify/tensors.h"

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
    for (int i = apply->num_values - 1; i >= 0; i--) // from the end, where the results are
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
    double available = allocation_available();
    double needed = (double)tsr_dtype_bytes(dtype) + apply->bytes_beside;
    char needed_text[32], left[32];
    for (int i = 0; i < ndim; i++) needed *= (double)shape[i];
    if (!allocation_fits(needed, available))
        return apply_fail(apply, EXIT_COULD_NOT_RUN, "%s: %s needs %s, the machine has %s left",
                          apply->command, name,
                          allocation_text(needed, needed_text, sizeof needed_text),
                          allocation_text(available, left, sizeof left));
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

const char *apply_shape_text(int ndim, const int64_t *shape, char *text, size_t bytes) {
    size_t used = (size_t)snprintf(text, bytes, "(");
    for (int i = 0; i < ndim && used < bytes; i++)
        used +=
            (size_t)snprintf(text + used, bytes - used, i ? ", %lld" : "%lld", (long long)shape[i]);
    if (used < bytes) snprintf(text + used, bytes - used, ndim == 1 ? ",)" : ")");
    return text;
}

void apply_release(struct apply *apply) {
    for (int i = 0; i < apply->num_values; i++) free(apply->values[i].memory);
    apply->num_values = 0;
}

// ---- Options ----------------------------------------------------------------------------------

static const struct op_spec *find_pass(const char *command, const char *pass) {
    for (int i = 0; op_specs[i] != NULL; i++)
        if (spec_names_are_alike(op_specs[i]->command, command) &&
            strcmp(op_specs[i]->pass, pass) == 0)
            return op_specs[i];
    return NULL;
}

bool apply_find_operation(struct apply *apply, const char *name) {
    apply->forward = find_pass(name, "forward");
    apply->backward = find_pass(name, "backward");
    if (apply->forward == NULL) { // an operation with a backward pass alone
        apply->forward = apply->backward;
        apply->backward = NULL;
    }
    for (int i = 0; op_specs[i] != NULL && apply->forward == NULL; i++) // a single pass
        if (spec_names_are_alike(op_specs[i]->op, name)) apply->forward = op_specs[i];
    return apply->forward != NULL;
}

static bool has_param(const struct apply *apply, const char *name) {
    for (int i = 0; i < apply->num_options; i++)
        if (strcmp(apply->options[i].param->name, name) == 0) return true;
    return false;
}

void apply_add_params(struct apply *apply, const struct op_spec *spec) {
    for (const struct param_spec *p = spec != NULL ? spec->params : NULL; p && p->name; p++)
        if ((p->source == SOURCE_OPTION ||
             (p->source == SOURCE_BY_KIND && p->kind != PARAM_SIZE)) &&
            strncmp(p->name, "has_", 4) != 0 && !has_param(apply, p->name))
            apply->options[apply->num_options++] = (struct apply_option){p, false, p->standard};
}

// Marks the options that a command line would need for a case; the option x stands for has_x.
void apply_set_options(struct apply *apply, const struct op_case *c) {
    char has[64];
    for (int i = 0; i < apply->num_options; i++) {
        struct apply_option *option = &apply->options[i];
        int param = spec_param(c->spec, option->param->name);
        if (param < 0) continue;
        snprintf(has, sizeof has, "has_%s", option->param->name);
        int flag = spec_param(c->spec, has);
        option->value = c->param[param];
        option->is_given = flag >= 0 ? c->param[flag] != 0
                                     : option->value != option->param->standard ||
                                           option->param->source == SOURCE_OPTION;
    }
}

const char *apply_option_name(const struct param_spec *param, char *text, size_t bytes) {
    snprintf(text, bytes, "%s", param->name);
    for (char *c = text; *c != '\0'; c++)
        if (*c == '_') *c = '-';
    return text;
}

double apply_option_value(const struct apply *apply, const char *name, double otherwise) {
    for (int i = 0; i < apply->num_options; i++) {
        const struct apply_option *option = &apply->options[i];
        if (!option->is_given) continue;
        if (strcmp(option->param->name, name) == 0) return option->value;
        // The option scale sets has_scale.
        if (strncmp(name, "has_", 4) == 0 && strcmp(option->param->name, name + 4) == 0) return 1;
    }
    return otherwise;
}

bool apply_is_of_activation(const struct op_spec *spec, const char *name) {
    return strcmp(name, "preact") == 0 && strcmp(spec->command, "matmul") == 0;
}

bool apply_reads(const struct apply *apply, const struct op_spec *spec, int slot) {
    enum slot_role role = spec->slots[slot].role;
    if (apply_is_of_activation(spec, spec->slots[slot].name))
        return apply_option_value(apply, "activation", 0) != 0;
    if (role != SLOT_INOUT) return role == SLOT_IN;
    return spec_param(spec, "accumulate") < 0 || apply_option_value(apply, "accumulate", 0) != 0;
}

// ---- The file's tensors -----------------------------------------------------------------------

// The input of a pass that takes a tensor of another name: correction_bias as router_bias.
static const struct slot_spec *alias_slot(const struct op_spec *spec, const char *name) {
    for (const struct slot_spec *slot = spec->slots; slot->name != NULL; slot++)
        if (slot->role != SLOT_OUT && slot->alias != NULL && strcmp(slot->alias, name) == 0)
            return slot;
    return NULL;
}

const struct slot_spec *apply_input_slot(const struct apply *apply, const char *name) {
    int slot = spec_slot(apply->forward, name);
    if (slot >= 0)
        return apply->forward->slots[slot].role != SLOT_OUT ? &apply->forward->slots[slot] : NULL;
    slot = apply->backward != NULL ? spec_slot(apply->backward, name) : -1;
    if (slot < 0) return alias_slot(apply->forward, name);
    return apply->backward->slots[slot].role != SLOT_OUT ? &apply->backward->slots[slot] : NULL;
}

static bool fail_unknown(struct apply *apply, const char *name) {
    char names[400] = "";
    size_t used = 0;
    const struct op_spec *const passes[] = {apply->forward, apply->backward};
    for (int p = 0; p < 2 && passes[p] != NULL; p++)
        for (int s = 0; passes[p]->slots[s].name != NULL && used < sizeof names; s++) {
            const char *slot = passes[p]->slots[s].name;
            if (apply_input_slot(apply, slot) == NULL ||
                (p == 1 && spec_slot(passes[0], slot) >= 0))
                continue;
            used +=
                (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", slot);
        }
    bool is_result = spec_slot(apply->forward, name) >= 0 ||
                     (apply->backward != NULL && spec_slot(apply->backward, name) >= 0);
    char shown[80]; // from a file: no control characters
    snprintf(shown, sizeof shown, "%.64s", name);
    run_clean(shown);
    return apply_fail(apply, EXIT_USAGE, "%s: %s holds '%s', which is %s; expected among %s",
                      apply->command, apply->input_path, shown,
                      is_result ? "a result" : "unknown here", names);
}

// Converts a floating-point tensor to the dtype, unless its slot has a fixed dtype.
static bool convert(struct apply *apply, struct apply_value *value, const struct slot_spec *slot,
                    tsr_dtype dtype) {
    bool is_free = (slot->kind == SLOT_MAIN || slot->kind == SLOT_SMALL) && slot->role == SLOT_IN;
    if (dtype == TSR_DTYPE_NONE || !is_free || value->tensor.dtype == TSR_I32 ||
        value->tensor.dtype == TSR_U8 || value->tensor.dtype == dtype)
        return true;
    tsr_tensor converted;
    if (!apply_allocate(apply, value->name, dtype, value->tensor.ndim, value->tensor.shape,
                        &converted))
        return false;
    tensor_copy(&value->tensor, &converted);
    value->tensor = converted;
    value->memory = converted.data;
    return true;
}

// The file's size limits a tensor with elements. An empty tensor may have any sizes, and their products could overflow.
static bool check_sizes(struct apply *apply, const char *name, const tsr_tensor *t) {
    char text[256];
    for (int i = 0; i < t->ndim && tsr_tensor_numel(t) == 0; i++)
        if (t->shape[i] > INT32_MAX)
            return apply_fail(apply, EXIT_USAGE,
                              "%s: %s has shape %s, expected at most 2^31 - 1 in each dimension of "
                              "an empty tensor",
                              apply->command, name,
                              apply_shape_text(t->ndim, t->shape, text, sizeof text));
    return true;
}

bool apply_load(struct apply *apply, const tsr_safetensors *file, tsr_dtype dtype) {
    for (int64_t i = 0; i < tsr_safetensors_count(file); i++) {
        tsr_safetensors_info info;
        tsr_safetensors_info_get(file, i, &info);
        const struct slot_spec *slot = apply_input_slot(apply, info.name);
        if (slot == NULL) return fail_unknown(apply, info.name);
        tsr_tensor tensor;
        tsr_status status = tsr_safetensors_tensor_at(file, i, &tensor);
        if (status != TSR_OK) return apply_fail_status(apply, status);
        if (!check_sizes(apply, slot->name, &tensor)) return false;
        struct apply_value *value = apply_add(apply, slot->name, &tensor, NULL);
        if (value == NULL) return false;
        value->is_result = false;
        if (!convert(apply, value, slot, dtype)) return false;
    }
    return true;
}
