// SPDX-License-Identifier: Apache-2.0
// Calls outside operations: contexts and their options, probes, estimates, names, tensors, scalars, CUDA-only calls,
// and files at paths that cannot be written. Enums out of range, structs of other sizes, NULL.
#include <stddef.h>
#include <tessera/dlpack.h>
#include <tessera/safetensors.h>
#include <tessera/tessera.h>

#include "fuzz.h"

static void check_failure(tsr_status status) {
    fuzz_require(status > TSR_OK && status <= TSR_INTERNAL && status != TSR_INTERNAL);
    fuzz_require(strchr(tsr_last_error(), ':') != NULL);
}

static tsr_context *the_context(void) {
    static tsr_context *ctx;
    if (ctx == NULL)
        fuzz_require(tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 1), &ctx) == TSR_OK);
    return ctx;
}

// Copies a struct that begins with its size to a block of the size that it states.
static void *resize(struct fuzz_bytes *in, void *plain, size_t known) {
    uint8_t kind = fuzz_byte(in);
    size_t size = kind < 192   ? known
                  : kind < 224 ? fuzz_word(in, 1)
                  : kind < 240 ? known + fuzz_word(in, 1)
                               : (size_t)fuzz_wild(in);
    bool is_readable = size >= sizeof size && size <= 65536;
    size_t bytes = is_readable ? size : sizeof size;
    char *copy = malloc(bytes);
    fuzz_require(copy != NULL);
    memset(copy, kind % 2 && kind >= 224, bytes);
    memcpy(copy, plain, bytes < known ? bytes : known);
    memcpy(copy, &size, sizeof size);
    return copy;
}

// ---- Contexts ---------------------------------------------------------------------------------

static void one_by_one(void *user, int num_tasks, void (*task)(void *arg, int index), void *arg) {
    (void)user;
    for (int i = 0; i < num_tasks; i++) task(arg, i);
}

static void *no_memory(void *user, size_t bytes, size_t alignment) {
    (void)user;
    (void)bytes;
    (void)alignment;
    return NULL;
}

static void no_free(void *user, void *pointer, size_t bytes) {
    (void)user;
    (void)pointer;
    (void)bytes;
    abort(); // nothing was allocated
}

static void create_context(struct fuzz_bytes *in) {
    uint8_t kind = fuzz_byte(in);
    tsr_context_options options = TSR_CONTEXT_OPTIONS(.parallel_for = one_by_one);
    if (kind & 1) options.isa = (tsr_isa)(int32_t)fuzz_wild(in);
    if (kind & 2) options.num_threads = (int32_t)fuzz_wild(in);
    if (kind & 4) options.l3_bytes = fuzz_wild(in);
    if (kind & 8) {
        options.device.type = (tsr_device_type)(int32_t)fuzz_wild(in);
        options.device.index = (int32_t)fuzz_wild(in);
    }
    if (kind & 16) options.stream = &options;
    if (kind & 32) options.allocator.alloc = no_memory;
    if (kind & 64) options.allocator.free = no_free;
    void *given = resize(in, &options, sizeof options);
    tsr_context *ctx = (void *)&options;
    tsr_status status = tsr_context_create(given, &ctx);
    free(given);
    if (status != TSR_OK) {
        check_failure(status);
        fuzz_require(ctx == NULL);
        return;
    }
    float x[12] = {1, 2, 3}, y[12];
    tsr_softmax_forward_args args = TSR_SOFTMAX_FORWARD_ARGS(.x = TSR_TENSOR(x, TSR_F32, 3, 4),
                                                             .y = TSR_TENSOR(y, TSR_F32, 3, 4));
    size_t need = 0;
    fuzz_require(tsr_context_isa(ctx) > TSR_ISA_AUTO && tsr_context_isa(ctx) < TSR_ISA_COUNT);
    fuzz_require(tsr_context_num_threads(ctx) >= 1);
    // The library's own threads are not started, because that would happen for each input.
    if (offsetof(tsr_context_options, l3_bytes) < options.size && (kind & 2) == 0) {
        fuzz_require(tsr_softmax_forward_prepare(ctx, &args, &need) == TSR_OK);
        if (kind & 128) fuzz_require(tsr_context_last_variant(ctx)[0] != '\0');
    }
    tsr_context_destroy(ctx);
}

