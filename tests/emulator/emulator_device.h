// SPDX-License-Identifier: Apache-2.0
// The inside of the emulated device: threads as fibers that switch where they meet, blocks that are alive together, copies
// that are on their way. One launch runs at a time, on one thread of the host.
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
    SHARED_RANK = 24,    // bits of an address of shared memory within a block
    SHARED_START = 1024, // of addresses, so that 0 is none
};

enum state { READY, AT_WARP, AT_BARRIER, AT_CLUSTER, AT_MBARRIER, POLLING, ENDED };

struct block;

// cp.async that waits to be done.
struct copy {
    void *to;
    const void *from;
    int bytes, size;
    unsigned group;
};

struct fiber {
    struct emulator_seen seen; // first: what the table's `now` points to
    void *stack_pointer;
    unsigned char *stack;
    struct block *block;
    struct warp *warp;
    enum state state;
    unsigned mask; // of the lanes that it waits for, with its instruction and what it brings
    int instruction;
    void *lane;
    unsigned barrier, mbarrier, parity; // that it waits for
    int result;                         // of the barrier
    unsigned cluster_turn;              // of its last arrival
    struct copy *copies;
    int num_copies, room;
    unsigned copy_group, bulk_group; // that is open
};

// A product of a warp that is on its way: a's registers, and where its results go.
struct product {
    struct product *next;
    unsigned group;
    struct emulator_wgmma lanes[EMULATOR_WARP];
    float **results; // of every lane
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
    unsigned threads, arrived, waiting, sum; // of predicates
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

// What copies and products do when nothing forces them: at once, as late as can be, or now this, now that. Late also is
// the order of warps from the last to the first.
enum when { EARLY, LATE, MIXED };

struct device {
    int arch, num_sms;
    enum when when;
    unsigned long long seed;
    const struct launch *launch;
    struct fiber *fiber; // that runs
    void *scheduler;     // its stack pointer
    bool has_failed, is_running, is_in_fiber, is_lost;
    char sentence[4096];
};
extern struct device emulator_device;
extern struct emulator emulator_table;

void emulator_device_start(void);
// 0, or a result of the driver, with the sentence of the device.
int emulator_launch(const struct launch *launch);
_Noreturn void emulator_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
// The fiber that runs waits in this state.
void emulator_wait_in(enum state state);
// A fiber with a stack, and back; its first frame; until it waits or ends.
struct fiber *emulator_fiber_take(void);
void emulator_fiber_give(struct fiber *fiber);
void emulator_fiber_start(struct fiber *fiber);
void emulator_fiber_resume(struct fiber *fiber);
// Returns at a failure outside of a fiber too; a fault of memory is a failure.
void emulator_run_guarded(void (*run)(const struct launch *), const struct launch *launch);
bool emulator_is_late(void);
// The bytes of an allocation of global memory around which something was written since the last call, or 0.
size_t emulator_memory_damaged(void);

void emulator_warp(unsigned mask, int instruction, void *lane);
void emulator_warp_ended(struct warp *warp);
int emulator_barrier(unsigned number, unsigned threads, int kind, int predicate);
void emulator_thread_ended(struct fiber *fiber);
void emulator_cluster_arrive(void);
void emulator_cluster_wait(void);

// Bytes of shared memory, of this block or another of its cluster.
void *emulator_shared(unsigned address, unsigned bytes);
void *emulator_shared_of(struct block *block, unsigned address, unsigned bytes);
struct block *emulator_block_of(struct block *block, unsigned address);
unsigned emulator_shared_address(const void *place);
unsigned emulator_map_shared(unsigned address, unsigned rank);
bool emulator_mbarrier_is_done(const struct fiber *fiber);
void emulator_copies_install(struct emulator *table);
// One copy that is on its way, if there is any; all of them.
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
