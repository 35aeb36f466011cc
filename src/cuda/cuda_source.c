// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "cuda/cuda_source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core_system.h"

enum { MAX_TEXT = 1 << 20, MAX_NAME = 128 };

static tsr_status find_embedded(struct tsri_cuda_source *source, const char *name) {
    for (const struct tsri_cuda_file *file = tsri_cuda_files; file->name != NULL; file++) {
        if (strcmp(file->name, name) != 0) continue;
        source->names[source->num_files] = file->name;
        source->texts[source->num_files++] = (const char *)file->text;
        return TSR_OK;
    }
    return tsri_fail(TSR_INTERNAL, "kernel '%s' is not among the embedded sources", name);
}

static tsr_status read_file(struct tsri_cuda_source *source, const char *folder, const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = tsri_system.open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (file < 0)
        return tsri_fail(TSR_IO, "kernel '%s': cannot read %.400s (TSR_KERNEL_DIR): %s", name, path,
                         strerror(errno));
    struct stat info;
    bool is_fit = tsri_system.status(file, &info) == 0 && info.st_size < MAX_TEXT;
    size_t bytes = is_fit ? (size_t)info.st_size : 0;
    char *block = is_fit ? tsri_alloc(MAX_NAME + bytes + 1) : NULL;
    bool is_whole = block != NULL && tsri_read(file, block + MAX_NAME, bytes, 0) == bytes;
    (void)tsri_system.close(file);
    if (is_fit && block == NULL)
        return tsri_fail(TSR_OUT_OF_MEMORY, "kernel '%s': no memory for its source", name);
    if (!is_whole) {
        tsri_system.free(block);
        return tsri_fail(TSR_IO, "kernel '%s': cannot read all of %.400s, expected less than 1 MiB",
                         name, path);
    }
    source->blocks[source->num_files] = block;
    source->names[source->num_files] = strcpy(block, name);
    source->texts[source->num_files++] = block + MAX_NAME;
    return TSR_OK;
}

static tsr_status add_file(struct tsri_cuda_source *source, const char *name) {
    for (int i = 0; i < source->num_files; i++)
        if (strcmp(source->names[i], name) == 0) return TSR_OK;
    if (source->num_files == TSRI_CUDA_MAX_FILES)
        return tsri_fail(TSR_INTERNAL, "kernel '%s' includes more than %d files", source->names[0],
                         (int)TSRI_CUDA_MAX_FILES);
    const char *folder = tsri_environment("TSR_KERNEL_DIR");
    return folder != NULL && *folder != '\0' ? read_file(source, folder, name)
                                             : find_embedded(source, name);
}

// Adds the files of lines #include "name"; NVRTC itself provides those of #include <name>.
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
    for (int i = 0; i < source->num_files; i++) tsri_system.free(source->blocks[i]);
    *source = (struct tsri_cuda_source){0};
}
