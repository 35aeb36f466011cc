// SPDX-License-Identifier: Apache-2.0
// One pass of an operation on named tensors, by its description alone: binds the inputs, infers the
// sizes, allocates the outputs, calls. The call gets the tensors as they are in the file and checks their shapes and
// dtypes; this file only refuses tensors from which no sizes can be inferred. `conformance` gives cases to the oracle in
// the description's shapes, so it checks every shape and dtype here.
//
// Leading dimensions: the description of an operation on rows (parameter "rows" or "tokens") or on matrices (parameters
// "batch" and "m") has at most one. A tensor in a file may have any number; they are folded into that one, and outputs
// get the leading dimensions of the first tensor. To find out which tensors have leading dimensions, this file asks the
// description for the shapes of two sizes.
#include <stdio.h>
#include <string.h>

#include "apply/apply.h"
#include "commands/command.h"
#include "measure/allocation.h"
#include "verify/device_case.h"

static const double NOT_TOLD = -1; // a size that is not known yet

// The current pass.
struct pass {
    struct apply *apply;
    struct op_case c;
    struct apply_value *bound[SPEC_MAX_SLOTS]; // inputs
    int lead;             // the parameter that stands for the leading dimensions, -1 for none
    bool is_dropped_at_1; // the description drops a leading dimension of 1
    int num_leading;      // -1: not known yet
    int64_t leading[TSR_MAX_DIMS]; // the leading dimensions of the first tensor that has any
};

static const struct slot_spec *slot_of(const struct pass *pass, int slot) {
    return &pass->c.spec->slots[slot];
}

// ---- Inputs -----------------------------------------------------------------------------------

// "x (3, 4), dy (3, 4)": the tensors of the file.
static const char *holdings(struct apply *apply, char *text, size_t bytes) {
    size_t used = (size_t)snprintf(text, bytes, "%s", "no tensor");
    char shape[128];
    bool is_first = true;
    for (int i = 0; i < apply->num_values && used < bytes; i++) {
        const struct apply_value *value = &apply->values[i];
        if (value->is_result) continue;
        if (is_first) used = 0;
        used += (size_t)snprintf(
            text + used, bytes - used, "%s%s %s", is_first ? "" : ", ", value->name,
            apply_shape_text(value->tensor.ndim, value->tensor.shape, shape, sizeof shape));
        is_first = false;
    }
    return text;
}

static bool bind_inputs(struct pass *pass) {
    struct apply *apply = pass->apply;
    char text[512];
    for (int s = 0; slot_of(pass, s)->name != NULL; s++) {
        const struct slot_spec *slot = slot_of(pass, s);
        if (!apply_reads(apply, pass->c.spec, s)) {
            pass->c.is_present[s] &= slot->role != SLOT_IN;
            continue;
        }
        struct apply_value *value = slot->alias != NULL ? apply_find(apply, slot->alias) : NULL;
        if (value == NULL) value = apply_find(apply, slot->name);
        if (value == NULL && !slot->is_optional)
            return apply_fail(apply, EXIT_USAGE, "%s needs a tensor '%s', but %s holds %s",
                              pass->c.spec->op, slot->name, apply->input_path,
                              holdings(apply, text, sizeof text));
        pass->bound[s] = value;
        pass->c.is_present[s] = value != NULL;
        if (value != NULL) value->is_used = true;
    }
    return true;
}

// The dtype of the case is that of the first main tensor; without one it is f64 if any tensor is. Indices must be int32,
// other tensors must not.
static bool set_dtype(struct pass *pass) {
    const struct op_spec *spec = pass->c.spec;
    bool is_set = false;
    for (int s = 0; spec->slots[s].name != NULL; s++) {
        if (pass->bound[s] == NULL) continue;
        tsr_dtype got = pass->bound[s]->tensor.dtype;
        const tsr_dtype integer = case_integer(&pass->c, s);
        if (got != integer && (integer != TSR_DTYPE_NONE || got == TSR_I32 || got == TSR_U8))
            return apply_fail(pass->apply, EXIT_USAGE, "%s: %s.dtype is %s, expected %s", spec->op,
                              spec->slots[s].name, tsr_dtype_name(got),
                              integer != TSR_DTYPE_NONE ? tsr_dtype_name(integer)
                                                        : "a floating-point type");
        bool is_main = spec->slots[s].kind == SLOT_MAIN;
        if (!is_set && (is_main || got == TSR_F64)) pass->c.dtype = got;
        is_set |= is_main;
    }
    pass->c.small_dtype = pass->c.dtype;
    return true;
}

