// SPDX-License-Identifier: Apache-2.0
// Files that the library reads without being told: a tuning file, a pack of kernels, a file of the kernel cache, the
// lists of control groups, environment variables. Each is used or ignored, with memory of up to 64 times the file, and
// a kernel that is found equals a packed one byte by byte. No file is touched, because system calls are answered from
// memory.
#define _GNU_SOURCE
#include <errno.h>
#include <sys/stat.h>
#include <tessera/context.h>
#include <unistd.h>

#include "context/op_table.h"
#include "context/tuning_rows.h"
#include "core/core_system.h"
#include "cpu/cpu_limits.h"
#include "cuda/cuda_cache.h"
#include "fuzz.h"
#include "library/op_list.h"

// ---- The system -------------------------------------------------------------------------------

enum { FIXED_BYTES = 8192, HEAD = 64, FILE_NUMBER = 77, MAX_FILE = 16384 };

static struct {
    const uint8_t *data;
    size_t bytes;
    int num_open;
} disk;
static size_t held, peak;

static void *counted_alloc(size_t alignment, size_t bytes) {
    size_t *block = alignment <= HEAD ? aligned_alloc(HEAD, HEAD + bytes) : NULL;
    if (block == NULL) return NULL;
    *block = bytes;
    held += bytes;
    if (held > peak) peak = held;
    return (char *)block + HEAD;
}

static void counted_free(void *pointer) {
    if (pointer == NULL) return;
    size_t *block = (size_t *)(void *)((char *)pointer - HEAD);
    held -= *block;
    free(block);
}

static int open_disk(int folder, const char *path, int flags, mode_t mode) {
    (void)folder, (void)path, (void)flags, (void)mode;
    disk.num_open++;
    return FILE_NUMBER;
}

static struct fuzz_bytes rest; // contents of the groups' files
enum { GROUP_NUMBER = 78 };

static int open_group(int folder, const char *path, int flags, mode_t mode) {
    open_disk(folder, path, flags, mode);
    return strcmp(path, "groups") == 0 ? FILE_NUMBER : GROUP_NUMBER;
}

static int status_of_disk(int file, struct stat *status) {
    (void)file;
    *status = (struct stat){.st_mode = S_IFREG | 0600, .st_uid = geteuid()};
    status->st_size = (off_t)disk.bytes;
    return 0;
}

static ssize_t read_disk(int file, void *data, size_t bytes, off_t at) {
    const uint8_t *from = file == GROUP_NUMBER ? rest.next : disk.data;
    size_t all = file == GROUP_NUMBER ? (size_t)(rest.end - rest.next) : disk.bytes;
    if (at < 0 || (uint64_t)at >= all) return 0;
    size_t left = all - (size_t)at, count = bytes < left ? bytes : left;
    memcpy(data, from + at, count);
    return (ssize_t)count;
}

static int close_disk(int file) {
    fuzz_require(file == FILE_NUMBER || file == GROUP_NUMBER);
    disk.num_open--;
    return 0;
}

static void start(const uint8_t *data, size_t bytes) {
    disk.data = data;
    disk.bytes = bytes;
    held = peak = 0;
    tsri_system.alloc = counted_alloc;
    tsri_system.free = counted_free;
    tsri_system.open = open_disk;
    tsri_system.status = status_of_disk;
    tsri_system.read = read_disk;
    tsri_system.close = close_disk;
    setenv("TSR_KERNEL_PACK", "fuzz", 1);
    setenv("TSR_CACHE_DIR", "/fuzz", 1);
}

static void check_memory(void) {
    fuzz_require(held == 0 && disk.num_open == 0);
    fuzz_require(peak <= 64 * disk.bytes + FIXED_BYTES);
}

// ---- Rows of a tuning file --------------------------------------------------------------------

