// SPDX-License-Identifier: Apache-2.0
// Bytes between kernel and memory, by form. The fused form moves each tensor once. The unfused forms
// are the baselines of src/ops, described here pass by pass. A new operation with a baseline needs a
// row here.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "measure/traffic.h"

// Passes in order, separated by spaces. A pass is its reads, '>', its writes, all of the size of the
// first slot: m in the case's dtype, f an intermediate in fp32. A pass after "slot?" runs only if that
// slot is present, one after "slot!" only if it is absent.
static const struct {
    const char *op, *passes;
} unfused_forms[] = {
    {"softmax_forward", "m> m>f f>m"},                    // max; exp, sum; divide
    {"softmax_backward", "mm>f f> mm>m"},                 // product; sum; combine
    {"layernorm_forward", "residual?mm>m m> m> m>f f>m"}, // add; mean; variance; normalise; scale
    {"rmsnorm_forward", "residual?mm>m m> m>f f>m"},      // add; squares; normalise; scale
    // centre; product; sums; columns; combine
    {"layernorm_backward", "m>f m>f ff> dweight?mf> dresidual_out?ffm>m dresidual_out!ff>m"},
    {"rmsnorm_backward", "m>f m>f ff> dweight?mf> dresidual_out?ffm>m dresidual_out!ff>m"},
    {"activation_forward", "m>f up?fm>m up!f>m"}, // act; multiply or round
    // derivative; chain; act; chain of up; round both
    {"activation_backward", "m>f up?fmm>f up!fm>f up?m>f up?fm>f f>m up?f>m"},
    {"cross_entropy_forward", "m>f mf>f >"}, // exp; log-probabilities; pick the target
    {"cross_entropy_backward", ">f mf>m"},   // target distribution; subtract
    // scaled gradient; m; v; root; quotient; update
    {"adamw_step", "m>f ff>f ff>f f>f ff>f master?ff>fm master!fm>m"},
    {"rope_forward", "m>f mf>m"}, // rotate half; multiply and add
    {"rope_backward", "m>f mf>m"},
};

static bool takes_place(const struct op_case *c, const char **pass, size_t length) {
    const char *mark = memchr(*pass, '?', length);
    if (mark == NULL) mark = memchr(*pass, '!', length);
    if (mark == NULL) return true;
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)(mark - *pass), *pass);
    *pass = mark + 1;
    int slot = spec_slot(c->spec, name);
    return (slot >= 0 && c->is_present[slot]) == (*mark == '?');
}

static void add_passes(const struct op_case *c, const char *passes, struct op_traffic *traffic) {
    double numel = case_elements(c, 0);
    double main_bytes = numel * (double)tsr_dtype_bytes(c->dtype);
    for (const char *pass = passes; *pass != '\0';) {
        size_t length = strcspn(pass, " ");
        const char *end = pass + length, *at = pass;
        if (takes_place(c, &at, length)) {
            double *side = &traffic->read_bytes;
            traffic->num_passes++;
            for (; at < end; at++) {
                if (*at == '>')
                    side = &traffic->write_bytes;
                else
                    *side += *at == 'm' ? main_bytes : 4 * numel;
            }
        }
        pass = end + (*end == ' ');
    }
}

struct op_traffic traffic_of_tensors(const struct op_case *c) {
    struct op_traffic traffic = {.num_passes = 1};
    for (int s = 0; c->spec->slots[s].name != NULL; s++) {
        if (!c->is_present[s]) continue;
        double bytes = (double)case_numel(c, s) * (double)tsr_dtype_bytes(case_slot_dtype(c, s));
        if (case_role(c, s) != SLOT_OUT) traffic.read_bytes += bytes;
        if (case_role(c, s) != SLOT_IN) traffic.write_bytes += bytes;
    }
    // The spec may know the exact reads: only some rows of a table, or c only if it is added to.
    if (c->spec->bytes != NULL)
        traffic.read_bytes = fmax(c->spec->bytes(c) - traffic.write_bytes, 0);
    return traffic;
}

bool traffic_of_variant(const struct op_case *c, const char *variant, struct op_traffic *traffic) {
    *traffic = (struct op_traffic){0};
    if (c->spec->traffic != NULL) return c->spec->traffic(c, variant, traffic);
    if (!spec_is_baseline(c->spec, variant)) {
        *traffic = traffic_of_tensors(c);
        return true;
    }
    for (size_t i = 0; i < sizeof unfused_forms / sizeof *unfused_forms; i++)
        if (strcmp(unfused_forms[i].op, c->spec->op) == 0) {
            add_passes(c, unfused_forms[i].passes, traffic);
            return true;
        }
    return false;
}

bool traffic_of(const struct op_case *c, bool is_unfused, struct op_traffic *traffic) {
    *traffic = (struct op_traffic){0};
    if (is_unfused && c->spec->baseline == NULL) return false;
    return traffic_of_variant(c, is_unfused ? c->spec->baseline : NULL, traffic);
}
