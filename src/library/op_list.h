// SPDX-License-Identifier: Apache-2.0
// The list of every operation. Code below this floor does not use it: contexts get what they need as arguments.
#ifndef TSRI_OP_LIST_H
#define TSRI_OP_LIST_H

#include "context/op_table.h"

extern const struct tsri_op *const tsri_ops[];
extern const int tsri_num_ops;

// NULL if no operation has this name.
const struct tsri_op *tsri_op_find(const char *name);

#endif
