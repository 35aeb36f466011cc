// SPDX-License-Identifier: Apache-2.0
// How much of the machine this process may use: CPUs and memory.
#ifndef TSRI_CPU_LIMITS_H
#define TSRI_CPU_LIMITS_H

#include <stdint.h>

// CPUs: affinity mask and cgroup quota.
int tsri_num_cpus(void);
// Bytes that the system can give without swapping, and the groups let it; -1 where neither says.
int64_t tsri_memory_available(void);

// The groups' parts: `groups` as /proc/self/cgroup, whose hierarchies are mounted under root, in cgroup version 1, 2 or both.
int tsri_cgroup_cpus(const char *groups, const char *root); // 0: no quota
int64_t tsri_cgroup_memory(const char *groups,
                           const char *root); // what is left of it; -1: no limit

#endif
