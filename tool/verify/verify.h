// SPDX-License-Identifier: Apache-2.0
// Verification: compares every operation, variant, dtype and instruction set with the oracle, element
// by element, against the derived bound.
#ifndef TOOL_VERIFY_H
#define TOOL_VERIFY_H

#include "specs/spec.h"

// The outcome of all configurations of one op x variant x dtype x ISA.
struct verdict {
    int64_t num_configs; // run and compared
    int64_t num_failed;
    int64_t num_not_run; // for lack of memory: neither right nor wrong
    double max_abs_err, mean_abs_err, max_rel_err;
    double err_over_bound; // the worst; above 1 is wrong
    char failure[1024];    // the first one, in words and with the seed
    char obstacle[1024];   // the first case that was not run, and why
    double sum_abs_err, num_elements;
    bool is_hashed; // the caller wants `bits`
    uint64_t bits;  // a hash of all outputs of all configurations, in their order
};

// Runs c on inputs drawn from seed, with the oracle and with one variant of ctx (NULL: the default
// one), and adds the outcome to the verdict. TSR_UNSUPPORTED, and nothing added, if the variant cannot
// serve the case.
tsr_status verify_case(tsr_context *ctx, const struct op_case *c, const char *variant,
                       uint64_t seed, enum edge_fill fill, enum edge_layout layout,
                       struct verdict *verdict);

struct verify_report;

// Which edge cases run; those with far tensors (VERIFY_EDGES_NEAR leaves them out) take about 10 GB each.
enum verify_edges { VERIFY_EDGES_ALL, VERIFY_EDGES_NEAR, VERIFY_EDGES_NONE };

// The options of `tessera verify`.
struct verify_options {
    const char *op;      // NULL: all
    const char *variant; // NULL: all
    const char *dtype;   // NULL: all
    const char *isa;     // NULL: all that the machine has; only for the CPU
    tsr_device device;   // the device whose variants run
    enum verify_edges edges;
    const char *cases;   // further cases of op, contiguous: "m=5 n=7 +bias; m=0"; NULL: none
    int64_t num_configs; // random configurations over all operations
    uint64_t seed;
    int num_threads; // 0: the default
    bool is_hashed;  // rows get a hash of their outputs
    int64_t repeats; // runs of each case, which must give the same values; 0: the walk decides
    void (*progress)(void *user, const struct verify_report *report, const char *op);
    void *progress_user;
};

// One row of the outcome.
struct verify_row {
    const char *op, *variant;
    tsr_dtype dtype;
    tsr_isa isa;
    struct verdict verdict;
};
struct verify_report {
    char device[16]; // "cpu", "cuda:0"
    char arch[16];   // of a GPU; "" for the CPU, whose rows have an ISA
    struct verify_row *rows;
    int num_rows;
    int64_t num_configs, num_edges, num_runs, num_failed, num_not_run;
    double worst_err_over_bound, seconds;
    bool is_interrupted; // a signal (signals.h) ended the walk early
    bool lacks_memory;   // nothing could run, for lack of memory
};

// Fills the report; progress on stderr. A held signal ends it after the current case. False if it
// could not run; error says why.
bool verify_run(const struct verify_options *options, struct verify_report *report, char *error,
                size_t error_bytes);
// The row of these four; a new one if there is none. The pointer is invalid once another row is added.
struct verdict *verify_row_of(struct verify_report *report, const char *op, const char *variant,
                              tsr_dtype dtype, tsr_isa isa);
// Print the report on stdout: as a table, or as JSON like bench's. num_threads 0: unknown.
void verify_print_markdown(const struct verify_report *report, uint64_t seed);
// Prints a line for each row with the hash of its outputs, and one line for all.
void verify_print_bits(const struct verify_report *report, uint64_t seed);
void verify_print_json(const struct verify_report *report, int64_t seed, int num_threads);
// EXIT_WRONG, which outweighs the others; EXIT_COULD_NOT_RUN, with a sentence on stderr; or EXIT_FINE.
int verify_exit_code(const struct verify_report *report, const char *command);
void verify_report_free(struct verify_report *report);

#endif
