// SPDX-License-Identifier: Apache-2.0
#include "peers/bench_peers.h"

#include <stdio.h>
#include <string.h>

#include "commands/command.h"
#include "peers/peer_blas.h"
#include "peers/peer_torch.h"
#include "system/options.h"

const char bench_peers_help[] =
    "torch, openblas, blis, onednn; on CUDA torch, triton: measured in turns if installed";

// Peers that are Python processes; on a GPU there are no others.
static const char *const scripts[] = {"torch", "triton"};
enum { NUM_SCRIPTS = sizeof scripts / sizeof *scripts };

static int script_of(const char *name) {
    int i = 0;
    while (i < NUM_SCRIPTS && strcmp(scripts[i], name) != 0) i++;
    return i;
}

static bool is_known(const char *name) {
    if (script_of(name) < NUM_SCRIPTS) return true;
    for (int i = 0; peer_blas_names[i] != NULL; i++)
        if (strcmp(peer_blas_names[i], name) == 0) return true;
    return false;
}

// Splits names and drops repeated ones. The list points into copy.
static bool split(const char *names, char *copy, size_t copy_bytes, struct text_list *list) {
    *list = (struct text_list){0};
    if (names == NULL) return true;
    if (strlen(names) >= copy_bytes || !text_list_split(strcpy(copy, names), list)) return false;
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        bool is_new = true;
        for (int k = 0; k < kept; k++) is_new &= strcmp(list->items[k], list->items[i]) != 0;
        if (is_new) list->items[kept++] = list->items[i];
    }
    list->count = kept;
    return true;
}

bool bench_peers_known(const char *names, bool is_on_cpu, char *error, size_t error_bytes) {
    char copy[256];
    struct text_list list;
    if (!split(names, copy, sizeof copy, &list)) {
        snprintf(error, error_bytes, "--peer is '%s', expected names with commas between", names);
        return false;
    }
    for (int i = 0; i < list.count; i++)
        if (!is_known(list.items[i])) {
            snprintf(error, error_bytes,
                     "there is no peer '%s', expected torch, openblas, blis, onednn or triton",
                     list.items[i]);
            return false;
        }
    for (int i = 0; i < list.count; i++) {
        bool is_script = script_of(list.items[i]) < NUM_SCRIPTS;
        if (is_on_cpu ? strcmp(list.items[i], "triton") != 0 : is_script) continue;
        snprintf(error, error_bytes, "the peer %s is for %s, expected %s", list.items[i],
                 is_on_cpu ? "CUDA devices" : "the cpu",
                 is_on_cpu ? "torch, openblas, blis or onednn" : "torch or triton");
        return false;
    }
    return true;
}

// Prints a sentence only once: a peer without bf16 would repeat it for every case.
static void say_once(struct bench_peers *peers, const char *name, const char *sentence) {
    enum { MOST = sizeof peers->said / sizeof *peers->said };
    char text[sizeof *peers->said];
    snprintf(text, sizeof text, "peer %s left out: %.200s", name, sentence);
    for (int i = 0; i < peers->num_said; i++)
        if (strcmp(peers->said[i], text) == 0) return;
    if (peers->num_said < MOST) strcpy(peers->said[peers->num_said++], text);
    progress_note(peers->progress, "%s", text);
}

void bench_peers_open(struct bench_peers *peers, const char *names, int num_threads,
                      struct progress *progress) {
    char copy[256], error[512];
    struct text_list list;
    *peers = (struct bench_peers){.progress = progress};
    if (!split(names, copy, sizeof copy, &list)) return;
    for (int i = 0; i < list.count; i++) {
        bool is_there;
        int script = script_of(list.items[i]);
        if (script < NUM_SCRIPTS) {
            peers->scripts[script] = peer_torch_open(scripts[script], error, sizeof error);
            is_there = peers->scripts[script] != NULL;
        } else {
            struct measure_entry entry = {
                .peer = peer_blas_open(list.items[i], num_threads, error, sizeof error)};
            for (int k = 0; peer_blas_names[k] != NULL; k++) // results keep a pointer to the name
                if (strcmp(peer_blas_names[k], list.items[i]) == 0)
                    entry.peer_name = peer_blas_names[k];
            is_there = entry.peer != NULL;
            if (is_there) peers->libraries[peers->num_libraries++] = entry;
        }
        if (is_there) continue;
        peers->is_incomplete = true;
        say_once(peers, list.items[i], error);
    }
}

void bench_peers_close(struct bench_peers *peers) {
    for (int i = 0; i < NUM_SCRIPTS; i++) {
        peer_torch_close(peers->scripts[i]);
        peers->scripts[i] = NULL;
    }
}

int bench_peers_enter(struct bench_peers *peers, const struct op_case *c,
                      struct measure_entry *entries, int count, int most) {
    for (int i = 0; i < peers->num_libraries && count < most; i++) {
        char why[256];
        if (peer_blas_call_name(peers->libraries[i].peer, c, why, sizeof why) != NULL)
            entries[count++] = peers->libraries[i];
        else
            say_once(peers, peers->libraries[i].peer_name, why);
    }
    return count;
}

int bench_peers_failed(struct bench_peers *peers, const struct op_case *c, const char *name,
                       enum measure_outcome outcome, const char *sentence) {
    char text[256], longer[512];
    peers->is_incomplete = true;
    if (outcome == MEASURE_UNSUPPORTED)
        snprintf(longer, sizeof longer, "%s", sentence);
    else
        snprintf(longer, sizeof longer, "%s, %s: %.200s", case_text(c, text, sizeof text),
                 tsr_dtype_name(c->dtype), sentence);
    say_once(peers, name, longer);
    return outcome == MEASURE_WRONG ? EXIT_NOT_COMPARABLE : EXIT_FINE;
}

int bench_peers_run(struct bench_peers *peers, struct measure_session *session,
                    const struct op_case *c, const char *variant, struct result_list *results) {
    struct result result;
    char error[512];
    int code = EXIT_FINE;
    for (int i = 0; i < NUM_SCRIPTS; i++) {
        if (peers->scripts[i] == NULL) continue;
        enum measure_outcome outcome = peer_torch_measure(peers->scripts[i], session, c, variant,
                                                          &result, error, sizeof error);
        int failed = EXIT_FINE;
        if (outcome == MEASURE_OK)
            result_add(results, &result);
        else
            failed = bench_peers_failed(peers, c, scripts[i], outcome, error);
        if (code == EXIT_FINE) code = failed;
    }
    return code;
}
