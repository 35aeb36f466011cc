// SPDX-License-Identifier: Apache-2.0
// Fork-join on worker threads that are shared process-wide and kept between calls.
#ifndef TSRI_CPU_TEAM_H
#define TSRI_CPU_TEAM_H

// Runs body(arg, 0) on the calling thread and body(arg, 1) ... body(arg, num_threads - 1) on
// workers, and returns when all are done. Where workers cannot be created, or have not begun when the calling thread has
// done its own, it runs their share, so a body must not wait for another. Any number of threads may call at once; a call takes
// workers only while fewer than most_busy threads of the process, callers included, are in such calls (0: any number).
void tsri_team_run(int num_threads, int most_busy, void (*body)(void *arg, int thread), void *arg);

// Ends the workers that serve no call: at exit, at dlclose, and for tests that count what a team asks for.
void tsri_team_stop(void);

#endif
