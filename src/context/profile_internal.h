// SPDX-License-Identifier: Apache-2.0
// What calls tell a recording (tessera/profile.h). Without one it costs a load and a branch.
#ifndef TSRI_PROFILE_INTERNAL_H
#define TSRI_PROFILE_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <tessera/profile.h>

extern atomic_bool tsri_is_profiling;

static inline bool tsri_profile_is_on(void) {
    return atomic_load_explicit(&tsri_is_profiling, memory_order_relaxed);
}

// A call of this thread; 0 where it is not recorded. Calls close in the opposite order.
int64_t tsri_profile_open_call(const char *op);
void tsri_profile_close_call(int64_t id, const char *variant);

// The innermost span of this thread, for the parts that other threads take of a loop; they may end when the recording
// is over.
struct tsri_profile_mark {
    int64_t id;    // -1: it is not kept
    int recording; // its number; 0: nothing is recorded
};
struct tsri_profile_mark tsri_profile_mark(void);
int64_t tsri_profile_now(void);
// A thread's part of the loop of the thread that the mark is of.
void tsri_profile_thread(struct tsri_profile_mark mark, int thread, int64_t start_ns);

// A context that goes takes the recording on it along.
void tsri_profile_leave(tsr_context *ctx);

#endif