// ---- Structs of sizes -------------------------------------------------------------------------

static void estimate(struct fuzz_bytes *in) {
    tsr_self_attention_estimate_args args =
        TSR_SELF_ATTENTION_ESTIMATE_ARGS(.dtype = TSR_BF16, .batch = 2, .seqlen = 128,
                                         .embed_dim = 64, .num_heads = 4);
    uint16_t bent = (uint16_t)fuzz_word(in, 2);
    if (bent & 1) args.dtype = (tsr_dtype)(int32_t)fuzz_wild(in);
    if (bent & 2) args.batch = fuzz_wild(in);
    if (bent & 4) args.seqlen = fuzz_wild(in);
    if (bent & 8) args.embed_dim = fuzz_wild(in);
    if (bent & 16) args.head_dim = fuzz_wild(in);
    if (bent & 32) args.rotary_dim = fuzz_wild(in);
    if (bent & 64) args.num_heads = fuzz_wild(in);
    if (bent & 128) args.num_kv_heads = fuzz_wild(in);
    if (bent & 256) args.mask = (tsr_mask)(int32_t)fuzz_wild(in);
    if (bent & 512) args.has_window_left = 1, args.window_left = fuzz_wild(in);
    if (bent & 1024) args.dropout_p = (double)fuzz_wild(in) / 64;
    if (bent & 2048) args.softcap = (float)fuzz_wild(in);
    if (bent & 4096) args.flags = (uint32_t)fuzz_wild(in);
    if (bent & 8192) args.variant = fuzz_byte(in) % 2 ? "naive" : "reference";
    args.has_bias = bent >> 14 & 1;
    void *given = resize(in, &args, sizeof args);
    tsr_self_attention_memory memory = {0};
    tsr_status status =
        tsr_self_attention_estimate(bent >> 15 ? NULL : the_context(), given, &memory);
    free(given);
    if (status != TSR_OK) {
        check_failure(status);
        return;
    }
    fuzz_require(memory.inference_bytes >= memory.weight_bytes + memory.activation_bytes);
    fuzz_require(memory.training_bytes >= memory.saved_bytes + memory.gradient_bytes);
}

static void estimate_moe(struct fuzz_bytes *in) {
    tsr_moe_estimate_args args =
        TSR_MOE_ESTIMATE_ARGS(.dtype = TSR_BF16, .num_tokens = 40, .hidden = 16, .intermediate = 8,
                              .num_experts = 6, .top_k = 2);
    uint16_t bent = (uint16_t)fuzz_word(in, 2);
    if (bent & 1) args.dtype = (tsr_dtype)(int32_t)fuzz_wild(in);
    if (bent & 2) args.router_dtype = (tsr_dtype)(int32_t)fuzz_wild(in);
    if (bent & 4) args.num_tokens = fuzz_wild(in);
    if (bent & 8) args.hidden = fuzz_wild(in);
    if (bent & 16) args.intermediate = fuzz_wild(in);
    if (bent & 32) args.num_experts = fuzz_wild(in);
    if (bent & 64) args.shared_intermediate = fuzz_wild(in);
    if (bent & 128) args.top_k = fuzz_wild(in);
    if (bent & 256) args.activation = (tsr_activation)(int32_t)fuzz_wild(in);
    if (bent & 512) args.has_capacity = 1, args.capacity = fuzz_wild(in);
    if (bent & 1024) args.num_groups = (int32_t)fuzz_wild(in);
    if (bent & 2048) args.is_gated = 1, args.is_joined = fuzz_byte(in) % 2;
    if (bent & 4096) args.flags = (uint32_t)fuzz_wild(in);
    if (bent & 8192) args.variant = fuzz_byte(in) % 2 ? "default" : "reference";
    args.has_bias = args.has_shared_gate = bent >> 14 & 1;
    void *given = resize(in, &args, sizeof args);
    tsr_moe_memory memory = {0};
    tsr_status status = tsr_moe_estimate(bent >> 15 ? NULL : the_context(), given, &memory);
    free(given);
    if (status != TSR_OK) {
        check_failure(status);
        return;
    }
    fuzz_require(memory.inference_bytes >= memory.weight_bytes + memory.activation_bytes);
    fuzz_require(memory.training_bytes >= memory.gradient_bytes + memory.activation_bytes);
}

