// SPDX-License-Identifier: Apache-2.0
// Reads a tuning file. Any fault in it leaves the context without rows and puts a line in the log: a file that is read
// by default must not stop a program.
#define _GNU_SOURCE
#include "context/tuning_rows.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "context/op_table.h"
#include "core/core_dtype.h"
#include "core/core_log.h"
#include "core/core_system.h"

enum { MAX_FILE = 1 << 20, MAX_PATH = 1024 };
static const char first_line[] = "tessera-tuning 1";
static const char cuda_device[] = "sm_"; // a CUDA device's name starts with it

// Rows in the order of the file. The first row of each key is in one of the lists that start at `heads`, by the hash of
// its key. So a call looks at about two rows, however many there are.
struct tsri_tuning_table {
    int count;
    int num_heads; // a power of two
    int *heads;    // stored after the rows; -1: an empty list
    struct tsri_tuning_row rows[];
};

// ---- Where ------------------------------------------------------------------------------------

tsr_status tsr_tuning_path(char *path, size_t bytes) {
    static const struct place {
        const char *variable, *rest;
        bool is_absolute; // relative values are ignored, as XDG's specification demands
    } places[] = {{"TSR_TUNING_FILE", "", false},
                  {"TSR_CACHE_DIR", "/tuning", false},
                  {"XDG_CACHE_HOME", "/tessera/tuning", true},
                  {"HOME", "/.cache/tessera/tuning", true}};
    if (path == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT, "tuning_path: path is NULL, expected an address");
    for (int i = 0; i < TSRI_COUNT(places); i++) {
        const char *value = tsri_environment(places[i].variable);
        if (value == NULL || *value == '\0' || (places[i].is_absolute && *value != '/')) continue;
        int length = snprintf(path, bytes, "%s%s", value, places[i].rest);
        if (length > 0 && (size_t)length < bytes) return TSR_OK;
        return tsri_fail(TSR_INVALID_ARGUMENT, "tuning_path: bytes is %zu, expected at least %d",
                         bytes, length + 1);
    }
    return tsri_fail(TSR_UNSUPPORTED, "tuning_path: none of TSR_TUNING_FILE, TSR_CACHE_DIR, "
                                      "XDG_CACHE_HOME and HOME names a file or folder");
}

// ---- Words ------------------------------------------------------------------------------------

// The nearest power of two by ratio: 3 gives 4, 724 gives 512, 0 gives 0. Integer arithmetic, so no floating-point flag
// is raised.
static int64_t round_size(int64_t size) {
    static const uint64_t root = 0x5a827999fcef3242; // sqrt(2) * 2^62
    if (size <= 0) return 0;
    int log = 63 - __builtin_clzll((unsigned long long)size);
    return (int64_t)1 << (log < 62 && (uint64_t)size << (62 - log) > root ? log + 1 : log);
}

// Parses "1024x64": at most `most` numbers, each at most `largest`; false for anything else.
static bool parse_numbers(const char *text, int64_t largest, int most, int64_t *numbers,
                          int *count) {
    for (*count = 0; *count < most;) {
        char *end;
        if (*text < '0' || *text > '9') return false;
        errno = 0;
        long long value = strtoll(text, &end, 10);
        if (errno != 0 || value > largest) return false;
        numbers[(*count)++] = value;
        if (*end == '\0') return true;
        if (*end != 'x') return false;
        text = end + 1;
    }
    return false;
}

static const struct tsri_variant *find_variant(const struct tsri_op *op, const char *name) {
    for (int i = 0; i < op->num_variants; i++)
        if (strcmp(op->variants[i].name, name) == 0 &&
            !(op->variants[i].flags & TSR_VARIANT_REFERENCE))
            return &op->variants[i];
    return NULL;
}

// False if the line is not a row. A row of an unknown operation or variant is skipped: *is_ours is then false.
static bool parse_row(char *line, tsri_find_op find_op, struct tsri_tuning_row *row,
                      bool *is_ours) {
    enum { OP, DEVICE, DTYPE, SIZES, VARIANT, BLOCK, MOST };
    char *words[MOST + 1], *rest;
    int count = 0, num_sizes = 0, num_blocks = 0;
    *row = (struct tsri_tuning_row){.op = NULL};
    *is_ours = false;
    line[strcspn(line, "#")] = '\0';
    for (char *word = strtok_r(line, " \t\r", &rest); word != NULL && count <= MOST;
         word = strtok_r(NULL, " \t\r", &rest))
        words[count++] = word;
    if (count == 0) return true;
    if (count < BLOCK || count > MOST) return false;
    if (strlen(words[DEVICE]) >= sizeof row->device) return false;
    strcpy(row->device, words[DEVICE]);
    row->key.dtype = tsr_dtype_from_name(words[DTYPE]);
    row->has_any_size = strcmp(words[SIZES], "*") == 0;
    if (!row->has_any_size &&
        !parse_numbers(words[SIZES], INT64_MAX / 4, TSRI_TUNING_SIZES, row->key.size, &num_sizes))
        return false;
    if (count > BLOCK && (!parse_numbers(words[BLOCK], TSRI_TUNING_MAX_BLOCK, TSRI_TUNING_BLOCKS,
                                         row->block, &num_blocks) ||
                          num_blocks < 2))
        return false;
    row->op = find_op(words[OP]);
    if (row->op == NULL || row->op->tuning == NULL) return true;
    row->variant = find_variant(row->op, words[VARIANT]);
    *is_ours =
        row->variant != NULL && (row->has_any_size || num_sizes == row->op->tuning->num_sizes);
    return true;
}

