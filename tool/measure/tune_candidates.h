// SPDX-License-Identifier: Apache-2.0
// The candidates that `tessera tune` measures for a problem. A candidate with blocks, and every one on the CPU, is measured
// through a tuning file with one row that names it, so the measurement has the effect of the final file.
#ifndef TUNE_CANDIDATES_H
#define TUNE_CANDIDATES_H

#include <stdbool.h>

#include "measure/measure.h"

struct tune_candidate {
    // "packed 192x256", as in rows. For the built-in choice its name for the table, or "".
    char name[64];
    char file[64];       // its tuning file; "": none
    int note;            // the file's number for temporary_forget
    const char *variant; // a forced variant; NULL: the library's choice with that file
    double model;        // expected cost, lower is better; NAN: unknown
    bool is_dropped;     // after the short round
};

// Lists the candidates, the built-in choice (variant `built_in`) first. If the library lists its candidates (matmul on
// CUDA), the few with the lowest expected time follow. Else every variant of the device except the oracle follows, in the
// library's order, and on the CPU the best blocks by a small cost model. Returns the number; list has room for
// MEASURE_MAX_CONTENDERS.
int tune_candidates(struct measure_session *session, tsr_device device, const struct op_case *c,
                    const char *built_in, struct tune_candidate *list);

// A part of tune_candidates: sorts `count` choices with names and models in nanoseconds, and lists the built-in choice and
// those worth measuring, with models in microseconds.
int tune_survivors(struct tune_candidate *all, int count, const char *built_in,
                   struct tune_candidate *list);
// For a table of tiles: the library's choice, without a name, then for each tile that can serve its best split, with its
// tuning file, sorted by expected time.
int tune_tiles(struct measure_session *session, const struct op_case *c,
               struct tune_candidate *list);
// The length of variant and tile in a choice's name: "cuda-mma 128x64" of "cuda-mma 128x64x3". The split differs from
// product to product.
size_t tune_tile_length(const char *name);

// Write the candidates' files, for any size, and remove them. device: its name in rows. False with errno.
bool tune_candidates_write(const struct op_case *c, const char *device, struct tune_candidate *list,
                           int count);
void tune_candidates_remove(const struct tune_candidate *list, int count);

#endif
