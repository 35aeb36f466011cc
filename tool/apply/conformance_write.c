// SPDX-License-Identifier: Apache-2.0
// Writes the cases of verify as files: drawn as by verify, written contiguous, read back as by `apply`. A case is kept if
// the oracle gives the same results for both. A file cannot express some parameters that only a caller can set, for
// example a longest packed sequence that is shorter than the offsets make it.
#define _GNU_SOURCE
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apply/conformance.h"
#include "commands/command.h"
#include "files/result.h"
#include "system/files.h"
#include "system/signals.h"
#include "verify/trial.h"

// ---- A case and its file ------------------------------------------------------------------------

bool conformance_open(struct conformance_case *opened, const struct op_case *like,
                      const char *path) {
    enum { ORACLE_BYTES = 2 * sizeof(double) }; // per element: the expected value and the bound
    *opened = (struct conformance_case){
        .apply = {.command = like->spec->op, .input_path = path, .bytes_beside = ORACLE_BYTES}};
    struct apply *apply = &opened->apply;
    apply->forward = like->spec;
    apply->last = *like; // has sizes that no input gives, such as the rows of dweight
    apply_add_params(apply, like->spec);
    apply_set_options(apply, like);
    tsr_status status = tsr_safetensors_open(path, &opened->file);
    if (status != TSR_OK) return apply_fail_status(apply, status);
    if (!apply_load(apply, opened->file, TSR_DTYPE_NONE) ||
        !apply_case(apply, like->spec, &opened->c))
        return false;
    for (int i = 0; i < apply->num_values; i++)
        if (!apply->values[i].is_result && !apply->values[i].is_used)
            return apply_fail(apply, EXIT_USAGE, "%s: these options do not use '%s'", path,
                              apply->values[i].name);
    return true;
}

void conformance_close(struct conformance_case *opened) {
    apply_release(&opened->apply);
    tsr_safetensors_close(opened->file);
    opened->file = NULL;
}

// ---- NAME.json ----------------------------------------------------------------------------------

const char *conformance_option_text(const struct apply_option *option,
                                    char text[CONFORMANCE_OPTION_BYTES]) {
    const struct param_spec *param = option->param;
    char value[64] = "";
    if (param->kind == PARAM_CHOICE)
        snprintf(value, sizeof value, "=%s", param->choices[(int)option->value]);
    else if (param->kind != PARAM_FLAG)
        snprintf(value, sizeof value, param->kind == PARAM_REAL ? "=%.17g" : "=%.0f",
                 option->value);
    char name[61];
    snprintf(text, CONFORMANCE_OPTION_BYTES, "--%s%s", apply_option_name(param, name, sizeof name),
             value);
    return text;
}

static json_t *tensor_json(const tsr_tensor *t) {
    json_t *shape = json_array();
    for (int i = 0; i < t->ndim; i++) json_array_append_new(shape, json_integer(t->shape[i]));
    return json_pack("{s:s, s:o}", "dtype", tsr_dtype_name(t->dtype), "shape", shape);
}

static bool write_json(const struct conformance_case *opened, const char *path, const char *edge,
                       uint64_t seed) {
    const struct op_spec *spec = opened->c.spec;
    const struct apply *apply = &opened->apply;
    char option[CONFORMANCE_OPTION_BYTES];
    json_t *options = json_array(), *inputs = json_object(), *outputs = json_object();
    for (int i = 0; i < apply->num_options; i++)
        if (apply->options[i].is_given)
            json_array_append_new(options,
                                  json_string(conformance_option_text(&apply->options[i], option)));
    for (int i = 0; i < apply->num_values; i++) {
        const struct apply_value *value = &apply->values[i];
        json_t *tensor = tensor_json(&value->tensor);
        if (value->is_result)
            json_object_set_new(
                tensor, "optional",
                json_boolean(spec->slots[spec_slot(spec, value->name)].is_optional));
        json_object_set_new(value->is_result ? outputs : inputs, value->name, tensor);
    }
    json_t *document =
        json_pack("{s:i, s:s, s:s, s:s, s:s?, s:I, s:o, s:o, s:o, s:o}", "schema", 1, "op",
                  spec->op, "pass", spec->pass, "dtype", tsr_dtype_name(opened->c.dtype), "edge",
                  edge, "seed", (json_int_t)seed, "params", result_params_json(&opened->c),
                  "options", options, "inputs", inputs, "outputs", outputs);
    bool is_written = document != NULL &&
                      json_dump_file(document, path, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) == 0;
    json_decref(document);
    return is_written;
}

