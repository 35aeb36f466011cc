// SPDX-License-Identifier: Apache-2.0
// Marks by which blocks of one launch tell each other, through the workspace, that something is there.
#ifndef TSRI_CUDA_MARKS_H
#define TSRI_CUDA_MARKS_H

#include <stdint.h>

// A new number of 64 bits for every call, mixed from one number of the process and one of the call; never 0. A workspace can
// only hold it if that call wrote it. The block that has seen a mark removes it, so that a graph that is launched again finds
// none.
uint64_t tsri_cuda_new_mark(void);

#endif