// Small tensors have the case's dtype or f32.
static bool check_dtypes(struct pass *pass) {
    const struct op_spec *spec = pass->c.spec;
    for (int s = 0; spec->slots[s].name != NULL; s++) {
        if (pass->bound[s] == NULL || case_role(&pass->c, s) == SLOT_INOUT) continue;
        tsr_dtype got = pass->bound[s]->tensor.dtype, expected = case_slot_dtype(&pass->c, s);
        if (spec->slots[s].kind == SLOT_SMALL && got == TSR_F32) continue;
        if (got == expected) continue;
        return apply_fail(pass->apply, EXIT_USAGE, "%s: %s.dtype is %s, expected %s", spec->op,
                          spec->slots[s].name, tsr_dtype_name(got), tsr_dtype_name(expected));
    }
    return true;
}

// ---- Shapes -----------------------------------------------------------------------------------

static void find_lead(struct pass *pass) {
    const struct op_spec *spec = pass->c.spec;
    pass->lead = spec_param(spec, "rows");
    if (pass->lead < 0 && spec_param(spec, "batch") < 0) pass->lead = spec_param(spec, "tokens");
    if (pass->lead < 0 && spec_param(spec, "m") >= 0) {
        pass->lead = spec_param(spec, "batch");
        pass->is_dropped_at_1 = true;
    }
}

// The shape of a slot without its leading dimensions; *has_lead says whether it has any.
static int core_shape(const struct pass *pass, int slot, int64_t *core, bool *has_lead) {
    *has_lead = false;
    int ndim = pass->c.spec->shape(&pass->c, slot, core);
    if (pass->lead < 0) return ndim;
    int64_t first[TSR_MAX_DIMS], second[TSR_MAX_DIMS];
    struct op_case probe = pass->c;
    probe.param[pass->lead] += 2; // a batch of 1 may be dropped
    int probe_ndim = probe.spec->shape(&probe, slot, first);
    probe.param[pass->lead] += 1;
    probe.spec->shape(&probe, slot, second);
    *has_lead = probe_ndim > 0 && first[0] != second[0] && !slot_of(pass, slot)->is_flat;
    if (!*has_lead) return ndim;
    memcpy(core, first + 1, (size_t)(probe_ndim - 1) * sizeof *core);
    return probe_ndim - 1;
}

// Makes a view of a file's tensor with its leading dimensions folded into one, from which the description infers sizes.
// Stores the leading dimensions of the first tensor that has any.
static bool fold(struct pass *pass, int slot) {
    const tsr_tensor *t = &pass->bound[slot]->tensor;
    int64_t core[TSR_MAX_DIMS], folded[TSR_MAX_DIMS] = {1};
    bool has_lead;
    int core_ndim = core_shape(pass, slot, core, &has_lead), ndim = 0;
    if (!has_lead) {
        pass->c.tensor[slot] = *t;
        return true;
    }
    char text[128];
    if (t->ndim < core_ndim)
        return apply_fail(pass->apply, EXIT_USAGE,
                          "%s: %s has shape %s, expected at least %d dimension%s", pass->c.spec->op,
                          slot_of(pass, slot)->name,
                          apply_shape_text(t->ndim, t->shape, text, sizeof text), core_ndim,
                          core_ndim == 1 ? "" : "s");
    int num_leading = t->ndim - core_ndim;
    for (int i = 0; i < num_leading; i++)
        if (__builtin_mul_overflow(folded[0], t->shape[i], &folded[0]))
            return apply_fail(pass->apply, EXIT_USAGE, "%s: %s has shape %s, too many rows",
                              pass->c.spec->op, slot_of(pass, slot)->name,
                              apply_shape_text(t->ndim, t->shape, text, sizeof text));
    if (folded[0] != 1 || !pass->is_dropped_at_1) ndim = 1;
    for (int i = num_leading; i < t->ndim; i++) folded[ndim++] = t->shape[i];
    pass->c.tensor[slot] = tsr_tensor_contiguous(t->data, t->dtype, ndim, folded);
    if (pass->num_leading >= 0) return true;
    pass->num_leading = num_leading;
    memcpy(pass->leading, t->shape, sizeof pass->leading);
    return true;
}

