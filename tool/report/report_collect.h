// SPDX-License-Identifier: Apache-2.0
// What the collecting files of the report share.
#ifndef TOOL_REPORT_COLLECT_H
#define TOOL_REPORT_COLLECT_H

#include "measure/measure.h"
#include "report/report.h"
#include "system/progress.h"

struct collector {
    const struct report_options *options;
    struct report *report;
    struct measure_session *session;
    struct peer_torch *torch; // NULL where there is none
    struct progress progress;
    int64_t num_done, num_cases;
    double started, stop_after; // seconds
    double overhead_s;          // of a case beside its samples: proof, inputs, warm-up; a mean
    double most_s;              // of samples for each contender
    double longest_call_s;      // one repetition at the ceiling; shapes are shrunk to it
    double most_bytes;          // of a case and its intermediates
    double longest_study_s;     // the same of the sweeps, which run several variants of each
    bool is_wrong;
};

struct report_case {
    struct op_case asked, c; // the published shape, and what this machine runs of it
    const char *study;       // of the results
    const char *variants[MEASURE_MAX_CONTENDERS];
    int num_variants; // 0: the library's choice and its baseline, of a shape that is shrunk first
    bool has_tiles; // the library's choice and the tiles that a tuning file could choose; likewise
    bool has_peer;  // torch beside the first variant, where there is one
};

// A list is walked twice: to count the cases (visit is NULL), then to measure them.
typedef void visitor(struct collector *k, const struct report_case *given);

// report_case.c
// False, said on stderr, where there is no such case.
bool collector_case(struct collector *k, const char *op, tsr_dtype dtype, const char *params,
                    struct op_case *c);
// Halves the case until one call takes less than that at the ceilings, and it and its unfused form take a quarter of the
// memory.
void collector_fit(struct collector *k, struct op_case *c, double longest_s);
void collector_measure(struct collector *k, const struct report_case *given);

// report_list.c
void walk_all(struct collector *k, visitor *visit, int *count);

// report_studies.c
// Matmul by tile, on CUDA.
void walk_tiles(struct collector *k, visitor *visit, int *count);
void walk_attention(struct collector *k, visitor *visit, int *count);
void walk_scaling(struct collector *k, visitor *visit, int *count);
int count_fewer_threads(struct collector *k); // cases of the following
// The study "threads" with fewer of them, each number with a session of its own: k->session is closed.
void collect_fewer_threads(struct collector *k, const struct measure_options *options);

#endif
