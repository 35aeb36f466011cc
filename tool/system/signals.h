// SPDX-License-Identifier: Apache-2.0
// SIGINT, SIGTERM and SIGHUP: a command that has worked for minutes writes what it has before it ends by one, and a file
// that is being replaced stays whole.
#ifndef TOOL_SIGNALS_H
#define TOOL_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

// main calls it: a signal that ends the process, SIGPIPE too, removes its temporary files first; a file beyond the limit of
// the process (SIGXFSZ) is a write that failed, and no death.
void signals_start(void);
// From here on they are noted, and the command looks at signals_seen() between two cases. Calls go on after one: a peer's
// answer that is being read is not lost. What was ignored stays ignored. is_once: the second one, of whichever kind, ends the
// process at once.
void signals_hold(bool is_once);
int signals_seen(void); // the one that came, or 0
// Ends the process as the one that came would have ended it; returns where none came.
void signals_end(void);

// They wait until the caller sets the mask that was there before.
void signals_wait(sigset_t *before);

#endif
