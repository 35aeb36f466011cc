// SPDX-License-Identifier: Apache-2.0
// A CUDA device as a context holds it, and launching on it. A device is opened in the caller's current CUDA
// context where that is one of this device, else in the primary one, and every call leaves current what it found.
#ifndef TSRI_CUDA_DEVICE_H
#define TSRI_CUDA_DEVICE_H

#include <sys/types.h>

#include "core/core_float.h"
#include "cuda/cuda_driver.h"
#include "cuda/cuda_image.h"
#include "cuda/cuda_memo.h"

// What does not change. Bytes, and counts of one multiprocessor or of the device.
struct tsri_cuda_properties {
    char name[128], pci_bus_id[16];
    char arch[16];   // what kernels are compiled for: "sm_90a"
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
    pid_t process;   // a child of it has no device
    unsigned forks;  // that this process came from, where it could be counted
    struct tsri_cuda_properties properties;
};

// 0 without a driver.
int tsri_cuda_device_count(void);
// Errors: UNSUPPORTED (no driver, no such device), DEVICE.
tsr_status tsri_cuda_device_properties(const char *op, int ordinal,
                                       struct tsri_cuda_properties *properties);
tsr_status tsri_cuda_device_open(const char *op, int ordinal, struct tsri_cuda_device *device);
void tsri_cuda_device_close(struct tsri_cuda_device *device);

// Around what is asked of the driver: makes the device's context current and the floating-point environment ours; leave undoes
// both. Errors, which undo them too: DEVICE_LOST (after fork), those of the driver.
struct tsri_cuda_visit {
    bool is_pushed;
    tsri_float_environment floats;
};
tsr_status tsri_cuda_enter(const char *op, const struct tsri_cuda_device *device,
                           struct tsri_cuda_visit *visit);
void tsri_cuda_leave(const struct tsri_cuda_device *device, const struct tsri_cuda_visit *visit);

// A stream of a device: where a context's kernels go.
struct tsri_cuda_queue {
    struct tsri_cuda_device device;
    cu_stream stream; // NULL: the legacy default stream
    struct tsri_cuda_memo *memo;
};

tsr_status tsri_cuda_is_capturing(const char *op, const struct tsri_cuda_queue *queue,
                                  bool *is_capturing);

// What a launch is, beside its program. The kernel takes one struct by value.
struct tsri_cuda_launch {
    int64_t num_blocks; // at most 2^31 - 1
    int num_threads;    // of a block
    int shared_bytes;   // dynamic
    int cluster_blocks; // that run together and see each other's shared memory; 0: none do
    bool is_early; // comes in before the kernel ahead has ended, and waits for it itself (sm_90)
    const void *params;
};
tsr_status tsri_cuda_launch(const char *op, const struct tsri_cuda_queue *queue,
                            const struct tsri_cuda_program *program,
                            const struct tsri_cuda_launch *launch);
// Compiles and loads, so that a launch under capture finds it.
tsr_status tsri_cuda_prepare(const char *op, const struct tsri_cuda_queue *queue,
                             const struct tsri_cuda_program *program);

#endif
