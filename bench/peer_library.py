# SPDX-License-Identifier: Apache-2.0
"""Calls libtessera.so with ctypes, for the peers of `tessera bench`. Tensors are objects with data_ptr, dtype, shape and stride
like torch's. The structs are those of include/tessera/; a test compares them with the headers."""
import ctypes

# ---- The library's structs, as include/tessera/ declares them ------------------------------------------------

F32, BF16, F16, E4M3, E5M2, I32 = 2, 3, 4, 5, 6, 7


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("device", ctypes.c_int * 2),
                ("ndim", ctypes.c_int32), ("shape", ctypes.c_int64 * 5), ("stride", ctypes.c_int64 * 5)]


class ContextOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("device", ctypes.c_int * 2), ("isa", ctypes.c_int),
                ("num_threads", ctypes.c_int32), ("parallel_for", ctypes.c_void_p),
                ("parallel_for_user", ctypes.c_void_p), ("allocator", ctypes.c_void_p * 3),
                ("l3_bytes", ctypes.c_int64), ("stream", ctypes.c_void_p), ("tuning_file", ctypes.c_char_p)]


CALL = [("size", ctypes.c_size_t), ("flags", ctypes.c_uint32), ("variant", ctypes.c_char_p),
        ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_size_t)]


def scalars(names, kind):
    return [(name, kind) for name in names.split()]


ATTENTION = (scalars("mask", ctypes.c_int) + scalars("softmax_scale softcap", ctypes.c_float) +
             scalars("has_window_left has_window_right", ctypes.c_int32) +
             scalars("window_left window_right max_seqlen_q max_seqlen_k", ctypes.c_int64) +
             scalars("dropout_p", ctypes.c_double) + scalars("seed offset", ctypes.c_uint64))
NORM = [("zero_centered_weight", ctypes.c_int32)]
EPS = [("eps", ctypes.c_float), ("has_eps", ctypes.c_int32)] + NORM
ATTENTION_INPUTS = "q k v bias alibi_slopes sinks cu_seqlens_q cu_seqlens_k seqused_k out lse"
MATMUL = scalars("transpose_a transpose_b", ctypes.c_int32) + scalars("activation", ctypes.c_int)
ROPE = [("rotary_dim", ctypes.c_int64), ("interleaved", ctypes.c_int32)]
MOE_SCORES = (scalars("scoring", ctypes.c_int) + scalars("no_renormalize", ctypes.c_int32) +
              [("routed_scaling", ctypes.c_float), ("has_routed_scaling", ctypes.c_int32)])
MOE = ([("top_k", ctypes.c_int64)] + MOE_SCORES + scalars("num_groups topk_groups", ctypes.c_int32) +
       scalars("group_score round_weights activation", ctypes.c_int) +
       [("weights_on_input", ctypes.c_int32), ("capacity", ctypes.c_int64), ("has_capacity", ctypes.c_int32)])
CROSS_ENTROPY = scalars("ignore_index has_ignore_index", ctypes.c_int32) + [("label_smoothing", ctypes.c_float)]

