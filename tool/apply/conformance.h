// SPDX-License-Identifier: Apache-2.0
// Conformance: the cases of verify as files, so that any implementation can be held against the oracle. A case is
// NAME.safetensors with its inputs and NAME.json with the call; an implementation answers with a file NAME.safetensors
// of outputs. What a file means is what `apply` takes it for.
#ifndef TOOL_CONFORMANCE_H
#define TOOL_CONFORMANCE_H

#include "apply/apply.h"
#include "system/options.h"
#include "verify/verify.h"

enum { CONFORMANCE_MAX_PATH = 1024, CONFORMANCE_OPTION_BYTES = 128 };

// A case read back from its file: inputs, and zeroed outputs that have the names, shapes and dtypes of the answer.
struct conformance_case {
    struct apply apply; // its error says why it could not be opened
    tsr_safetensors *file;
    struct op_case c;
};
// like: the operation and its options. False for a file that is no such case. Close it in either case.
bool conformance_open(struct conformance_case *opened, const struct op_case *like,
                      const char *path);
void conformance_close(struct conformance_case *opened);
// "--mask=causal": an option that was given, for the command line of `apply`. Returns text.
const char *conformance_option_text(const struct apply_option *option,
                                    char text[CONFORMANCE_OPTION_BYTES]);

struct conformance_writing {
    const char *folder;
    const char *dtype; // NULL: f32, bf16 and f16
    int64_t num_configs;
    uint64_t seed;
};
// Writes the edge cases of these operations and as many random ones in turn; returns the exit code.
int conformance_write(const struct conformance_writing *writing, const struct text_list *names);

struct conformance_checking {
    const char *folder;  // of the cases
    const char *results; // of the answers
    const char *command; // answers first; NULL: all are there
    const char *work;    // the command's: a private folder for links
    const char *name;    // of the implementation, in the table
};
// Fills the report and says on stderr what is wrong, case by case. Returns -1, or the exit code where it could not.
int conformance_check(const struct conformance_checking *checking, struct verify_report *report,
                      uint64_t *seed);

// A case and the command that is to answer it.
struct conformance_answering {
    const char *command, *work;
    const char *inputs, *call, *answer; // files; the answer's path has a '/'
};
// Runs it by sh. False, with a word on why, where it did not end well.
bool conformance_answer(const struct conformance_answering *with, const struct apply *apply,
                        char *what, size_t bytes);
// Whether a path means itself to every shell, so that folders for links can be made in it.
bool conformance_can_work_in(const char *folder);
// Whether {options}, which are several words, stand between quotes.
bool conformance_quotes_options(const char *command);

#endif
