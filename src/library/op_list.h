// SPDX-License-Identifier: Apache-2.0
// The list of every operation. Nothing below this floor asks for it: what a context needs of it is handed down.
#ifndef TSRI_OP_LIST_H
#define TSRI_OP_LIST_H

#include "context/op_table.h"

extern const struct tsri_op *const tsri_ops[];
extern const int tsri_num_ops;

// NULL where no operation has this name.
const struct tsri_op *tsri_op_find(const char *name);

#endif
