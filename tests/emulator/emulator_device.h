// SPDX-License-Identifier: Apache-2.0
// Internals of the emulated device: threads as fibers that switch where they wait for each other, concurrent blocks,
// and pending copies. One launch runs at a time, on one thread of the host.
#ifndef EMULATOR_DEVICE_H
#define EMULATOR_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "emulator_api.h"

enum {
    MAX_CLUSTER = 16,
    NUM_BARRIERS = 16,
    STACK_BYTES = 256 << 10,
    SHARED_RANK = 24,    // bits of a shared address within a block
    SHARED_START = 1024, // the first address, so that 0 is invalid
};

enum state { READY, AT_WARP, AT_BARRIER, AT_CLUSTER, AT_MBARRIER, POLLING, ENDED };

struct block;

// A pending cp.async.
struct copy {
    void *to;
    const void *from;
    int bytes, size;
    unsigned group;
};

struct fiber {
    struct emulator_seen seen; // first, because the table's `now` points to it
    void *stack_pointer;
    unsigned char *stack;
    struct block *block;
    struct warp *warp;
    enum state state;
    unsigned mask; // the lanes it waits for, with its instruction and operands
    int instruction;
    void *lane;
    unsigned barrier, mbarrier, parity; // what it waits for
    int result;                         // of the barrier
    unsigned cluster_turn;              // at its last arrival
    struct copy *copies;
    int num_copies, room;
    unsigned copy_group, bulk_group; // the open groups
};

// A pending product of a warp: a's registers, and the places of its results.
struct product {
    struct product *next;
    unsigned group;
    struct emulator_wgmma lanes[EMULATOR_WARP];
    float **results; // for every lane
};

struct warp {
    struct fiber *lanes[EMULATOR_WARP];
    unsigned exists, waits, ended; // masks of lanes
    int first_thread;
    struct product *products, **last_product;
    unsigned product_group;
    bool is_fenced;
};

struct barrier {
    unsigned threads, arrived, waiting, sum; // sum: of predicates
    bool all;
};

struct cluster {
    struct block *blocks[MAX_CLUSTER];
    int size, num_ended;
    unsigned threads, arrived, turn; // of the cluster's barrier
};

struct block {
    struct cluster *cluster;
    struct fiber **fibers;
    struct warp *warps;
    int num_fibers, num_warps, num_ended;
    unsigned rank;
    unsigned char *shared, *mapping;
    size_t shared_bytes, mapped_bytes;
    struct barrier barriers[NUM_BARRIERS];
};

struct launch {
    const struct emulator_kernel *kernel;
    const char *name;
    void **params;
    unsigned grid[3], size[3], cluster;
    unsigned static_bytes, dynamic_bytes;
};

// When copies and products happen if nothing forces them: at once, as late as possible, or randomly either. LATE also
// runs warps from the last to the first.
enum when { EARLY, LATE, MIXED };

struct device {
    int arch, num_sms;
    enum when when;
    unsigned long long seed;
    const struct launch *launch;
    struct fiber *fiber; // the running fiber
    void *scheduler;     // its stack pointer
    bool has_failed, is_running, is_in_fiber, is_lost;
    char sentence[4096];
};
extern struct device emulator_device;
extern struct emulator emulator_table;

void emulator_device_start(void);
// Returns 0, or a driver result, with the device's sentence.
int emulator_launch(const struct launch *launch);
_Noreturn void emulator_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
// The running fiber waits in this state.
void emulator_wait_in(enum state state);
// Take and give manage fibers with their stacks. Start prepares the first frame. Resume runs the fiber until it waits
// or ends.
struct fiber *emulator_fiber_take(void);
void emulator_fiber_give(struct fiber *fiber);
void emulator_fiber_start(struct fiber *fiber);
void emulator_fiber_resume(struct fiber *fiber);
// Also returns after a failure outside a fiber. A memory fault counts as a failure.
void emulator_run_guarded(void (*run)(const struct launch *), const struct launch *launch);
bool emulator_is_late(void);
// Returns the size of a global allocation around which something was written since the last call, or 0.
size_t emulator_memory_damaged(void);

void emulator_warp(unsigned mask, int instruction, void *lane);
void emulator_warp_ended(struct warp *warp);
int emulator_barrier(unsigned number, unsigned threads, int kind, int predicate);
void emulator_thread_ended(struct fiber *fiber);
void emulator_cluster_arrive(void);
void emulator_cluster_wait(void);

// Shared memory of this block or another block of its cluster.
void *emulator_shared(unsigned address, unsigned bytes);
void *emulator_shared_of(struct block *block, unsigned address, unsigned bytes);
struct block *emulator_block_of(struct block *block, unsigned address);
unsigned emulator_shared_address(const void *place);
unsigned emulator_map_shared(unsigned address, unsigned rank);
bool emulator_mbarrier_is_done(const struct fiber *fiber);
void emulator_copies_install(struct emulator *table);
// Performs one pending copy, if there is any; finish performs all.
bool emulator_copies_step(void);
void emulator_copies_finish(void);
void emulator_copies_drop(void);
void emulator_copies_check(const struct block *block);

void emulator_do_matrices(struct warp *warp, int instruction);
void emulator_do_mma(struct warp *warp);
void emulator_do_wgmma(struct warp *warp);
void emulator_do_wgmma_wait(struct warp *warp, int groups);
void emulator_products_drop(struct warp *warp);

#endif
