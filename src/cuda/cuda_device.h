// SPDX-License-Identifier: Apache-2.0
// A CUDA device of a context, and launches on it. A device uses the caller's current CUDA context if that belongs to
// this device, else the primary one. Every call restores the current context that it found.
#ifndef TSRI_CUDA_DEVICE_H
#define TSRI_CUDA_DEVICE_H

#include <sys/types.h>

#include "core/core_float.h"
#include "cuda/cuda_driver.h"
#include "cuda/cuda_image.h"
#include "cuda/cuda_memo.h"

// Constant properties. Sizes are in bytes; counts are per multiprocessor or per device.
struct tsri_cuda_properties {
    char name[128], pci_bus_id[16];
    char arch[16];   // the target of the compiler: "sm_90a"
    int arch_number; // 90
    int num_sms;
    int max_threads_per_sm;
    int64_t shared_bytes_per_block, shared_bytes_per_sm, l2_bytes, memory_bytes;
    int clock_khz, memory_clock_khz, memory_bus_bits;
};

struct tsri_cuda_device {
    const struct tsri_cuda_driver *driver;
    int ordinal;
    cu_device handle;
    cu_context context;
    bool is_primary; // retained by us
    pid_t process;   // a child of this process has no device
    unsigned forks;  // forks before this process, if they are counted
    struct tsri_cuda_properties properties;
};

// 0 without a driver.
int tsri_cuda_device_count(void);
// Errors: UNSUPPORTED (no driver, no such device), DEVICE.
tsr_status tsri_cuda_device_properties(const char *op, int ordinal,
                                       struct tsri_cuda_properties *properties);
tsr_status tsri_cuda_device_open(const char *op, int ordinal, struct tsri_cuda_device *device);
void tsri_cuda_device_close(struct tsri_cuda_device *device);

// Wraps calls of the driver: enter makes the device's context current and sets our floating-point environment; leave
// undoes both. A failed enter undoes them too. Errors: DEVICE_LOST (after fork), those of the driver.
struct tsri_cuda_visit {
    bool is_pushed;
    tsri_float_environment floats;
};
tsr_status tsri_cuda_enter(const char *op, const struct tsri_cuda_device *device,
                           struct tsri_cuda_visit *visit);
void tsri_cuda_leave(const struct tsri_cuda_device *device, const struct tsri_cuda_visit *visit);

// A stream of a device, for a context's kernels.
struct tsri_cuda_queue {
    struct tsri_cuda_device device;
    cu_stream stream; // NULL: the legacy default stream
    struct tsri_cuda_memo *memo;
};

tsr_status tsri_cuda_is_capturing(const char *op, const struct tsri_cuda_queue *queue,
                                  bool *is_capturing);

// The parameters of a launch besides its program. The kernel takes one struct by value.
struct tsri_cuda_launch {
    int64_t num_blocks; // at most 2^31 - 1
    int num_threads;    // per block
    int shared_bytes;   // dynamic
    int cluster_blocks; // blocks that run together and share their shared memory; 0: no cluster
    bool is_early; // starts before the previous kernel has ended and waits for it itself (sm_90)
    const void *params;
};
tsr_status tsri_cuda_launch(const char *op, const struct tsri_cuda_queue *queue,
                            const struct tsri_cuda_program *program,
                            const struct tsri_cuda_launch *launch);
// Compiles and loads the kernel, so that a launch during capture finds it.
tsr_status tsri_cuda_prepare(const char *op, const struct tsri_cuda_queue *queue,
                             const struct tsri_cuda_program *program);

#endif
