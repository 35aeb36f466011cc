// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "measure/tune_candidates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files/tuning_file.h"
#include "system/device_option.h"
#include "system/temporary.h"

enum { MOST = MEASURE_MAX_CONTENDERS, NUM_BLOCKS = 4 };

// A small cost model of a matmul with these blocks: threads that idle in the last round, reads of a and b for each product
// (tall and wide blocks read less), and blocks that exceed the second-level cache.
static double model_blocks(const struct machine *machine, double m, double n, double k,
                           double batch, double block_m, double block_n) {
    double rows = ceil(m / block_m), cols = ceil(n / block_n), tasks = rows * cols * batch;
    double rounds = ceil(tasks / machine->num_threads) * machine->num_threads / tasks;
    double reads = 1 / fmin(block_m, m) + 1 / fmin(block_n, n);
    double depth = fmin(k, 512), floats = (block_m + block_n) * depth + block_m * block_n;
    double spill = fmax(4 * floats / (double)machine->l2_bytes, 1);
    return rounds * (1 + 16 * reads) * sqrt(spill);
}

static int by_model(const void *a, const void *b) {
    double x = ((const struct tune_candidate *)a)->model,
           y = ((const struct tune_candidate *)b)->model;
    return (x > y) - (x < y);
}

// Adds the blocks with the lowest model cost, for the variants that split c into blocks.
static int add_blocks(struct measure_session *session, tsr_device device, const struct op_case *c,
                      struct tune_candidate *list, int count) {
    static const int heights[] = {48, 96, 144, 192, 288}, widths[] = {64, 128, 256, 512};
    static const char *const variants[] = {"packed", "local"};
    enum { ALL = 2 * 5 * 4 };
    struct tune_candidate all[ALL];
    const struct machine *machine = measure_machine(session);
    if (strcmp(c->spec->op, "matmul_forward") != 0 || device.type != TSR_CPU) return count;
    int used = 0;
    for (int v = 0; v < 2; v++)
        for (int i = 0; i < 5; i++)
            for (int j = 0; j < 4; j++) {
                // One block that covers c is enough; larger ones would do the same.
                if ((i > 0 && heights[i - 1] >= case_real(c, "m")) ||
                    (j > 0 && widths[j - 1] >= case_real(c, "n")))
                    continue;
                struct tune_candidate *one = &all[used++];
                *one = (struct tune_candidate){.variant = NULL};
                snprintf(one->name, sizeof one->name, "%s %dx%d", variants[v], heights[i],
                         widths[j]);
                one->model =
                    model_blocks(machine, case_real(c, "m"), case_real(c, "n"), case_real(c, "k"),
                                 case_real(c, "batch"), heights[i], widths[j]);
                // In the variant local every task packs its part of b again.
                if (v == 1) one->model *= 1 + 8 / fmin(heights[i], case_real(c, "m"));
            }
    qsort(all, (size_t)used, sizeof *all, by_model);
    for (int i = 0; i < NUM_BLOCKS && i < used && count < MOST; i++) list[count++] = all[i];
    return count;
}

// ---- Candidates from the library ------------------------------------------------------------------

// Whether a candidate is of this variant.
static bool is_of(const struct tune_candidate *candidate, const char *variant) {
    size_t length = strlen(variant);
    return strncmp(candidate->name, variant, length) == 0 &&
           (candidate->name[length] == ' ' || candidate->name[length] == '\0');
}

static bool has_one_of(const struct tune_candidate *list, int count,
                       const struct tune_candidate *like) {
    char variant[sizeof like->name];
    snprintf(variant, sizeof variant, "%.*s", (int)strcspn(like->name, " "), like->name);
    for (int i = 0; i < count; i++)
        if (is_of(&list[i], variant)) return true;
    return false;
}

// The cost models of two variants have different errors, so the best candidate of each variant is measured unless it is far
// slower by its model.
int tune_survivors(struct tune_candidate *all, int count, const char *built_in,
                   struct tune_candidate *list) {
    static const double far_off = 2;
    int own = -1, used = 1;
    list[0] = (struct tune_candidate){.model = NAN};
    if (count == 0) return used;
    qsort(all, (size_t)count, sizeof *all, by_model);
    const double least = all[0].model;
    for (int i = 0; i < count; i++) {
        if (own < 0 && is_of(&all[i], built_in)) own = i; // the plan takes this one
        all[i].model /= 1000;
    }
    if (own >= 0) list[0] = all[own];
    for (int i = 0; i < count && used < MOST; i++) {
        bool is_likely = used <= NUM_BLOCKS;
        bool is_first = all[i].model * 1000 < far_off * least && !has_one_of(list, used, &all[i]);
        if (i != own && (is_likely || is_first)) list[used++] = all[i];
    }
    return used;
}

