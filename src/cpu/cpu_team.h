// SPDX-License-Identifier: Apache-2.0
// Fork-join on worker threads, which all calls of the process share and which stay between calls.
#ifndef TSRI_CPU_TEAM_H
#define TSRI_CPU_TEAM_H

// Runs body(arg, 0) on the calling thread and body(arg, 1) ... body(arg, num_threads - 1) on workers; returns when all
// are done. The calling thread also runs the share of workers that cannot be created or have not begun when its own
// share is done. So a body must not wait for another one. Any number of threads may call at once; a call takes workers
// only while fewer than most_busy threads of the process, callers included, are in such calls (0: no limit).
void tsri_team_run(int num_threads, int most_busy, void (*body)(void *arg, int thread), void *arg);

// Ends the idle workers: at exit, at dlclose, and for tests that count a team's requests.
void tsri_team_stop(void);

#endif
