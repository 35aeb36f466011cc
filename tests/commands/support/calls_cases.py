# SPDX-License-Identifier: Apache-2.0
"""Random cases of the public calls for tests that make them from outside: sizes, tensors, scalars. The headers
(calls_support.py) define which tensors and scalars exist, and each tensor's shapes. This file adds what their comments
only describe in words: which sizes are related, what indices refer to, and which options go together."""
import dataclasses
import math

import numpy as np

import decode_cases
import moe_cases
import quant_cases
from calls_support import DTYPES, alternatives, evaluate

# Always f32 (f64 in f64 calls), as is what a name of row_ has of each row. All other tensors have the main dtype.
FIXED_F32 = {"mean", "rstd", "lse", "lses", "m", "v", "master", "loss", "dloss", "cos", "sin", "inv_freq", "a_scale",
             "b_scale", "b_up_scale", "correction_bias", "topk_weights", "dtopk_weights", "mean_probs", "load_balance_loss",
             "z_loss", "usage_variance", "dload_balance_loss", "dz_loss", "drow_weights", "weights", "shared_gate",
             "dweights", "dshared_gate", "y_scale", "logit_bias", "logprobs", *decode_cases.SCALES,
             *(n + "_scale" for n in moe_cases.WEIGHTS | moe_cases.SHARED_WEIGHTS)}
NOT_FIXED = {("attention_forward", "v"), ("attention_backward", "v")}  # values, not second moments
INDICES = {"cu_seqlens_q", "cu_seqlens_k", "seqused_k", "positions", "ids", "targets", "offsets", "counts", "a_rows", "dc_rows",
           "topk_ids", "tokens_per_expert", "num_nan_rows", "row_tokens", "token_rows", "num_dropped", "x_rows", "history",
           "row_top_k", "row_seed", "row_offset", "kept", *decode_cases.INDICES}
# The main dtype or f32.
SMALL = {"bias", "bias_up", "alibi_slopes", "sinks", "b_qkv", "b_out", "grad", "router", "logits_bias", "b_gate", "b_up", "b_down",
         "q_norm", "k_norm"}
SMALL_OF = {("layernorm", "weight"), ("rmsnorm", "weight"), ("matmul", "residual"), ("moe_combine", "residual")}
TOGETHER = [("k_new", "v_new"), ("cos", "sin"), ("cu_seqlens_q", "cu_seqlens_k"), ("tokens_per_expert", "dload_balance_loss")]
# Optional outputs that are no gradient dX of an X, and the tensor that they come with.
COMES_WITH = {"residual_out": "residual", "weighted_y": "row_weights", "row_weights": "topk_weights"}
# Transposed if the option is set.
TRANSPOSED = {"transpose_a": ("a", "a_scale", "da"), "transpose_b": ("b", "b_up", "b_scale", "b_up_scale", "db")}
TRANSPOSED_GROUPED = {"transpose_b": ("b", "b_up", "b_scale", "b_up_scale", "db")}


# ---- Sizes ---------------------------------------------------------------------------------------

