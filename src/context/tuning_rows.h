// SPDX-License-Identifier: Apache-2.0
// Rows of a tuning file, as tessera/tuning.h describes them, and which of them is for a call.
#ifndef TSRI_TUNING_ROWS_H
#define TSRI_TUNING_ROWS_H

#include <stdbool.h>
#include <tessera/tuning.h>

enum { TSRI_TUNING_SIZES = 4, TSRI_TUNING_BLOCKS = 3, TSRI_TUNING_MAX_BLOCK = 4096 };

// What rows of an operation go by: sizes that its choice of a variant may depend on; 0 for what it has fewer of.
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
    struct tsri_tuning_key key;        // sizes that stand for all that the row is for
    bool has_any_size;                 // whatever the sizes, which are 0
    int next;                          // of the same list of the index; -1: none
    int64_t block[TSRI_TUNING_BLOCKS]; // 0: the plan's own
};

// Of a context: the file's rows, and the device that it looks for among them.
struct tsri_tuning {
    const struct tsri_tuning_table *table; // NULL: there are none
    bool is_own;                           // to be freed with the context
    bool is_cuda;
    char device[48];
    uint64_t device_hash;
};

// What a row can choose: the words behind its key, and the nanoseconds that the operation's account expects of it.
struct tsri_tuning_choice {
    const char *variant;
    int64_t block[TSRI_TUNING_BLOCKS]; // 0 from where there are no more
    double ns;
};

// The operation of this name; NULL where there is none. The list of operations lies above those who ask.
typedef const struct tsri_op *(*tsri_find_op)(const char *name);

// path as in tsr_context_options.tuning_file. limits are those of the context.
void tsri_tuning_open(struct tsri_tuning *tuning, const char *path, tsri_find_op find_op,
                      const struct tsri_limits *limits);
void tsri_tuning_close(struct tsri_tuning *tuning);

// NULL where there is none.
const struct tsri_tuning_row *tsri_tuning_find(const struct tsri_tuning *tuning,
                                               const struct tsri_op *op,
                                               const struct tsri_tuning_key *key);

// The words of a row ahead of the variant.
void tsri_tuning_text(const struct tsri_tuning *tuning, const struct tsri_op *op,
                      const struct tsri_tuning_key *key, char *text, size_t bytes);
// Those of a choice.
void tsri_tuning_choice_text(const struct tsri_tuning_choice *choice, char *text, size_t bytes);

#endif
