// SPDX-License-Identifier: Apache-2.0
// Estimates the module's memory before any is allocated: it lays out contiguous tensors at addresses that no object has
// and asks the passes' own prepare. So the estimate cannot differ from the call.
#include "compose/estimate_check.h"
#include "compose/self_attention/self_attention_problem.h"

static const char op[] = "self_attention_estimate";

// Places tensors one after the other, so that none overlaps another.
struct tally {
    tsr_device device;
    char *at;
    size_t *bytes; // the sum to which the next tensors are added
};

static tsr_tensor add(struct tally *tally, tsr_dtype dtype, int ndim, const int64_t *shape) {
    tsr_tensor t = tsr_tensor_contiguous(tally->at, dtype, ndim, shape);
    t.device = tally->device;
    size_t bytes = (size_t)tsr_tensor_numel(&t) * tsr_dtype_bytes(dtype);
    *tally->bytes += bytes;
    tally->at += tsri_round_up(bytes, 64);
    return t;
}
#define ADD(dtype, ...)                                                                            \
    add(&tally, (dtype), (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                \
        (const int64_t[]){__VA_ARGS__})

// A generous check: the products are upper bounds of every tensor.
static tsr_status check(const tsr_self_attention_estimate_args *args) {
    int64_t product = 1;
    switch (args->dtype) {
    case TSR_F64:
    case TSR_F32:
    case TSR_BF16:
    case TSR_F16: break;
    default:
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: dtype is %s, expected f32, bf16, f16 or f64",
                         op, tsr_dtype_name(args->dtype));
    }
    TSRI_TRY(tsri_estimate_check_size(op, "num_heads", args->num_heads, 1, &product));
    TSRI_TRY(tsri_estimate_check_size(op, "head_dim", args->head_dim, 0, &product));
    if (args->num_kv_heads < 0 || args->num_kv_heads > args->num_heads)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: num_kv_heads is %lld, expected a divisor of num_heads, %lld", op,
                         (long long)args->num_kv_heads, (long long)args->num_heads);
    int64_t embed_dim = 1;
    TSRI_TRY(tsri_estimate_check_size(op, "embed_dim", args->embed_dim, 0, &embed_dim));
    if (args->head_dim == 0) product = embed_dim; // then num_heads * head_dim is embed_dim
    int64_t rows = product, columns = product, tables = 1;
    TSRI_TRY(tsri_estimate_check_size(op, "embed_dim", args->embed_dim, 0, &columns));
    TSRI_TRY(tsri_estimate_check_size(op, "batch", args->batch, 0, &rows));
    TSRI_TRY(tsri_estimate_check_size(op, "seqlen", args->seqlen, 0, &rows));
    TSRI_TRY(tsri_estimate_check_size(op, "embed_dim", args->embed_dim, 0, &rows));
    TSRI_TRY(tsri_estimate_check_size(op, "seqlen", args->seqlen, 0, &tables));
    TSRI_TRY(tsri_estimate_check_size(op, "rotary_dim", args->rotary_dim, 0, &tables));
    if (args->head_dim == 0 && args->embed_dim % args->num_heads != 0)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: embed_dim is %lld, expected a multiple of num_heads, %lld, where "
                         "head_dim is 0",
                         op, (long long)args->embed_dim, (long long)args->num_heads);
    return TSR_OK;
}

#define CALL(args)                                                                                 \
    .flags = (args).flags, .variant = (args).variant, .num_heads = (args).num_heads,               \
    .num_kv_heads = (args).num_kv_heads, .mask = (args).mask,                                      \
    .softmax_scale = (args).softmax_scale, .softcap = (args).softcap,                              \
    .has_window_left = (args).has_window_left, .has_window_right = (args).has_window_right,        \
    .window_left = (args).window_left, .window_right = (args).window_right,                        \
    .dropout_p = (args).dropout_p, .seed = (args).seed, .offset = (args).offset,                   \
    .interleaved = (args).interleaved

