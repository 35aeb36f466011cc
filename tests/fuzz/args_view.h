// SPDX-License-Identifier: Apache-2.0
// Which bytes a tensor covers, computed independently of the library's checks. Also the fuzzer's memory for tensors:
// one block, of which a sanitizer allows only these bytes.
#ifndef ARGS_VIEW_H
#define ARGS_VIEW_H

#include <tessera/types.h>

#include "fuzz.h"

enum { ARENA_BYTES = 64 << 10, MAX_ELEMENTS = 2048 };
extern uint8_t args_arena[ARENA_BYTES];

// Sets begin and end to offsets in the arena, or both to 0 if the tensor is absent or empty. Returns false if it lies
// elsewhere, is invalid, or has too many elements for a call.
bool args_extent(const tsr_tensor *t, int64_t *begin, int64_t *end);

// Fills the arena. 0: floats near 1, 1: any bits, 2: NaN and infinities.
void args_fill(int kind);
// args_hide() makes the whole arena inaccessible, and args_show() a part of it accessible again.
void args_hide(void);
void args_show(int64_t begin, int64_t end);
void args_show_all(void);

// Saves the arena's contents for a comparison.
void args_remember(void);
// Accepts the tensor's elements as changed.
void args_accept(const tsr_tensor *t);
bool args_is_as_remembered(void);

// Whether no two elements of the outputs share a byte, and no input shares one with an output unless both are the same
// view. roles: 'i', 'o', or 0 to ignore the tensor. Every tensor must have an extent.
bool args_are_apart(const tsr_tensor *tensors, const char *roles, int count);

#endif