def draw_sizes(rng, call):
    """Draws all sizes that comments name, so that they match."""
    few = lambda low, high: 0 if rng.random() < 0.02 else rng.randint(low, high)
    s = {name: few(1, 9) for name in ("rows", "cols", "n", "m", "k", "hidden", "vocab", "num_parts", "embed_dim", "num_a_rows",
                                      "num_dc_rows", "num_x_rows", "seqlen", "seqlen_q", "seqlen_k", "total", "intermediate",
                                      "num_source_rows", "history_len")}
    s["batch"], s["num_groups"], s["num_heads_kv"] = few(1, 3), few(1, 4), rng.randint(1, 3)
    s["num_heads_q"] = s["num_heads_kv"] * rng.randint(1, 3)
    s["head_dim"] = rng.choice([rng.randint(1, 24), 16, 32, 64])
    s["head_dim_v"] = s["head_dim"] if rng.random() < 0.7 else rng.randint(1, 24)
    if rng.random() < 0.3:
        s |= {name: rng.randint(1, 200) for name in ("cols", "n", "k", "vocab")}
    s["capacity"], s["page_size"], s["max_pages"] = rng.randint(1, 40), rng.randint(1, 9), rng.randint(1, 5)
    s["num_pages"] = s["batch"] * s["max_pages"] + rng.randint(0, 2)
    s["rotary_dim"] = s["head_dim"] // 2 * 2 if rng.random() < 0.6 else 2 * rng.randint(0, s["head_dim"] // 2)
    s["num_positions"] = max(s["seqlen"], s["capacity"], s["max_pages"] * s["page_size"]) + rng.randint(1, 9)
    s |= {"num_heads": s["num_heads_q"], "num_kv_heads": s["num_heads_kv"],
          "qkv_dim": (s["num_heads_q"] + 2 * s["num_heads_kv"]) * s["head_dim"]}
    s["num_experts"] = 2 * rng.randint(1, 9) if rng.random() < 0.8 else 2 * rng.randint(1, 90)
    s["top_k"], s["intermediate_s"] = rng.randint(1, min(s["num_experts"] // 2, 32)), rng.randint(1, 9)
    s["leading"] = [few(1, 4) for _ in range(rng.choice([0, 1, 1, 2, 3] + ([4] if "..., " in str(call.fields) else [])))]
    s["num_rows"] = math.prod(s["leading"]) * s["top_k"] + rng.choice([0, 0, rng.randint(0, 9)])
    s["batches"] = [few(1, 3) for _ in range(rng.choice([0, 0, 1, 2, 3]))]
    return s


# ---- A case ------------------------------------------------------------------------------------

@dataclasses.dataclass
class Case:
    """One call, or forward and backward together."""
    calls: list
    sizes: dict
    main: str
    scalars: dict = dataclasses.field(default_factory=dict)  # the given values, without has_X
    tensors: dict = dataclasses.field(default_factory=dict)
    flags: int = 0
    variant: str = None
    asked: dict = dataclasses.field(default_factory=dict)  # by --results: {name: dtype or None}

    def field(self, name):
        return next(c.fields[name] for c in self.calls if name in c.fields)

    def is_packed(self):
        return "cu_seqlens_q" in self.tensors or self.sizes.get("is_packed")

    def inputs(self):
        """The fields that the caller provides: those that no earlier call of the case writes."""
        written = set()
        for call in self.calls:
            for name, f in call.tensors.items():
                reads = self.scalars.get("accumulate") if "accumulate" in f.comment else f.is_read
                if reads and name not in written and not (name == "preact" and len(self.calls) > 1):
                    yield name, f
            written |= {n for n, f in call.tensors.items() if f.is_written}

    def outputs(self):
        return {n: f for call in self.calls for n, f in call.tensors.items() if f.is_written}

    def shape_of(self, name, rng=None):
        """One of the shapes in a tensor's comment. Without rng the first that matches."""
        if moe_cases.is_moe(self):
            return moe_cases.shape_of(self, name)
        forms = alternatives(self.field(name).comment)
        if isinstance(forms, str):
            if forms in self.tensors:
                return self.tensors[forms].shape
            return self.shape_of(forms, rng) if any(forms in c.fields for c in self.calls) else None
        is_grouped = {"offsets", "counts"} <= set(self.calls[0].fields)
        if is_grouped and name == "a_scale":  # of the tensor, or of blocks
            forms = [forms[1 + ("counts" in self.tensors)]] if self.sizes["has_blocks"] else forms[:1]
        elif is_grouped and name.endswith("_scale"):  # of the tensor, of groups, of blocks
            forms = [forms[1 + self.sizes["has_blocks_of_b"]]] if self.sizes["has_blocks"] else forms[:1]
        elif is_grouped and len(forms) > 1:
            forms = forms[1:] if "counts" in self.tensors or self.sizes.get("has_counts") else forms[:1]
        if name in decode_cases.SCALES:
            return tuple(self.sizes[d] for d in forms[self.sizes["scale_dims"]])
        if name + "_rows" in self.tensors:  # a list of its rows
            forms = [[f"num_{name}_rows", *forms[0][-1:]]]
        if name == "rows" and "num_source_rows" in forms[0] and "row_tokens" not in self.tensors:
            forms = [["num_rows", *forms[0][1:]]]
        if any("total" in form for form in forms):
            forms = [form for form in forms if ("total" in form) == self.sizes["is_packed"]]
        if "x_rows" in self.calls[0].fields and name + "_rows" not in self.tensors:
            forms = forms[-1:] if "x_rows" in self.tensors else forms[:1]
        elif name.endswith("_scale") and not is_grouped and not quant_cases.is_quant(self):
            forms = forms[-1:] if self.sizes["has_blocks"] else forms[:-1]
        form = list(rng.choice(forms) if rng else forms[0])
        if self.is_packed() and "cu_seqlens_q" in self.calls[0].fields:
            if form[:1] == ["batch"] and form[1:2] in (["seqlen_q"], ["seqlen_k"]):
                form = [form[1].replace("seqlen", "total"), *form[2:]]
            elif form[-1:] == ["seqlen_q"]:
                form = ["num_heads_q", "total_q"]
        if name in decode_cases.CACHES:
            form = decode_cases.cache_form(self, form)
        shape = []
        for dimension in form:
            if dimension in ("...", "batch..."):
                is_shared = name in ("b", "b_up", "b_scale", "b_up_scale", "db") and self.sizes["shared_b"]
                shape += self.sizes["leading" if dimension == "..." else "batches"] if not is_shared else []
            elif dimension.endswith("|1"):
                shape.append(1 if rng and rng.random() < 0.4 else evaluate(dimension[:-2], self.sizes))
            else:
                shape.append(evaluate(dimension, self.sizes))
        swaps = TRANSPOSED if "transpose_a" in self.calls[0].fields else TRANSPOSED_GROUPED
        if any(self.scalars.get(option) and name in names for option, names in swaps.items()) and len(shape) > 1:
            shape[-2:] = shape[:-3:-1]
        return tuple(shape)

    def dtype_of(self, name, rng=None):
        op = self.calls[0].op
        if name in INDICES:
            return "i32"
        if name == "tree_mask" or quant_cases.is_bytes(self, name):
            return "u8"
        if (name in FIXED_F32 or name.startswith("row_")) and (op, name) not in NOT_FIXED or (name == "v" and op == "adamw_step"):
            return "f64" if self.main == "f64" else "f32"
        if "accumulate" in self.field(name).comment and self.scalars.get("accumulate"):
            return "f64" if self.main == "f64" else "f32"
        if self.main in ("e4m3", "e5m2") and op.startswith("matmul"):
            if name not in ("a", "b", "b_up"):
                return "f32"
            return self.sizes["fp8_b"] if name != "a" else self.main
        if self.main == "f32" and op in ("matmul_forward", "matmul_grouped_forward") and name in ("b", "b_up"):
            return self.sizes["b_dtype"] if len(self.calls) == 1 else "f32"
        if name in decode_cases.CACHES and self.sizes["e4m3_caches"]:
            return "e4m3"
        if moe_cases.is_moe(self) and moe_cases.is_fp8(self, name):
            return "e4m3"
        if moe_cases.is_moe(self) and name in ("logits", "dlogits"):
            return "f64" if self.main == "f64" else "f32"
        is_small = name in SMALL or (op.rsplit("_", 1)[0], name) in SMALL_OF
        return "f32" if is_small and self.main != "f64" and rng and rng.random() < 0.4 else self.main

    def output_dtype(self, name):
        """The dtype that apply gives an output by default."""
        if self.asked.get(name):
            return self.asked[name]
        if self.calls[0].op == "cast":
            return self.scalars.get("to", "bf16")
        if self.calls[0].op == "quantize" and name == "y":
            return self.scalars["to"]
        if self.calls[0].op == "dequantize":
            return "f64" if any(t.dtype == np.float64 for t in self.tensors.values()) else "f32"
        if name[1:] in self.tensors and name[0] == "d":
            return next(n for n, d in DTYPES.items() if d == self.tensors[name[1:]].dtype)
        return self.dtype_of(name)

    def wanted(self):
        """The outputs that the calls must return."""
        inputs = {n for call in self.calls for n, f in call.tensors.items() if f.is_read}
        result = {}
        for name, f in self.outputs().items():
            model = COMES_WITH.get(name, name[1:] if name[0] == "d" else None)
            if f.is_read and "accumulate" not in f.comment:  # both input and output
                if name in self.tensors:
                    result[name] = f
            elif not f.is_optional:
                result[name] = f
            elif self.is_for_later(name) and (model is None or model in self.tensors):
                result[name] = f
            elif self.asked:
                if name in self.asked:
                    result[name] = f
            elif model is None or model not in inputs or model in self.tensors:
                result[name] = f
        return {n: f for n, f in result.items() if not moe_cases.is_moe(self) or moe_cases.can_give(self, n)}

    def is_for_later(self, name):
        return len(self.calls) > 1 and name in self.calls[0].fields and \
            (name in self.calls[1].fields or name in COMES_WITH)


# ---- Values ------------------------------------------------------------------------------------

def ascending(rng, count, total):
    """Draws count + 1 offsets from 0 to at most total."""
    return np.array([0, *sorted(rng.randint(0, total) for _ in range(count))], np.int32)


def indices(rng, case, name, shape):
    s = case.sizes
    below = lambda high: np.array([rng.randint(0, max(high - 1, 0)) for _ in range(int(np.prod(shape)))],
                                  np.int32).reshape(shape)
    if name.startswith("cu_seqlens"):
        offsets = ascending(rng, shape[0] - 1, s["total_" + name[-1]])
        if rng.random() < 0.1:  # clamped; only the ends, because inner rows could then belong to two sequences
            offsets[0] = -2
        if rng.random() < 0.1:
            offsets[-1] = 99
        return offsets
    if name == "offsets":
        return ascending(rng, shape[0] - 1, s["num_rows" if "dbias" in case.field_names else "rows"])
    if name in decode_cases.INDICES:
        return decode_cases.indices(rng, case, name, shape)
    high = {"seqused_k": s["seqlen_k"] + 1, "positions": s["num_positions"], "ids": s["vocab"], "targets": s["vocab"],
            "topk_ids": s["num_experts"], "token_rows": s["num_rows"], "tokens_per_expert": 30, "counts": s["rows"] + 1,
            "a_rows": s["num_a_rows"], "dc_rows": s["num_dc_rows"], "x_rows": s["num_x_rows"],
            "row_tokens": s["num_source_rows"], "history": s["vocab"] + 2}.get(name, 2**31)
    values = below(high)
    if name in ("topk_ids", "token_rows", "x_rows", "history"):
        values[below(8).reshape(shape) == 0] = -1
    if name == "targets" and rng.random() < 0.5:
        values.reshape(-1)[:1] = case.scalars.get("ignore_index", -100)
    return values


def values(rng, case, name, shape, dtype):
    if name == "topk_ids" and moe_cases.is_moe(case):
        return moe_cases.ids(rng, case, shape)
    if dtype == "i32":
        return indices(rng, case, name, shape)
    if dtype == "u8":
        most = 2 if name == "tree_mask" else 256
        return np.asarray(np.random.default_rng(rng.getrandbits(32)).integers(0, most, shape), np.uint8)
    numbers = np.random.default_rng(rng.getrandbits(32)).standard_normal(shape)
    if name in ("v", "rstd", "inv_freq") or name.endswith("_scale"):
        numbers = 0.1 + np.abs(numbers)
    numbers = np.abs(numbers) % 1 if name[:5] in ("row_t", "row_m", "row_r") else numbers  # in the range of such options
    return np.asarray(numbers, DTYPES[dtype]).reshape(shape)


# Values that a call accepts, and one that it refuses (None: it accepts all).
SCALARS = {
    "mask": (lambda r, s: r.randint(0, 2), None), "softmax_scale": (lambda r, s: r.uniform(-1, 1), None),
    "softcap": (lambda r, s: r.uniform(0.5, 9), -1.0), "window_left": (lambda r, s: r.randint(0, 9), -2),
    "window_right": (lambda r, s: r.randint(0, 9), -2), "dropout_p": (lambda r, s: r.uniform(0, 0.9), 1.0),
    "seed": (lambda r, s: r.randint(0, 2**52), None), "offset": (lambda r, s: r.randint(0, 2**52), None),
    "max_seqlen_q": (lambda r, s: r.randint(1, 12), -1), "max_seqlen_k": (lambda r, s: r.randint(1, r.choice([4, 12, 60])), -1),
    "interleaved": (lambda r, s: 1, None), "num_heads": (lambda r, s: s["num_heads"], 0),
    "num_kv_heads": (lambda r, s: s["num_kv_heads"], 7), "rotary_dim": (lambda r, s: s["rotary_dim"], 3),
    "kind": (lambda r, s: r.randint(0, 6), None), "activation": (lambda r, s: r.randint(1, 6), None),
    "transpose_a": (lambda r, s: 1, None), "transpose_b": (lambda r, s: 1, None), "accumulate": (lambda r, s: 1, None),
    "fast_accumulate": (lambda r, s: 1, None), "math": (lambda r, s: r.randint(0, 2), None),
    "alpha": (lambda r, s: r.uniform(-2, 2), None), "scale": (lambda r, s: r.uniform(-2, 2), None),
    "norm_eps": (lambda r, s: r.uniform(1e-6, 1), -1.0), "zero_centered_weight": (lambda r, s: 1, None),
    "eps": (lambda r, s: r.uniform(1e-6, 1), -1.0), "label_smoothing": (lambda r, s: r.uniform(0, 0.9), 1.0),
    "ignore_index": (lambda r, s: r.randint(-3, 9), None), "padding_id": (lambda r, s: r.randint(0, max(s["vocab"] - 1, 0)), -2),
    "lr": (lambda r, s: r.uniform(1e-4, 1), None), "beta1": (lambda r, s: r.uniform(0, 0.99), 1.0),
    "beta2": (lambda r, s: r.uniform(0, 0.99), 1.0), "weight_decay": (lambda r, s: r.uniform(0, 0.5), None),
    "grad_scale": (lambda r, s: r.uniform(0.1, 9), None), "step": (lambda r, s: r.randint(1, 10**9), 0),
    "scoring": (lambda r, s: 1, None), "no_renormalize": (lambda r, s: 1, None), "group_score": (lambda r, s: 1, None),
    "routed_scaling": (lambda r, s: r.uniform(-2, 2), None), "round_weights": (lambda r, s: r.randint(3, 4), None),
    "capacity": (lambda r, s: r.randint(1, 9), -1), "top_k": (lambda r, s: s["top_k"], 33),
    "weights_on_input": (lambda r, s: 1, None), "quant": (lambda r, s: r.randint(1, 9), None),
    "group": (lambda r, s: 32 * r.randint(1, 3), 33), "logprobs_of": (lambda r, s: 1, None),
    "num_groups": (lambda r, s: r.choice([2, s["num_experts"] // 2]), -1), "topk_groups": (lambda r, s: 1, -1),
    "temperature": (lambda r, s: r.uniform(0.1, 2), -1.0), "top_p": (lambda r, s: r.uniform(0, 1), 1.5),
    "min_p": (lambda r, s: r.uniform(0, 1), -0.5), "repetition_penalty": (lambda r, s: r.uniform(0.5, 3), -1.0),
    "presence_penalty": (lambda r, s: r.uniform(-3, 3), None), "frequency_penalty": (lambda r, s: r.uniform(-3, 3), None),
    "base": (lambda r, s: r.uniform(1, 1e6), -1.0), "attention_factor": (lambda r, s: r.uniform(0.5, 2), None),
    "scaling.factor": (lambda r, s: r.uniform(1, 16), -1.0), "scaling.low_freq_factor": (lambda r, s: r.uniform(0.5, 2), 9.0),
    "scaling.high_freq_factor": (lambda r, s: r.uniform(3, 6), 0.1),
    "scaling.original_max_position": (lambda r, s: r.uniform(10, 9000), 0.0),
}
NEEDS = {"bias_up": "b_up", "preact": "activation", "seed": "dropout_p", "offset": "dropout_p", "max_seqlen_q": "cu_seqlens_q",
         "max_seqlen_k": "cu_seqlens_q", "window_right": "mask", "topk_groups": "num_groups",
         "group_score": "topk_groups"}  # no effect without the other
NEEDED = {"num_heads": 0.97, "top_k": 1, "quant": 1}  # the chance that a scalar is given; others have a third


def draw_scalars(rng, case, forced, spoiled):
    for call in case.calls:
        for name, f in call.scalars.items():
            if name.startswith("has_") or name in case.scalars:
                continue
            draw, bad = SCALARS[name]
            is_needed = name in forced or any(name == NEEDS.get(other) for other in forced)
            if not is_needed and rng.random() >= NEEDED.get(name, 0.33):
                continue
            value = bad if name == spoiled and bad is not None else draw(rng, case.sizes)
            case.scalars[name] = float(np.float32(value)) if f.type == "float" else value


def is_there(rng, case, name, f, forced, absent):
    """Whether the case gives this input."""
    if name in absent or name in forced:
        return name in forced
    if any(NEEDS.get(other) == name for other in forced):
        return True
    for pair in TOGETHER:
        if name == pair[1] and pair[0] in case.field_names and rng.random() < 0.97:
            return pair[0] in case.tensors
        if name == pair[0] and pair[1] in forced:
            return True
    if name == "counts":
        return ("offsets" not in case.tensors) == (rng.random() < 0.98)
    if name in ("a_rows", "dc_rows") and "counts" in case.tensors:
        return rng.random() < 0.02
    if name == "a_rows" and case.main in ("e4m3", "e5m2"):
        return rng.random() < 0.02
    if name == "preact":
        return bool(case.scalars.get("activation"))
    if name == "bias_up" and "b_up" not in case.tensors:
        return False
    if name == "bias" and "layernorm" in case.calls[0].op and "weight" not in case.tensors:
        return False
    if quant_cases.is_beside(case, name):
        return quant_cases.is_there(rng, case, name)
    if name in decode_cases.SCALES:
        return case.sizes["e4m3_caches"] == (rng.random() < 0.97)
    if name.endswith("_scale"):
        return case.main in ("e4m3", "e5m2") and (case.sizes["has_blocks"] or rng.random() < 0.5) and \
            (name != "b_up_scale" or "b_up" in case.tensors)
    return not f.is_optional or rng.random() < 0.45


def draw_case(rng, calls, forced=(), absent=(), spoiled=None, dtypes=None):
    op = calls[0].op
    main = rng.choice(dtypes or ["f32"] * 5 + ["bf16"] * 2 + ["f16"] * 2 + ["f64"])
    if set(forced) & {"a_scale", "b_scale", "b_up_scale"} and op != "matmul_quant" or (
            len(calls) == 1 and op in ("matmul_forward", "matmul_grouped_forward", "cast") and rng.random() < 0.3):
        main = rng.choice(["e4m3", "e5m2"])
    case = Case(calls, draw_sizes(rng, calls[0]), main)
    case.field_names = {n for c in calls for n in c.tensors}
    s = case.sizes
    s |= {"is_packed": "positions" in case.field_names and rng.random() < 0.3, "has_blocks": rng.random() < 0.5,
          "has_blocks_of_b": rng.random() < 0.5,
          "shared_b": rng.random() < 0.4, "fp8_b": rng.choice(["e4m3", "e5m2"]),
          "b_dtype": rng.choice(["f32", "f32", "bf16", "f16"]), **decode_cases.draw_sizes(rng, main, forced)}
    draw_scalars(rng, case, forced, spoiled)
    if op == "cast":
        case.scalars["to"] = rng.choice(["bf16", "f16", "f32", "e4m3", "e5m2", "f64"])
    if op == "quantize":
        case.scalars["to"] = rng.choice(["e4m3", "e5m2"])
    if quant_cases.is_quant(case):
        quant_cases.set_row(case)
    if "cu_seqlens_q" in case.field_names:
        s["total_q"], s["total_k"] = s["seqlen_q"] * max(s["batch"], 1), s["seqlen_k"] * max(s["batch"], 1)
    if moe_cases.is_moe(case):
        moe_cases.draw_tensors(rng, case, forced, absent, lambda name, shape: values(
            rng, case, name, shape, case.dtype_of(name, rng)))
        return case
    order = sorted(case.inputs(), key=lambda item: item[0] not in INDICES)  # first those on which shapes depend
    for name, f in order:
        if not is_there(rng, case, name, f, forced, absent):
            continue
        if name == "cu_seqlens_q":
            case.tensors[name] = np.zeros(0)  # marks the case as packed
        shape = case.shape_of(name, rng)
        if shape is None or len(shape) > 5:
            return None
        case.tensors[name] = values(rng, case, name, shape, case.dtype_of(name, rng))
        if name in ("cu_seqlens_q", "cu_seqlens_k"):
            set_longest(case, name)
    if all(name in INDICES for name in case.tensors):
        case.main = "f32"
    return case


def longest_of(case, side):
    """The longest packed sequence according to the offsets, if nothing else gives it."""
    cu, total = case.tensors["cu_seqlens_" + side].astype(np.int64), case.sizes["total_" + side]
    return int(min(max([0, *(cu[1:] - np.maximum(cu[:-1], 0))]), total))


def set_longest(case, name):
    """In a packed call bias has the dimensions of the longest sequence: max_seqlen, or all if that is 0; at most total."""
    side, s = name[-1], case.sizes
    given = case.scalars.get("max_seqlen_" + side, 0)
    longest = given if given > 0 else longest_of(case, side)
    s["seqlen_" + side] = min(longest, s["total_" + side]) or s["total_" + side]