// ---- The file ---------------------------------------------------------------------------------

// Reads a whole regular file and adds a zero byte; NULL with a word that says what is wrong.
static char *read_file(const char *path, size_t *bytes, const char **wrong) {
    struct stat info;
    char *text = NULL;
    int file = tsri_system.open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    *wrong = strerror(errno);
    if (file < 0) return NULL;
    bool is_fine = tsri_system.status(file, &info) == 0 && S_ISREG(info.st_mode);
    *wrong = is_fine ? "it is larger than 1 MiB" : "it is no regular file";
    if (is_fine && info.st_size <= MAX_FILE) text = tsri_alloc((size_t)info.st_size + 1);
    *bytes = text != NULL ? tsri_read(file, text, (size_t)info.st_size, 0) : 0;
    (void)tsri_system.close(file);
    return text;
}

// ---- The index --------------------------------------------------------------------------------

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

static uint64_t hash_device(const char *device) {
    uint64_t hash = 1;
    while (*device != '\0') hash = mix(hash, (unsigned char)*device++);
    return hash;
}

static uint64_t hash_key(const struct tsri_op *op, const struct tsri_tuning_key *key,
                         bool has_any_size, uint64_t device_hash) {
    uint64_t hash = mix(device_hash, (uint64_t)(uintptr_t)op);
    hash = mix(hash, (uint64_t)key->dtype << 1 | has_any_size);
    for (int i = 0; !has_any_size && i < TSRI_TUNING_SIZES; i++)
        hash = mix(hash, (uint64_t)key->size[i]);
    return hash;
}

// Replaces a key's sizes by the representatives of all sizes that a row serves.
static void round_sizes(const struct tsri_op *op, bool is_cuda, struct tsri_tuning_key *key) {
    bool is_exact = is_cuda && op->tuning->is_exact_on_cuda;
    for (int i = 0; i < TSRI_TUNING_SIZES; i++)
        key->size[i] = i >= op->tuning->num_sizes ? 0
                       : is_exact                 ? key->size[i]
                                                  : round_size(key->size[i]);
}

// The row with exactly this key; -1 if there is none.
static int find_row(const struct tsri_tuning_table *table, const struct tsri_op *op,
                    const struct tsri_tuning_key *key, bool has_any_size, const char *device,
                    uint64_t device_hash) {
    uint64_t hash = hash_key(op, key, has_any_size, device_hash);
    for (int i = table->heads[hash & (uint64_t)(table->num_heads - 1)]; i >= 0;
         i = table->rows[i].next) {
        const struct tsri_tuning_row *row = &table->rows[i];
        if (row->op == op && row->key.dtype == key->dtype && row->has_any_size == has_any_size &&
            (has_any_size || memcmp(row->key.size, key->size, sizeof key->size) == 0) &&
            strcmp(row->device, device) == 0)
            return i;
    }
    return -1;
}

// Adds the last row to the index, unless an earlier row has its key.
static void index_row(struct tsri_tuning_table *table) {
    struct tsri_tuning_row *row = &table->rows[table->count - 1];
    uint64_t device_hash = hash_device(row->device);
    round_sizes(row->op, strncmp(row->device, cuda_device, strlen(cuda_device)) == 0, &row->key);
    if (find_row(table, row->op, &row->key, row->has_any_size, row->device, device_hash) >= 0)
        return;
    uint64_t hash = hash_key(row->op, &row->key, row->has_any_size, device_hash);
    int *head = &table->heads[hash & (uint64_t)(table->num_heads - 1)];
    row->next = *head;
    *head = table->count - 1;
}

// A table with room for `most` rows; NULL if there is no memory.
static struct tsri_tuning_table *make_table(size_t most) {
    size_t num_heads = 1;
    while (num_heads < most) num_heads *= 2;
    struct tsri_tuning_table *table =
        tsri_alloc(sizeof *table + most * sizeof *table->rows + num_heads * sizeof *table->heads);
    if (table == NULL) return NULL;
    table->count = 0;
    table->num_heads = (int)num_heads;
    table->heads = (int *)(void *)(table->rows + most);
    for (size_t i = 0; i < num_heads; i++) table->heads[i] = -1;
    return table;
}

static struct tsri_tuning_table *parse_file(char *text, size_t bytes, tsri_find_op find_op,
                                            int *line_number) {
    enum { SHORTEST_ROW = 10 }; // five words with separators; lines may be empty
    size_t most = bytes / SHORTEST_ROW + 1;
    struct tsri_tuning_table *table = make_table(most);
    bool is_fine = table != NULL && strlen(text) == bytes; // text has no zero byte
    *line_number = 1;
    for (char *line = text, *next; is_fine && line != NULL; line = next, ++*line_number) {
        bool is_ours = false;
        next = strchr(line, '\n');
        if (next != NULL) *next++ = '\0';
        if (line == text)
            is_fine = strcmp(line, first_line) == 0;
        else
            is_fine = parse_row(line, find_op, &table->rows[table->count], &is_ours);
        if (!is_fine) break;
        table->count += is_ours;
        if (is_ours) index_row(table);
    }
    if (is_fine) return table;
    tsri_system.free(table);
    return NULL;
}

