// SPDX-License-Identifier: Apache-2.0
// An operation's interface: a const table of variants, each with `supports`, a pure plan and a run. An entry point
// checks its arguments into a problem and leaves the rest to tsri_op_serve.
#ifndef TSRI_OP_TABLE_H
#define TSRI_OP_TABLE_H

#include <stdbool.h>
#include <tessera/variants.h>

#include "context/context_internal.h"
#include "context/tuning_rows.h"
#include "core/core_status.h"
#include "core/core_tensor.h"

// What a variant's plan decides, from problem and limits only. It holds no pointers into the problem.
struct tsri_plan {
    const struct tsri_variant *variant;
    size_t workspace_bytes;
    int64_t num_tasks; // units of parallel work
    int64_t grain;     // rows (or the operation's own unit) per task
    int64_t block_m, block_n, block_k;
    bool is_streaming;  // non-temporal stores: the output is much larger than the last-level cache
    uint32_t flags;     // the call's, for operations that a run calls
    double expected_ns; // by the operation's cost model; 0: it has none
    tsr_status status;  // of the parts' planning; its sentence is the last error
};

struct tsri_variant {
    const char *name, *summary;
    uint32_t flags; // TSR_VARIANT_*
    bool (*supports)(const void *problem, const struct tsri_limits *limits);
    void (*plan)(const void *problem, const struct tsri_limits *limits, struct tsri_plan *plan);
    tsr_status (*run)(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                      void *workspace);
    // CUDA: compiles and loads the plan's kernels; NULL in variants for the CPU.
    tsr_status (*prepare)(tsr_context *ctx, const void *problem, const struct tsri_plan *plan);
};

// What rows of tuning files may change in an operation.
struct tsri_op_tuning {
    int num_sizes;
    // Fills the sizes that its choice may depend on without breaking a promise to calls without flags. An operation
    // whose results must not depend on the rest of a batch may exchange only variants with the same bits; if it has
    // none, it has no tuning.
    void (*key)(const void *problem, struct tsri_tuning_key *key);
    // Whether `to` may replace `from`, the built-in choice, for this problem and these flags. NULL: allowed in calls
    // without flags.
    bool (*may_replace)(const void *problem, const struct tsri_limits *limits,
                        const struct tsri_variant *from, const struct tsri_variant *to);
    // A row applies to exactly its sizes, because the number of rounds of tiles depends on each of them.
    bool is_exact_on_cuda;
    // CUDA: the i-th way, with blocks, in which plans may serve the problem; false after the last. ns is INFINITY if
    // plans may not use it. NULL: the ways are the variants.
    bool (*choice)(const void *problem, const struct tsri_limits *limits, int index,
                   struct tsri_tuning_choice *choice);
    size_t problem_bytes; // what a context keeps of a prepared call for `choice`
};
enum { TSRI_TUNING_PROBLEM_BYTES = 1280 }; // at most

// The first row that supports a problem serves it, unless `prefer` (tuning knowledge; may be NULL) or a tuning file
// names another one that supports it. The reference is the last row. Rows with TSR_VARIANT_CUDA serve contexts on CUDA,
// the others contexts on the CPU.
struct tsri_op {
    const char *name;
    const struct tsri_variant *variants;
    int num_variants;
    const char *(*prefer)(const void *problem, const struct tsri_limits *limits);
    // The kernels that plans may use on this architecture (90), one by one, for a pack, with is_rare set; false after
    // the last. NULL: none.
    bool (*kernel)(int index, int cuda_arch, struct tsri_cuda_program *program);
    const struct tsri_op_tuning *tuning; // NULL: rows cannot choose
    // Fills a key with everything in a problem that plans may depend on, so that equal keys have equal plans. NULL:
    // planning is fast anyway.
    void (*plan_key)(const void *problem, void *key);
    size_t key_bytes; // at most TSRI_TUNING_PROBLEM_BYTES
};

#define TSRI_COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

// The dtypes for which operations list kernels: f32, bf16, f16.
enum { TSRI_NUM_CUDA_DTYPES = 3 };
extern const tsr_dtype tsri_cuda_dtypes[TSRI_NUM_CUDA_DTYPES];

// The first fields of every args struct.
struct tsri_call {
    TSR_CALL_FIELDS;
};
#define TSRI_CALL(args)                                                                            \
    (&(const struct tsri_call){(args).size, (args).flags, (args).variant, (args).workspace,        \
                               (args).workspace_bytes})

// Chooses a variant and plans. Pure except for the last error.
tsr_status tsri_op_plan(const struct tsri_op *op, const void *problem,
                        const struct tsri_limits *limits, const struct tsri_call *call,
                        struct tsri_plan *plan);

// What a public function does: the call itself, or its _prepare, which returns the bytes of workspace.
struct tsri_goal {
    bool is_prepare;
    size_t *workspace_bytes;
};