static const char *value_text(const struct param_spec *param, double value, char *text,
                              size_t bytes) {
    if (param->kind == PARAM_CHOICE)
        snprintf(text, bytes, "%s", param->choices[(int)value]);
    else
        snprintf(text, bytes, "%.10g", value);
    return text;
}

static bool infer(struct pass *pass) {
    const struct op_spec *spec = pass->c.spec;
    for (int s = 0; spec->slots[s].name != NULL; s++)
        if (pass->bound[s] != NULL && !fold(pass, s)) return false;
    struct op_case before = pass->c;
    char text[512], name[64], given[32], inferred[32];
    if (spec->infer != NULL && !spec->infer(&pass->c))
        return apply_fail(pass->apply, EXIT_USAGE, "%s: the ranks do not fit: %s holds %s",
                          spec->op, pass->apply->input_path,
                          holdings(pass->apply, text, sizeof text));
    for (int i = 0; i < pass->apply->num_options; i++) {
        const struct apply_option *option = &pass->apply->options[i];
        int param = spec_param(spec, option->param->name);
        if (param < 0) continue;
        double value = pass->c.param[param];
        if (option->is_given && value != before.param[param])
            return apply_fail(pass->apply, EXIT_USAGE,
                              "%s: %s is given as %s, but the tensors make it %s", spec->op,
                              option->param->name,
                              value_text(option->param, before.param[param], given, sizeof given),
                              value_text(option->param, value, inferred, sizeof inferred));
        if (value == NOT_TOLD && option->param->source == SOURCE_OPTION)
            return apply_fail(pass->apply, EXIT_USAGE, "%s needs --%s, which no tensor implies",
                              spec->op, apply_option_name(option->param, name, sizeof name));
    }
    return true;
}

// The shape of a slot in the files.
static int file_shape(const struct pass *pass, int slot, int64_t *shape) {
    int64_t core[TSR_MAX_DIMS];
    bool has_lead;
    int core_ndim = core_shape(pass, slot, core, &has_lead);
    int num_leading = has_lead && pass->num_leading > 0 ? pass->num_leading : 0;
    if (num_leading + core_ndim > TSR_MAX_DIMS) return -1;
    memcpy(shape, pass->leading, (size_t)num_leading * sizeof *shape);
    memcpy(shape + num_leading, core, (size_t)core_ndim * sizeof *shape);
    return num_leading + core_ndim;
}

static bool is_shape(const tsr_tensor *t, int ndim, const int64_t *shape) {
    return t->ndim == ndim && memcmp(t->shape, shape, (size_t)ndim * sizeof *shape) == 0;
}

// Checks the shape of every input; the case gets contiguous views in the description's shapes.
static bool check_shapes(struct pass *pass) {
    const struct op_spec *spec = pass->c.spec;
    char got[128], expected[128];
    for (int s = 0; spec->slots[s].name != NULL; s++) {
        if (pass->bound[s] == NULL) continue;
        const tsr_tensor *t = &pass->bound[s]->tensor;
        int64_t in_file[TSR_MAX_DIMS], in_case[TSR_MAX_DIMS];
        int ndim = file_shape(pass, s, in_file), case_ndim = spec->shape(&pass->c, s, in_case);
        // With a batch of 1, a shared matrix may lack the batch dimension.
        bool is_right = (ndim >= 0 && is_shape(t, ndim, in_file)) ||
                        (pass->is_dropped_at_1 && is_shape(t, case_ndim, in_case) &&
                         pass->c.param[pass->lead] == 1);
        if (!is_right)
            return apply_fail(
                pass->apply, EXIT_USAGE, "%s: %s has shape %s, expected %s", spec->op,
                pass->bound[s]->name, apply_shape_text(t->ndim, t->shape, got, sizeof got),
                apply_shape_text(ndim < 0 ? case_ndim : ndim, ndim < 0 ? in_case : in_file,
                                 expected, sizeof expected));
        pass->c.tensor[s] = tsr_tensor_contiguous(t->data, t->dtype, case_ndim, in_case);
    }
    return true;
}

