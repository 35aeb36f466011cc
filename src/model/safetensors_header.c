// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file, from text to a checked table.
//
// First, a scan of the brackets refuses nesting beyond what the format needs, before the JSON library builds anything.
// That bounds the library's recursion and its memory (containers need the most) to about 40 times the header. Then two
// passes go over the tree: the first checks every tensor and counts what the table needs, the second fills one block.
// Last, tensors are sorted by position, so gaps and overlaps show between neighbours: O(n log n) for any file.
#include <fenv.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "model/safetensors_format.h"

// The sizes of the table.
struct needs {
    size_t tensors, pairs, dims, chars;
};

// ---- Before the JSON library ------------------------------------------------------------------

static tsr_status check_depth(const char *path, const char *text, size_t bytes) {
    if (bytes == 0 || text[0] != '{')
        return tsri_safetensors_fail(TSR_IO, path,
                                     "the header begins with byte 0x%02x, expected '{' (0x7b)",
                                     bytes > 0 ? (unsigned)(unsigned char)text[0] : 0u);
    int depth = 0;
    bool is_string = false;
    for (size_t i = 0; i < bytes; i++) {
        if (is_string) {
            if (text[i] == '\\')
                i++;
            else if (text[i] == '"')
                is_string = false;
        } else if (text[i] == '"')
            is_string = true;
        else if (text[i] == ']' || text[i] == '}')
            depth--;
        else if ((text[i] == '[' || text[i] == '{') && ++depth > SAFETENSORS_MAX_DEPTH)
            return tsri_safetensors_fail(
                TSR_IO, path,
                "byte %zu of the header opens level %d of nesting, expected at most %d", i, depth,
                (int)SAFETENSORS_MAX_DEPTH);
    }
    return TSR_OK;
}

// ---- First pass: checks -----------------------------------------------------------------------

static tsr_status check_metadata(const char *path, json_t *metadata, struct needs *needs) {
    if (!json_is_object(metadata))
        return tsri_safetensors_fail(TSR_IO, path,
                                     "__metadata__ is no object, expected strings by name");
    const char *key;
    json_t *value;
    char quote[SAFETENSORS_QUOTE_BYTES];
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return tsri_safetensors_fail(TSR_IO, path,
                                         "__metadata__ has a value for '%s' that is no string",
                                         tsri_safetensors_quote(key, quote));
        needs->pairs++;
        needs->chars += strlen(key) + 1 + json_string_length(value) + 1;
    }
    return TSR_OK;
}