static void probe(struct fuzz_bytes *in) {
    static _Alignas(64) char memory[3][8192]; // the third for pointers into the others
    uint8_t bent = fuzz_byte(in);
    tsr_probe_args args = TSR_PROBE_ARGS(.kind = (tsr_probe_kind)(fuzz_byte(in) % TSR_PROBE_COUNT),
                                         .repeat = bent % 2, .source = memory[0],
                                         .destination = memory[1], .bytes = sizeof memory[0]);
    if (bent & 4) args.kind = (tsr_probe_kind)(int32_t)fuzz_wild(in);
    if (bent & 8) args.repeat = -fuzz_byte(in);
    if (bent & 16) args.source = fuzz_byte(in) % 2 ? NULL : memory[1] + fuzz_byte(in);
    if (bent & 32) args.destination = fuzz_byte(in) % 2 ? NULL : memory[0] + fuzz_byte(in);
    if (bent & 64) args.bytes = (size_t)fuzz_wild(in);
    // The call cannot detect that these sizes are too large.
    if (args.bytes > sizeof memory[0] && args.bytes % 4096 == 0 && args.bytes <= INT64_MAX)
        args.bytes = 4096;
    void *given = resize(in, &args, sizeof args);
    double work;
    tsr_status status = tsr_probe_run(bent & 128 ? NULL : the_context(), given, &work);
    free(given);
    if (status != TSR_OK) check_failure(status);
}

// ---- Small things -----------------------------------------------------------------------------

static void names(struct fuzz_bytes *in) {
    int32_t number = (int32_t)fuzz_wild(in);
    char text[16];
    for (size_t i = 0; i < sizeof text - 1; i++) text[i] = (char)fuzz_byte(in);
    text[sizeof text - 1] = '\0';
    fuzz_require(tsr_status_name((tsr_status)number) != NULL);
    fuzz_require(tsr_dtype_name((tsr_dtype)number) != NULL);
    fuzz_require(tsr_isa_name((tsr_isa)number) != NULL);
    fuzz_require(tsr_activation_name((tsr_activation)number) != NULL);
    fuzz_require(tsr_device_name((tsr_device){(tsr_device_type)number, number}) != NULL);
    fuzz_require(tsr_dtype_bytes((tsr_dtype)number) <= 8);
    (void)tsr_isa_is_supported((tsr_isa)number);
    fuzz_require(tsr_cache_bytes(number) >= 0);
    (void)tsr_device_count((tsr_device_type)number);
    tsr_dtype dtype = tsr_dtype_from_name(text);
    fuzz_require(dtype == tsr_dtype_from_name(tsr_dtype_name(dtype)) || dtype == TSR_DTYPE_NONE);
    fuzz_require((tsr_op_name(number) != NULL) == (number >= 0 && number < tsr_op_count()));
    bool is_known = false;
    for (int i = 0; i < tsr_op_count(); i++) is_known |= strcmp(tsr_op_name(i), text) == 0;
    fuzz_require((tsr_variant_count(text) > 0) == is_known);
    tsr_variant_info info;
    tsr_status status = tsr_variant_info_get(tsr_op_name(number), number, &info);
    if (status != TSR_OK) check_failure(status);
    check_failure(tsr_fail(TSR_IO, "names: %s%n"));
    fuzz_require(strcmp(tsr_last_error(), "names: %s%n") == 0);
    tsr_device_info device = TSR_DEVICE_INFO;
    device.size = fuzz_byte(in);
    status = tsr_device_info_get((tsr_device){TSR_CPU, number}, &device);
    check_failure(status);
}

