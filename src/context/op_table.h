// SPDX-License-Identifier: Apache-2.0
// How an operation presents itself: a const table of variants, each with what it supports, a
// pure plan and a run. Entry points check their arguments into a problem and leave the rest
// to tsri_op_serve.
#ifndef TSRI_OP_TABLE_H
#define TSRI_OP_TABLE_H

#include <stdbool.h>
#include <tessera/variants.h>

#include "context/context_internal.h"
#include "context/tuning_rows.h"
#include "core/core_status.h"
#include "core/core_tensor.h"

// What a variant's plan decides, from problem and limits alone. No pointers into the problem.
struct tsri_plan {
    const struct tsri_variant *variant;
    size_t workspace_bytes;
    int64_t num_tasks; // units of parallel work
    int64_t grain;     // rows (or the operation's own unit) per task
    int64_t block_m, block_n, block_k;
    bool is_streaming; // non-temporal stores: the output is far larger than the last cache
    uint32_t flags;    // of the call, for what a run calls in turn
    tsr_status status; // of the parts that it had plan themselves; its sentence is the last error
};

struct tsri_variant {
    const char *name, *summary;
    uint32_t flags; // TSR_VARIANT_*
    bool (*supports)(const void *problem, const struct tsri_limits *limits);
    void (*plan)(const void *problem, const struct tsri_limits *limits, struct tsri_plan *plan);
    tsr_status (*run)(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                      void *workspace);
    // CUDA: has the plan's kernels compiled and loaded; the CPU's variants have none.
    tsr_status (*prepare)(tsr_context *ctx, const void *problem, const struct tsri_plan *plan);
};

// What rows of tuning files may do with an operation.
struct tsri_op_tuning {
    int num_sizes;
    // The sizes that its choice may depend on under every promise that it makes to calls without flags. An operation that is
    // promised not to depend on the rest of a batch may exchange only variants of the same bits; one without such has no tuning.
    void (*key)(const void *problem, struct tsri_tuning_key *key);
    // Whether `to` may serve in the place of `from`, the built-in choice, for this problem and these flags. NULL: in
    // calls without flags.
    bool (*may_replace)(const void *problem, const struct tsri_limits *limits,
                        const struct tsri_variant *from, const struct tsri_variant *to);
    // A row there is for its sizes alone: rounds of tiles follow each of them.
    bool is_exact_on_cuda;
    // CUDA: the i-th way in which plans may serve the problem, blocks and all; false after the last. NULL: whatever variants
    // there are. What plans may not do has ns INFINITY.
    bool (*choice)(const void *problem, const struct tsri_limits *limits, int index,
                   struct tsri_tuning_choice *choice);
    size_t problem_bytes; // where there are such choices: what a context keeps of a call for them
};
enum { TSRI_TUNING_PROBLEM_BYTES = 1280 }; // at most

// Row order is the fallback: the first variant that supports a problem serves it, unless prefer
// (tuning knowledge; may be NULL) names another one that does, or a tuning file does. The reference comes last. Rows with
// TSR_VARIANT_CUDA are those of contexts on CUDA, the others of contexts on the CPU.
struct tsri_op {
    const char *name;
    const struct tsri_variant *variants;
    int num_variants;
    const char *(*prefer)(const void *problem, const struct tsri_limits *limits);
    // The kernels that plans may ask for on this architecture (90), one by one, for a pack, and which of
    // them are rare; false after the last. NULL: there are none.
    bool (*kernel)(int index, int cuda_arch, struct tsri_cuda_program *program);
    const struct tsri_op_tuning *tuning; // NULL: no row can choose
    // All of a problem that plans may depend on, so that two with the same bytes have the same plan. NULL: planning is quick.
    void (*plan_key)(const void *problem, void *key);
    size_t key_bytes; // at most TSRI_TUNING_PROBLEM_BYTES
};

#define TSRI_COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

// The dtypes that operations list kernels for: f32, bf16, f16.
enum { TSRI_NUM_CUDA_DTYPES = 3 };
extern const tsr_dtype tsri_cuda_dtypes[TSRI_NUM_CUDA_DTYPES];

// The head of every args struct.
struct tsri_call {
    TSR_CALL_FIELDS;
};
#define TSRI_CALL(args)                                                                            \
    (&(const struct tsri_call){(args).size, (args).flags, (args).variant, (args).workspace,        \
                               (args).workspace_bytes})

// Chooses a variant and plans. Pure but for the last error.
tsr_status tsri_op_plan(const struct tsri_op *op, const void *problem,
                        const struct tsri_limits *limits, const struct tsri_call *call,
                        struct tsri_plan *plan);

// What a public function is to end in: the call itself, or its _prepare, which gives the bytes of workspace.
struct tsri_goal {
    bool is_prepare;
    size_t *workspace_bytes;
};