// ---- Writing ------------------------------------------------------------------------------------

struct writer {
    const struct conformance_writing *with;
    int64_t num_written, num_left_out;
    char failure[1400]; // the error that ends the writing
};

static bool fail(struct writer *writer, const char *path, const char *why) {
    snprintf(writer->failure, sizeof writer->failure, "cannot write %s: %s", path, why);
    return false;
}

// Writes the inputs that the call reads. Files have no layouts, so cases that differ only in layout are left out.
static bool write_inputs(struct trial *trial, const char *path) {
    tsr_safetensors_entry entries[SPEC_MAX_SLOTS];
    const struct op_spec *spec = trial->c.spec;
    struct apply apply = {.forward = spec};
    int count = 0;
    apply_add_params(&apply, spec);
    apply_set_options(&apply, &trial->c);
    for (int s = 0; spec->slots[s].name != NULL; s++) {
        tsr_tensor *given = &trial->given.c.tensor[s], initial = trial->oracle.c.tensor[s];
        if (!trial->c.is_present[s] || case_role(&trial->c, s) == SLOT_OUT ||
            !apply_reads(&apply, spec, s))
            continue;
        initial.data = trial->initial[s];
        if (initial.data != NULL) tensor_copy(&initial, given);
        entries[count++] = (tsr_safetensors_entry){spec->slots[s].name, *given};
    }
    return file_write_tensors(path, entries, count) == TSR_OK;
}

// Whether the oracle gave the same results for two trials, in the outputs that both have.
static bool is_same(const struct trial *a, const struct trial *b) {
    const struct slot_spec *slots = a->c.spec->slots;
    for (int s = 0; slots[s].name != NULL; s++) {
        const tsr_tensor *x = &a->oracle.c.tensor[s], *y = &b->oracle.c.tensor[s];
        int64_t numel = tsr_tensor_numel(x);
        if (case_role(&a->c, s) == SLOT_IN || !a->c.is_present[s] || !b->c.is_present[s]) continue;
        if (numel != tsr_tensor_numel(y)) return false;
        for (int64_t i = 0; i < numel; i++) {
            double left = tsr_load(x->dtype, x->data, i), right = tsr_load(y->dtype, y->data, i);
            if (left != right && (left == left || right == right)) return false;
        }
    }
    return true;
}

// Draws a case, writes it and reads it back. A case that files cannot express is left out. False if writing fails.
static bool write_case(struct writer *writer, const struct op_case *c, uint64_t seed,
                       const char *edge, enum edge_fill fill) {
    char inputs[CONFORMANCE_MAX_PATH], call[CONFORMANCE_MAX_PATH];
    struct trial trial, again;
    struct conformance_case opened;
    if (trial_create(&trial, c, seed, fill, LAYOUT_CONTIGUOUS) != TSR_OK) {
        writer->num_left_out++;
        return true;
    }
    int length =
        snprintf(inputs, sizeof inputs - 16, "%s/%s-%s-%04lld", writer->with->folder, c->spec->op,
                 tsr_dtype_name(c->dtype), (long long)writer->num_written + 1);
    if (length >= (int)sizeof inputs - 16) length = (int)sizeof inputs - 17;
    snprintf(call, sizeof call, "%.*s.json", length, inputs);
    strcpy(inputs + length, ".safetensors");
    bool is_written = write_inputs(&trial, inputs);
    if (!is_written) {
        trial_release(&trial);
        return fail(writer, inputs, tsr_last_error());
    }
    bool is_case = conformance_open(&opened, c, inputs) && opened.c.dtype == c->dtype &&
                   trial_create_of(&again, &opened.c) == TSR_OK;
    if (is_case) {
        is_case = is_same(&trial, &again);
        trial_release(&again);
    }
    trial_release(&trial);
    if (is_case && !write_json(&opened, call, edge, writer->with->seed))
        is_written = fail(writer, call, strerror(errno));
    conformance_close(&opened);
    if (!is_case) unlink(inputs);
    writer->num_written += is_case;
    writer->num_left_out += !is_case;
    return is_written;
}

