// SPDX-License-Identifier: Apache-2.0
// Peers of matmul that are libraries: OpenBLAS, BLIS, oneDNN, opened with dlopen where they are installed,
// never linked and never required.
#ifndef TOOL_PEER_BLAS_H
#define TOOL_PEER_BLAS_H

#include "specs/spec.h"

struct peer_blas;

extern const char *const peer_blas_names[]; // "openblas", ...; NULL-terminated

// NULL, with one sentence (without a full stop) in error, where the library is not installed or lacks a
// function. $TESSERA_OPENBLAS, $TESSERA_BLIS or $TESSERA_ONEDNN names another file than the system's.
const struct peer_blas *peer_blas_open(const char *name, int num_threads, char *error,
                                       size_t error_bytes);
// What it runs of its own for this case, "cblas_sgemm". NULL, with a sentence in error, where it has
// nothing that computes the same.
const char *peer_blas_call_name(const struct peer_blas *peer, const struct op_case *c, char *error,
                                size_t error_bytes);
// What the other returned a name for. The output is f32 whatever the case's is: (m, n), contiguous.
bool peer_blas_call(const struct peer_blas *peer, const struct op_case *c, float *out);

// Variables that bound for how long the threads of a peer spin after a call, in this process and in those
// that it starts; what the user has set stays.
void peer_set_environment(void);

#endif
