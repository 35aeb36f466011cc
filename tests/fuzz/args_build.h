// SPDX-License-Identifier: Apache-2.0
// Builds a call of an operation from bytes.
#ifndef ARGS_BUILD_H
#define ARGS_BUILD_H

#include "args_table.h"
#include "args_view.h"

struct args_case {
    const struct args_op *op;
    void *args; // the args struct, in a block of exactly its stated size
    size_t args_bytes;
    int context;   // a tsr_isa, or TSR_ISA_COUNT for NULL
    int workspace; // 0: the context's; 1: exact, 2: too small, 3: misaligned, 4: larger
    // The call must be refused because of the struct's size, a flag or the variant's name.
    bool is_illegal;

    // The tensors as the library reads them: those beyond the struct's size are absent.
    int num_tensors;
    tsr_tensor tensors[ARGS_MAX_TENSORS];
    char roles[ARGS_MAX_TENSORS];    // 'i': input, 'o': output
    bool is_known[ARGS_MAX_TENSORS]; // whether it lies in our memory
    int64_t begin[ARGS_MAX_TENSORS], end[ARGS_MAX_TENSORS];
    bool is_all_known, are_indices_known;
};

void args_build(struct args_case *c, const uint8_t *data, size_t bytes);
void args_set_workspace(struct args_case *c, void *workspace, size_t bytes);
void args_release(struct args_case *c);

#endif
