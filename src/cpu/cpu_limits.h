// SPDX-License-Identifier: Apache-2.0
// How much of the machine this process may use: CPUs and memory.
#ifndef TSRI_CPU_LIMITS_H
#define TSRI_CPU_LIMITS_H

#include <stdint.h>

// CPUs that the affinity mask and the cgroup quota allow.
int tsri_num_cpus(void);
// Bytes that the system can give without swapping, within the limits of the cgroups; -1 if neither is known.
int64_t tsri_memory_available(void);

// The cgroups' part of both. `groups` has the format of /proc/self/cgroup; the hierarchies of version 1, 2 or both are
// mounted under root.
int tsri_cgroup_cpus(const char *groups, const char *root); // 0: no quota
int64_t tsri_cgroup_memory(const char *groups,
                           const char *root); // bytes left; -1: no limit

#endif