// ---- Outputs ----------------------------------------------------------------------------------

// For an output that the call updates: copies the input into the result.
static bool copy_input(struct pass *pass, int slot, const tsr_tensor *result) {
    const tsr_tensor *input = &pass->bound[slot]->tensor;
    size_t bytes = (size_t)tsr_tensor_numel(result) * tsr_dtype_bytes(result->dtype);
    if (input->dtype != result->dtype)
        return apply_fail(pass->apply, EXIT_USAGE, "%s: %s.dtype is %s, expected %s",
                          pass->c.spec->op, slot_of(pass, slot)->name, tsr_dtype_name(input->dtype),
                          tsr_dtype_name(result->dtype));
    if (bytes > 0) memcpy(result->data, input->data, bytes);
    return true;
}

// The shape of an output in the files. An updated tensor keeps its shape. A gradient has its tensor's shape, also if a
// shared matrix lacks a batch dimension of 1. Returns the number of dimensions, -1 after a failure.
static int output_shape(struct pass *pass, int slot, int64_t *shape) {
    const struct slot_spec *output = slot_of(pass, slot);
    const struct apply_value *model = apply_model(pass->apply, output);
    char got[128], expected[128];
    int ndim = file_shape(pass, slot, shape);
    if (pass->bound[slot] != NULL) model = pass->bound[slot];
    if (ndim < 0 && model == NULL) {
        apply_fail(pass->apply, EXIT_USAGE, "%s: %s would have more than %d dimensions",
                   pass->c.spec->op, output->name, TSR_MAX_DIMS);
        return -1;
    }
    if (model == NULL) return ndim;
    const tsr_tensor *like = &model->tensor;
    if (pass->bound[slot] == NULL && tsr_tensor_numel(like) != case_numel(&pass->c, slot)) {
        apply_fail(pass->apply, EXIT_USAGE, "%s: %s would have shape %s, expected %s as %s",
                   pass->c.spec->op, output->name, apply_shape_text(ndim, shape, got, sizeof got),
                   apply_shape_text(like->ndim, like->shape, expected, sizeof expected),
                   model->name);
        return -1;
    }
    memcpy(shape, like->shape, sizeof like->shape);
    return like->ndim;
}

static bool make_outputs(struct pass *pass, bool is_described) {
    const struct op_spec *spec = pass->c.spec;
    for (int s = 0; spec->slots[s].name != NULL; s++) {
        const enum slot_role role = case_role(&pass->c, s);
        if (role == SLOT_IN) continue;
        const char *name = spec->slots[s].name;
        pass->c.is_present[s] = apply_is_wanted(pass->apply, spec, s, role);
        if (!pass->c.is_present[s]) continue;
        const struct apply_value *before = pass->bound[s];
        tsr_dtype dtype =
            apply_output_dtype(pass->apply, &pass->c, s, is_described ? NULL : before);
        int64_t shape[TSR_MAX_DIMS], case_shape[TSR_MAX_DIMS];
        int ndim = output_shape(pass, s, shape);
        tsr_tensor result;
        if (ndim < 0 || !apply_allocate(pass->apply, name, dtype, ndim, shape, &result) ||
            apply_add(pass->apply, name, &result, result.data) == NULL ||
            (before != NULL && !copy_input(pass, s, &result)))
            return false;
        pass->c.tensor[s] = result;
        if (!is_described) continue;
        int case_ndim = spec->shape(&pass->c, s, case_shape);
        pass->c.tensor[s] = tsr_tensor_contiguous(result.data, dtype, case_ndim, case_shape);
    }
    return true;
}