static void scalars(struct fuzz_bytes *in) {
    tsr_dtype dtype = (tsr_dtype)(int32_t)fuzz_wild(in);
    uint64_t bits = fuzz_word(in, 8), stored = 0;
    double value, loaded = tsr_load(dtype, &bits, 0);
    memcpy(&value, &bits, sizeof value);
    tsr_store(dtype, &stored, 0, value);
    // A number that was rounded once must not change again.
    value = tsr_load(dtype, &stored, 0);
    uint64_t again = 0;
    tsr_store(dtype, &again, 0, value);
    fuzz_require(stored == again || value != value);
    tsr_store(dtype, &again, 0, loaded);
}

static void tensors(struct fuzz_bytes *in) {
    int64_t shape[TSR_MAX_DIMS];
    for (int i = 0; i < TSR_MAX_DIMS; i++) shape[i] = fuzz_wild(in);
    int ndim = (int)fuzz_wild(in);
    tsr_tensor t = tsr_tensor_contiguous(shape, (tsr_dtype)(int32_t)fuzz_wild(in), ndim, shape);
    fuzz_require(ndim >= 0 && ndim <= TSR_MAX_DIMS ? t.ndim == ndim : t.dtype == TSR_DTYPE_NONE);
    fuzz_require(tsr_tensor_numel(&t) >= 0);
    t.ndim = (int32_t)fuzz_wild(in);
    fuzz_require(tsr_tensor_numel(&t) >= 0);
    for (int i = 0; i < TSR_MAX_DIMS; i++) t.stride[i] = fuzz_wild(in);
    t.device.type = (tsr_device_type)(fuzz_byte(in) % 3);
    // No file can exist at this path, so only the checks before writing run.
    const tsr_safetensors_entry entries[] = {{fuzz_byte(in) % 8 ? "x" : NULL, t}, {"y", t}};
    tsr_status status =
        tsr_safetensors_write("/dev/null/none", entries, fuzz_byte(in) % 3, NULL, 0);
    check_failure(status);
}

// A CPU context has no streams, events or graphs, and a NULL context has nothing.
static void device_calls(struct fuzz_bytes *in) {
    uint8_t bent = fuzz_byte(in);
    tsr_context *ctx = bent & 1 ? NULL : the_context();
    void *pointer = &bent, *handle = bent & 2 ? NULL : &bent;
    double ms;
    check_failure(tsr_context_set_stream(ctx, handle));
    check_failure(tsr_stream_create(ctx, handle != NULL ? &pointer : NULL));
    if (handle != NULL) check_failure(tsr_stream_destroy(ctx, handle));
    check_failure(tsr_event_record(ctx, handle));
    check_failure(tsr_event_elapsed(ctx, handle, handle, &ms));
    tsr_event_destroy(ctx, handle);
    check_failure(tsr_graph_begin(ctx));
    check_failure(tsr_graph_end(ctx, handle != NULL ? (tsr_graph **)&pointer : NULL));
    check_failure(tsr_graph_launch(ctx, handle));
    tsr_graph_destroy(ctx, handle);
    (void)tsr_memory_available(ctx);
    size_t bytes = fuzz_byte(in);
    tsr_status status = tsr_memory_alloc(ctx, bytes, &pointer);
    if (status != TSR_OK) {
        check_failure(status);
        return;
    }
    fuzz_require(tsr_memory_fill(ctx, pointer, 1, bytes) == TSR_OK);
    fuzz_require(tsr_memory_free(ctx, pointer) == TSR_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static void (*const calls[])(struct fuzz_bytes *) = {
        create_context, estimate, probe, names, scalars, tensors, device_calls, estimate_moe};
    struct fuzz_bytes in = {data, data + bytes};
    calls[fuzz_byte(&in) % (sizeof calls / sizeof *calls)](&in);
    return 0;
}
