// SPDX-License-Identifier: Apache-2.0
// What the queue of rows needs in shared memory beside its rows. Both compilers read this file: no headers, no typedefs.
#ifndef TSRI_ROW_QUEUE_PARAMS_H
#define TSRI_ROW_QUEUE_PARAMS_H

enum {
    ROW_QUEUE_ENDS = 64
}; // words for each row of a tensor: one for each warp or shorter row of a block

#endif
