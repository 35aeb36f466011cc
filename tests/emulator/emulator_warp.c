// SPDX-License-Identifier: Apache-2.0
// Where threads wait for each other: a warp's instructions, a block's barriers, and the cluster's barrier. Also
// addresses of shared memory.
#include <string.h>

#include "emulator_device.h"

static const char *const names[] = {
    [EMULATOR_SYNC] = "a barrier of the warp",
    [EMULATOR_SHUFFLE] = "a shuffle",
    [EMULATOR_VOTE] = "a vote",
    [EMULATOR_LOAD_MATRICES] = "ldmatrix",
    [EMULATOR_STORE_MATRICES] = "stmatrix",
    [EMULATOR_MOVE_MATRIX] = "movmatrix",
    [EMULATOR_MMA] = "mma",
    [EMULATOR_WGMMA] = "wgmma",
    [EMULATOR_WGMMA_FENCE] = "wgmma.fence",
    [EMULATOR_WGMMA_COMMIT] = "wgmma.commit_group",
    [EMULATOR_WGMMA_WAIT] = "wgmma.wait_group",
};

#define EACH_LANE(i, mask)                                                                         \
    for (unsigned i##_left = (mask), i;                                                            \
         i##_left != 0 && (i = (unsigned)__builtin_ctz(i##_left), true); i##_left &= i##_left - 1)

// ---- Instructions of a warp -------------------------------------------------------------------

static void shuffle(struct warp *warp, unsigned mask) {
    EACH_LANE(i, mask) {
        struct emulator_shuffle *x = warp->lanes[i]->lane;
        const unsigned width = (unsigned)x->width, first = i & ~(width - 1);
        unsigned from = i;
        if (x->kind == EMULATOR_IDX) from = first | (x->number & (width - 1));
        if (x->kind == EMULATOR_UP) from = x->number <= i - first ? i - x->number : i;
        if (x->kind == EMULATOR_DOWN) from = i + x->number < first + width ? i + x->number : i;
        if (x->kind == EMULATOR_XOR) from = (i ^ x->number) < first + width ? i ^ x->number : i;
        memset(&x->result, 0xff, sizeof x->result);
        if (mask >> from & 1)
            x->result = ((const struct emulator_shuffle *)warp->lanes[from]->lane)->value;
    }
}

static unsigned vote_of(const struct warp *warp, unsigned mask, const struct emulator_vote *mine) {
    unsigned result = mine->kind == EMULATOR_MIN ? ~0u : 0;
    EACH_LANE(j, mask) {
        unsigned x = ((const struct emulator_vote *)warp->lanes[j]->lane)->value;
        switch (mine->kind) {
        case EMULATOR_BALLOT: result |= (x != 0 ? 1u : 0u) << j; break;
        case EMULATOR_MATCH: result |= (x == mine->value ? 1u : 0u) << j; break;
        case EMULATOR_ADD: result += x; break;
        case EMULATOR_MIN: result = x < result ? x : result; break;
        default: result = x > result ? x : result; break;
        }
    }
    return result;
}

static void vote(struct warp *warp, unsigned mask) {
    EACH_LANE(i, mask) {
        struct emulator_vote *x = warp->lanes[i]->lane;
        x->result = vote_of(warp, mask, x);
    }
}

static void do_instruction(struct warp *warp, unsigned mask, int instruction) {
    if (instruction > EMULATOR_VOTE && mask != 0xffffffffu)
        emulator_fail("%s without all lanes of the warp", names[instruction]);
    switch (instruction) {
    case EMULATOR_SYNC: break;
    case EMULATOR_SHUFFLE: shuffle(warp, mask); break;
    case EMULATOR_VOTE: vote(warp, mask); break;
    case EMULATOR_MMA: emulator_do_mma(warp); break;
    case EMULATOR_WGMMA: emulator_do_wgmma(warp); break;
    case EMULATOR_WGMMA_FENCE: warp->is_fenced = true; break;
    case EMULATOR_WGMMA_COMMIT: warp->product_group++; break;
    case EMULATOR_WGMMA_WAIT:
        emulator_do_wgmma_wait(warp, ((struct emulator_wait *)warp->lanes[0]->lane)->number);
        warp->is_fenced = false; // the results may now be read and written
        break;
    default: emulator_do_matrices(warp, instruction); break;
    }
}

// Runs the instruction when all running lanes of the mask have reached it.
static bool try_instruction(struct warp *warp, unsigned mask, int instruction) {
    unsigned needed = mask & ~warp->ended;
    if ((warp->waits & needed) != needed) return false;
    EACH_LANE(i, needed) {
        const struct fiber *f = warp->lanes[i];
        if (f->instruction != instruction)
            emulator_fail("lanes of a warp are at %s and at %s (%s:%d)", names[instruction],
                          names[f->instruction], f->seen.file, f->seen.line);
        if (f->mask != mask)
            emulator_fail("lanes of a warp name the masks %x and %x (%s:%d)", mask, f->mask,
                          f->seen.file, f->seen.line);
    }
    warp->waits &= ~needed;
    EACH_LANE(i, needed) warp->lanes[i]->state = READY;
    do_instruction(warp, needed, instruction);
    return true;
}

void emulator_warp(unsigned mask, int instruction, void *lane) {
    struct fiber *f = emulator_device.fiber;
    if ((mask >> f->seen.lane & 1) == 0)
        emulator_fail("%s with a mask, %x, that lacks the lane itself", names[instruction], mask);
    f->mask = mask & f->warp->exists;
    f->instruction = instruction;
    f->lane = lane;
    f->warp->waits |= 1u << f->seen.lane;
    if (!try_instruction(f->warp, f->mask, instruction)) emulator_wait_in(AT_WARP);
}

void emulator_warp_ended(struct warp *warp) {
    EACH_LANE(i, warp->waits) {
        const struct fiber *f = warp->lanes[i];
        if (try_instruction(warp, f->mask, f->instruction)) return;
    }
}

// ---- Barriers of a block ----------------------------------------------------------------------

static int result_of(const struct barrier *b, int kind) {
    return kind == EMULATOR_OR    ? b->sum > 0
           : kind == EMULATOR_AND ? b->sum == b->arrived
                                  : (int)b->sum;
}

static bool try_barrier(struct block *block, unsigned number) {
    struct barrier *b = &block->barriers[number];
    if (b->all) b->threads = (unsigned)(block->num_fibers - block->num_ended);
    if (b->arrived < b->threads || b->arrived == 0) return false;
    if (b->arrived > b->threads)
        emulator_fail("%u threads are at barrier %u of %u", b->arrived, number, b->threads);
    for (int i = 0; i < block->num_fibers; i++) {
        struct fiber *f = block->fibers[i];
        if (f->state != AT_BARRIER || f->barrier != number) continue;
        f->result = result_of(b, f->instruction);
        f->state = READY;
    }
    return true;
}

int emulator_barrier(unsigned number, unsigned threads, int kind, int predicate) {
    struct fiber *f = emulator_device.fiber;
    if (number >= NUM_BARRIERS) emulator_fail("there is no barrier %u", number);
    if (threads % EMULATOR_WARP != 0)
        emulator_fail("barrier %u of %u threads, expected a multiple of 32", number, threads);
    struct barrier *b = &f->block->barriers[number];
    if (b->arrived == 0)
        *b = (struct barrier){.threads = threads, .all = threads == 0};
    else if (b->all != (threads == 0) || (!b->all && b->threads != threads))
        emulator_fail("barrier %u is of %u threads and of %u", number, b->threads, threads);
    b->arrived++;
    b->sum += (unsigned)predicate;
    f->barrier = number;
    f->instruction = kind;
    if (try_barrier(f->block, number)) {
        f->result = result_of(b, kind);
        b->arrived = 0;
    } else if (kind != EMULATOR_ARRIVE) {
        emulator_wait_in(AT_BARRIER);
    }
    return f->result;
}

// ---- The cluster's barrier --------------------------------------------------------------------

static void check_cluster(struct cluster *cluster) {
    if (cluster->arrived < cluster->threads || cluster->arrived == 0) return;
    cluster->turn++;
    cluster->arrived = 0;
    for (int i = 0; i < cluster->size; i++)
        for (int j = 0; j < cluster->blocks[i]->num_fibers; j++) {
            struct fiber *f = cluster->blocks[i]->fibers[j];
            if (f->state == AT_CLUSTER) f->state = READY;
        }
}

void emulator_cluster_arrive(void) {
    struct fiber *f = emulator_device.fiber;
    struct cluster *cluster = f->block->cluster;
    if (f->cluster_turn == cluster->turn)
        emulator_fail("a second arrival at the cluster's barrier");
    f->cluster_turn = cluster->turn;
    cluster->arrived++;
    check_cluster(cluster);
}

void emulator_cluster_wait(void) {
    struct fiber *f = emulator_device.fiber;
    if (f->cluster_turn == ~0u) emulator_fail("a wait at the cluster's barrier without an arrival");
    if (f->cluster_turn == f->block->cluster->turn) emulator_wait_in(AT_CLUSTER);
}

// Nobody waits for a thread that has ended.
void emulator_thread_ended(struct fiber *fiber) {
    struct block *block = fiber->block;
    struct cluster *cluster = block->cluster;
    for (unsigned i = 0; i < NUM_BARRIERS; i++)
        if (block->barriers[i].arrived > 0 && block->barriers[i].all && try_barrier(block, i))
            block->barriers[i].arrived = 0;
    cluster->threads--;
    if (fiber->cluster_turn == cluster->turn) cluster->arrived--;
    check_cluster(cluster);
}

// ---- Shared memory ----------------------------------------------------------------------------

// An address without a rank belongs to this block.
struct block *emulator_block_of(struct block *block, unsigned address) {
    unsigned rank = address >> SHARED_RANK;
    if (rank == 0) return block;
    if (rank > (unsigned)block->cluster->size)
        emulator_fail("0x%x is no address of shared memory", address);
    struct block *there = block->cluster->blocks[rank - 1];
    if (there->num_ended == there->num_fibers)
        emulator_fail("shared memory of block %u of the cluster, which has ended", rank - 1);
    return there;
}

void *emulator_shared_of(struct block *block, unsigned address, unsigned bytes) {
    struct block *there = emulator_block_of(block, address);
    unsigned offset = address & ((1u << SHARED_RANK) - 1);
    if (offset < SHARED_START || offset - SHARED_START + (size_t)bytes > there->shared_bytes)
        emulator_fail("%u bytes at 0x%x of shared memory, which has %zu from 0x%x on", bytes,
                      offset, there->shared_bytes, (unsigned)SHARED_START);
    return there->shared + (offset - SHARED_START);
}

void *emulator_shared(unsigned address, unsigned bytes) {
    return emulator_shared_of(emulator_device.fiber->block, address, bytes);
}

unsigned emulator_shared_address(const void *place) {
    const struct block *block = emulator_device.fiber->block;
    const unsigned char *at = place;
    // A pointer to the end is still allowed.
    if (at < block->shared || at > block->shared + block->shared_bytes)
        emulator_fail("a pointer that is not to shared memory becomes an address of it");
    return (unsigned)(at - block->shared) + SHARED_START;
}

unsigned emulator_map_shared(unsigned address, unsigned rank) {
    const struct block *block = emulator_device.fiber->block;
    if (address >> SHARED_RANK != 0) emulator_fail("an address of another block is mapped again");
    if (rank >= (unsigned)block->cluster->size) emulator_fail("the cluster has no block %u", rank);
    return address | (rank + 1) << SHARED_RANK;
}
