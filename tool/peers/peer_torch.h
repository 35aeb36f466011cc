// SPDX-License-Identifier: Apache-2.0
// PyTorch, and Triton's kernels on its tensors, as peers: a Python process (bench/peer_*.py, embedded in the tool) that
// loads both libtessera.so and torch and times them in turns on the same tensors, on the CPU or a GPU.
#ifndef TOOL_PEER_TORCH_H
#define TOOL_PEER_TORCH_H

#include "measure/measure.h"

struct peer_torch;

// Starts the process with $TESSERA_PYTHON, else with the first of build/venv's python and python3 that has torch. name is
// "torch" or "triton"; results keep the pointer. On failure NULL, with one sentence (without a full stop) in error.
struct peer_torch *peer_torch_open(const char *name, char *error, size_t error_bytes);
void peer_torch_close(struct peer_torch *torch); // NULL is legal

// Measures one case: torch's result, with ours_ms and speedup_over_peer from the same process. On failure one
// sentence in error, and MEASURE_UNSUPPORTED if torch has nothing that computes the same, MEASURE_WRONG if the
// two disagree, else MEASURE_FAILED.
enum measure_outcome peer_torch_measure(struct peer_torch *torch, struct measure_session *session,
                                        const struct op_case *c, const char *variant,
                                        struct result *result, char *error, size_t error_bytes);

#endif
