// SPDX-License-Identifier: Apache-2.0
// Probes on the context's threads: checks, shares and the amount of work. See tessera/probe.h.
#include <tessera/probe.h>

#include "context/context_internal.h"
#include "core/core_float.h"
#include "core/core_status.h"
#include "core/core_tensor.h"
#include "cpu/probe_kernels.h"
#include "cuda/device/probe_params.h"

enum { ALIGNMENT = 64, BYTES_MULTIPLE = 4096 };

// Probes of arithmetic take no buffers.
static bool is_arithmetic(tsr_probe_kind kind) {
    return kind == TSR_PROBE_FMA || kind >= TSR_PROBE_BF16_DOT;
}

static double compute(const struct probe_kernels *kernels, tsr_probe_kind kind, int64_t repeat) {
#if defined(TSRI_HAS_BF16_KERNELS)
    const struct probe_bf16_kernels *bf16 = &tsri_probe_bf16_kernels;
    if (kind == TSR_PROBE_BF16_DOT || kind == TSR_PROBE_BF16_TILES) {
        bool is_dot = kind == TSR_PROBE_BF16_DOT;
        (is_dot ? bf16->dot : bf16->tiles)(repeat);
        return is_dot ? bf16->dot_flops_per_repeat : bf16->tiles_flops_per_repeat;
    }
#endif
#if defined(TSRI_HAS_VNNI_KERNELS)
    if (kind == TSR_PROBE_BYTE_DOT) {
        tsri_probe_vnni_kernel.byte_dot(repeat);
        return tsri_probe_vnni_kernel.flops_per_repeat;
    }
#endif
    (void)kind;
    kernels->fma(repeat);
    return kernels->flops_per_repeat;
}

struct probe {
    const struct probe_kernels *kernels;
    const tsr_probe_args *args;
    int64_t share; // bytes per thread
};

static void run_share(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct probe *probe = arg;
    const struct probe_kernels *kernels = probe->kernels;
    const tsr_probe_args *args = probe->args;
    if (is_arithmetic(args->kind)) {
        compute(kernels, args->kind, args->repeat);
        return;
    }
    int64_t first = tsri_min(index * probe->share, (int64_t)args->bytes);
    int64_t bytes = tsri_min(probe->share, (int64_t)args->bytes - first);
    if (bytes == 0) return;
    const char *source = args->source != NULL ? (const char *)args->source + first : NULL;
    char *destination = args->destination != NULL ? (char *)args->destination + first : NULL;
    switch (args->kind) {
    case TSR_PROBE_READ: kernels->read(source, bytes, args->repeat); break;
    case TSR_PROBE_WRITE: kernels->write(destination, bytes, args->repeat); break;
    case TSR_PROBE_WRITE_STREAM: kernels->write_stream(destination, bytes, args->repeat); break;
    case TSR_PROBE_COPY: kernels->copy(source, destination, bytes, args->repeat); break;
    case TSR_PROBE_UPDATE: kernels->update(destination, bytes, args->repeat); break;
    default: kernels->copy_stream(source, destination, bytes, args->repeat); break;
    }
}

static bool is_reading(tsr_probe_kind kind) {
    return kind == TSR_PROBE_READ || kind == TSR_PROBE_COPY || kind == TSR_PROBE_COPY_STREAM;
}

static tsr_status check_buffer(const char *field, const void *buffer) {
    if (buffer != NULL && (uintptr_t)buffer % ALIGNMENT == 0) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "probe_run: %s is %p, expected a multiple of %d", field,
                     buffer, (int)ALIGNMENT);
}

static tsr_status check(const tsr_probe_args *args, const struct tsri_limits *limits) {
    if ((unsigned)args->kind >= TSR_PROBE_COUNT)
        return tsri_fail(TSR_INVALID_ARGUMENT, "probe_run: kind is %d, expected a tsr_probe_kind",
                         (int)args->kind);
    if (args->repeat < 0)
        return tsri_fail(TSR_INVALID_ARGUMENT, "probe_run: repeat is %lld, expected 0 or more",
                         (long long)args->repeat);
    bool is_cuda = limits->device.type == TSR_CUDA; // all its tensor cores support bf16
    bool is_absent =
        (args->kind == TSR_PROBE_BF16_DOT && (is_cuda || !limits->bf16.has_dot)) ||
        (args->kind == TSR_PROBE_BYTE_DOT && (is_cuda || !limits->has_vnni)) ||
        (args->kind == TSR_PROBE_BF16_TILES && !is_cuda && !tsri_can_use_tiles(limits->bf16));
    if (is_absent)
        return tsri_fail(TSR_UNSUPPORTED,
                         "probe_run: kind is %d, expected one whose unit this context has",
                         (int)args->kind);
    if (is_arithmetic(args->kind) || args->bytes == 0) return TSR_OK;
    if (args->bytes % BYTES_MULTIPLE != 0 || args->bytes > INT64_MAX)
        return tsri_fail(TSR_INVALID_ARGUMENT, "probe_run: bytes is %zu, expected a multiple of %d",
                         args->bytes, (int)BYTES_MULTIPLE);
    bool reads = is_reading(args->kind), writes = args->kind != TSR_PROBE_READ;
    if (reads) TSRI_TRY(check_buffer("source", args->source));
    if (writes) TSRI_TRY(check_buffer("destination", args->destination));
    uintptr_t source = (uintptr_t)args->source, destination = (uintptr_t)args->destination;
    if (reads && writes && source < destination + args->bytes && destination < source + args->bytes)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "probe_run: destination overlaps source, expected separate memory");
    return TSR_OK;
}

// ---- CUDA -------------------------------------------------------------------------------------

