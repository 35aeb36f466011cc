// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "system/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 64, MOST_DEPTH = 16, LIST_BYTES = 4096 };

// A signal handler may read these at any moment. It only looks at paths with the state NOTED, and takes one by changing
// its state.
static struct {
    char path[PATH_MAX];
    atomic_int state;
} notes[MOST];
enum { FREE, TAKEN, NOTED };
static atomic_int owner; // a forked child must not remove its parent's files

int temporary_note(const char *path) {
    if (strlen(path) >= PATH_MAX) return -1;
    atomic_store(&owner, (int)getpid());
    for (int i = 0; i < MOST; i++) {
        int expected = FREE;
        if (!atomic_compare_exchange_strong(&notes[i].state, &expected, TAKEN)) continue;
        strcpy(notes[i].path, path);
        atomic_store(&notes[i].state, NOTED);
        return i;
    }
    return -1;
}

void temporary_forget(int number) {
    int expected = NOTED; // else a handler has taken it
    if (number >= 0) atomic_compare_exchange_strong(&notes[number].state, &expected, FREE);
}

bool temporary_folder(char *path, int *number) {
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    bool is_made = mkdtemp(path) != NULL;
    int kept = errno;
    *number = is_made ? temporary_note(path) : -1;
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = kept;
    return is_made;
}

// Without opendir, which allocates: a handler must not, and memory may have run out.
static void remove_at(int folder, const char *name, int depth) {
    struct stat info;
    char list[LIST_BYTES] __attribute__((aligned(8)));
    bool has_removed = true;
    if (fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return;
    if (!S_ISDIR(info.st_mode)) {
        (void)unlinkat(folder, name, 0);
        return;
    }
    int inner = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    while (inner >= 0 && has_removed &&
           depth < MOST_DEPTH) { // again, because removing may make the list skip entries
        long used;
        has_removed = false;
        (void)lseek(inner, 0, SEEK_SET);
        while ((used = syscall(SYS_getdents64, inner, list, sizeof list)) > 0)
            for (long at = 0; at < used;) {
                const struct dirent64 *entry = (const void *)(list + at);
                at += entry->d_reclen;
                if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
                remove_at(inner, entry->d_name, depth + 1);
                has_removed |= faccessat(inner, entry->d_name, F_OK, AT_SYMLINK_NOFOLLOW) != 0;
            }
    }
    if (inner >= 0) close(inner);
    (void)unlinkat(folder, name, AT_REMOVEDIR);
}

void temporary_remove(const char *path) { remove_at(AT_FDCWD, path, 0); }

void temporary_remove_all(void) {
    int kept = errno;
    for (int i = 0; i < MOST && atomic_load(&owner) == (int)getpid(); i++) {
        int expected = NOTED;
        if (!atomic_compare_exchange_strong(&notes[i].state, &expected, TAKEN)) continue;
        temporary_remove(notes[i].path);
        atomic_store(&notes[i].state, FREE);
    }
    errno = kept;
}
