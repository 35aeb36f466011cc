// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/core_system.h"
#include "cuda/cuda_kernel.h"

// ---- Devices ----------------------------------------------------------------------------------

int tsri_cuda_device_count(void) {
    const struct tsri_cuda_driver *driver = tsri_cuda_driver();
    int count = 0;
    return driver != NULL && driver->device_get_count(&count) == CU_OK ? count : 0;
}

// Architecture 9.0 has instructions of its own, so kernels are compiled exactly for it (sm_90a).
static void name_arch(struct tsri_cuda_properties *p, int major, int minor) {
    p->arch_number = 10 * major + minor;
    snprintf(p->arch, sizeof p->arch, "sm_%d%s", p->arch_number, p->arch_number == 90 ? "a" : "");
}

int64_t tsri_cuda_arch_shared_bytes(int arch_number) {
    switch (arch_number) {
    case 80:
    case 87: return 163 << 10;
    case 90:
    case 100:
    case 101:
    case 103:
    case 110: return 227 << 10;
    default: return 99 << 10; // 8.6, 8.9, 12.0, 12.1 and unknown ones
    }
}

static tsr_status find_device(const char *op, int ordinal, const struct tsri_cuda_driver **driver,
                              cu_device *handle) {
    *driver = tsri_cuda_driver();
    if (*driver == NULL)
        return tsri_fail(TSR_UNSUPPORTED, "%s: there is no device cuda:%d, for %s", op, ordinal,
                         tsri_cuda_driver_sentence());
    int count = tsri_cuda_device_count();
    if (ordinal < 0 || ordinal >= count)
        return tsri_fail(TSR_UNSUPPORTED,
                         "%s: there is no device cuda:%d, expected 0 to %d (CUDA_VISIBLE_DEVICES "
                         "may hide others)",
                         op, ordinal, count - 1);
    return TSRI_CUDA(op, *driver, device_get, handle, ordinal);
}

static tsr_status read_properties(const char *op, const struct tsri_cuda_driver *driver,
                                  cu_device handle, struct tsri_cuda_properties *p) {
    int major = 0, minor = 0, shared = 0, shared_per_sm = 0, l2 = 0;
    size_t memory = 0;
    const struct {
        cu_device_attribute attribute;
        int *value;
    } wanted[] = {
        {CU_ATTRIBUTE_MAJOR, &major},
        {CU_ATTRIBUTE_MINOR, &minor},
        {CU_ATTRIBUTE_MULTIPROCESSORS, &p->num_sms},
        {CU_ATTRIBUTE_THREADS_PER_SM, &p->max_threads_per_sm},
        {CU_ATTRIBUTE_SHARED_OPTIN, &shared},
        {CU_ATTRIBUTE_SHARED_PER_SM, &shared_per_sm},
        {CU_ATTRIBUTE_L2_BYTES, &l2},
        {CU_ATTRIBUTE_CLOCK_KHZ, &p->clock_khz},
        {CU_ATTRIBUTE_MEMORY_CLOCK_KHZ, &p->memory_clock_khz},
        {CU_ATTRIBUTE_MEMORY_BUS_BITS, &p->memory_bus_bits},
    };
    TSRI_TRY(TSRI_CUDA(op, driver, device_get_name, p->name, (int)sizeof p->name, handle));
    TSRI_TRY(TSRI_CUDA(op, driver, device_get_pci_bus_id, p->pci_bus_id, (int)sizeof p->pci_bus_id,
                       handle));
    TSRI_TRY(TSRI_CUDA(op, driver, device_total_mem, &memory, handle));
    for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++)
        TSRI_TRY(TSRI_CUDA(op, driver, device_get_attribute, wanted[i].value, wanted[i].attribute,
                           handle));
    name_arch(p, major, minor);
    p->shared_bytes_per_block = shared;
    p->shared_bytes_per_sm = shared_per_sm;
    p->l2_bytes = l2;
    p->memory_bytes = (int64_t)memory;
    return TSR_OK;
}

tsr_status tsri_cuda_device_properties(const char *op, int ordinal,
                                       struct tsri_cuda_properties *properties) {
    const struct tsri_cuda_driver *driver;
    cu_device handle = 0;
    *properties = (struct tsri_cuda_properties){0};
    TSRI_TRY(find_device(op, ordinal, &driver, &handle));
    return read_properties(op, driver, handle, properties);
}

