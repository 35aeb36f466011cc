// SPDX-License-Identifier: Apache-2.0
// What calls report to a recording (tessera/profile.h). Without a recording, this costs a load and a branch.
#ifndef TSRI_PROFILE_INTERNAL_H
#define TSRI_PROFILE_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <tessera/profile.h>

extern atomic_bool tsri_is_profiling;

static inline bool tsri_profile_is_on(void) {
    return atomic_load_explicit(&tsri_is_profiling, memory_order_relaxed);
}

// Opens a call of this thread; returns 0 if it is not recorded. Calls close in the opposite order.
int64_t tsri_profile_open_call(const char *op);
void tsri_profile_close_call(int64_t id, const char *variant);

// This thread's innermost span, for other threads that run parts of its loop; they may end after the recording.
struct tsri_profile_mark {
    int64_t id;    // -1: the span is not kept
    int recording; // number of the recording; 0: none
};
struct tsri_profile_mark tsri_profile_mark(void);
int64_t tsri_profile_now(void);
// A thread's part of the loop of the thread that made the mark.
void tsri_profile_thread(struct tsri_profile_mark mark, int thread, int64_t start_ns);

// Ends the recording on a context that is destroyed.
void tsri_profile_leave(tsr_context *ctx);

#endif
