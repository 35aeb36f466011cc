// SPDX-License-Identifier: Apache-2.0
// PyTorch, and Triton's kernels on its tensors, as peers: a Python process (bench/peer_*.py, which the tool carries
// along) that loads libtessera.so beside torch and times both in turns on the same tensors, on the CPU or a GPU.
#ifndef TOOL_PEER_TORCH_H
#define TOOL_PEER_TORCH_H

#include "measure/measure.h"

struct peer_torch;

// Starts it, "torch" or "triton", a name that results keep: $TESSERA_PYTHON, else the first of build/venv's python and python3
// that has torch. NULL, with one sentence (without a full stop) in error.
struct peer_torch *peer_torch_open(const char *name, char *error, size_t error_bytes);
void peer_torch_close(struct peer_torch *torch); // NULL is legal

// One case: the result of torch, with ours_ms and speedup_over_peer from the same process. Otherwise one
// sentence in error, and MEASURE_UNSUPPORTED where torch has nothing that computes the same, MEASURE_WRONG
// where the two disagree, MEASURE_FAILED for the rest.
enum measure_outcome peer_torch_measure(struct peer_torch *torch, struct measure_session *session,
                                        const struct op_case *c, const char *variant,
                                        struct result *result, char *error, size_t error_bytes);

#endif
