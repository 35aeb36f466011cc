// SPDX-License-Identifier: Apache-2.0
// Operands whose rows come by a list, for matmul_grouped_sm90.cu: the copy engine cannot gather rows, so the threads of
// the copying warpgroup copy their pieces of 16 bytes, to where the copy engine would put them.
//
// Each thread reports its copies of a stage after those of the next stage are under way, so that two stages are on their
// way at a time.
#ifndef TSRI_MATMUL_GROUPED_LISTS_CUH
#define TSRI_MATMUL_GROUPED_LISTS_CUH

#include "cuda/device/copy_async.cuh"
#include "ops/matmul/cuda/matmul_stages.cuh"
#include "ops/matmul/matmul_grouped_params.h"

enum {
    PIECES = 8,                    // of a line of 128 bytes, one a thread
    LINES_AT_ONCE = 128 / PIECES,  // of a warpgroup
    ROUNDS = UNIT / LINES_AT_ONCE, // per unit
};

DEVICE int piece_of_thread(void) { return (int)threadIdx.x % PIECES; }
DEVICE int line_of_thread(void) { return (int)threadIdx.x / PIECES; }

// The rows of this thread's lines of a unit whose first line is element `first` of the list; -1 from element `end` on and
// for numbers that are no row.
DEVICE void load_rows(int rows[ROUNDS], const struct matmul_list_params *list, int first, int end) {
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const int at = first + line_of_thread() + i * LINES_AT_ONCE;
        const int row = at < end ? list->lines[at * list->step] : -1;
        rows[i] = (unsigned)row < (unsigned)list->num_lines ? row : -1;
    }
}

// Starts this thread's copies of a unit: columns [col, col + 64) of its rows, zeros from column `width` on and where there
// is no row.
DEVICE void copy_rows(unsigned unit, const struct matmul_operand *of, const int rows[ROUNDS],
                      int col, int width) {
    const int line = line_of_thread(), piece = piece_of_thread();
    const int left = (width - col - piece * 8) * 2, bytes = left < 0 ? 0 : left < 16 ? left : 16;
    const unsigned to = unit + line * 128 + (piece ^ line % 8) * 16;
    const unsigned short *from =
        (const unsigned short *)of->data + (bytes > 0 ? col + piece * 8 : 0);
#pragma unroll
    for (int i = 0; i < ROUNDS; i++)
        copy_async(to + i * (LINES_AT_ONCE * 128), from + (rows[i] < 0 ? 0 : rows[i] * of->line),
                   rows[i] < 0 ? 0 : bytes);
}

// The stage whose copies this thread has not reported yet; -1: none.
struct unreported {
    int stage;
};

DEVICE void report_copies(unsigned base, int stage) {
    tma_see_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(base + FULL_AT + 8 * stage);
}

// Ends the copies of a stage, and reports those of the stage before.
DEVICE void end_copies(struct unreported *last, unsigned base, int stage) {
    copy_commit();
    if (last->stage >= 0) {
        COPY_WAIT(1);
        report_copies(base, last->stage);
    }
    last->stage = stage;
}

// Reports the last stage's copies.
DEVICE void end_all_copies(const struct unreported *last, unsigned base) {
    COPY_WAIT(0);
    if (last->stage >= 0) report_copies(base, last->stage);
}

#endif