static const struct tsri_tuning_table *load(const char *path, tsri_find_op find_op) {
    const char *wrong;
    size_t bytes;
    int line_number = 1;
    char *text = read_file(path, &bytes, &wrong), because[64];
    struct tsri_tuning_table *table = NULL;
    if (text != NULL) {
        table = parse_file(text, bytes, find_op, &line_number);
        snprintf(because, sizeof because, "line %d is not understood", line_number);
        wrong = because;
    }
    tsri_system.free(text);
    if (tsri_log_is_on(TSRI_LOG_PLAN) && table != NULL)
        tsri_log("tuning: %d rows of %s", table->count, path);
    else if (tsri_log_is_on(TSRI_LOG_PLAN))
        tsri_log("tuning: %s is not used: %s", path, wrong);
    return table;
}

static const struct tsri_tuning_table *default_table;
static atomic_int num_default_users; // number of contexts

static _Atomic(tsri_find_op) default_find_op; // the same for all: there is one list

static void load_default(void) {
    char path[MAX_PATH];
    if (tsr_tuning_path(path, sizeof path) == TSR_OK)
        default_table = load(path, atomic_load(&default_find_op));
}

// Frees the table at dlclose, but not at exit while another thread may use a context.
__attribute__((destructor)) static void free_default(void) {
    if (atomic_load(&num_default_users) == 0) tsri_system.free((void *)default_table);
}

// ---- Of a context -----------------------------------------------------------------------------

void tsri_tuning_open(struct tsri_tuning *tuning, const char *path, tsri_find_op find_op,
                      const struct tsri_limits *limits) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    *tuning =
        (struct tsri_tuning){.is_own = path != NULL, .is_cuda = limits->device.type == TSR_CUDA};
    if (tuning->is_cuda)
        snprintf(tuning->device, sizeof tuning->device, "%s%d/%d", cuda_device, limits->cuda_arch,
                 limits->num_sms);
    else
        snprintf(tuning->device, sizeof tuning->device, "%s/%lldK/%lldK", tsr_isa_name(limits->isa),
                 (long long)(limits->l2_bytes >> 10), (long long)(limits->l3_bytes >> 10));
    tuning->device_hash = hash_device(tuning->device);
    if (path == NULL) {
        atomic_store(&default_find_op, find_op);
        pthread_once(&once, load_default);
        tuning->table = default_table;
        if (tuning->table != NULL) atomic_fetch_add(&num_default_users, 1);
    } else if (*path != '\0') {
        tuning->table = load(path, find_op);
    }
}

void tsri_tuning_close(struct tsri_tuning *tuning) {
    if (tuning->is_own)
        tsri_system.free((void *)tuning->table);
    else if (tuning->table != NULL)
        atomic_fetch_sub(&num_default_users, 1);
    tuning->table = NULL;
}

const struct tsri_tuning_row *tsri_tuning_find(const struct tsri_tuning *tuning,
                                               const struct tsri_op *op,
                                               const struct tsri_tuning_key *key) {
    const struct tsri_tuning_table *table = tuning->table;
    struct tsri_tuning_key rounded = *key;
    round_sizes(op, tuning->is_cuda, &rounded);
    int own = find_row(table, op, &rounded, false, tuning->device, tuning->device_hash);
    int any = find_row(table, op, &rounded, true, tuning->device, tuning->device_hash);
    int first = own >= 0 && (any < 0 || own < any) ? own : any;
    return first >= 0 ? &table->rows[first] : NULL;
}

void tsri_tuning_text(const struct tsri_tuning *tuning, const struct tsri_op *op,
                      const struct tsri_tuning_key *key, char *text, size_t bytes) {
    struct tsri_tuning_key rounded = *key;
    round_sizes(op, tuning->is_cuda, &rounded);
    int used =
        snprintf(text, bytes, "%s %s %s ", op->name, tuning->device, tsr_dtype_name(key->dtype));
    for (int i = 0; i < op->tuning->num_sizes && used >= 0 && (size_t)used < bytes; i++)
        used += snprintf(text + used, bytes - (size_t)used, "%s%lld", i > 0 ? "x" : "",
                         (long long)rounded.size[i]);
}

void tsri_tuning_choice_text(const struct tsri_tuning_choice *choice, char *text, size_t bytes) {
    int used = snprintf(text, bytes, "%s", choice->variant);
    for (int i = 0; i < TSRI_TUNING_BLOCKS && choice->block[i] > 0; i++)
        if (used >= 0 && (size_t)used < bytes)
            used += snprintf(text + used, bytes - (size_t)used, "%s%lld", i > 0 ? "x" : " ",
                             (long long)choice->block[i]);
}