// ---- The pass ---------------------------------------------------------------------------------

static void set_params(struct pass *pass) {
    const struct param_spec *params = pass->c.spec->params;
    const struct op_case *last = &pass->apply->last;
    for (int i = 0; params[i].name != NULL; i++) {
        int known = last->spec != NULL && params[i].kind == PARAM_SIZE
                        ? spec_param(last->spec, params[i].name)
                        : -1;
        double standard = known >= 0                          ? last->param[known]
                          : params[i].source == SOURCE_OPTION ? NOT_TOLD
                                                              : params[i].standard;
        pass->c.param[i] = apply_option_value(pass->apply, params[i].name, standard);
    }
}

static bool has_variant(const struct op_spec *spec, const char *variant) {
    tsr_variant_info info;
    for (int i = 0; variant != NULL && i < tsr_variant_count(spec->op); i++)
        if (tsr_variant_info_get(spec->op, i, &info) == TSR_OK && strcmp(info.name, variant) == 0)
            return true;
    return false;
}

// On a GPU the tensors are copied there and the results back.
static tsr_status call(struct apply *apply, const struct op_case *c, const char *variant) {
    struct device_case device;
    if (apply->device.type == TSR_CPU) return c->spec->call(apply->ctx, c, variant, NULL, 0, NULL);
    tsr_status status = device_case_create(&device, apply->ctx, c);
    if (status == TSR_OK) status = c->spec->call(apply->ctx, &device.c, variant, NULL, 0, NULL);
    if (status == TSR_OK) status = device_case_copy_out(&device);
    device_case_release(&device);
    return status;
}

// Whether the workspace fits into memory beside the tensors. A GPU's allocator reports that by itself.
static bool check_workspace(struct apply *apply, const struct op_case *c, const char *variant) {
    size_t bytes = 0;
    char needed[32], left[32];
    if (apply->device.type != TSR_CPU) return true;
    tsr_status status = c->spec->call(apply->ctx, c, variant, NULL, 0, &bytes);
    if (status != TSR_OK) return apply_fail_status(apply, status);
    double available = allocation_available();
    if (allocation_fits((double)bytes, available)) return true;
    return apply_fail(apply, EXIT_COULD_NOT_RUN,
                      "%s: the workspace needs %s, the machine has %s left", c->spec->op,
                      allocation_text((double)bytes, needed, sizeof needed),
                      allocation_text(available, left, sizeof left));
}

static bool prepare_pass(struct pass *pass, struct apply *apply, const struct op_spec *spec) {
    *pass = (struct pass){.apply = apply, .c = case_default(spec), .num_leading = -1};
    pass->c.flags = apply->flags;
    set_params(pass);
    find_lead(pass);
    return bind_inputs(pass) && set_dtype(pass);
}

bool apply_case(struct apply *apply, const struct op_spec *spec, struct op_case *c) {
    struct pass pass;
    bool is_made = prepare_pass(&pass, apply, spec) && check_dtypes(&pass) && infer(&pass) &&
                   check_shapes(&pass) && make_outputs(&pass, true);
    *c = pass.c;
    return is_made;
}

bool apply_pass(struct apply *apply, const struct op_spec *spec) {
    struct pass pass;
    if (!prepare_pass(&pass, apply, spec) || !infer(&pass)) return false;
    for (int s = 0; spec->slots[s].name != NULL; s++)
        if (pass.bound[s] != NULL) pass.c.tensor[s] = pass.bound[s]->tensor;
    if (!make_outputs(&pass, false)) return false;
    // If only the other pass has this variant, the library chooses for this pass.
    const char *variant = has_variant(spec, apply->variant) ? apply->variant : NULL;
    if (!check_workspace(apply, &pass.c, variant)) return false;
    tsr_status status = call(apply, &pass.c, variant);
    apply->last = pass.c;
    return status == TSR_OK || apply_fail_status(apply, status);
}
