// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "cuda/cuda_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/core_system.h"

static const char suffix[] = ".kernel", temporary_suffix[] = ".tmp";
enum { MAX_FILE = 65 << 20, MAX_NAME = 128, STALE_SECONDS = 3600 };

// ---- Files ------------------------------------------------------------------------------------

static bool write_all(int file, const void *data, size_t bytes) {
    const char *from = data;
    while (bytes > 0) {
        ssize_t done = tsri_system.write(file, from, bytes);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        from += done;
        bytes -= (size_t)done;
    }
    return true;
}

// The rename is durable only when the folder is on disk too. A failure to sync it is ignored.
static void sync_folder(int folder, const char *name) {
    char path[TSRI_CUDA_PATH + MAX_NAME];
    snprintf(path, sizeof path, "%s", name);
    char *slash = strrchr(path, '/');
    if (slash != NULL)
        slash[slash == path] = '\0';
    else
        strcpy(path, ".");
    int file = tsri_system.open(folder, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (file < 0) return;
    (void)tsri_system.sync(file);
    (void)tsri_system.close(file);
}

// Writers of one name do not collide: each has its own temporary file, and renames are atomic.
bool tsri_cuda_file_publish(int folder, const char *name, const void *data, size_t bytes) {
    static atomic_uint counter;
    char temporary[TSRI_CUDA_PATH + MAX_NAME];
    snprintf(temporary, sizeof temporary, "%s.%ld.%u%s", name, (long)getpid(),
             atomic_fetch_add(&counter, 1), temporary_suffix);
    int file = tsri_system.open(folder, temporary,
                                O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) return false;
    bool is_written = write_all(file, data, bytes) && tsri_system.sync(file) == 0;
    is_written = tsri_system.close(file) == 0 && is_written;
    if (!is_written || tsri_system.rename(folder, temporary, folder, name) != 0) {
        (void)unlinkat(folder, temporary, 0);
        return false;
    }
    sync_folder(folder, name);
    return true;
}

unsigned char *tsri_cuda_file_read(int folder, const char *name, size_t *bytes) {
    struct stat info;
    unsigned char *data = NULL;
    int file = tsri_system.open(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (file < 0) return NULL;
    bool is_ours = tsri_system.status(file, &info) == 0 && S_ISREG(info.st_mode) &&
                   info.st_uid == geteuid() && info.st_size > 0 && info.st_size <= MAX_FILE;
    if (is_ours) data = tsri_alloc((size_t)info.st_size);
    *bytes = data != NULL ? tsri_read(file, data, (size_t)info.st_size, 0) : 0;
    (void)tsri_system.close(file);
    return data;
}

// ---- The folder -------------------------------------------------------------------------------

static bool base_path(char path[TSRI_CUDA_PATH]) {
    const char *own = tsri_environment("TSR_CACHE_DIR"), *xdg = tsri_environment("XDG_CACHE_HOME"),
               *home = tsri_environment("HOME");
    int used = -1;
    if (own != NULL && *own != '\0')
        used = snprintf(path, TSRI_CUDA_PATH, "%s/kernels", own);
    else if (xdg != NULL && *xdg == '/') // the specification ignores relative paths
        used = snprintf(path, TSRI_CUDA_PATH, "%s/tessera/kernels", xdg);
    else if (home != NULL && *home == '/')
        used = snprintf(path, TSRI_CUDA_PATH, "%s/.cache/tessera/kernels", home);
    return used > 0 && used < TSRI_CUDA_PATH;
}

static void make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700); // the later open reports errors
        *slash = '/';
    }
    (void)mkdir(path, 0700);
}

// Returns a descriptor of the folder, which gives access to all its files; -1 with a sentence on failure.
static int open_folder(char path[TSRI_CUDA_PATH], char *sentence, size_t bytes) {
    struct stat info;
    if (!base_path(path)) {
        snprintf(sentence, bytes, "none of TSR_CACHE_DIR, XDG_CACHE_HOME and HOME names a folder");
        return -1;
    }
    enum { FLAGS = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC };
    int folder = tsri_system.open(AT_FDCWD, path, FLAGS, 0);
    if (folder < 0 && errno == ENOENT) {
        make_folders(path);
        folder = tsri_system.open(AT_FDCWD, path, FLAGS, 0);
    }
    if (folder < 0) {
        snprintf(sentence, bytes, "%.400s cannot be opened: %s", path, strerror(errno));
        return -1;
    }
    if (tsri_system.status(folder, &info) == 0 && info.st_uid == geteuid() &&
        (info.st_mode & 077) == 0)
        return folder;
    snprintf(sentence, bytes, "%.400s is not private, expected your own folder of mode 0700", path);
    (void)tsri_system.close(folder);
    return -1;
}

