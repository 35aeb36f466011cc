// SPDX-License-Identifier: Apache-2.0
// What results depend on besides the code: machine, system, build, command line.
#ifndef TOOL_ENVIRONMENT_H
#define TOOL_ENVIRONMENT_H

#include <stdint.h>
#include <tessera/tessera.h>

struct environment {
    char host[128], cpu[128], os[192], kernel[128];
    const char *version, *compiler;
    char clocks[64]; // as the system reports them; "" if it does not
    char date[32];   // of the start, ISO 8601, UTC
    char command[1024];
    tsr_isa isa;                                        // the default one of this machine
    int num_threads;                                    // the default
    int64_t l1_bytes, l2_bytes, l3_bytes, memory_bytes; // 0 where not known
    char gpu[128];                                      // of environment_set_device; "" on the CPU
    int driver_version, nvrtc_version;                  // CUDA versions: 13000 is 13.0; 0 for none
    double power_limit_w, sm_clock_mhz;                 // of the GPU; NAN where not known
};

// An environment variable; NULL if it is not set or if the program runs with more rights than the user who started it.
const char *environment_value(const char *name);
// Collected at the first call.
const struct environment *environment_get(void);
// Sets its command line; main calls this first.
void environment_set_command(int argc, char **argv);
// Sets its device: the GPU that this command runs on.
void environment_set_device(tsr_device device);

#endif
