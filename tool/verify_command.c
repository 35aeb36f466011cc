// SPDX-License-Identifier: Apache-2.0
// tessera verify: the walk of verify.c, as a table and an exit code.
#define _GNU_SOURCE
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "command.h"
#include "verify.h"

enum { CONFIGS_QUICK = 900, CONFIGS_NORMAL = 5000, CONFIGS_LONG = 20000 };

static const char usage[] =
    "usage: tessera verify [options]\n"
    "Proves every operation, variant, dtype and instruction set against the double-precision\n"
    "oracle, element by element, within the derived error bound.\n\n"
    "  --op NAME        one operation only, as softmax_forward\n"
    "  --variant NAME   one variant only; (default) is what the library chooses\n"
    "  --dtype NAME     f32, bf16 or f16 only\n"
    "  --isa NAME       scalar, avx2 or avx512 only\n"
    "  --configs N      random configurations beside the edge cases (5000)\n"
    "  --quick          900 of them\n"
    "  --long           20000 of them\n"
    "  --seed N         of the random configurations (the time); printed for repetition\n"
    "  --threads N      of each call (all CPUs)\n";

static void progress(void *user, const struct verify_report *report, const char *op) {
    static double last;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    double now = (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
    if (!isatty(STDERR_FILENO) || now - last < 0.2) return;
    last = now;
    fprintf(stderr, "\r\033[K%lld of %lld configurations, %lld runs, %lld failed: %s",
            (long long)report->num_configs, *(const long long *)user, (long long)report->num_runs,
            (long long)report->num_failed, op);
}

static void print_report(const struct verify_report *report, unsigned long long seed) {
    printf(
        "| operation | variant | dtype | isa | configs | max abs err | mean abs err | max rel err "
        "| err/bound | |\n|---|---|---|---|--:|--:|--:|--:|--:|---|\n");
    for (int i = 0; i < report->num_rows; i++) {
        const struct verify_row *row = &report->rows[i];
        const struct verdict *v = &row->verdict;
        printf("| %s | %s | %s | %s | %lld | %.2e | %.2e | %.2e | %.3f | %s |\n", row->op,
               row->variant, tsr_dtype_name(row->dtype), tsr_isa_name(row->isa),
               (long long)v->num_configs, v->max_abs_err, v->mean_abs_err, v->max_rel_err,
               v->err_over_bound,
               v->num_failed > 0    ? "FAIL"
               : v->num_configs > 0 ? "PASS"
                                    : "supports none of the cases");
    }
    printf("\n");
    for (int i = 0; i < report->num_rows; i++)
        if (report->rows[i].verdict.num_failed > 0)
            printf("FAIL (%lld): %s\n", (long long)report->rows[i].verdict.num_failed,
                   report->rows[i].verdict.failure);
    printf("%lld edge cases and %lld random configurations (seed %llu), %lld runs in %.1f s: worst "
           "err/bound %.3f, %lld failed\n%s\n",
           (long long)report->num_edges, (long long)report->num_configs, seed,
           (long long)report->num_runs, report->seconds, report->worst_err_over_bound,
           (long long)report->num_failed, report->num_failed > 0 ? "FAIL" : "PASS");
}

static bool parse_number(const char *option, const char *text, long long *value) {
    char *end;
    *value = strtoll(text, &end, 10);
    if (*text != '\0' && *end == '\0' && *value >= 0) return true;
    fprintf(stderr, "tessera verify: %s is '%s', expected a whole number, 0 or more\n", option,
            text);
    return false;
}

int command_verify(int argc, char **argv) {
    static const struct option options[] = {
        {"op", required_argument, NULL, 'o'},
        {"variant", required_argument, NULL, 'v'},
        {"dtype", required_argument, NULL, 'd'},
        {"isa", required_argument, NULL, 'i'},
        {"configs", required_argument, NULL, 'n'},
        {"quick", no_argument, NULL, 'q'},
        {"long", no_argument, NULL, 'l'},
        {"seed", required_argument, NULL, 's'},
        {"threads", required_argument, NULL, 't'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    struct verify_options with = {.progress = progress};
    long long configs = CONFIGS_NORMAL, seed = (long long)time(NULL), threads = 0;
    with.progress_user = &configs;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) switch (option) {
        case 'o': with.op = optarg; break;
        case 'v': with.variant = optarg; break;
        case 'd': with.dtype = optarg; break;
        case 'i': with.isa = optarg; break;
        case 'q': configs = CONFIGS_QUICK; break;
        case 'l': configs = CONFIGS_LONG; break;
        case 'n':
            if (!parse_number("--configs", optarg, &configs)) return EXIT_USAGE;
            break;
        case 's':
            if (!parse_number("--seed", optarg, &seed)) return EXIT_USAGE;
            break;
        case 't':
            if (!parse_number("--threads", optarg, &threads)) return EXIT_USAGE;
            break;
        case 'h': fputs(usage, stdout); return EXIT_FINE;
        default: return EXIT_USAGE;
        }
    if (optind < argc) {
        fprintf(stderr, "tessera verify: unexpected argument '%s'\n", argv[optind]);
        return EXIT_USAGE;
    }
    with.num_configs = configs;
    with.seed = (uint64_t)seed;
    with.num_threads = (int)threads;
    struct verify_report report;
    char error[512];
    bool is_run = verify_run(&with, &report, error, sizeof error);
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
    if (!is_run) {
        fprintf(stderr, "tessera verify: %s\n", error);
        verify_report_free(&report);
        return EXIT_USAGE;
    }
    print_report(&report, (unsigned long long)seed);
    int code = report.num_failed > 0 ? EXIT_WRONG : EXIT_FINE;
    verify_report_free(&report);
    return code;
}