tsr_status tsr_self_attention_estimate(tsr_context *ctx,
                                       const tsr_self_attention_estimate_args *given,
                                       tsr_self_attention_memory *memory) {
    tsr_self_attention_estimate_args args;
    TSRI_TRY(tsri_check_context(ctx, ctx == NULL ? op : "self_attention_forward"));
    TSRI_TRY(TSRI_ARGS_READ(op, args, given));
    if (memory == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: memory is NULL, expected an address", op);
    TSRI_TRY(check(&args));
    tsr_dtype dtype = args.dtype, f32 = dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    int64_t b = args.batch, s = args.seqlen, e = args.embed_dim, h = args.num_heads;
    int64_t h_kv = args.num_kv_heads > 0 ? args.num_kv_heads : h;
    int64_t d = args.head_dim > 0 ? args.head_dim : e / h;
    int64_t qkv_dim = (h + 2 * h_kv) * d, attention_dim = h * d;
    tsr_self_attention_memory m = {0};
    char *elsewhere = SELF_ATTENTION_NOWHERE + UINTPTR_MAX / 256 * 64; // far from the passes' own
    struct tally tally = {tsri_context_limits(ctx)->device, elsewhere, &m.weight_bytes};
    tsr_self_attention_forward_args forward = TSR_SELF_ATTENTION_FORWARD_ARGS(CALL(args));
    tsr_self_attention_backward_args backward = TSR_SELF_ATTENTION_BACKWARD_ARGS(CALL(args));

    // A placeholder workspace, so that the arena does not grow for an estimate.
    forward.workspace = backward.workspace = SELF_ATTENTION_NOWHERE;
    forward.w_qkv = backward.w_qkv = ADD(dtype, qkv_dim, e);
    forward.w_out = backward.w_out = ADD(dtype, e, attention_dim);
    if (args.has_bias) {
        forward.b_qkv = ADD(dtype, qkv_dim);
        forward.b_out = ADD(dtype, e);
    }
    if (args.rotary_dim > 0) {
        forward.cos = backward.cos = ADD(f32, s, args.rotary_dim / 2);
        forward.sin = backward.sin = ADD(f32, s, args.rotary_dim / 2);
    }
    tally.bytes = &m.activation_bytes;
    forward.x = backward.x = ADD(dtype, b, s, e);
    forward.y = ADD(dtype, b, s, e);
    TSRI_TRY(tsr_self_attention_forward_prepare(ctx, &forward, &m.inference_workspace_bytes));
    tally.bytes = &m.saved_bytes;
    forward.qkv = backward.qkv = ADD(dtype, b, s, qkv_dim);
    forward.attention = backward.attention = ADD(dtype, b, s, attention_dim);
    forward.lse = backward.lse = ADD(f32, b, h, s);
    TSRI_TRY(tsr_self_attention_forward_prepare(ctx, &forward, &m.forward_workspace_bytes));
    tally.bytes = &m.gradient_bytes;
    backward.dy = ADD(dtype, b, s, e);
    backward.dx = ADD(dtype, b, s, e);
    backward.dw_qkv = ADD(dtype, qkv_dim, e);
    backward.dw_out = ADD(dtype, e, attention_dim);
    if (args.has_bias) {
        backward.db_qkv = ADD(dtype, qkv_dim);
        backward.db_out = ADD(dtype, e);
    }
    TSRI_TRY(tsr_self_attention_backward_prepare(ctx, &backward, &m.backward_workspace_bytes));
    size_t workspace = m.forward_workspace_bytes > m.backward_workspace_bytes
                           ? m.forward_workspace_bytes
                           : m.backward_workspace_bytes;
    m.inference_bytes = m.weight_bytes + m.activation_bytes + m.inference_workspace_bytes;
    m.training_bytes =
        m.weight_bytes + m.activation_bytes + m.saved_bytes + m.gradient_bytes + workspace;
    *memory = m;
    return TSR_OK;
}