// Number of forks between the process that first opened a device and this one. Every call checks that it runs in the
// process that opened its device. getpid is a system call, which in a sandbox may take as long as a launch, so forks
// are counted instead. (Children created without libc's fork, by _Fork or clone, are not noticed.)
static atomic_uint num_forks;
static bool are_forks_counted;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void count_fork(void) { atomic_fetch_add_explicit(&num_forks, 1, memory_order_relaxed); }
static void start_counting(void) {
    are_forks_counted = tsri_system.at_fork(NULL, NULL, count_fork) == 0;
}

static bool is_forked(const struct tsri_cuda_device *device) {
    return are_forks_counted
               ? device->forks != atomic_load_explicit(&num_forks, memory_order_relaxed)
               : device->process != getpid();
}

tsr_status tsri_cuda_device_open(const char *op, int ordinal, struct tsri_cuda_device *device) {
    pthread_once(&fork_once, start_counting);
    *device = (struct tsri_cuda_device){
        .ordinal = ordinal, .process = getpid(), .forks = atomic_load(&num_forks)};
    TSRI_TRY(find_device(op, ordinal, &device->driver, &device->handle));
    const struct tsri_cuda_driver *driver = device->driver;
    TSRI_TRY(read_properties(op, driver, device->handle, &device->properties));
    if (device->properties.arch_number < 80)
        return tsri_fail(TSR_UNSUPPORTED,
                         "%s: cuda:%d is %s with compute capability %d.%d, expected 8.0 or newer",
                         op, ordinal, device->properties.name, device->properties.arch_number / 10,
                         device->properties.arch_number % 10);
    cu_context current = NULL;
    cu_device of_current = -1;
    TSRI_TRY(TSRI_CUDA(op, driver, ctx_get_current, &current));
    if (current != NULL) TSRI_TRY(TSRI_CUDA(op, driver, ctx_get_device, &of_current));
    if (current != NULL && of_current == device->handle) {
        device->context = current;
        return TSR_OK;
    }
    TSRI_TRY(TSRI_CUDA(op, driver, primary_ctx_retain, &device->context, device->handle));
    device->is_primary = true;
    return TSR_OK;
}

void tsri_cuda_device_close(struct tsri_cuda_device *device) {
    if (device->is_primary && !is_forked(device))
        (void)device->driver->primary_ctx_release(device->handle);
    *device = (struct tsri_cuda_device){0};
}

// ---- The current context ----------------------------------------------------------------------

static tsr_status make_current(const char *op, const struct tsri_cuda_device *device,
                               bool *is_pushed) {
    cu_context current = NULL;
    *is_pushed = false;
    if (is_forked(device))
        return tsri_fail(TSR_DEVICE_LOST,
                         "%s: this process was forked from the one that opened cuda:%d, and CUDA "
                         "does not follow: make a context in a process that has not used it yet",
                         op, device->ordinal);
    TSRI_TRY(TSRI_CUDA(op, device->driver, ctx_get_current, &current));
    if (current == device->context) return TSR_OK;
    TSRI_TRY(TSRI_CUDA(op, device->driver, ctx_push_current, device->context));
    *is_pushed = true;
    return TSR_OK;
}

tsr_status tsri_cuda_enter(const char *op, const struct tsri_cuda_device *device,
                           struct tsri_cuda_visit *visit) {
    tsri_float_enter_foreign(&visit->floats);
    tsr_status status = make_current(op, device, &visit->is_pushed);
    if (status != TSR_OK) tsri_float_leave_foreign(&visit->floats);
    return status;
}

void tsri_cuda_leave(const struct tsri_cuda_device *device, const struct tsri_cuda_visit *visit) {
    cu_context ours;
    if (visit->is_pushed) (void)device->driver->ctx_pop_current(&ours);
    tsri_float_leave_foreign(&visit->floats);
}

// ---- Launching --------------------------------------------------------------------------------