// True for an integer of at least 0. The JSON library has already refused numbers above 2^63 - 1.
static bool is_size(const json_t *value) {
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

static tsr_status check_shape(const char *path, const char *name, json_t *shape, int64_t *numel) {
    if (!json_is_array(shape))
        return tsri_safetensors_fail(TSR_IO, path, "tensor '%s' has no array named shape", name);
    size_t ndim = json_array_size(shape);
    if (ndim > SAFETENSORS_MAX_DIMS)
        return tsri_safetensors_fail(TSR_IO, path,
                                     "tensor '%s' has %zu dimensions, expected at most %d", name,
                                     ndim, (int)SAFETENSORS_MAX_DIMS);
    // The product without zero dimensions must not overflow either, because code that flattens the shape computes it.
    int64_t product = 1;
    bool is_empty = false;
    for (size_t i = 0; i < ndim; i++) {
        json_t *dim = json_array_get(shape, i);
        if (!is_size(dim))
            return tsri_safetensors_fail(
                TSR_IO, path, "shape[%zu] of tensor '%s' is no whole number from 0 to 2^63 - 1", i,
                name);
        int64_t size = json_integer_value(dim);
        is_empty |= size == 0;
        if (size > 0 && __builtin_mul_overflow(product, size, &product))
            return tsri_safetensors_fail(
                TSR_IO, path, "the shape of tensor '%s' has a product beyond 2^63 - 1", name);
    }
    *numel = is_empty ? 0 : product;
    return TSR_OK;
}

static tsr_status check_tensor(const char *path, const char *key, json_t *tensor,
                               struct needs *needs) {
    char quote[SAFETENSORS_QUOTE_BYTES], dtype_quote[SAFETENSORS_QUOTE_BYTES];
    const char *name = tsri_safetensors_quote(key, quote);
    if (!json_is_object(tensor))
        return tsri_safetensors_fail(
            TSR_IO, path, "tensor '%s' is no object, expected dtype, shape and data_offsets", name);
    json_t *dtype_json = json_object_get(tensor, "dtype");
    if (!json_is_string(dtype_json))
        return tsri_safetensors_fail(TSR_IO, path, "tensor '%s' has no string named dtype", name);
    json_t *shape = json_object_get(tensor, "shape");
    int64_t numel = 0, bits;
    TSRI_TRY(check_shape(path, name, shape, &numel));

    json_t *offsets = json_object_get(tensor, "data_offsets");
    json_t *begin_json = json_array_get(offsets, 0), *end_json = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !is_size(begin_json) || !is_size(end_json))
        return tsri_safetensors_fail(
            TSR_IO, path,
            "data_offsets of tensor '%s' are no array of two whole numbers from 0 to "
            "2^63 - 1",
            name);
    int64_t begin = json_integer_value(begin_json), end = json_integer_value(end_json);
    if (end < begin)
        return tsri_safetensors_fail(
            TSR_IO, path,
            "data_offsets of tensor '%s' are [%lld, %lld], expected the end behind the "
            "beginning",
            name, (long long)begin, (long long)end);

    const char *dtype_name = json_string_value(dtype_json);
    const struct tsri_safetensors_dtype *dtype = tsri_safetensors_dtype_named(dtype_name);
    if (dtype != NULL) {
        if (__builtin_mul_overflow(numel, (int64_t)dtype->bits, &bits) || bits % 8 != 0)
            return tsri_safetensors_fail(
                TSR_IO, path,
                "tensor '%s' has %lld elements of %d bits, expected a whole number of "
                "bytes below 2^60",
                name, (long long)numel, dtype->bits);
        if (bits / 8 != end - begin)
            return tsri_safetensors_fail(
                TSR_IO, path,
                "tensor '%s' has %lld bytes in data_offsets, expected %lld for its %lld "
                "elements of %s",
                name, (long long)(end - begin), (long long)(bits / 8), (long long)numel,
                tsri_safetensors_quote(dtype_name, dtype_quote));
    }
    needs->tensors++;
    needs->dims += json_array_size(shape);
    needs->chars += strlen(key) + 1 + json_string_length(dtype_json) + 1;
    return TSR_OK;
}

// ---- Second pass: the table -------------------------------------------------------------------

static const char *keep_text(char **chars, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *kept = memcpy(*chars, text, bytes);
    *chars += bytes;
    return kept;
}

static void fill_tensor(struct tsri_safetensors_tensor *t, const char *key, json_t *tensor,
                        int64_t **dims, char **chars) {
    json_t *shape = json_object_get(tensor, "shape");
    json_t *offsets = json_object_get(tensor, "data_offsets");
    t->name = keep_text(chars, key);
    t->dtype_name = keep_text(chars, json_string_value(json_object_get(tensor, "dtype")));
    t->dtype = tsri_safetensors_dtype_named(t->dtype_name);
    t->ndim = (int64_t)json_array_size(shape);
    t->shape = *dims;
    for (int64_t i = 0; i < t->ndim; i++)
        *(*dims)++ = json_integer_value(json_array_get(shape, (size_t)i));
    t->begin = json_integer_value(json_array_get(offsets, 0));
    t->end = json_integer_value(json_array_get(offsets, 1));
}