static void look_for_rows(const struct tsri_tuning *tuning) {
    static const int64_t sizes[] = {0, 1, 3, 1024, INT64_MAX};
    for (int i = 0; i < tsri_num_ops; i++) {
        const struct tsri_op *op = tsri_ops[i];
        if (op->tuning == NULL) continue;
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            struct tsri_tuning_key key = {.dtype = TSR_F32};
            char text[64];
            for (int j = 0; j < TSRI_TUNING_SIZES; j++) key.size[j] = sizes[s];
            tsri_tuning_text(tuning, op, &key, text, sizeof text);
            const struct tsri_tuning_row *row =
                tuning->table != NULL ? tsri_tuning_find(tuning, op, &key) : NULL;
            if (row == NULL) continue;
            fuzz_require(row->op == op && row->variant >= op->variants);
            fuzz_require(row->variant < op->variants + op->num_variants);
            fuzz_require((row->variant->flags & TSR_VARIANT_REFERENCE) == 0);
            for (int b = 0; b < TSRI_TUNING_BLOCKS; b++)
                fuzz_require(row->block[b] >= 0 && row->block[b] <= TSRI_TUNING_MAX_BLOCK);
        }
    }
}

static void tuning_file(const uint8_t *data, size_t bytes, bool is_cuda) {
    struct tsri_limits limits = {.isa = TSR_ISA_SCALAR, .l2_bytes = 1 << 19, .l3_bytes = 1 << 24};
    struct tsri_tuning tuning;
    if (is_cuda) {
        limits.device.type = TSR_CUDA;
        limits.cuda_arch = 90;
        limits.num_sms = 132;
    }
    start(data, bytes);
    tsri_tuning_open(&tuning, "fuzz", tsri_op_find, &limits);
    look_for_rows(&tuning);
    tsri_tuning_close(&tuning);
    check_memory();
}

// ---- Kernels ----------------------------------------------------------------------------------

static void check_image(const struct tsri_cuda_image *found, const struct tsri_cuda_image *packed) {
    fuzz_require(memcmp(found->key, packed->key, sizeof found->key) == 0);
    fuzz_require(strcmp(found->text, packed->text) == 0 && strcmp(found->arch, packed->arch) == 0);
    fuzz_require(found->cubin_bytes == packed->cubin_bytes);
    fuzz_require(memcmp(found->cubin, packed->cubin, found->cubin_bytes) == 0);
}

// Builds images from the input, one after the other, then changes some bytes and cuts off the end.
static void bent_kernels(struct fuzz_bytes in) {
    enum { MOST = 4, MAX_CUBIN = 64 };
    static uint8_t file[MAX_FILE];
    struct tsri_cuda_image images[MOST], found;
    uint8_t cubins[MOST][MAX_CUBIN];
    size_t bytes = 0;
    int count = 1 + fuzz_byte(&in) % MOST;
    start(NULL, 0);
    for (int i = 0; i < count; i++) {
        struct tsri_cuda_image *image = &images[i];
        *image = (struct tsri_cuda_image){.arch = "sm_90a", .cubin = cubins[i]};
        memset(image->key, i + 1, sizeof image->key);
        for (int n = fuzz_byte(&in) % 32, j = 0; j < n; j++)
            image->text[j] = (char)('a' + fuzz_byte(&in) % 26);
        image->cubin_bytes = 1 + fuzz_byte(&in) % MAX_CUBIN;
        for (size_t j = 0; j < image->cubin_bytes; j++) cubins[i][j] = fuzz_byte(&in);
        size_t image_bytes;
        unsigned char *data = tsri_cuda_image_pack(image, &image_bytes);
        fuzz_require(data != NULL && bytes + image_bytes <= sizeof file);
        memcpy(file + bytes, data, image_bytes);
        tsri_system.free(data);
        bytes += image_bytes;
    }
    const size_t whole = bytes;
    int num_bent = fuzz_byte(&in) % 8;
    for (int i = 0; i < num_bent; i++) file[fuzz_word(&in, 2) % whole] ^= fuzz_byte(&in);
    uint8_t cut = fuzz_byte(&in);
    if (cut != 0) bytes -= fuzz_word(&in, 2) % (bytes + 1);

    start(file, bytes);
    for (int i = 0; i < count; i++) {
        bool is_found = tsri_cuda_pack_load(images[i].key, &found);
        fuzz_require(is_found || num_bent > 0 || cut != 0);
        if (is_found) check_image(&found, &images[i]);
        if (is_found) tsri_cuda_image_free(&found);
    }
    // A file of the cache has one image.
    bool is_cached = tsri_cuda_cache_load(images[0].key, &found);
    fuzz_require(is_cached || count > 1 || num_bent > 0 || cut != 0);
    if (is_cached) check_image(&found, &images[0]);
    if (is_cached) tsri_cuda_image_free(&found);
    check_memory();
}

