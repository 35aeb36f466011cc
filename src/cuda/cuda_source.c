// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 1 << 20, MAX_NAME = 128 };

static tsr_status fail_memory(const char *name) {
    return tsri_fail(TSR_OUT_OF_MEMORY, "kernel '%s': no memory for its source", name);
}

static tsr_status read_embedded(const char *name, char **text) {
    for (const struct tsri_cuda_file *file = tsri_cuda_files; file->name != NULL; file++) {
        if (strcmp(file->name, name) != 0) continue;
        *text = malloc(*file->bytes + 1);
        if (*text == NULL) return fail_memory(name);
        memcpy(*text, file->text, *file->bytes + 1);
        return TSR_OK;
    }
    return tsri_fail(TSR_INTERNAL, "kernel '%s' is not among the embedded sources", name);
}

static tsr_status read_file(const char *folder, const char *name, char **text) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return tsri_fail(TSR_IO, "kernel '%s': cannot read %.400s (TSR_KERNEL_DIR): %s", name, path,
                         strerror(errno));
    *text = malloc(MAX_TEXT);
    size_t bytes = *text != NULL ? fread(*text, 1, MAX_TEXT - 1, file) : 0;
    bool is_whole = *text != NULL && feof(file) && !ferror(file);
    fclose(file);
    if (*text == NULL) return fail_memory(name);
    (*text)[bytes] = '\0';
    if (is_whole) return TSR_OK;
    free(*text);
    *text = NULL;
    return tsri_fail(TSR_IO, "kernel '%s': cannot read all of %.400s, expected less than 1 MiB",
                     name, path);
}

static tsr_status add_file(struct tsri_cuda_source *source, const char *name) {
    for (int i = 0; i < source->num_files; i++)
        if (strcmp(source->names[i], name) == 0) return TSR_OK;
    if (source->num_files == TSRI_CUDA_MAX_FILES)
        return tsri_fail(TSR_INTERNAL, "kernel '%s' includes more than %d files", source->names[0],
                         (int)TSRI_CUDA_MAX_FILES);
    const char *folder = getenv("TSR_KERNEL_DIR");
    char *text = NULL, *copy = strdup(name);
    if (copy == NULL) return fail_memory(name);
    tsr_status status = folder != NULL && *folder != '\0' ? read_file(folder, name, &text)
                                                          : read_embedded(name, &text);
    if (status != TSR_OK) {
        free(copy);
        return status;
    }
    source->names[source->num_files] = copy;
    source->texts[source->num_files++] = text;
    return TSR_OK;
}

// Lines of the form #include "name"; NVRTC brings what stands between < and >.
static tsr_status add_includes(struct tsri_cuda_source *source, int index) {
    static const char directive[] = "#include \"";
    const char *line = source->texts[index];
    for (; line != NULL; line = strchr(line, '\n')) {
        char name[MAX_NAME];
        line += *line == '\n';
        if (strncmp(line, directive, sizeof directive - 1) != 0) continue;
        const char *first = line + sizeof directive - 1;
        size_t length = strcspn(first, "\"\n");
        if (length >= sizeof name)
            return tsri_fail(TSR_INTERNAL, "kernel '%s': the name of an include is too long",
                             source->names[0]);
        memcpy(name, first, length);
        name[length] = '\0';
        TSRI_TRY(add_file(source, name));
    }
    return TSR_OK;
}

tsr_status tsri_cuda_source_read(const char *name, struct tsri_cuda_source *source) {
    *source = (struct tsri_cuda_source){0};
    tsr_status status = add_file(source, name);
    for (int i = 0; status == TSR_OK && i < source->num_files; i++)
        status = add_includes(source, i);
    if (status != TSR_OK) tsri_cuda_source_free(source);
    return status;
}

void tsri_cuda_source_free(struct tsri_cuda_source *source) {
    for (int i = 0; i < source->num_files; i++) {
        free(source->names[i]);
        free(source->texts[i]);
    }
    source->num_files = 0;
}
