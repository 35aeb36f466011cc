// SPDX-License-Identifier: Apache-2.0
// Which bytes a tensor touches, worked out apart from the library's own checks; and the memory that tensors of
// the fuzzer lie in: one block, of which a sanitizer sees those bytes alone.
#ifndef ARGS_VIEW_H
#define ARGS_VIEW_H

#include <tessera/types.h>

#include "fuzz.h"

enum { ARENA_BYTES = 64 << 10, MAX_ELEMENTS = 2048 };
extern uint8_t args_arena[ARENA_BYTES];

// begin to end, offsets into the arena, both 0 where it is absent or empty. False for what lies elsewhere, is
// no tensor, or has more elements than a call shall work on.
bool args_extent(const tsr_tensor *t, int64_t *begin, int64_t *end);

// Fills the arena: 0 with floats near 1, 1 with any bits, 2 with NaN and infinities.
void args_fill(int kind);
// All of the arena is out of reach; then some of it within.
void args_hide(void);
void args_show(int64_t begin, int64_t end);
void args_show_all(void);

// Remembers the arena as it is, to be compared with.
void args_remember(void);
// Takes the tensor's elements, as they are now, for what was remembered.
void args_accept(const tsr_tensor *t);
bool args_is_as_remembered(void);

// No two elements of the outputs share a byte, and none of an input's is an output's, but where both are the
// same view. roles: 'i', 'o', or 0 for what is not looked at. Every tensor has an extent.
bool args_are_apart(const tsr_tensor *tensors, const char *roles, int count);

#endif