bool tsri_cuda_cache_path(char path[TSRI_CUDA_PATH], char *sentence, size_t sentence_bytes) {
    int folder = open_folder(path, sentence, sentence_bytes);
    if (folder >= 0) (void)tsri_system.close(folder);
    return folder >= 0;
}

// ---- Loading and storing ----------------------------------------------------------------------

static int open_cache(void) {
    char path[TSRI_CUDA_PATH], sentence[640];
    return open_folder(path, sentence, sizeof sentence);
}

static void file_name(const unsigned char key[TSRI_SHA256_BYTES], char name[MAX_NAME]) {
    char hex[TSRI_SHA256_HEX];
    tsri_sha256_hex(key, hex);
    snprintf(name, MAX_NAME, "%s%s", hex, suffix);
}

static bool read_image(int folder, const char *name, struct tsri_cuda_image *image) {
    size_t bytes;
    unsigned char *data = tsri_cuda_file_read(folder, name, &bytes);
    bool is_intact = data != NULL && tsri_cuda_image_unpack(data, bytes, image);
    tsri_system.free(data);
    return is_intact;
}

bool tsri_cuda_cache_load(const unsigned char key[TSRI_SHA256_BYTES],
                          struct tsri_cuda_image *image) {
    char name[MAX_NAME];
    int folder = open_cache();
    if (folder < 0) return false;
    file_name(key, name);
    bool is_found = read_image(folder, name, image);
    (void)tsri_system.close(folder);
    if (is_found && memcmp(image->key, key, sizeof image->key) == 0) return true;
    if (is_found) tsri_cuda_image_free(image); // intact, but stored under another key's name
    return false;
}

bool tsri_cuda_cache_store(const struct tsri_cuda_image *image) {
    char name[MAX_NAME];
    size_t bytes;
    int folder = open_cache();
    if (folder < 0) return false;
    unsigned char *data = tsri_cuda_image_pack(image, &bytes);
    file_name(image->key, name);
    bool is_kept = data != NULL && tsri_cuda_file_publish(folder, name, data, bytes);
    tsri_system.free(data);
    (void)tsri_system.close(folder);
    return is_kept;
}

// ---- All files --------------------------------------------------------------------------------

static bool ends_with(const char *name, const char *end) {
    size_t length = strlen(name), tail = strlen(end);
    return length >= tail && strcmp(name + length - tail, end) == 0;
}

// True for a file that a killed writer left, false for one that is being written now.
static bool is_stale(int folder, const char *name) {
    struct stat info;
    return fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
           time(NULL) - info.st_mtime > STALE_SECONDS;
}

// Lists the files of the cache and opens their folder; NULL if it cannot be listed.
static DIR *open_list(int *folder) {
    *folder = open_cache();
    DIR *files = *folder >= 0 ? tsri_system.open_list(*folder) : NULL;
    if (files == NULL && *folder >= 0) (void)tsri_system.close(*folder);
    return files;
}

int tsri_cuda_cache_walk(void (*visit)(void *user, const struct tsri_cuda_image *image),
                         void *user) {
    int folder, num_bad = 0;
    DIR *files = open_list(&folder);
    if (files == NULL) return -1;
    for (struct dirent *file; (file = readdir(files)) != NULL;) {
        struct tsri_cuda_image image;
        char name[MAX_NAME];
        bool is_temporary = ends_with(file->d_name, temporary_suffix);
        if (is_temporary && is_stale(folder, file->d_name)) num_bad++;
        if (is_temporary || !ends_with(file->d_name, suffix)) continue;
        bool is_intact = read_image(folder, file->d_name, &image);
        if (is_intact) file_name(image.key, name);
        if (is_intact && strcmp(name, file->d_name) == 0)
            visit(user, &image);
        else
            num_bad++;
        if (is_intact) tsri_cuda_image_free(&image);
    }
    closedir(files);
    return num_bad;
}

int tsri_cuda_cache_clear(void) {
    int folder, num_removed = 0;
    DIR *files = open_list(&folder);
    if (files == NULL) return -1;
    for (struct dirent *file; (file = readdir(files)) != NULL;)
        if (ends_with(file->d_name, suffix) || ends_with(file->d_name, temporary_suffix))
            num_removed += unlinkat(folder, file->d_name, 0) == 0;
    closedir(files);
    return num_removed;
}
