// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "system/helper.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "system/environment.h"

static bool is_program(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

bool helper_find(const char *name, char *path) {
    const char *folders = environment_value("PATH");
    if (strchr(name, '/') != NULL)
        return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX && is_program(path);
    if (folders == NULL) folders = "/usr/local/bin:/usr/bin:/bin";
    for (const char *folder = folders;; folder++) {
        int length = (int)strcspn(folder, ":");
        if (*folder == '/' &&
            snprintf(path, PATH_MAX, "%.*s/%s", length, folder, name) < PATH_MAX &&
            is_program(path))
            return true;
        folder += length;
        if (*folder == '\0') return false;
    }
}
