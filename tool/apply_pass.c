// SPDX-License-Identifier: Apache-2.0
// One pass of an operation on named tensors, by its description alone: binds the inputs, infers the
// sizes, checks every shape and dtype, gives the outputs memory, calls.
//
// Leading dimensions: an operation on rows (parameter "rows" or "tokens") or on matrices (parameter "batch"
// beside "m") is described with at most one of them. A file's tensor may have any number, which are
// folded into that one; outputs get those of the first tensor back. Which tensors have leading
// dimensions is seen by asking the description for the shapes of two sizes.
#include <stdio.h>
#include <string.h>

#include "allocation.h"
#include "apply.h"
#include "command.h"
#include "device_case.h"

// A pass under way.
struct pass {
    struct apply *apply;
    struct op_case c;
    struct apply_value *bound[SPEC_MAX_SLOTS]; // inputs
    int lead;             // the parameter that stands for the leading dimensions, -1 for none
    bool is_dropped_at_1; // a leading 1 is no dimension in the description
    int num_leading;
    int64_t leading[TSR_MAX_DIMS]; // those of the first tensor
};

static const struct slot_spec *slot_of(const struct pass *pass, int slot) {
    return &pass->c.spec->slots[slot];
}

const char *apply_shape_text(int ndim, const int64_t *shape, char *text, size_t bytes) {
    size_t used = (size_t)snprintf(text, bytes, "(");
    for (int i = 0; i < ndim && used < bytes; i++)
        used +=
            (size_t)snprintf(text + used, bytes - used, i ? ", %lld" : "%lld", (long long)shape[i]);
    if (used < bytes) snprintf(text + used, bytes - used, ndim == 1 ? ",)" : ")");
    return text;
}

// ---- Inputs -----------------------------------------------------------------------------------

// "x (3, 4), dy (3, 4)" of what came from the file.
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

static bool is_float(tsr_dtype dtype) { return dtype != TSR_I32 && dtype != TSR_DTYPE_NONE; }