static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
enum { NUM_DTYPES = sizeof dtypes / sizeof *dtypes };

static bool wants_dtype(const struct writer *writer, tsr_dtype dtype) {
    return writer->with->dtype == NULL || strcmp(writer->with->dtype, tsr_dtype_name(dtype)) == 0;
}

static bool write_edges(struct writer *writer, const struct op_spec *spec, struct rng *rng) {
    for (const struct edge_case *edge = spec->edges; edge != NULL && edge->name != NULL; edge++)
        for (int d = 0; d < NUM_DTYPES && signals_seen() == 0; d++) {
            struct op_case c = case_default(spec);
            c.dtype = dtypes[d];
            if (!wants_dtype(writer, c.dtype) || edge->layout == LAYOUT_FAR ||
                edge->layout == LAYOUT_REPEATED)
                continue;
            c.small_dtype = rng_chance(rng, 0.5) ? c.dtype : TSR_F32;
            if (!case_set(&c, edge->params, writer->failure, sizeof writer->failure) ||
                !write_case(writer, &c, rng_bits(rng), edge->name, edge->fill))
                return false;
        }
    return true;
}

static bool write_random(struct writer *writer, const struct op_spec *spec, tsr_dtype dtype,
                         struct rng *rng) {
    struct op_case c = case_default(spec);
    c.dtype = dtype;
    c.small_dtype = rng_chance(rng, 0.5) ? dtype : TSR_F32;
    spec->randomize(rng, &c);
    return write_case(writer, &c, rng_bits(rng), NULL, FILL_NORMAL);
}

static bool is_chosen(const struct op_spec *spec, const struct text_list *names) {
    for (int i = 0; i < names->count; i++)
        if (spec_is_named(spec, names->items[i])) return true;
    return false;
}

int conformance_write(const struct conformance_writing *writing, const struct text_list *names) {
    struct writer writer = {.with = writing};
    struct rng rng = {writing->seed};
    signals_hold(true); // a signal must not split a case's two files
    struct stat info;
    bool is_fine = mkdir(writing->folder, 0777) == 0 || errno == EEXIST ||
                   fail(&writer, writing->folder, strerror(errno));
    if (is_fine && (stat(writing->folder, &info) != 0 || !S_ISDIR(info.st_mode)))
        is_fine = fail(&writer, writing->folder, strerror(ENOTDIR));
    for (int i = 0; is_fine && op_specs[i] != NULL; i++)
        if (is_chosen(op_specs[i], names)) is_fine = write_edges(&writer, op_specs[i], &rng);
    int64_t num_drawn = 0;
    for (int64_t turn = 0; is_fine && num_drawn < writing->num_configs && signals_seen() == 0;
         turn++) {
        tsr_dtype dtype = dtypes[turn % NUM_DTYPES];
        for (int i = 0; is_fine && op_specs[i] != NULL && signals_seen() == 0; i++) {
            if (!is_chosen(op_specs[i], names) || !wants_dtype(&writer, dtype) ||
                num_drawn >= writing->num_configs)
                continue;
            is_fine = write_random(&writer, op_specs[i], dtype, &rng);
            num_drawn++;
        }
    }
    if (is_fine && writer.num_written == 0) signals_end();
    if (is_fine && writer.num_written == 0)
        snprintf(writer.failure, sizeof writer.failure,
                 "nothing written: files can express none of the %lld cases",
                 (long long)writer.num_left_out);
    if (!is_fine || writer.num_written == 0) {
        fprintf(stderr, "tessera conformance: %s\n", writer.failure);
        return EXIT_COULD_NOT_RUN;
    }
    printf("%lld cases in %s (seed %llu)", (long long)writer.num_written, writing->folder,
           (unsigned long long)writing->seed);
    if (writer.num_left_out > 0)
        printf(", %lld left out, which files cannot express", (long long)writer.num_left_out);
    printf("\n");
    signals_end();
    return EXIT_FINE;
}
