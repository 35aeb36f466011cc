// SPDX-License-Identifier: Apache-2.0
// Hopper's copy engine (TMA), and the barriers in shared memory that report finished copies; sm_90 on.
//
// A copy moves a box of a tensor map with five dimensions, innermost first, between global memory and a tile in shared
// memory. With permuted rows (wgmma.cuh), a tile's address is a multiple of 1024. Elements beyond the tensor are loaded
// as zeros and not stored, except that a 16-byte piece that the line begins is stored whole. A load always counts the
// bytes of its whole box. Maps are members of a __grid_constant__ parameter.
//
// A barrier's phase is complete when all its arrivals and all announced bytes have come; then the next phase begins. A
// wait names the parity of its phase, and a new barrier counts as having completed a phase of parity 1. So the writer
// of a ring waits for the opposite parity of its readers, and passes the first lap at once.
//
// Shared-memory addresses are those of shared_address(). One thread, from elect_one, issues each command. The compiler
// knows that only an elected thread is single; it then uses the warp's uniform operands instead of a loop over threads.
#ifndef TSRI_DEVICE_TMA_CUH
#define TSRI_DEVICE_TMA_CUH

#include "cuda/device/numbers.cuh"
#include "cuda/device/tensor_map.h"

static_assert(alignof(struct tensor_map) == 128, "the copy engine takes no other address of a map");

// True in one thread of a full warp, always the same one.
DEVICE int elect_one(void) {
    int is_elected;
    asm volatile("{\n.reg .pred is;\nelect.sync _|is, 0xffffffff;\nselp.b32 %0, 1, 0, is;\n}"
                 : "=r"(is_elected));
    return is_elected;
}

// ---- Barriers: 8 bytes each -----------------------------------------------------------------------

DEVICE void barrier_start(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}
// Makes this thread's barrier_start visible to the copy engine and the cluster. Then all users of the barriers must
// synchronize.
DEVICE void barrier_publish_starts(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives and announces the bytes of copies.
DEVICE void barrier_expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
// Arrives at the barrier at the same address in block `rank` of the cluster. It reports that products and copies have
// read a tile, and makes no ordinary stores visible to that block (.release.cluster would wait for all of memory).
DEVICE void barrier_arrive_in(unsigned barrier, int rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

// Waits until the phase of this parity is complete.
DEVICE void barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra finished;\nbra again;\nfinished:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
// A position in a ring of stages, with its parity; it continues from tile to tile.
struct ring {
    int stage;
    unsigned parity;
};
DEVICE void ring_advance(struct ring *ring, int stages) {
    if (++ring->stage < stages) return;
    ring->stage = 0;
    ring->parity ^= 1;
}
// Skips `count` stages that another thread uses.
DEVICE void ring_skip(struct ring *ring, int count, int stages) {
    const unsigned stage = (unsigned)(ring->stage + count);
    ring->stage = (int)(stage % (unsigned)stages);
    ring->parity ^= stage / (unsigned)stages & 1;
}

// ---- Copies -----------------------------------------------------------------------------------

DEVICE void tma_prefetch(const struct tensor_map *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

#define TMA_AT(at) "r"((at)[0]), "r"((at)[1]), "r"((at)[2]), "r"((at)[3]), "r"((at)[4])

// Prefetches the box at `at` into the second-level cache; later changes remain visible.
DEVICE void tma_prefetch_box(const struct tensor_map *map, const int at[5]) {
    asm volatile(
        "cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];" ::"l"(map),
        TMA_AT(at)
        : "memory");
}
// Loads the box at `at` into a tile; its bytes count at the barrier.
DEVICE void tma_load(unsigned tile, const struct tensor_map *map, const int at[5],
                     unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(tile),
                 "l"(map), "r"(barrier), TMA_AT(at)
                 : "memory");
}
// Loads to the same address in every block of the cluster whose bit is set in `blocks`; the bytes count at that block's
// barrier.
DEVICE void tma_load_to_all(unsigned tile, const struct tensor_map *map, const int at[5],
                            unsigned barrier, int blocks) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(tile),
                 "l"(map), "r"(barrier), TMA_AT(at), "h"((unsigned short)blocks)
                 : "memory");
}

// Copies raw bytes without a map: size and addresses are multiples of 16.
DEVICE void bulk_load(unsigned shared, const void *global, int bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(barrier)
                 : "memory");
}
// Copies to global memory (bulk_store), or adds each float to the one in memory (bulk_add). First, the writers of the
// data call tma_see_shared and synchronize.
DEVICE void bulk_store(void *global, unsigned shared, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
                 "r"(shared), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
DEVICE void bulk_add(void *global, unsigned shared, int bytes) {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
        "r"(shared), "r"(bytes)
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Orders copies and ordinary accesses of the same memory, in both directions.
DEVICE void tma_see_all(void) { asm volatile("fence.proxy.async;" ::: "memory"); }

// Stores a tile to memory. First, its writers call tma_see_shared and synchronize.
DEVICE void tma_see_shared(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void tma_store(unsigned tile, const struct tensor_map *map, const int at[5]) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group "
                 "[%1, {%2, %3, %4, %5, %6}], [%0];" ::"r"(tile),
                 "l"(map), TMA_AT(at)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// The same, but adds to memory in fp32.
DEVICE void tma_add(unsigned tile, const struct tensor_map *map, const int at[5]) {
    asm volatile("cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group "
                 "[%1, {%2, %3, %4, %5, %6}], [%0];" ::"r"(tile),
                 "l"(map), TMA_AT(at)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all of this thread's stores except the newest n have read their tiles (READ), or all are in memory
// (DONE).
#define TMA_STORES_READ(n) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory")
#define TMA_STORES_DONE() asm volatile("cp.async.bulk.wait_group 0;" ::: "memory")

// ---- Fragments to tiles -----------------------------------------------------------------------------

// Stores four 8 x 8 matrices of 16-bit elements, in the layout of c in mma.cuh: lane i gives the address of row i % 8
// of matrix i / 8.
DEVICE void store_matrices(unsigned shared, const unsigned x[4]) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
        "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
        : "memory");
}

DEVICE void store_pair(unsigned shared, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared), "f"(x), "f"(y) : "memory");
}

#endif
