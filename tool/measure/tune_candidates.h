// SPDX-License-Identifier: Apache-2.0
// What `tessera tune` measures for a problem. A candidate that has blocks, and any on the CPU, is a tuning file of one row that
// names it, so what is measured is what the file will bring about.
#ifndef TUNE_CANDIDATES_H
#define TUNE_CANDIDATES_H

#include <stdbool.h>

#include "measure/measure.h"

struct tune_candidate {
    // "packed 192x256": as rows have it; of the built-in choice, for the table, or "".
    char name[64];
    char file[64];       // its tuning file; "": none
    int note;            // of that, in temporary.h
    const char *variant; // forced; NULL: the library's choice under that file
    double model;        // the smaller the better; NAN: not modelled
    bool is_dropped;     // after the short round
};

// The built-in choice first, which is of the variant `built_in`; then, where the library tells what there is to choose (matmul
// on CUDA), the few that its account likes best; else every variant of the device but the oracle in the library's order, and, of
// variants on the CPU that cut c into blocks, those that a small model likes best. Returns how many; list has room for
// MEASURE_MAX_CONTENDERS.
int tune_candidates(struct measure_session *session, tsr_device device, const struct op_case *c,
                    const char *built_in, struct tune_candidate *list);

// The middle part of it: of `count` choices with names and models in nanoseconds, sorted here, the built-in choice and those
// worth measuring, with models in microseconds.
int tune_survivors(struct tune_candidate *all, int count, const char *built_in,
                   struct tune_candidate *list);
// For a table of tiles: the library's choice, without a name, then the best splits of each tile that may serve, with their files,
// those expected to be the fastest first.
int tune_tiles(struct measure_session *session, const struct op_case *c,
               struct tune_candidate *list);
// How much of a choice's name is its variant and tile: splits are each product's own. "cuda-mma 128x64" of "cuda-mma 128x64x3".
size_t tune_tile_length(const char *name);

// The candidates' files, for any size, and their removal. device: as rows name it. False: errno says why.
bool tune_candidates_write(const struct op_case *c, const char *device, struct tune_candidate *list,
                           int count);
void tune_candidates_remove(const struct tune_candidate *list, int count);

#endif
