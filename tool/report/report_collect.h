// SPDX-License-Identifier: Apache-2.0
// Shared by the files that collect the report's data.
#ifndef TOOL_REPORT_COLLECT_H
#define TOOL_REPORT_COLLECT_H

#include "measure/measure.h"
#include "report/report.h"
#include "system/progress.h"

struct collector {
    const struct report_options *options;
    struct report *report;
    struct measure_session *session;
    struct peer_torch *torch; // NULL if there is none
    struct progress progress;
    int64_t num_done, num_cases;
    double started, stop_after; // seconds
    double overhead_s;          // mean time of a case without its samples: proof, inputs, warm-up
    double most_s;              // the most seconds of samples for each contender
    double longest_call_s;      // shapes are shrunk until a call at the ceiling takes less
    double most_bytes;          // the most bytes of a case and its intermediates
    double longest_study_s;     // longest_call_s for sweeps, which run several variants of a case
    bool is_wrong;
};

struct report_case {
    struct op_case asked, c; // the published shape, and the shape that this machine runs
    const char *study;       // the study of its results
    const char *variants[MEASURE_MAX_CONTENDERS];
    int num_variants; // 0: the library's choice and its baseline; the shape is shrunk first
    bool has_tiles;   // the library's choice and a tuning file's tiles; the shape is shrunk first
    bool has_peer;    // torch is measured in turns with the first variant
};

// A list is walked twice: to count the cases (visit is NULL), then to measure them.
typedef void visitor(struct collector *k, const struct report_case *given);

// report_case.c
// False, with a sentence on stderr, if there is no such case.
bool collector_case(struct collector *k, const char *op, tsr_dtype dtype, const char *params,
                    struct op_case *c);
// Halves the case until a call takes less than longest_s at the ceilings, and it and its unfused form take at most a
// quarter of the memory.
void collector_fit(struct collector *k, struct op_case *c, double longest_s);
void collector_measure(struct collector *k, const struct report_case *given);

// report_list.c
void walk_all(struct collector *k, visitor *visit, int *count);

// report_studies.c
// Matmul by tile, on CUDA.
void walk_tiles(struct collector *k, visitor *visit, int *count);
void walk_attention(struct collector *k, visitor *visit, int *count);
// Mixture of experts at three numbers of tokens (report_moe.c).
void walk_moe(struct collector *k, visitor *visit, int *count);
void walk_scaling(struct collector *k, visitor *visit, int *count);
int count_fewer_threads(struct collector *k); // the number of cases of collect_fewer_threads
// The study "threads" with fewer threads, and a session for each number; k->session is closed before.
void collect_fewer_threads(struct collector *k, const struct measure_options *options);

#endif
