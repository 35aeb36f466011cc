// SPDX-License-Identifier: Apache-2.0
// Peers of matmul that are libraries: OpenBLAS, BLIS, oneDNN. They are opened with dlopen if they are installed, never
// linked and never required.
#ifndef TOOL_PEER_BLAS_H
#define TOOL_PEER_BLAS_H

#include "specs/spec.h"

struct peer_blas;

extern const char *const peer_blas_names[]; // "openblas", ...; NULL-terminated

// NULL, with one sentence (without a full stop) in error, if the library is not installed or lacks a
// function. $TESSERA_OPENBLAS, $TESSERA_BLIS or $TESSERA_ONEDNN names another file than the system's.
const struct peer_blas *peer_blas_open(const char *name, int num_threads, char *error,
                                       size_t error_bytes);
// The peer's function for this case, "cblas_sgemm". NULL, with a sentence in error, if it has none
// that computes the same.
const char *peer_blas_call_name(const struct peer_blas *peer, const struct op_case *c, char *error,
                                size_t error_bytes);
// Calls the function that peer_blas_call_name returned. The output is always f32, (m, n), contiguous.
bool peer_blas_call(const struct peer_blas *peer, const struct op_case *c, float *out);

// Sets the environment variables that limit how long a peer's threads spin after a call, in this process and in those
// that it starts. Variables that the user has set stay.
void peer_set_environment(void);

#endif