// An operation's way in: reads `given`, its args struct, checks it into a problem and ends in tsri_op_serve. What it asks of
// values in memory, it asks in a call alone.
typedef tsr_status (*tsri_entry)(tsr_context *ctx, const void *given, struct tsri_goal goal);

// All that an operation's public functions do: the entry, in the floating-point environment that the library computes in.
tsr_status tsri_entry_call(tsri_entry entry, tsr_context *ctx, const void *given);
tsr_status tsri_entry_prepare(tsri_entry entry, tsr_context *ctx, const void *given,
                              size_t *workspace_bytes);
// The public functions of a call: TSRI_ENTRY(tsr_softmax_forward, enter_forward) defines it and its _prepare.
#define TSRI_ENTRY(call, entry)                                                                    \
    tsr_status call(tsr_context *ctx, const call##_args *given) {                                  \
        return tsri_entry_call(entry, ctx, given);                                                 \
    }                                                                                              \
    tsr_status call##_prepare(tsr_context *ctx, const call##_args *given,                          \
                              size_t *workspace_bytes) {                                           \
        return tsri_entry_prepare(entry, ctx, given, workspace_bytes);                             \
    }

// Plans, finds workspace, runs; or plans and gives the bytes of workspace.
tsr_status tsri_op_serve(tsr_context *ctx, const struct tsri_op *op, const void *problem,
                         const struct tsri_call *call, struct tsri_goal goal);

// What a part says of its failure names the part alone: puts op in front. Returns status.
tsr_status tsri_name_op(const char *op, tsr_status status);

// The first thing an entry checks: ctx is there and its device is not lost. Tensors are then expected on that device.
tsr_status tsri_check_context(const tsr_context *ctx, const char *op);

// Whether the host can look at the values of this context's tensors. On the CPU entries check indices before anything is
// written; on CUDA the kernels bound them.
static inline bool tsri_host_reads(const tsr_context *ctx) {
    return tsri_context_limits(ctx)->device.type == TSR_CPU;
}

// Registers of 16 floats that are not AMD's, whose dot products of bf16 alone are fast. What was measured on Intel goes by it.
static inline bool tsri_is_intel_avx512(const struct tsri_limits *limits) {
    return limits->isa == TSR_ISA_AVX512 && !limits->bf16.is_dot_fast;
}

// For supports: the variant serves every problem that passed the checks.
bool tsri_supports_all(const void *problem, const struct tsri_limits *limits);
// A supports for what computes in fp32, static: every problem but those whose `field`, a dtype, is f64.
#define TSRI_SUPPORTS_UP_TO_F32(name, problem_type, field)                                         \
    static bool name(const void *problem, const struct tsri_limits *limits) {                      \
        (void)limits;                                                                              \
        return ((const problem_type *)problem)->field != TSR_F64;                                  \
    }
// For plan: one task, no workspace.
void tsri_plan_serial(const void *problem, const struct tsri_limits *limits,
                      struct tsri_plan *plan);

// Splits rows into tasks of whole rows of about 1 MiB, so that a kernel finds its next row to prefetch
// most of the time; at least four tasks per thread where there are rows enough, none smaller than what
// a hand-over costs (16 KiB). bytes_per_row: what is moved.
void tsri_plan_rows(struct tsri_plan *plan, const struct tsri_limits *limits, int64_t rows,
                    int64_t bytes_per_row);

// Whether an output of so many bytes should bypass the caches.
bool tsri_should_stream(const struct tsri_limits *limits, int64_t total_bytes);
// The same of an output that is one of tensors of so many bytes together: where these exceed the caches, but only
// on cores that gain from lines fetched far ahead; on others the output must exceed twice the last cache.
bool tsri_should_stream_beside(const struct tsri_limits *limits, int64_t output_bytes,
                               int64_t total_bytes);
// The same of an output of rows: where tensors of so many bytes together exceed the caches; on AMD's cores with AVX2 several
// threads keep twice their share, and rows that do not end with a vector must be long. Only its shape counts, not where it lies.
bool tsri_should_stream_rows(const struct tsri_limits *limits, int64_t total_bytes,
                             const struct tsri_rows *output);
// The same where so many threads count, whatever the call has: of 1, what exceeds its share goes past the caches.
bool tsri_should_stream_rows_of(const struct tsri_limits *limits, int num_threads,
                                int64_t total_bytes, const struct tsri_rows *output);
// Whether stores past the caches have the price of AMD's cores with AVX2, which write lines by halves.
bool tsri_is_slow_past_caches(const struct tsri_limits *limits);
// What to tell tsri_should_stream_rows of outputs that such cores write faster through the caches at every size measured (to
// 128 MB): a 16th of the bytes there, so that only 16 times as many go past them.
int64_t tsri_bytes_better_cached(const struct tsri_limits *limits, int64_t total_bytes);

#endif
