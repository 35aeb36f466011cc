// SPDX-License-Identifier: Apache-2.0
// The mixture-of-experts layer at the guides' three numbers of tokens: time, throughput, the router's share, its losses.
#include <math.h>
#include <string.h>

#include "report/report.h"

static bool is_of_study(const struct result *result, const char *op) {
    return result->study != NULL && strcmp(result->study, "moe") == 0 && result->peer == NULL &&
           strcmp(result->c.spec->op, op) == 0;
}

// The row of the study with this many tokens; NULL if there is none.
static const struct result *find(const struct report *report, const char *op, const char *param,
                                 double tokens) {
    for (int i = 0; i < report->results.count; i++) {
        const struct result *result = &report->results.items[i];
        if (is_of_study(result, op) && case_real(&result->c, param) == tokens) return result;
    }
    return NULL;
}

static double ms_of(const struct result *result) {
    return result != NULL ? result_device_ms(result) : (double)NAN;
}

// The best dense product in this dtype, TFLOP/s.
static double matmul_rate(const struct report *report, tsr_dtype dtype) {
    double best = NAN;
    for (int i = 0; i < report->results.count; i++) {
        const struct result *result = &report->results.items[i];
        if (strcmp(result->c.spec->op, "matmul_forward") == 0 && result->peer == NULL &&
            result->c.dtype == dtype && !is_of_study(result, "matmul_forward") &&
            !(best >= result->tflops))
            best = result->tflops;
    }
    return best;
}

static const struct report_routing *routing_of(const struct report *report, double tokens) {
    for (int i = 0; i < report->num_routings; i++)
        if (report->routings[i].tokens == tokens) return &report->routings[i];
    return NULL;
}

static enum cell_tone share_tone(double share) {
    return !isfinite(share) ? TONE_QUIET
           : share > 0.7    ? TONE_GOOD
           : share > 0.4    ? TONE_FAIR
                            : TONE_BAD;
}

void tables_build_moe(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {"#tokens",
                                          "hidden × intermediate",
                                          "#forward ms",
                                          "#backward ms",
                                          "#tokens/s",
                                          "#forward TFLOP/s",
                                          "#% of matmul",
                                          "#backward % of matmul",
                                          "#router % of forward",
                                          "#load-balance loss",
                                          "#usage variance",
                                          "#MB",
                                          "the guide's shape",
                                          NULL};
    struct report_table *table = NULL;
    bool is_scaled = false;
    tsr_dtype dtype = TSR_F32;
    for (int i = 0; i < report->results.count; i++) {
        const struct result *forward = &report->results.items[i];
        if (!is_of_study(forward, "moe_forward")) continue;
        if (table == NULL) table = table_begin(tables, "moe", "Mixture of experts", columns);
        const double tokens = case_real(&forward->c, "tokens"), ms = result_device_ms(forward);
        const struct result *backward = find(report, "moe_backward", "tokens", tokens);
        const double router_ms = ms_of(find(report, "matmul_forward", "m", tokens)) +
                                 ms_of(find(report, "moe_route_forward", "tokens", tokens));
        const struct report_routing *routing = routing_of(report, tokens);
        const double rate = matmul_rate(report, forward->c.dtype);
        const double share = forward->tflops / rate;
        const double backward_share = backward != NULL ? backward->tflops / rate : (double)NAN;
        dtype = forward->c.dtype;
        is_scaled = is_scaled || forward->scaled_from[0] != '\0';
        table_row(table);
        table_count(table, TONE_PLAIN, tokens);
        table_text(table, TONE_QUIET, "%d × %d", (int)case_int(&forward->c, "hidden"),
                   (int)case_int(&forward->c, "intermediate"));
        table_number(table, TONE_PLAIN, ms, 4);
        table_number(table, TONE_PLAIN, ms_of(backward), 4);
        table_number(table, TONE_PLAIN, 1e3 * tokens / ms, 4);
        table_number(table, TONE_PLAIN, forward->tflops, 4);
        table_number(table, share_tone(share), 100 * share, 3);
        table_number(table, share_tone(backward_share), 100 * backward_share, 3);
        table_number(table, TONE_PLAIN, 100 * router_ms / ms, 3);
        table_number(table, TONE_QUIET, routing != NULL ? routing->load_balance_loss : NAN, 4);
        table_number(table, TONE_QUIET, routing != NULL ? routing->usage_variance : NAN, 3);
        table_number(table, TONE_QUIET, forward->peak_bytes / 1e6, 4);
        table_text(table, TONE_QUIET, "%s",
                   forward->scaled_from[0] ? forward->scaled_from : "the same");
    }
    if (table == NULL) return;
    table_note(
        table,
        "In %s, 32 experts, 2 for each token, GELU, a random router on random tokens: "
        "router, permutation, both grouped products and the weighted sum in one call. "
        "Tokens/s are those of forward. %% of matmul: the layer's rate as a share of our best "
        "dense product in this report and dtype. The router's share: its product and the "
        "choice of experts, timed as calls of their own. A load-balance loss of 1 and a "
        "usage variance of 0 are an even load.%s",
        tsr_dtype_name(dtype),
        is_scaled ? " A shape in the last column is the guide's; the row ran with fewer "
                    "tokens or a narrower layer, halved until a call fits the time and the "
                    "memory."
                  : "");
}