// Uses the bytes unchanged. The searched key is taken from their start.
static void raw_kernels(const uint8_t *data, size_t bytes) {
    struct tsri_cuda_image found;
    unsigned char key[TSRI_SHA256_BYTES] = {0}, header[TSRI_CUDA_IMAGE_HEADER] = {0};
    memcpy(header, data, bytes < sizeof header ? bytes : sizeof header);
    (void)tsri_cuda_image_extent(header, key);
    start(data, bytes);
    if (tsri_cuda_pack_load(key, &found)) tsri_cuda_image_free(&found);
    if (tsri_cuda_image_unpack(data, bytes, &found)) tsri_cuda_image_free(&found);
    check_memory();
}

// ---- Control groups ---------------------------------------------------------------------------

// The group list ends at a 0. The bytes after it are the contents of every file of a group.
static void control_groups(const uint8_t *data, size_t bytes) {
    static const char list[] = "groups";
    const uint8_t *end = memchr(data, 0, bytes);
    size_t list_bytes = end != NULL ? (size_t)(end - data) : bytes;
    start(data, list_bytes);
    rest = (struct fuzz_bytes){end != NULL ? end + 1 : data + bytes, data + bytes};
    tsri_system.open = open_group;
    fuzz_require(tsri_cgroup_cpus(list, "/root") >= 0);
    start(data, list_bytes);
    fuzz_require(tsri_cgroup_memory(list, "/root") >= -1);
    fuzz_require(disk.num_open == 0);
}

// ---- The environment --------------------------------------------------------------------------

static int open_nothing(int folder, const char *path, int flags, mode_t mode) {
    (void)folder, (void)path, (void)flags, (void)mode;
    errno = EACCES; // then no folder is created
    return -1;
}

// Each variable has one line.
static void variables(const uint8_t *data, size_t bytes) {
    static const char *const names[] = {
        "TSR_ISA", "TSR_TUNING_FILE", "TSR_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "TSR_KERNEL_PACK"};
    enum { NUM_NAMES = sizeof names / sizeof *names };
    char path[TSRI_CUDA_PATH], sentence[256], *text = calloc(bytes + 1, 1), *line = text;
    tsr_context *ctx = NULL;
    fuzz_require(text != NULL);
    memcpy(text, data, bytes);
    for (int i = 0; i < NUM_NAMES; i++) {
        char *next = line + strcspn(line, "\n");
        if (*next != '\0') *next++ = '\0';
        if (*line != '\0')
            setenv(names[i], line, 1);
        else
            unsetenv(names[i]);
        line = next;
    }
    free(text);
    tsri_system.open = open_nothing;
    for (size_t room = 0; room <= sizeof path; room += 16) {
        memset(path, 'x', sizeof path);
        if (tsr_tuning_path(path, room) == TSR_OK) fuzz_require(memchr(path, '\0', room) != NULL);
    }
    fuzz_require(!tsri_cuda_cache_path(path, sentence, sizeof sentence));
    fuzz_require(*sentence != '\0' && strlen(sentence) < sizeof sentence);
    for (int i = 0; i < 3; i++)
        if (tsri_cuda_pack_path(i, path)) fuzz_require(strlen(path) < sizeof path);
    tsr_status status = tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 1), &ctx);
    fuzz_require((status == TSR_OK) == (ctx != NULL));
    fuzz_require(status == TSR_OK || status == TSR_INVALID_ARGUMENT || status == TSR_UNSUPPORTED);
    tsr_context_destroy(ctx);
    for (int i = 0; i < NUM_NAMES; i++) unsetenv(names[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const struct tsri_system system = tsri_system;
    if (bytes == 0) return 0;
    switch (data[0] % 6) {
    case 0: tuning_file(data + 1, bytes - 1, false); break;
    case 1: tuning_file(data + 1, bytes - 1, true); break;
    case 2: bent_kernels((struct fuzz_bytes){data + 1, data + bytes}); break;
    case 3: raw_kernels(data + 1, bytes - 1); break;
    case 4: control_groups(data + 1, bytes - 1); break;
    default: variables(data + 1, bytes - 1);
    }
    tsri_system = system;
    return 0;
}
