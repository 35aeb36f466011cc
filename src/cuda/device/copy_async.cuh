// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies into shared memory by the threads themselves (cp.async, sm_80 on). A thread starts copies, ends a
// group of them with copy_commit, and waits for its own copies with COPY_WAIT. Copies of other threads need a barrier
// after that. Both addresses are multiples of the size copied.
#ifndef TSRI_DEVICE_COPY_ASYNC_CUH
#define TSRI_DEVICE_COPY_ASYNC_CUH

#include "cuda/device/numbers.cuh"

// A shared-memory address as PTX uses it: 32 bits, relative to the start of shared memory.
DEVICE unsigned shared_address(const void *shared) {
    return (unsigned)__cvta_generic_to_shared(shared);
}

// Copies 16 bytes: reads the first `bytes` (0 to 16) and fills the rest with zeros. Bypasses the first-level cache.
DEVICE void copy_async(unsigned shared, const void *global, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(bytes)
                 : "memory");
}
// Copies all 16 bytes, with a third of the instructions.
DEVICE void copy_async_whole(unsigned shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// Copies 4 bytes, of which it reads `bytes` (4, 2 or 0); the rest becomes zeros.
DEVICE void copy_async_word(unsigned shared, const void *global, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global),
                 "r"(bytes)
                 : "memory");
}
DEVICE void copy_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all groups of this thread except the newest n have arrived; n is a constant.
#define COPY_WAIT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

#endif