// An operation's entry: reads its args struct `given`, checks it into a problem and ends in tsri_op_serve. Only a call,
// not a prepare, may read values in memory.
typedef tsr_status (*tsri_entry)(tsr_context *ctx, const void *given, struct tsri_goal goal);

// The body of an operation's public functions: runs the entry in the library's floating-point environment.
tsr_status tsri_entry_call(tsri_entry entry, tsr_context *ctx, const void *given);
tsr_status tsri_entry_prepare(tsri_entry entry, tsr_context *ctx, const void *given,
                              size_t *workspace_bytes);
// Defines the public functions of a call: TSRI_ENTRY(tsr_softmax_forward, enter_forward) defines it and its _prepare.
#define TSRI_ENTRY(call, entry)                                                                    \
    tsr_status call(tsr_context *ctx, const call##_args *given) {                                  \
        return tsri_entry_call(entry, ctx, given);                                                 \
    }                                                                                              \
    tsr_status call##_prepare(tsr_context *ctx, const call##_args *given,                          \
                              size_t *workspace_bytes) {                                           \
        return tsri_entry_prepare(entry, ctx, given, workspace_bytes);                             \
    }

// Plans, finds workspace and runs; or plans and returns the bytes of workspace.
tsr_status tsri_op_serve(tsr_context *ctx, const struct tsri_op *op, const void *problem,
                         const struct tsri_call *call, struct tsri_goal goal);

// Puts op in front of a part's error sentence, which names only the part. Returns status.
tsr_status tsri_name_op(const char *op, tsr_status status);

// The first check of an entry: ctx exists and its device is not lost. From then on, tensors must be on that device.
tsr_status tsri_check_context(const tsr_context *ctx, const char *op);

// Whether the host can read values of this context's tensors. On the CPU, entries check indices before anything is
// written; on CUDA, the kernels bound them.
static inline bool tsri_host_reads(const tsr_context *ctx) {
    return tsri_context_limits(ctx)->device.type == TSR_CPU;
}

// AVX-512 without AMD's fast bf16 dot products. Choices that were measured on Intel test it.
static inline bool tsri_is_intel_avx512(const struct tsri_limits *limits) {
    return limits->isa == TSR_ISA_AVX512 && !limits->bf16.is_dot_fast;
}

// A `supports` for a variant that serves every problem that passed the checks.
bool tsri_supports_all(const void *problem, const struct tsri_limits *limits);
// Defines a static `supports` for a variant that computes in fp32: every problem except those whose dtype `field` is
// f64.
#define TSRI_SUPPORTS_UP_TO_F32(name, problem_type, field)                                         \
    static bool name(const void *problem, const struct tsri_limits *limits) {                      \
        (void)limits;                                                                              \
        return ((const problem_type *)problem)->field != TSR_F64;                                  \
    }
// A `plan` with one task and no workspace.
void tsri_plan_serial(const void *problem, const struct tsri_limits *limits,
                      struct tsri_plan *plan);

// Splits rows into tasks of whole rows. A task moves about 1 MiB, so that a kernel usually has a next row to prefetch.
// With enough rows, each thread gets at least four tasks, but no task moves less than a hand-over costs (16 KiB).
// bytes_per_row: bytes moved.
void tsri_plan_rows(struct tsri_plan *plan, const struct tsri_limits *limits, int64_t rows,
                    int64_t bytes_per_row);

// Whether an output of so many bytes should bypass the caches.
bool tsri_should_stream(const struct tsri_limits *limits, int64_t total_bytes);
// The same for an output of output_bytes when all tensors have total_bytes: on cores that gain from far prefetches, if
// total_bytes exceed the caches; on others, if output_bytes exceed twice the last-level cache.
bool tsri_should_stream_beside(const struct tsri_limits *limits, int64_t output_bytes,
                               int64_t total_bytes);
// The same for an output of rows: if total_bytes of all tensors exceed the caches. On AMD's cores with AVX2, several
// threads may hold twice their share, and rows that do not end at a vector must be long. Depends on the output's shape,
// not its address.
bool tsri_should_stream_rows(const struct tsri_limits *limits, int64_t total_bytes,
                             const struct tsri_rows *output);
// The same for num_threads threads, whatever the call uses. One thread streams what exceeds its share.
bool tsri_should_stream_rows_of(const struct tsri_limits *limits, int num_threads,
                                int64_t total_bytes, const struct tsri_rows *output);
// Whether non-temporal stores are as slow as on AMD's cores with AVX2, which write half lines.
bool tsri_is_slow_past_caches(const struct tsri_limits *limits);
// The bytes to pass to tsri_should_stream_rows for outputs that such cores write faster through the caches at every
// size measured (up to 128 MB): a 16th there, so that non-temporal stores start at 16 times the size.
int64_t tsri_bytes_better_cached(const struct tsri_limits *limits, int64_t total_bytes);

#endif