static tsr_status fill(const char *path, json_t *root, const struct needs *needs,
                       struct tsri_safetensors_header *header) {
    size_t bytes = needs->tensors * (sizeof *header->tensors + sizeof *header->by_name) +
                   needs->pairs * sizeof *header->metadata + needs->dims * sizeof(int64_t) +
                   needs->chars;
    header->block = tsri_model_alloc(bytes);
    if (header->block == NULL)
        return tsri_safetensors_fail(TSR_OUT_OF_MEMORY, path, "no memory for a table of %zu bytes",
                                     bytes);
    header->tensors = header->block;
    header->by_name = (void *)(header->tensors + needs->tensors);
    header->metadata = (void *)(header->by_name + needs->tensors);
    int64_t *dims = (void *)(header->metadata + needs->pairs);
    char *chars = (void *)(dims + needs->dims);

    const char *key, *pair_key;
    json_t *value, *pair_value;
    json_object_foreach(root, key, value) {
        if (strcmp(key, SAFETENSORS_METADATA) != 0) {
            fill_tensor(&header->tensors[header->num_tensors++], key, value, &dims, &chars);
            continue;
        }
        json_object_foreach(value, pair_key, pair_value) {
            tsr_safetensors_pair *pair = &header->metadata[header->num_metadata++];
            pair->key = keep_text(&chars, pair_key);
            pair->value = keep_text(&chars, json_string_value(pair_value));
        }
    }
    return TSR_OK;
}

// ---- Order ------------------------------------------------------------------------------------

static int compare_position(const void *left, const void *right) {
    const struct tsri_safetensors_tensor *a = left, *b = right;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end) return a->end < b->end ? -1 : 1; // empty tensors first
    return a->name < b->name ? -1 : 1; // the header's order, in which names were stored
}

static int compare_name(const void *left, const void *right) {
    const struct tsri_safetensors_tensor *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

static tsr_status sort(const char *path, struct tsri_safetensors_header *header) {
    size_t count = (size_t)header->num_tensors;
    if (count > 1) qsort(header->tensors, count, sizeof *header->tensors, compare_position);
    int64_t at = 0;
    char quote[SAFETENSORS_QUOTE_BYTES];
    for (size_t i = 0; i < count; i++) {
        const struct tsri_safetensors_tensor *t = &header->tensors[i];
        if (t->begin != at)
            return tsri_safetensors_fail(
                TSR_IO, path, "tensor '%s' begins at byte %lld of the data, expected %lld, %s",
                tsri_safetensors_quote(t->name, quote), (long long)t->begin, (long long)at,
                i == 0 ? "the start" : "where the one before it ends");
        at = t->end;
        header->by_name[i] = t;
    }
    if (count > 1) qsort(header->by_name, count, sizeof *header->by_name, compare_name);
    header->data_bytes = at;
    return TSR_OK;
}

static tsr_status build(const char *path, json_t *root, struct tsri_safetensors_header *header) {
    struct needs needs = {0};
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        if (strcmp(key, SAFETENSORS_METADATA) == 0)
            TSRI_TRY(check_metadata(path, value, &needs));
        else
            TSRI_TRY(check_tensor(path, key, value, &needs));
    }
    TSRI_TRY(fill(path, root, &needs, header));
    return sort(path, header);
}

// The JSON library converts numbers that are not integers. That happens in the default floating-point environment; the
// caller's is restored afterwards.
static json_t *parse_json(const char *text, size_t bytes, json_error_t *error) {
    fenv_t before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, error);
    fesetenv(&before);
    return root;
}

tsr_status tsri_safetensors_parse(const char *path, const char *text, size_t bytes,
                                  struct tsri_safetensors_header *header) {
    *header = (struct tsri_safetensors_header){0};
    TSRI_TRY(check_depth(path, text, bytes));
    json_error_t error;
    json_t *root = parse_json(text, bytes, &error);
    if (root == NULL) {
        // Without memory, Jansson gives no message.
        if (json_error_code(&error) == json_error_out_of_memory || error.text[0] == '\0')
            return tsri_safetensors_fail(TSR_OUT_OF_MEMORY, path,
                                         "no memory to parse a header of %zu bytes", bytes);
        char quote[SAFETENSORS_QUOTE_BYTES];
        return tsri_safetensors_fail(TSR_IO, path, "the header is no valid JSON at byte %d: %s",
                                     error.position, tsri_safetensors_quote(error.text, quote));
    }
    tsr_status status = json_is_object(root)
                            ? build(path, root, header)
                            : tsri_safetensors_fail(TSR_IO, path, "the header is no JSON object");
    json_decref(root);
    if (status != TSR_OK) {
        tsri_model_system.free(header->block);
        *header = (struct tsri_safetensors_header){0};
    }
    return status;
}