// The main tensors give the dtype of the case; small ones may be f32 beside it.
static bool check_dtypes(struct pass *pass) {
    const struct op_spec *spec = pass->c.spec;
    const char *main_name = NULL;
    for (int s = 0; spec->slots[s].name != NULL && main_name == NULL; s++)
        if (pass->bound[s] != NULL && spec->slots[s].kind == SLOT_MAIN) {
            pass->c.dtype = pass->bound[s]->tensor.dtype;
            main_name = spec->slots[s].name;
        }
    pass->c.small_dtype = pass->c.dtype;
    for (int s = 0; spec->slots[s].name != NULL; s++) {
        if (pass->bound[s] == NULL || spec->slots[s].role == SLOT_INOUT) continue;
        tsr_dtype got = pass->bound[s]->tensor.dtype, expected = case_slot_dtype(&pass->c, s);
        if (spec->slots[s].kind == SLOT_SMALL && got == TSR_F32) continue;
        if (got == expected && (got == TSR_I32) == (spec->slots[s].kind == SLOT_I32)) continue;
        bool is_as_main = main_name != NULL && is_float(expected) &&
                          spec->slots[s].kind != SLOT_F32 && spec->slots[s].name != main_name;
        return apply_fail(pass->apply, EXIT_USAGE, "%s: %s.dtype is %s, expected %s%s%s%s",
                          spec->op, spec->slots[s].name, tsr_dtype_name(got),
                          is_float(expected) || spec->slots[s].kind == SLOT_I32
                              ? tsr_dtype_name(expected)
                              : "a floating-point type",
                          is_as_main ? " as " : "", is_as_main ? main_name : "",
                          is_as_main && spec->slots[s].kind == SLOT_SMALL ? ", or f32" : "");
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
    probe.param[pass->lead] += 2; // a batch of 1 may be no dimension
    int probe_ndim = probe.spec->shape(&probe, slot, first);
    probe.param[pass->lead] += 1;
    probe.spec->shape(&probe, slot, second);
    *has_lead = probe_ndim > 0 && first[0] != second[0];
    if (!*has_lead) return ndim;
    memcpy(core, first + 1, (size_t)(probe_ndim - 1) * sizeof *core);
    return probe_ndim - 1;
}

// A view of a file's tensor with its leading dimensions folded into one, for the description to
// infer sizes from. Keeps those of the first tensor.
static bool fold(struct pass *pass, int slot, bool is_first) {
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
    for (int i = 0; i < num_leading; i++) folded[0] *= t->shape[i];
    if (folded[0] != 1 || !pass->is_dropped_at_1) ndim = 1;
    for (int i = num_leading; i < t->ndim; i++) folded[ndim++] = t->shape[i];
    pass->c.tensor[slot] = tsr_tensor_contiguous(t->data, t->dtype, ndim, folded);
    if (!is_first) return true;
    pass->num_leading = num_leading;
    memcpy(pass->leading, t->shape, sizeof pass->leading);
    return true;
}

static bool infer(struct pass *pass) {
    const struct op_spec *spec = pass->c.spec;
    bool is_first = true;
    for (int s = 0; spec->slots[s].name != NULL; s++)
        if (pass->bound[s] != NULL) {
            if (!fold(pass, s, is_first)) return false;
            is_first = false;
        }
    struct op_case before = pass->c;
    char text[512];
    if (spec->infer != NULL && !spec->infer(&pass->c))
        return apply_fail(pass->apply, EXIT_USAGE, "%s: the ranks do not fit: %s holds %s",
                          spec->op, pass->apply->input_path,
                          holdings(pass->apply, text, sizeof text));
    for (int i = 0; i < pass->apply->num_options; i++) {
        const struct apply_option *option = &pass->apply->options[i];
        int param = spec_param(spec, option->param->name);
        if (option->is_given && param >= 0 && pass->c.param[param] != before.param[param])
            return apply_fail(pass->apply, EXIT_USAGE,
                              "%s: %s is given as %.10g, but the tensors make it %.10g", spec->op,
                              option->param->name, before.param[param], pass->c.param[param]);
    }
    return true;
}

// The shape of a slot in the files.
static int file_shape(const struct pass *pass, int slot, int64_t *shape) {
    int64_t core[TSR_MAX_DIMS];
    bool has_lead;
    int core_ndim = core_shape(pass, slot, core, &has_lead);
    int num_leading = has_lead ? pass->num_leading : 0;
    if (num_leading + core_ndim > TSR_MAX_DIMS) return -1;
    memcpy(shape, pass->leading, (size_t)num_leading * sizeof *shape);
    memcpy(shape + num_leading, core, (size_t)core_ndim * sizeof *shape);
    return num_leading + core_ndim;
}

static bool is_shape(const tsr_tensor *t, int ndim, const int64_t *shape) {
    return t->ndim == ndim && memcmp(t->shape, shape, (size_t)ndim * sizeof *shape) == 0;
}

// Every input against its shape; the case gets contiguous views in the description's shapes.
static bool check_shapes(struct pass *pass) {
    const struct op_spec *spec = pass->c.spec;
    char got[128], expected[128];
    for (int s = 0; spec->slots[s].name != NULL; s++) {
        if (pass->bound[s] == NULL) continue;
        const tsr_tensor *t = &pass->bound[s]->tensor;
        int64_t in_file[TSR_MAX_DIMS], in_case[TSR_MAX_DIMS];
        int ndim = file_shape(pass, s, in_file), case_ndim = spec->shape(&pass->c, s, in_case);
        // Beside a batch of 1, a shared matrix may have no batch at all.
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

// The value that an output follows: dx is of x, residual_out of residual.
static const struct apply_value *model_of(struct pass *pass, const char *name) {
    char base[64];
    size_t length = strlen(name);
    if (length >= sizeof base) return NULL;
    if (length > 4 && strcmp(name + length - 4, "_out") == 0) {
        snprintf(base, sizeof base, "%.*s", (int)(length - 4), name);
        return apply_find(pass->apply, base);
    }
    return name[0] == 'd' ? apply_find(pass->apply, name + 1) : NULL;
}

// An optional output is wanted unless what it follows is absent: dbias without bias.
static bool is_wanted(struct pass *pass, int slot) {
    const char *name = slot_of(pass, slot)->name;
    size_t length = strlen(name);
    bool follows = name[0] == 'd' || (length > 4 && strcmp(name + length - 4, "_out") == 0);
    return !slot_of(pass, slot)->is_optional || !follows || model_of(pass, name) != NULL;
}

// Outputs have the main dtype; gradients of small tensors have their tensor's.
static tsr_dtype output_dtype(struct pass *pass, int slot) {
    const struct slot_spec *spec = slot_of(pass, slot);
    const struct apply_value *model = spec->name[0] == 'd' ? model_of(pass, spec->name) : NULL;
    if (spec->kind == SLOT_SMALL && model != NULL) return model->tensor.dtype;
    return case_slot_dtype(&pass->c, slot);
}

static bool make_outputs(struct pass *pass) {
    const struct op_spec *spec = pass->c.spec;
    for (int s = 0; spec->slots[s].name != NULL; s++) {
        if (spec->slots[s].role == SLOT_IN) continue;
        const char *name = spec->slots[s].name;
        pass->c.is_present[s] = is_wanted(pass, s);
        if (!pass->c.is_present[s]) continue;
        tsr_dtype dtype = output_dtype(pass, s);
        tsr_tensor in_file, in_case = pass->c.tensor[s];
        int64_t shape[TSR_MAX_DIMS], case_shape[TSR_MAX_DIMS];
        int ndim = file_shape(pass, s, shape);
        // A gradient has its tensor's shape, also where a batch of 1 lets a shared matrix lack it.
        const struct apply_value *model = name[0] == 'd' ? model_of(pass, name) : NULL;
        if (model != NULL && tsr_tensor_numel(&model->tensor) == case_numel(&pass->c, s)) {
            ndim = model->tensor.ndim;
            memcpy(shape, model->tensor.shape, sizeof shape);
        }
        if (ndim < 0)
            return apply_fail(pass->apply, EXIT_USAGE, "%s: %s would have more than %d dimensions",
                              spec->op, name, TSR_MAX_DIMS);
        if (!apply_allocate(pass->apply, name, dtype, ndim, shape, &in_file)) return false;
        if (apply_add(pass->apply, name, &in_file, in_file.data) == NULL) return false;
        if (pass->bound[s] != NULL) { // in and out: the result starts as the input
            if (in_case.dtype != dtype)
                return apply_fail(pass->apply, EXIT_USAGE, "%s: %s.dtype is %s, expected %s",
                                  spec->op, name, tsr_dtype_name(in_case.dtype),
                                  tsr_dtype_name(dtype));
            int64_t numel = tsr_tensor_numel(&in_file);
            if (numel > 0)
                memcpy(in_file.data, in_case.data, (size_t)numel * tsr_dtype_bytes(dtype));
        }
        int case_ndim = spec->shape(&pass->c, s, case_shape);
        pass->c.tensor[s] = tsr_tensor_contiguous(in_file.data, dtype, case_ndim, case_shape);
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
        double standard = known >= 0 ? last->param[known] : params[i].standard;
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

// On a device other than the host's the tensors go there, and the results come back.
static tsr_status call(struct apply *apply, const struct op_case *c, const char *variant) {
    struct device_case device;
    if (apply->device.type == TSR_CPU) return c->spec->call(apply->ctx, c, variant, NULL, 0, NULL);
    tsr_status status = device_case_create(&device, apply->ctx, c);
    if (status == TSR_OK) status = c->spec->call(apply->ctx, &device.c, variant, NULL, 0, NULL);
    if (status == TSR_OK) status = device_case_copy_out(&device);
    device_case_release(&device);
    return status;
}

// What the call takes beside the tensors, which lie in memory already. A device has its own words for it.
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

bool apply_case(struct apply *apply, const struct op_spec *spec, struct op_case *c) {
    struct pass pass = {.apply = apply, .c = case_default(spec)};
    pass.c.flags = apply->flags;
    set_params(&pass);
    find_lead(&pass);
    bool is_made = bind_inputs(&pass) && check_dtypes(&pass) && infer(&pass) &&
                   check_shapes(&pass) && make_outputs(&pass);
    *c = pass.c;
    return is_made;
}

bool apply_pass(struct apply *apply, const struct op_spec *spec) {
    struct op_case c;
    if (!apply_case(apply, spec, &c)) return false;
    // A variant of one pass alone leaves the other one to the library.
    const char *variant = has_variant(spec, apply->variant) ? apply->variant : NULL;
    if (!check_workspace(apply, &c, variant)) return false;
    tsr_status status = call(apply, &c, variant);
    apply->last = c;
    return status == TSR_OK || apply_fail_status(apply, status);
}
