// SPDX-License-Identifier: Apache-2.0
// The peers of a bench: which were requested, which are installed, and their part in each case. One sentence on stderr
// says why a peer takes no part.
#ifndef TOOL_BENCH_PEERS_H
#define TOOL_BENCH_PEERS_H

#include "measure/measure.h"
#include "system/progress.h"

enum { BENCH_MAX_PEERS = 8 };

struct bench_peers {
    struct progress *progress; // for sentences
    struct measure_entry libraries[BENCH_MAX_PEERS];
    int num_libraries;
    struct peer_torch *scripts[2]; // torch, triton
    bool is_incomplete;            // a requested peer is missing or failed
    char said[32][256];
    int num_said;
};

extern const char bench_peers_help[]; // the help of --peer: "torch, openblas, ..."

// Checks names with commas between; NULL for none. False, with a sentence in error, if there is no such peer, or none for
// this kind of device.
bool bench_peers_known(const char *names, bool is_on_cpu, char *error, size_t error_bytes);
void bench_peers_open(struct bench_peers *peers, const char *names, int num_threads,
                      struct progress *progress);
void bench_peers_close(struct bench_peers *peers);

// Adds the libraries that can compute the case to the entries of its measurement.
int bench_peers_enter(struct bench_peers *peers, const struct op_case *c,
                      struct measure_entry *entries, int count, int most);
// Reports why a peer failed. Returns 0, or the exit code that follows.
int bench_peers_failed(struct bench_peers *peers, const struct op_case *c, const char *name,
                       enum measure_outcome outcome, const char *sentence);
// Adds the results of peers that are processes. variant: the variant of ours that they are compared with.
int bench_peers_run(struct bench_peers *peers, struct measure_session *session,
                    const struct op_case *c, const char *variant, struct result_list *results);

#endif