tsr_status tsri_cuda_is_capturing(const char *op, const struct tsri_cuda_queue *queue,
                                  bool *is_capturing) {
    cu_capture_status capture = CU_CAPTURE_NONE;
    *is_capturing = false;
    if (queue->stream == NULL) return TSR_OK; // the legacy stream cannot be captured
    TSRI_TRY(TSRI_CUDA(op, queue->device.driver, stream_is_capturing, queue->stream, &capture));
    *is_capturing = capture != CU_CAPTURE_NONE;
    return TSR_OK;
}

// Finds the kernel in the memo; *known points into it. Only the first call loads the kernel, which is not allowed
// during a capture.
static tsr_status get_kernel(const char *op, const struct tsri_cuda_queue *queue,
                             const struct tsri_cuda_program *program,
                             struct tsri_cuda_known_kernel **known) {
    struct tsri_cuda_memo *memo = queue->memo;
    const unsigned generation = tsri_cuda_kernel_generation();
    if (memo->generation != generation) {
        memset(memo->kernels, 0, sizeof memo->kernels);
        memo->generation = generation;
    }
    *known = &memo->kernels[tsri_cuda_program_hash(program) % TSRI_CUDA_MEMO_KERNELS];
    if (tsri_cuda_program_is_same(&(*known)->program, program)) return TSR_OK;
    bool is_capturing;
    struct tsri_cuda_known_kernel found = {.program = *program};
    TSRI_TRY(tsri_cuda_is_capturing(op, queue, &is_capturing));
    TSRI_TRY(tsri_cuda_kernel_get(op, queue->device.driver, queue->device.properties.arch, program,
                                  !is_capturing, &found.kernel));
    TSRI_TRY(
        TSRI_CUDA(op, queue->device.driver, kernel_get_function, &found.function, found.kernel));
    **known = found;
    return TSR_OK;
}

tsr_status tsri_cuda_prepare(const char *op, const struct tsri_cuda_queue *queue,
                             const struct tsri_cuda_program *program) {
    struct tsri_cuda_known_kernel *known;
    return get_kernel(op, queue, program, &known);
}

// Asks the driver once for each kernel and size, because the driver takes a lock for it. Without asking a block has 48 KiB, and
// what the kernel declares itself is part of them.
static tsr_status allow_shared(const char *op, const struct tsri_cuda_queue *queue,
                               struct tsri_cuda_known_kernel *known, int bytes) {
    enum { WITHOUT_ASKING = 32 << 10 };
    if (bytes <= WITHOUT_ASKING || bytes <= known->shared_bytes) return TSR_OK;
    TSRI_TRY(tsri_cuda_kernel_allow_shared(op, queue->device.driver, queue->device.properties.arch,
                                           &known->program, queue->device.handle, &bytes));
    known->shared_bytes = bytes;
    return TSR_OK;
}

tsr_status tsri_cuda_launch(const char *op, const struct tsri_cuda_queue *queue,
                            const struct tsri_cuda_program *program,
                            const struct tsri_cuda_launch *launch) {
    struct tsri_cuda_known_kernel *known;
    TSRI_TRY(get_kernel(op, queue, program, &known));
    TSRI_TRY(allow_shared(op, queue, known, launch->shared_bytes));
    struct cu_launch_attribute attributes[2];
    unsigned num_attributes = 0;
    if (launch->cluster_blocks > 1)
        attributes[num_attributes++] = (struct cu_launch_attribute){
            .id = CU_LAUNCH_CLUSTER, .value.cluster = {(unsigned)launch->cluster_blocks, 1, 1}};
    if (launch->is_early && queue->device.properties.arch_number >= 90)
        attributes[num_attributes++] =
            (struct cu_launch_attribute){.id = CU_LAUNCH_EARLY, .value.value = 1};
    cu_launch config = {.grid_x = (unsigned)launch->num_blocks,
                        .grid_y = 1,
                        .grid_z = 1,
                        .block_x = (unsigned)launch->num_threads,
                        .block_y = 1,
                        .block_z = 1,
                        .shared_bytes = (unsigned)launch->shared_bytes,
                        .stream = queue->stream,
                        .attributes = attributes,
                        .num_attributes = num_attributes};
    void *params[] = {(void *)(uintptr_t)launch->params};
    return TSRI_CUDA(op, queue->device.driver, launch_kernel_ex, &config, known->function, params,
                     NULL);
}
