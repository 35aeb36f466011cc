// SPDX-License-Identifier: Apache-2.0
// Runs a launch. As many blocks as fit on the device's multiprocessors run concurrently, and each thread is a fiber.
// The lanes of a warp run one after the other until all wait; then the next warp runs, then the next block. If nothing
// can run, a pending copy is performed; if there is none, the launch has come to a standstill and reports it.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emulator_device.h"

struct device emulator_device;
struct emulator emulator_table;

enum { MAX_POLLS = 2000, SHARED_PER_SM_90 = 233472, SHARED_PER_SM_80 = 167936 };

static void poll(void) { emulator_wait_in(POLLING); }
static void fail_sentence(const char *sentence) { emulator_fail("%s", sentence); }

// ---- Blocks -----------------------------------------------------------------------------------

// The memory ends at the end of a mapping, except for its alignment. Unwritten memory is NaN.
static void map_shared(struct block *block, const struct launch *l) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE),
           dynamic_at = (l->static_bytes + 1023u) / 1024 * 1024;
    block->shared_bytes = dynamic_at + l->dynamic_bytes;
    size_t body = (block->shared_bytes + 1023) / 1024 * 1024;
    block->mapped_bytes = (body + page - 1) / page * page + page;
    block->mapping =
        mmap(NULL, block->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block->mapping == MAP_FAILED) abort();
    mprotect(block->mapping + block->mapped_bytes - page, page, PROT_NONE);
    block->shared = block->mapping + block->mapped_bytes - page - body;
    memset(block->shared, 0xff, body);
}

static void start_fiber(struct block *block, int thread, const struct launch *l, unsigned number) {
    struct fiber *f = emulator_fiber_take();
    unsigned char *stack = f->stack;
    struct copy *copies = f->copies;
    int room = f->room;
    *f = (struct fiber){
        .stack = stack, .copies = copies, .room = room, .block = block, .cluster_turn = ~0u};
    unsigned t = (unsigned)thread;
    f->seen.thread = (struct emulator_index){t % l->size[0], t / l->size[0] % l->size[1],
                                             t / l->size[0] / l->size[1]};
    f->seen.block = (struct emulator_index){number % l->grid[0], number / l->grid[0] % l->grid[1],
                                            number / l->grid[0] / l->grid[1]};
    f->seen.block_size = (struct emulator_index){l->size[0], l->size[1], l->size[2]};
    f->seen.grid = (struct emulator_index){l->grid[0], l->grid[1], l->grid[2]};
    f->seen.lane = thread % EMULATOR_WARP;
    f->seen.cluster_rank = block->rank;
    f->seen.cluster_size = l->cluster;
    f->seen.cluster_number = f->seen.block.x / l->cluster;
    f->seen.static_shared = block->shared;
    f->seen.dynamic_shared = block->shared + (l->static_bytes + 1023) / 1024 * 1024;
    emulator_fiber_start(f);
    f->warp = &block->warps[thread / EMULATOR_WARP];
    f->warp->lanes[thread % EMULATOR_WARP] = f;
    f->warp->exists |= 1u << thread % EMULATOR_WARP;
    block->fibers[thread] = f;
}

static struct block *start_block(const struct launch *l, unsigned number, unsigned rank,
                                 struct cluster *cluster) {
    struct block *block = calloc(1, sizeof *block);
    block->cluster = cluster;
    block->rank = rank;
    block->num_fibers = (int)(l->size[0] * l->size[1] * l->size[2]);
    block->num_warps = (block->num_fibers + EMULATOR_WARP - 1) / EMULATOR_WARP;
    block->fibers = calloc((size_t)block->num_fibers, sizeof *block->fibers);
    block->warps = calloc((size_t)block->num_warps, sizeof *block->warps);
    map_shared(block, l);
    for (int i = 0; i < block->num_warps; i++) {
        block->warps[i].first_thread = i * EMULATOR_WARP;
        block->warps[i].last_product = &block->warps[i].products;
    }
    for (int i = 0; i < block->num_fibers; i++) start_fiber(block, i, l, number);
    return block;
}

static struct cluster *start_cluster(const struct launch *l, unsigned number) {
    struct cluster *cluster = calloc(1, sizeof *cluster);
    cluster->size = (int)l->cluster;
    for (unsigned i = 0; i < l->cluster; i++) { // along x
        cluster->blocks[i] = start_block(l, number * l->cluster + i, i, cluster);
        cluster->threads += (unsigned)cluster->blocks[i]->num_fibers;
    }
    return cluster;
}

