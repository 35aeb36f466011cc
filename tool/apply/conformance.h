// SPDX-License-Identifier: Apache-2.0
// Conformance: the cases of verify as files, so that any implementation can be compared with the oracle. A case is
// NAME.safetensors with its inputs and NAME.json with the call; an implementation answers with a file NAME.safetensors
// of outputs. Files mean the same as for `apply`.
#ifndef TOOL_CONFORMANCE_H
#define TOOL_CONFORMANCE_H

#include "apply/apply.h"
#include "system/options.h"
#include "verify/verify.h"

enum { CONFORMANCE_MAX_PATH = 1024, CONFORMANCE_OPTION_BYTES = 128 };

// A case read back from its file: its inputs, and zeroed outputs with the names, shapes and dtypes of the answer.
struct conformance_case {
    struct apply apply; // after a failure: its error says why
    tsr_safetensors *file;
    struct op_case c;
};
// like: the operation and its options. False if the file is not such a case. Close it in either case.
bool conformance_open(struct conformance_case *opened, const struct op_case *like,
                      const char *path);
void conformance_close(struct conformance_case *opened);
// "--mask=causal": a given option, as on the command line of `apply`. Returns text.
const char *conformance_option_text(const struct apply_option *option,
                                    char text[CONFORMANCE_OPTION_BYTES]);

struct conformance_writing {
    const char *folder;
    const char *dtype; // NULL: f32, bf16 and f16
    int64_t num_configs;
    uint64_t seed;
};
// Writes the edge cases of these operations, then random cases of each in turn; returns the exit code.
int conformance_write(const struct conformance_writing *writing, const struct text_list *names);

struct conformance_checking {
    const char *folder;  // of the cases
    const char *results; // of the answers
    const char *command; // makes the answers first; NULL: they exist
    const char *work;    // a private folder for the command's links
    const char *name;    // of the implementation, in the table
};
// Fills the report and prints errors on stderr, case by case. Returns -1, or the exit code if it could not run.
int conformance_check(const struct conformance_checking *checking, struct verify_report *report,
                      uint64_t *seed);

// A case and the command that answers it.
struct conformance_answering {
    const char *command, *work;
    const char *inputs, *call, *answer; // files; the answer's path has a '/'
};
// Runs the command with sh. False if it failed, with the reason in what.
bool conformance_answer(const struct conformance_answering *with, const struct apply *apply,
                        char *what, size_t bytes);
// Whether every shell reads the path as plain text, so that folders for links can be made in it.
bool conformance_can_work_in(const char *folder);
// Whether {options}, which is several words, stands between quotes.
bool conformance_quotes_options(const char *command);

#endif
