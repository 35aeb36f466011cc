// SPDX-License-Identifier: Apache-2.0
// Memory for the tensors of a case: poisoned with 0xFF, guarded on both sides, in any layout.
#ifndef TOOL_TENSORS_H
#define TOOL_TENSORS_H

#include "specs/spec.h"

struct buffer {
    void *base; // the whole allocation, guards included
    size_t bytes;
    bool is_mapped; // a sparse mapping (LAYOUT_FAR): not poisoned, not scanned
};

// A case with memory behind its tensors.
struct tensors {
    struct op_case c;
    struct buffer buffer[SPEC_MAX_SLOTS];
};

// Allocates every present tensor of c in this layout. For LAYOUT_RANDOM strides, gaps and
// misalignment are drawn from rng. False if memory is short. Release in either case.
bool tensors_create(struct tensors *t, const struct op_case *c, enum edge_layout layout,
                    struct rng *rng);
// The same in f64, contiguous: for the oracle.
bool tensors_create_f64(struct tensors *t, const struct op_case *c);
void tensors_release(struct tensors *t);

// Fills every input (and in-out) of the f64 case, with the spec's fill or the general one, rounded to the dtypes of
// `like`; with LAYOUT_REPEATED every row of an input equals its first. False if memory is short.
bool tensors_fill_f64(struct tensors *t, const struct op_case *like, struct rng *rng,
                      enum edge_fill fill, enum edge_layout layout);
// Copies one slot between layouts and dtypes, element by element.
void tensor_copy(const tsr_tensor *from, const tsr_tensor *to);
// Loads elements that are `step` apart, as doubles.
void load_run(tsr_dtype dtype, const void *from, int64_t step, double *to, int64_t count);
// Writes 0xFF into the elements of a tensor, not into the gaps between them.
void tensor_poison(const tsr_tensor *t);
// True if every byte of the buffer outside the tensor's elements is still 0xFF. Poisons the
// elements too.
bool buffer_is_clean(const struct buffer *buffer, const tsr_tensor *t);

// A guarded, poisoned, 64-byte aligned block of exactly `bytes`.
bool buffer_create(struct buffer *buffer, size_t bytes, void **data);
bool buffer_guards_intact(const struct buffer *buffer, size_t bytes);
void buffer_release(struct buffer *buffer);

#endif