static void end_cluster(struct cluster *cluster) {
    for (int i = 0; i < cluster->size; i++) {
        struct block *block = cluster->blocks[i];
        for (int w = 0; w < block->num_warps; w++) emulator_products_drop(&block->warps[w]);
        for (int f = 0; f < block->num_fibers; f++) emulator_fiber_give(block->fibers[f]);
        munmap(block->mapping, block->mapped_bytes);
        free(block->fibers);
        free(block->warps);
        free(block);
    }
    free(cluster);
}

// ---- The order --------------------------------------------------------------------------------

static void end_fiber(struct fiber *f) {
    struct block *block = f->block;
    f->warp->ended |= 1u << f->seen.lane;
    if (f->warp->products != NULL) emulator_fail("a thread ends with products on their way");
    if (++block->num_ended == block->num_fibers) {
        emulator_copies_check(block);
        block->cluster->num_ended++;
    }
    emulator_warp_ended(f->warp);
    emulator_thread_ended(f);
}

static bool may_run(struct fiber *f, bool is_first) {
    if (f->state == READY) return true;
    if (f->state == POLLING) return is_first;
    return f->state == AT_MBARRIER && emulator_mbarrier_is_done(f);
}

// Runs a warp's lanes. Returns whether any thread made progress.
static bool run_warp(struct warp *warp) {
    bool has_moved = false, is_on = true;
    for (bool is_first = true; is_on && !emulator_device.has_failed; is_first = false) {
        is_on = false;
        for (unsigned left = warp->exists & ~warp->ended; left != 0; left &= left - 1) {
            struct fiber *f = warp->lanes[__builtin_ctz(left)];
            if (!may_run(f, is_first)) continue;
            f->state = READY;
            emulator_fiber_resume(f);
            if (emulator_device.has_failed) return true;
            if (f->state == ENDED) end_fiber(f);
            if (f->state != POLLING) is_on = has_moved = true;
        }
    }
    return has_moved;
}

static bool run_cluster(struct cluster *cluster) {
    bool has_moved = false;
    for (int i = 0; i < cluster->size; i++) {
        struct block *block = cluster->blocks[i];
        if (block->num_ended == block->num_fibers) continue;
        bool is_backward = emulator_is_late(); // a kernel must be right in any order
        for (int w = 0; w < block->num_warps && !emulator_device.has_failed; w++)
            has_moved |= run_warp(&block->warps[is_backward ? block->num_warps - 1 - w : w]);
    }
    return has_moved;
}

// Describes which threads of the first cluster wait for what.
static void say_standstill(struct cluster *cluster, char *text, size_t bytes) {
    static const char *const states[] = {"ready",       "at an instruction of their warp",
                                         "at barrier",  "at the cluster's barrier",
                                         "at mbarrier", "asking again and again"};
    int used = snprintf(text, bytes, "standstill:");
    for (int i = 0; i < cluster->size; i++) {
        struct block *block = cluster->blocks[i];
        for (int w = 0; w < block->num_warps; w++) {
            struct fiber *first = NULL;
            for (unsigned left = block->warps[w].exists & ~block->warps[w].ended; left != 0;
                 left &= left - 1) {
                struct fiber *f = block->warps[w].lanes[__builtin_ctz(left)];
                if (first != NULL && f->state == first->state && f->seen.line == first->seen.line)
                    continue;
                first = f;
                if (used < (int)bytes)
                    used += snprintf(text + used, bytes - (size_t)used,
                                     "\n  block %u warp %d lane %d: %s", f->seen.block.x, w,
                                     f->seen.lane, states[f->state]);
                if (f->state == AT_BARRIER && used < (int)bytes)
                    used += snprintf(text + used, bytes - (size_t)used, " %u (%u of %u are there)",
                                     f->barrier, block->barriers[f->barrier].arrived,
                                     block->barriers[f->barrier].threads);
                if (f->state == AT_MBARRIER && used < (int)bytes)
                    used += snprintf(text + used, bytes - (size_t)used, " 0x%x parity %u",
                                     f->mbarrier, f->parity);
                if (used < (int)bytes)
                    used += snprintf(text + used, bytes - (size_t)used, ", %s:%d",
                                     f->seen.file != NULL ? f->seen.file : "start", f->seen.line);
            }
        }
    }
}

