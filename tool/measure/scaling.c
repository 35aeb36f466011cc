// SPDX-License-Identifier: Apache-2.0
#include "measure/scaling.h"

#include <stdlib.h>
#include <string.h>

const char *const scaling_names[] = {"batch", "problem", "threads", NULL};

// ---- Members ----------------------------------------------------------------------------------

const char *scaling_base(const struct op_spec *spec) {
    static const char *const bases[][2] = {
        {"attention_forward", "batch_size=1 seqlen_q=512 seqlen_k=512 num_heads=8 head_dim=64"},
        {"attention_backward",
         "batch_size=1 seqlen_q=512 seqlen_k=512 num_heads=8 head_dim=64 +dq +dk +dv"},
        {"attention_decode", "batch_size=1 seqlen_k=4096 num_heads=32 num_kv_heads=8 head_dim=128"},
        {"matmul_forward", "m=512 n=1024 k=1024"},
        {"matmul_backward", "m=512 n=1024 k=1024 +da +db"},
        {"activation_forward", "rows=512 cols=11008"},
        {"cast", "rows=1024 cols=4096"},
    };
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++)
        if (strcmp(bases[i][0], spec->op) == 0) return bases[i][1];
    return spec->standard != NULL ? spec->standard[0] : NULL;
}

// The parameter that a study multiplies: the first of these that the operation has, together with its partner if both are
// equal. Parameters that count independent parts, such as rows, come first.
static const struct axis {
    const char *name, *partner;
} batches[] = {{"batch_size", NULL},
               {"batch", NULL},
               {"rows", NULL},
               {"tokens", NULL},
               {NULL, NULL}},
  problems[] = {
      {"seqlen_k", "seqlen_q"}, {"seqlen_q", NULL}, {"seqlen", NULL},        {"m", NULL},
      {"cols", NULL},           {"vocab", NULL},    {"num_positions", NULL}, {NULL, NULL}};

// The parameters of the study's axis; -1 for none.
static void find_axis(const struct op_case *c, enum scaling_study study, int param[2]) {
    const struct axis *axis = study == SCALING_BATCH ? batches : problems;
    param[0] = param[1] = -1;
    if (study == SCALING_THREADS) return;
    for (; axis->name != NULL && param[0] < 0; axis++) {
        param[0] = spec_param(c->spec, axis->name);
        if (param[0] >= 0 && c->param[param[0]] <= 0) param[0] = -1; // there is no such dimension
        int partner = axis->partner != NULL ? spec_param(c->spec, axis->partner) : -1;
        if (param[0] >= 0 && partner >= 0 && c->param[partner] == c->param[param[0]])
            param[1] = partner;
    }
}

bool scaling_case(const struct op_case *first, enum scaling_study study, int times,
                  struct op_case *c) {
    int param[2];
    find_axis(first, study, param);
    *c = *first;
    for (int i = 0; i < 2; i++)
        if (param[i] >= 0) c->param[param[i]] *= times;
    return param[0] >= 0;
}

int scaling_next_threads(int threads, int all) {
    if (threads >= all) return 0;
    return 2 * threads < all ? 2 * threads : all;
}

// ---- Figures ----------------------------------------------------------------------------------

// The sweep that a result belongs to; -1 for none.
static int study_of(const struct result *r) {
    for (int i = 0; r->study != NULL && r->peer == NULL && i < SCALING_NUM_STUDIES; i++)
        if (strcmp(r->study, scaling_names[i]) == 0) return i;
    return -1;
}

static double size_of(const struct result *r) {
    int param[2];
    enum scaling_study study = (enum scaling_study)study_of(r);
    if (study == SCALING_THREADS) return r->num_threads;
    find_axis(&r->c, study, param);
    return param[0] >= 0 ? r->c.param[param[0]] : 0;
}

// Whether two results differ only in the parameters that their study multiplies.
static bool is_same_sweep(const struct result *a, const struct result *b) {
    int study = study_of(a), param[2];
    if (study < 0 || study != study_of(b) || a->c.spec != b->c.spec || a->c.dtype != b->c.dtype ||
        memcmp(a->c.is_present, b->c.is_present, sizeof a->c.is_present) != 0 ||
        (study != SCALING_THREADS && a->num_threads != b->num_threads))
        return false;
    find_axis(&a->c, (enum scaling_study)study, param);
    for (int i = 0; a->c.spec->params[i].name != NULL; i++)
        if (i != param[0] && i != param[1] && a->c.param[i] != b->c.param[i]) return false;
    return true;
}

static double rate_of(const struct result *r) { return r->tflops > 0 ? r->tflops : r->gb_s; }

static void compare(const struct result *first, struct result *r) {
    r->times = size_of(r) / size_of(first);
    r->efficiency = rate_of(r) / rate_of(first);
    if (study_of(r) == SCALING_THREADS) r->efficiency /= r->times;
}

void scaling_finish(struct result_list *results) {
    struct result *items = results->items;
    for (int i = 0, next; i < results->count; i = next) {
        next = i + 1;
        if (study_of(&items[i]) < 0) continue;
        for (int k = next; k < results->count; k++) {
            if (!is_same_sweep(&items[i], &items[k])) continue;
            struct result moved = items[k];
            int at = k;
            for (; at > i && (at > next || size_of(&items[at - 1]) > size_of(&moved)); at--)
                items[at] = items[at - 1];
            items[at] = moved;
            next++;
        }
        for (int k = i; k < next; k++) compare(&items[i], &items[k]);
    }
}
