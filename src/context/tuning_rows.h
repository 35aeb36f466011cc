// SPDX-License-Identifier: Apache-2.0
// The rows of a tuning file, as tessera/tuning.h describes them, and the search for a call's row.
#ifndef TSRI_TUNING_ROWS_H
#define TSRI_TUNING_ROWS_H

#include <stdbool.h>
#include <tessera/tuning.h>

enum { TSRI_TUNING_SIZES = 4, TSRI_TUNING_BLOCKS = 3, TSRI_TUNING_MAX_BLOCK = 4096 };

// The key of a row: sizes that the operation's choice of a variant may depend on; unused sizes are 0.
struct tsri_tuning_key {
    tsr_dtype dtype;
    int64_t size[TSRI_TUNING_SIZES];
};

struct tsri_op;
struct tsri_variant;
struct tsri_limits;

struct tsri_tuning_row {
    const struct tsri_op *op;
    const struct tsri_variant *variant;
    char device[48];
    struct tsri_tuning_key key;        // rounded sizes, for all sizes that the row serves
    bool has_any_size;                 // applies to all sizes; key.size is 0
    int next;                          // next row in the same list of the index; -1: none
    int64_t block[TSRI_TUNING_BLOCKS]; // 0: the plan decides
};

// One per context: the file's rows, and the device whose rows the context uses.
struct tsri_tuning {
    const struct tsri_tuning_table *table; // NULL: no rows
    bool is_own;                           // freed with the context
    bool is_cuda;
    char device[48];
    uint64_t device_hash;
};

// What a row can choose: the words after its key, and the expected time in nanoseconds by the operation's cost model.
struct tsri_tuning_choice {
    const char *variant;
    int64_t block[TSRI_TUNING_BLOCKS]; // 0 after the last block
    double ns;
};

// Finds an operation by name; NULL if there is none. The list of operations lies above its users here.
typedef const struct tsri_op *(*tsri_find_op)(const char *name);

// path as in tsr_context_options.tuning_file; limits are the context's.
void tsri_tuning_open(struct tsri_tuning *tuning, const char *path, tsri_find_op find_op,
                      const struct tsri_limits *limits);
void tsri_tuning_close(struct tsri_tuning *tuning);

// NULL if there is no row.
const struct tsri_tuning_row *tsri_tuning_find(const struct tsri_tuning *tuning,
                                               const struct tsri_op *op,
                                               const struct tsri_tuning_key *key);

// The words of a row before the variant.
void tsri_tuning_text(const struct tsri_tuning *tuning, const struct tsri_op *op,
                      const struct tsri_tuning_key *key, char *text, size_t bytes);
// The words of a choice.
void tsri_tuning_choice_text(const struct tsri_tuning_choice *choice, char *text, size_t bytes);

#endif