static int num_resident(const struct launch *l) {
    unsigned threads = l->size[0] * l->size[1] * l->size[2];
    unsigned shared = emulator_device.arch >= 90 ? SHARED_PER_SM_90 : SHARED_PER_SM_80;
    unsigned each = l->static_bytes + l->dynamic_bytes + 1024;
    unsigned by_threads = 2048 / threads, by_shared = shared / each;
    unsigned per_sm = by_threads < by_shared ? by_threads : by_shared;
    unsigned most = (per_sm > 0 ? per_sm : 1) * (unsigned)emulator_device.num_sms / l->cluster;
    return most > 0 ? (int)most : 1;
}

static struct cluster **alive;
static int num_alive;

static void run(const struct launch *l) {
    unsigned count = l->grid[0] * l->grid[1] * l->grid[2] / l->cluster, next = 0;
    int most = num_resident(l), num_polls = 0;
    alive = calloc((size_t)most, sizeof *alive);
    while (!emulator_device.has_failed) {
        while (num_alive < most && next < count) alive[num_alive++] = start_cluster(l, next++);
        if (num_alive == 0) break;
        bool has_moved = false;
        for (int i = 0; i < num_alive && !emulator_device.has_failed; i++)
            has_moved |= run_cluster(alive[i]);
        for (int i = 0; i < num_alive && !emulator_device.has_failed;) {
            if (alive[i]->num_ended < alive[i]->size) {
                i++;
                continue;
            }
            end_cluster(alive[i]);
            alive[i] = alive[--num_alive];
        }
        num_polls = has_moved || emulator_copies_step() ? 0 : num_polls + 1;
        if (num_polls > MAX_POLLS && !emulator_device.has_failed) {
            static char text[4000];
            say_standstill(alive[0], text, sizeof text);
            snprintf(emulator_device.sentence, sizeof emulator_device.sentence, "kernel %s: %s",
                     l->name, text);
            emulator_device.has_failed = true;
        }
    }
    emulator_device.fiber = NULL;
    if (!emulator_device.has_failed) emulator_copies_finish();
}

// Frees what run() left after a failure outside a thread.
static void clean_up(void) {
    emulator_copies_drop();
    while (num_alive > 0) end_cluster(alive[--num_alive]);
    free(alive);
    alive = NULL;
}

int emulator_launch(const struct launch *launch) {
    struct device *d = &emulator_device;
    d->launch = launch;
    d->has_failed = false;
    d->fiber = NULL;
    d->is_in_fiber = false;
    emulator_run_guarded(run, launch);
    clean_up();
    size_t damaged = emulator_memory_damaged();
    if (damaged > 0 && !d->has_failed) {
        snprintf(d->sentence, sizeof d->sentence,
                 "kernel %s: something was written beyond an allocation of %zu bytes", launch->name,
                 damaged);
        d->has_failed = true;
    }
    if (!d->has_failed) return 0;
    fprintf(stderr, "emulator: %s\n", d->sentence);
    d->is_lost = true;
    return 719; // CUDA_ERROR_LAUNCH_FAILED
}

// ---- The device -------------------------------------------------------------------------------

bool emulator_is_late(void) {
    struct device *d = &emulator_device;
    d->seed = d->seed * 6364136223846793005u + 1442695040888963407u;
    return d->when == LATE || (d->when == MIXED && (d->seed >> 60 & 1) != 0);
}

static int number_of(const char *variable, int otherwise) {
    const char *text = getenv(variable);
    return text != NULL && *text != '\0' ? atoi(text) : otherwise;
}

void emulator_device_start(void) {
    struct device *d = &emulator_device;
    const char *when = getenv("EMULATOR_COPIES");
    d->arch = number_of("EMULATOR_ARCH", 90);
    d->num_sms = number_of("EMULATOR_SMS", 4);
    d->seed = (unsigned long long)number_of("EMULATOR_SEED", 1);
    d->when = when == NULL                 ? MIXED
              : strcmp(when, "early") == 0 ? EARLY
              : strcmp(when, "late") == 0  ? LATE
                                           : MIXED;
    emulator_table = (struct emulator){.fail = fail_sentence,
                                       .poll = poll,
                                       .warp = emulator_warp,
                                       .barrier = emulator_barrier,
                                       .shared = emulator_shared,
                                       .shared_address = emulator_shared_address,
                                       .map_shared = emulator_map_shared,
                                       .cluster_arrive = emulator_cluster_arrive,
                                       .cluster_wait = emulator_cluster_wait};
    emulator_copies_install(&emulator_table);
}