static struct tsri_cuda_program probe_program(int kind, int cuda_arch) {
    struct tsri_cuda_program program = {"cuda/device/probe.cu", "probe", 1, {{"KIND", kind}}};
    if (kind != PROBE_TENSOR) return program;
    program.source =
        cuda_arch == 90 ? "cuda/device/probe_tensor_sm90.cu" : "cuda/device/probe_tensor.cu";
    program.entry = "probe_tensor";
    return program;
}

bool tsri_probe_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    static const int kinds[] = {PROBE_READ,   PROBE_WRITE, PROBE_READ + PROBE_WRITE,
                                PROBE_UPDATE, PROBE_FMA,   PROBE_TENSOR};
    if (index >= (int)(sizeof kinds / sizeof *kinds)) return false;
    *program = probe_program(kinds[index], cuda_arch);
    return true;
}

// FLOPs of one thread per repetition: its share of the products of its warp or warpgroup.
static double flops_of_a_thread(tsr_probe_kind kind, int cuda_arch) {
    enum { CHAINS = 16, STEPS = 4096, WARP_CHAINS = 8 };
    if (kind == TSR_PROBE_FMA) return 2.0 * CHAINS * STEPS;
    return cuda_arch == 90 ? 2.0 * 64 * 64 * 16 / 128 * PROBE_TENSOR_STEPS
                           : 2.0 * 16 * 8 * 16 / 32 * WARP_CHAINS * PROBE_TENSOR_STEPS;
}

// Only queues the work, as every call on CUDA; events measure its time.
static tsr_status run_on_cuda(tsr_context *ctx, const tsr_probe_args *args, double *work) {
    static const int kinds[TSR_PROBE_COUNT] = {
        [TSR_PROBE_FMA] = PROBE_FMA,
        [TSR_PROBE_READ] = PROBE_READ,
        [TSR_PROBE_WRITE] = PROBE_WRITE,
        [TSR_PROBE_WRITE_STREAM] = PROBE_WRITE,
        [TSR_PROBE_COPY] = PROBE_READ + PROBE_WRITE,
        [TSR_PROBE_COPY_STREAM] = PROBE_READ + PROBE_WRITE,
        [TSR_PROBE_UPDATE] = PROBE_UPDATE,
        [TSR_PROBE_BF16_TILES] = PROBE_TENSOR,
    };
    enum { FMA_THREADS = 256, MEMORY_THREADS = 512 };
    const struct tsri_limits *limits = tsri_context_limits(ctx);
    bool is_fma = args->kind == TSR_PROBE_FMA, is_tensor = args->kind == TSR_PROBE_BF16_TILES;
    struct tsri_cuda_visit visit;
    int num_threads = is_fma ? FMA_THREADS : is_tensor ? PROBE_TENSOR_THREADS : MEMORY_THREADS;
    const struct tsri_cuda_program program = probe_program(kinds[args->kind], limits->cuda_arch);
    const struct probe_params params = {args->source, args->destination,
                                        (long long)(args->bytes / 16), args->repeat};
    int64_t most_threads = is_tensor ? num_threads : limits->max_threads_per_sm; // per SM
    const struct tsri_cuda_launch launch = {.num_blocks =
                                                limits->num_sms * most_threads / num_threads,
                                            .num_threads = num_threads,
                                            .params = &params};
    double threads = (double)launch.num_blocks * num_threads;
    *work =
        (double)args->repeat * (is_arithmetic(args->kind)
                                    ? threads * flops_of_a_thread(args->kind, limits->cuda_arch)
                                    : (double)args->bytes * (args->kind >= TSR_PROBE_COPY ? 2 : 1));
    TSRI_TRY(tsri_context_enter(ctx, "probe_run", &visit));
    return tsri_context_leave(
        ctx, &visit, tsri_cuda_launch("probe_run", tsri_context_queue(ctx), &program, &launch));
}

static TSRI_NOT_INLINED tsr_status run_probe(tsr_context *ctx, const tsr_probe_args *given,
                                             double *work) {
    tsr_probe_args args;
    if (ctx == NULL || work == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT, "probe_run: %s is NULL, expected %s",
                         ctx == NULL ? "ctx" : "work", ctx == NULL ? "a context" : "an address");
    TSRI_TRY(TSRI_ARGS_READ("probe_run", args, given));
    TSRI_TRY(check(&args, tsri_context_limits(ctx)));
    if (tsri_context_queue(ctx) != NULL) {
        TSRI_TRY(tsri_check_usable(ctx, "probe_run"));
        return run_on_cuda(ctx, &args, work);
    }
    int64_t num_threads = tsr_context_num_threads(ctx),
            blocks = (int64_t)args.bytes / BYTES_MULTIPLE;
    struct probe probe = {
        .kernels = probe_kernels(tsr_context_isa(ctx)),
        .args = &args,
        .share = tsri_ceil_div(blocks, num_threads) * BYTES_MULTIPLE,
    };
    tsri_parallel(ctx, num_threads, run_share, &probe);
    double repeat = (double)args.repeat, bytes = (double)args.bytes;
    bool is_both = args.kind >= TSR_PROBE_COPY;
    *work = is_arithmetic(args.kind)
                ? repeat * (double)num_threads * compute(probe.kernels, args.kind, 0)
                : repeat * bytes * (is_both ? 2 : 1);
    return TSR_OK;
}

tsr_status tsr_probe_run(tsr_context *ctx, const tsr_probe_args *given, double *work) {
    tsri_float_environment before;
    tsri_float_enter(&before);
    tsr_status status = run_probe(ctx, given, work);
    tsri_float_leave(&before);
    return status;
}
