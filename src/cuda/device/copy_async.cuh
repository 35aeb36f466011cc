// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies into shared memory by the threads themselves (cp.async, sm_80 on). A thread asks for pieces, ends a
// group of them with copy_commit, and waits with COPY_WAIT for what it asked for itself; for what others asked for a barrier
// comes after that. Addresses on both sides are multiples of a piece's bytes.
#ifndef TSRI_DEVICE_COPY_ASYNC_CUH
#define TSRI_DEVICE_COPY_ASYNC_CUH

#include "cuda/device/numbers.cuh"

// What PTX means by an address of shared memory: 32 bits, from where that begins.
DEVICE unsigned shared_address(const void *shared) {
    return (unsigned)__cvta_generic_to_shared(shared);
}

// 16 bytes, of which the first `bytes` (0 to 16) are read and the rest is zero; around the first-level cache.
DEVICE void copy_async(unsigned shared, const void *global, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(bytes)
                 : "memory");
}
// All 16, which takes a third of the instructions.
DEVICE void copy_async_whole(unsigned shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// 4, of which `bytes` (4 or 0) are read.
DEVICE void copy_async_word(unsigned shared, const void *global, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global),
                 "r"(bytes)
                 : "memory");
}
DEVICE void copy_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All groups of this thread but the youngest n are there; n is a constant.
#define COPY_WAIT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

#endif