# The names of the tensors, then the fields after them.
ARGS = {
    "softmax_forward": ("x y", []),
    "softmax_backward": ("y dy dx", []),
    "layernorm_forward": ("x residual weight bias y residual_out mean rstd", EPS),
    "layernorm_backward": ("x weight mean rstd dy dresidual_out dx dweight dbias", NORM),
    "rmsnorm_forward": ("x residual weight y residual_out rstd", EPS),
    "rmsnorm_backward": ("x weight rstd dy dresidual_out dx dweight", NORM),
    "matmul_forward": ("a b b_up bias residual c", MATMUL + [
        ("accumulate", ctypes.c_int32), ("alpha", ctypes.c_float), ("has_alpha", ctypes.c_int32)] +
        scalars("a_scale b_scale b_up_scale", Tensor) + [("fast_accumulate", ctypes.c_int32),
                                                          ("math", ctypes.c_int), ("bias_up", Tensor)]),
    "matmul_backward": ("a b preact dc da db dbias", MATMUL),
    "matmul_grouped_forward": ("a b b_up bias offsets counts c", [
        ("transpose_b", ctypes.c_int32), ("activation", ctypes.c_int), ("accumulate", ctypes.c_int32),
        ("alpha", ctypes.c_float), ("has_alpha", ctypes.c_int32)] + scalars("a_rows bias_up a_scale b_scale b_up_scale", Tensor)),
    "matmul_grouped_backward": ("a dc offsets counts db", [
        ("transpose_b", ctypes.c_int32), ("accumulate", ctypes.c_int32),
        ("alpha", ctypes.c_float), ("has_alpha", ctypes.c_int32)] + scalars("a_rows dc_rows", Tensor)),
    "activation_forward": ("x up y", [("kind", ctypes.c_int)]),
    "activation_backward": ("x up dy dx dup", [("kind", ctypes.c_int)] +
                            scalars("row_weights weighted_y drow_weights", Tensor)),
    "cross_entropy_forward": ("logits targets loss lse", CROSS_ENTROPY),
    "cross_entropy_backward": ("logits targets lse dloss dlogits", CROSS_ENTROPY),
    "cast": ("x y", [("scale", ctypes.c_float), ("has_scale", ctypes.c_int32)]),
    "rope_forward": ("x cos sin positions y", ROPE),
    "rope_backward": ("dy cos sin positions dx", ROPE),
    "embedding_forward": ("ids weight y", []),
    "embedding_backward": ("ids dy dweight", scalars("accumulate padding_id has_padding_id", ctypes.c_int32)),
    "moe_route_forward": ("logits correction_bias topk_ids topk_weights tokens_per_expert mean_probs load_balance_loss "
                          "z_loss usage_variance lse num_nan_rows", MOE_SCORES +
                          scalars("num_groups topk_groups", ctypes.c_int32) +
                          scalars("group_score round_weights", ctypes.c_int)),
    "moe_route_backward": ("logits topk_ids dtopk_weights tokens_per_expert dload_balance_loss dz_loss dlogits",
                           MOE_SCORES),
    "moe_forward": (
        "x router logits_bias logits correction_bias w_gate w_up w_down b_gate b_up b_down shared_w_gate "
        "shared_w_up shared_w_down shared_gate residual y preact shared_preact topk_ids topk_weights offsets "
        "tokens_per_expert mean_probs load_balance_loss z_loss usage_variance num_nan_rows num_dropped",
        MOE + scalars("w_gate_scale w_up_scale w_down_scale shared_w_gate_scale shared_w_up_scale shared_w_down_scale", Tensor)),
    "moe_backward": (
        "x router logits_bias logits w_gate w_up w_down b_down shared_w_gate shared_w_up shared_w_down "
        "shared_gate preact shared_preact topk_ids topk_weights dy dload_balance_loss dz_loss dx drouter "
        "dlogits_bias dlogits dtopk_weights dw_gate dw_up dw_down db_gate db_up db_down dshared_w_gate "
        "dshared_w_up dshared_w_down dshared_gate", [("accumulate", ctypes.c_int32)] + MOE),
    "adamw_step": ("param grad m v master", scalars("lr beta1 beta2 eps weight_decay grad_scale", ctypes.c_double) + [
        ("has_grad_scale", ctypes.c_int32), ("step", ctypes.c_int64)]),
    "attention_forward": (ATTENTION_INPUTS, ATTENTION),
    "attention_backward": (ATTENTION_INPUTS + " dout dq dk dv dbias dsinks", ATTENTION),
}


def args_struct(op):
    tensors, rest = ARGS[op]
    return type(op, (ctypes.Structure,), {"_fields_": CALL + scalars(tensors, Tensor) + rest})


# ---- Calls ---------------------------------------------------------------------------------------------------

class Refusal(Exception):
    """A case that Tessera or the peer cannot compute."""


class Library:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.tsr_last_error.restype = self.library.tsr_version.restype = ctypes.c_char_p
        self.version = self.library.tsr_version().decode()
        self.contexts = {}

    def check(self, status):
        if status != 0:
            raise Refusal(self.library.tsr_last_error().decode())

    def context(self, isa, threads, device=(0, 0), stream=None):
        """device: (1, N) for cuda:N. stream: the number of the stream that gets its calls."""
        key = isa, threads, device, stream
        if key not in self.contexts:
            options = ContextOptions(size=ctypes.sizeof(ContextOptions), isa=isa, num_threads=threads, device=device,
                                     stream=stream)
            context = ctypes.c_void_p()
            self.check(self.library.tsr_context_create(ctypes.byref(options), ctypes.byref(context)))
            self.contexts[key] = context
        return self.contexts[key]

    def call(self, op, context, tensors, number_of, **options):
        """Returns a function without arguments that makes the call. number_of: from the tensors' dtypes to tsr_dtype."""
        args = args_struct(op)()
        args.size = ctypes.sizeof(args)
        for name, tensor in tensors.items():
            device = (1, tensor.device.index) if tensor.device.type == "cuda" else (0, 0)
            view = Tensor(data=tensor.data_ptr(), dtype=number_of[tensor.dtype], device=device, ndim=tensor.dim())
            for i in range(tensor.dim()):
                view.shape[i], view.stride[i] = tensor.shape[i], tensor.stride(i)
            setattr(args, name, view)
        for name, value in options.items():
            setattr(args, name, value)
        function, reference = getattr(self.library, "tsr_" + op), ctypes.byref(args)

        def run():
            self.check(function(context, reference))
        run.keep = (args, tensors)  # the memory that `reference` points to must stay alive
        return run


class Contest:
    """ours: the call of Tessera. outputs: the names of its outputs that are compared. paths: the peer's ways to compute them,
    pairs of a name and a function that returns the outputs in this order. expected: by name, the values that replace a path's
    output in the comparison."""

    def __init__(self, ours, outputs, paths, expected=()):
        self.ours, self.outputs, self.paths, self.expected = ours, outputs, paths, dict(expected)
