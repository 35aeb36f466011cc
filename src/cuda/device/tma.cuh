// SPDX-License-Identifier: Apache-2.0
// Hopper's copy engine (TMA) and the barriers in shared memory that tell when its copies are there; sm_90 on.
//
// A copy moves a box of a tensor map of five dimensions, innermost first, between global memory and tiles in shared memory,
// whose addresses are multiples of 1024 where rows are permuted (wgmma.cuh). What lies beyond the tensor is loaded as zeros,
// and is not stored, but for the rest of 16 bytes of which a line has the first; a load counts the bytes of its whole box
// all the same. Maps are members of a __grid_constant__ param.
//
// A barrier's phase is complete when all its arrivals came and all the bytes that they announced; then the next phase begins. A
// wait names the parity of the phase that it waits for, and a barrier that is new counts as having completed one of parity
// 1: so who fills a ring waits for the parity that its readers do not, and goes through the first lap at once.
//
// Addresses of shared memory are those of shared_address(). One thread gives each order: an elected one, since of that alone
// the compiler knows that it is one, and so takes operands from what the warp has in common instead of going through its
// threads in a loop.
#ifndef TSRI_DEVICE_TMA_CUH
#define TSRI_DEVICE_TMA_CUH

#include "cuda/device/numbers.cuh"
#include "cuda/device/tensor_map.h"

static_assert(alignof(struct tensor_map) == 128, "the copy engine takes no other address of a map");

// One thread of a whole warp, always the same.
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
// Barriers that this thread started are so for the copy engine and the cluster; then a barrier of all who use them.
DEVICE void barrier_publish_starts(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and announces bytes of copies.
DEVICE void barrier_expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
// At the barrier that lies at the same address in block `rank` of the cluster. No ordinary stores become visible to that block
// by it (.release.cluster would wait for all of memory): it says that products and copies have read a tile.
DEVICE void barrier_arrive_in(unsigned barrier, int rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

// Until the phase of this parity is complete.
DEVICE void barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra finished;\nbra again;\nfinished:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
// A place in a ring of stages with its parity, carried on from tile to tile.
struct ring {
    int stage;
    unsigned parity;
};
DEVICE void ring_advance(struct ring *ring, int stages) {
    if (++ring->stage < stages) return;
    ring->stage = 0;
    ring->parity ^= 1;
}
// Past `count` stages that another one uses.
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

// The box at `at` to the second-level cache, where it is for all to see that it changes.
DEVICE void tma_prefetch_box(const struct tensor_map *map, const int at[5]) {
    asm volatile(
        "cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];" ::"l"(map),
        TMA_AT(at)
        : "memory");
}
// The box at `at` to a tile; its bytes count at the barrier.
DEVICE void tma_load(unsigned tile, const struct tensor_map *map, const int at[5],
                     unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(tile),
                 "l"(map), "r"(barrier), TMA_AT(at)
                 : "memory");
}
// To the same address in every block of the cluster whose bit is set in `blocks`, and there its bytes count.
DEVICE void tma_load_to_all(unsigned tile, const struct tensor_map *map, const int at[5],
                            unsigned barrier, int blocks) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(tile),
                 "l"(map), "r"(barrier), TMA_AT(at), "h"((unsigned short)blocks)
                 : "memory");
}

// Bytes as they lie in memory, without a map: a multiple of 16, at multiples of 16.
DEVICE void bulk_load(unsigned shared, const void *global, int bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(barrier)
                 : "memory");
}
// The other way; its writers call tma_see_shared first, and meet. Or every float is added to the one in memory.
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
// Between copies and ordinary loads and stores of the same memory, whichever come first.
DEVICE void tma_see_all(void) { asm volatile("fence.proxy.async;" ::: "memory"); }

// A tile to memory. Its writers call tma_see_shared first, and meet.
DEVICE void tma_see_shared(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void tma_store(unsigned tile, const struct tensor_map *map, const int at[5]) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group "
                 "[%1, {%2, %3, %4, %5, %6}], [%0];" ::"r"(tile),
                 "l"(map), TMA_AT(at)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// The same, added in fp32 to what memory holds.
DEVICE void tma_add(unsigned tile, const struct tensor_map *map, const int at[5]) {
    asm volatile("cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group "
                 "[%1, {%2, %3, %4, %5, %6}], [%0];" ::"r"(tile),
                 "l"(map), TMA_AT(at)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Of this thread's stores all but the youngest n have read their tiles; or all of them are in memory.
#define TMA_STORES_READ(n) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory")
#define TMA_STORES_DONE() asm volatile("cp.async.bulk.wait_group 0;" ::: "memory")

// ---- Fragments to tiles -----------------------------------------------------------------------------

// Four 8 x 8 matrices of 16-bit elements, as they lie in c of mma.cuh: lane i gives the address of row i % 8 of
// matrix i / 8.
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
