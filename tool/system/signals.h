// SPDX-License-Identifier: Apache-2.0
// SIGINT, SIGTERM and SIGHUP: before such a signal ends a command that has worked for minutes, the command writes its
// results so far, and a file that is being replaced stays whole.
#ifndef TOOL_SIGNALS_H
#define TOOL_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

// main calls this. From then on a signal that ends the process, SIGPIPE too, removes its temporary files first. A file
// beyond the process's limit (SIGXFSZ) is a failed write and does not end the process.
void signals_start(void);
// From here on the signals are only noted, and the command checks signals_seen() between two cases. System calls are
// restarted, so that a peer's answer that is being read is not lost. Ignored signals stay ignored. is_once: a second
// signal of any of these kinds ends the process at once.
void signals_hold(bool is_once);
int signals_seen(void); // the signal that came, or 0
// If a signal came, ends the process as that signal would have; else returns.
void signals_end(void);

// Blocks the signals until the caller restores the mask `before`.
void signals_wait(sigset_t *before);

#endif