enum { MOST_TOLD = 256 };

static int ask(struct measure_session *session, const struct op_case *c,
               struct tune_candidate *all) {
    const char *choice;
    double ns;
    int count = 0;
    while (count < MOST_TOLD && (choice = measure_tuning_choice(session, c, count, &ns)) != NULL) {
        all[count] = (struct tune_candidate){.model = ns};
        snprintf(all[count++].name, sizeof all->name, "%s", choice);
    }
    return count;
}

static int add_told(struct measure_session *session, const struct op_case *c, const char *built_in,
                    struct tune_candidate *list) {
    struct tune_candidate all[MOST_TOLD];
    return tune_survivors(all, ask(session, c, all), built_in, list);
}

// ---- All of them ----------------------------------------------------------------------------------

int tune_candidates(struct measure_session *session, tsr_device device, const struct op_case *c,
                    const char *built_in, struct tune_candidate *list) {
    tsr_variant_info info;
    int count = add_told(session, c, built_in, list);
    if (count > 1 || list[0].name[0] != '\0') return count;
    for (int i = 0; count < MOST && tsr_variant_info_get(c->spec->op, i, &info) == TSR_OK; i++) {
        if (info.flags & TSR_VARIANT_REFERENCE) continue;
        if (!device_has_variant(device, &info)) continue;
        list[count] = (struct tune_candidate){.model = NAN};
        snprintf(list[count].name, sizeof list[count].name, "%s", info.name);
        if (device.type != TSR_CPU) list[count].variant = info.name;
        count++;
    }
    return add_blocks(session, device, c, list, count);
}

bool tune_candidates_write(const struct op_case *c, const char *device, struct tune_candidate *list,
                           int count) {
    char error[512];
    for (int i = 1; i < count; i++) {
        struct tuning_line line;
        if (list[i].variant != NULL) continue;
        snprintf(line.key, sizeof line.key, "%s %s %s *", c->spec->op, device,
                 tsr_dtype_name(c->dtype));
        snprintf(line.choice, sizeof line.choice, "%.63s", list[i].name);
        strcpy(list[i].file, "/tmp/tessera-tune-XXXXXX");
        int descriptor = mkstemp(list[i].file);
        list[i].note = descriptor >= 0 ? temporary_note(list[i].file) : -1;
        if (descriptor >= 0) close(descriptor);
        if (descriptor < 0 || !tuning_file_write(list[i].file, &line, 1, error, sizeof error))
            return false;
    }
    return true;
}

void tune_candidates_remove(const struct tune_candidate *list, int count) {
    for (int i = 0; i < count; i++)
        if (list[i].file[0] != '\0') {
            (void)unlink(list[i].file);
            temporary_forget(list[i].note);
        }
}

// ---- A table of tiles -----------------------------------------------------------------------------

size_t tune_tile_length(const char *name) {
    size_t length = strcspn(name, "x");
    return length + (name[length] != '\0' ? 1 + strcspn(name + length + 1, "x") : 0);
}

int tune_tiles(struct measure_session *session, const struct op_case *c,
               struct tune_candidate *list) {
    struct tune_candidate all[MOST_TOLD];
    char device[64];
    int count = ask(session, c, all), used = 1;
    list[0] = (struct tune_candidate){.model = NAN};
    if (sscanf(measure_tuning_key(session), "%*s %63s", device) != 1) return used;
    qsort(all, (size_t)count, sizeof *all, by_model);
    for (int i = 0; i < count && used < MOST; i++) {
        const size_t length = tune_tile_length(all[i].name);
        bool is_new = true;
        for (int k = 1; k < used && is_new; k++)
            is_new = tune_tile_length(list[k].name) != length ||
                     strncmp(list[k].name, all[i].name, length) != 0;
        if (is_new) list[used++] = all[i];
    }
    if (tune_candidates_write(c, device, list, used)) return used;
    tune_candidates_remove(list, used);
    return 1;
}
