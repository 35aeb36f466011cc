# SPDX-License-Identifier: Apache-2.0
"""The routers of published models: our options for each, transformers' router of the same model, and files of the numbers that
transformers gives, so that a test needs neither torch nor transformers.

    python moe_route_models.py FILE.npz     writes FILE.npz; needs transformers

The file has logits, (1000, 64) int16 in units of 2^-10, all different within a token; a model with E experts takes the first E
columns. Of each model it has NAME_ids (1000, K) uint8 and NAME_weights (1000, K) f32, sorted by id within a token, and where
there is one NAME_bias (E) f32 and NAME_loss (1) f32."""
import ctypes
import importlib
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "bench"))
import peer_library  # noqa: E402

TOKENS, MOST_EXPERTS, UNIT = 1000, 64, 2.0 ** -10
SIGMOID, GROUP_MAX = 1, 1
NEAR = 1e-6  # choices that differ by less are not compared
BIASED = dict(scoring=SIGMOID, bias=True)


class Model:
    """name: transformers' module and the prefix of its classes. config: transformers' names. rule: the options of
    tsr_moe_route_forward; bias: whether the model has a correction bias. rounds: a model in bf16 rounds its weights."""

    def __init__(self, name, prefix, experts, top_k, config, rounds=False, bias=False, has_loss=False, **rule):
        self.name, self.prefix, self.experts, self.top_k = name, prefix, experts, top_k
        self.config, self.rounds, self.has_bias, self.has_loss, self.rule = config, rounds, bias, has_loss, rule


def sizes(experts, experts_name, top_k, top_k_name="num_experts_per_tok", **more):
    return {experts_name: experts, top_k_name: top_k, **more}


GROUPED = dict(n_group=8, topk_group=4, routed_scaling_factor=2.5, norm_topk_prob=True)
MODELS = {model.name: model for model in (
    Model("mixtral", "Mixtral", 8, 2, sizes(8, "num_local_experts", 2), has_loss=True),
    Model("qwen3_moe", "Qwen3Moe", 64, 8, sizes(64, "num_experts", 8, norm_topk_prob=True), rounds=True, has_loss=True),
    Model("qwen2_moe", "Qwen2Moe", 60, 4, sizes(60, "num_experts", 4, norm_topk_prob=False), rounds=True, has_loss=True,
          no_renormalize=1),
    Model("gpt_oss", "GptOss", 32, 4, sizes(32, "num_local_experts", 4), rounds=True),
    Model("deepseek_v2", "DeepseekV2", 64, 6,
          sizes(64, "n_routed_experts", 6, n_group=8, topk_group=3, topk_method="group_limited_greedy",
                routed_scaling_factor=16.0),
          no_renormalize=1, num_groups=8, topk_groups=3, group_score=GROUP_MAX, routed_scaling=16.0),
    Model("deepseek_v3", "DeepseekV3", 64, 8, sizes(64, "n_routed_experts", 8, **GROUPED), **BIASED, num_groups=8,
          topk_groups=4, routed_scaling=2.5),
    Model("glm4_moe", "Glm4Moe", 64, 8, sizes(64, "n_routed_experts", 8, n_group=1, topk_group=1, norm_topk_prob=True,
                                               routed_scaling_factor=2.5), **BIASED, routed_scaling=2.5),
    Model("llama4", "Llama4", 16, 1, sizes(16, "num_local_experts", 1), rounds=True, scoring=SIGMOID, no_renormalize=1),
    Model("minimax_m2", "MiniMaxM2", 64, 8, sizes(64, "num_local_experts", 8), **BIASED),
    Model("ernie4_5_moe", "Ernie4_5_Moe", 64, 6, sizes(64, "moe_num_experts", 6, "moe_k"), rounds=True, bias=True),
)}

# ---- Our call ------------------------------------------------------------------------------------------------

NUMBER_OF = {"float32": peer_library.F32, "bfloat16": peer_library.BF16, "int32": peer_library.I32}


class Array:
    """A NumPy array with the part of torch's interface that peer_library reads."""
    class device:
        type = "cpu"

    def __init__(self, values):
        self.values, self.dtype, self.shape = values, values.dtype, values.shape

    def dim(self):
        return self.values.ndim

    def stride(self, i):
        return self.values.strides[i] // self.values.itemsize

    def data_ptr(self):
        return self.values.ctypes.data


class Numbers:
    """From a dtype of NumPy or torch to the library's."""

    def __getitem__(self, dtype):
        return NUMBER_OF[str(dtype).removeprefix("torch.")]


def route(library, model, logits, bias, device=None, **more):
    """Ids, weights and load_balance_loss by the library. logits: an array, or a tensor of torch. device: of torch, where the call
    runs (None: the CPU, without torch)."""
    poison = {"topk_ids": np.full((len(logits), model.top_k), -7, "int32"),
              "topk_weights": np.full((len(logits), model.top_k), np.nan, "float32"),
              "tokens_per_expert": np.full(model.experts, -7, "int32"),
              "load_balance_loss": np.full(1, np.nan, "float32")}
    tensors = {"logits": logits, **({} if bias is None else {"correction_bias": bias}), **poison}
    if device is None:
        context = library.context(0, 1)
        tensors = {name: Array(given) if isinstance(given, np.ndarray) else given for name, given in tensors.items()}
    else:
        import torch
        context = library.context(0, 0, (1, device.index), torch.cuda.current_stream(device).cuda_stream)
        tensors = {name: torch.as_tensor(given).to(device) for name, given in tensors.items()}
    rule = dict(model.rule, **more)
    if "routed_scaling" in rule:
        rule["has_routed_scaling"] = 1
    library.call("moe_route_forward", context, tensors, Numbers(), **rule)()
    outputs = [tensors[name] for name in ("topk_ids", "topk_weights", "load_balance_loss")]
    return [out.values if device is None else out.cpu().numpy() for out in outputs]


# ---- Comparing -----------------------------------------------------------------------------------------------

def choices(model, logits, bias):
    """What chooses, in double: the numbers that are compared, and for each token the smallest difference that excluded a group
    or an expert. Without a bias and without sums the logits decide."""
    x, k, rule = logits.astype(np.float64), model.top_k, model.rule
    groups, left = rule.get("num_groups", 1), rule.get("topk_groups", 1)
    if bias is not None or (groups > left and rule.get("group_score") != GROUP_MAX):
        e = np.exp(x - x.max(-1, keepdims=True))
        x = 1 / (1 + np.exp(-x)) if rule.get("scoring") == SIGMOID else e / e.sum(-1, keepdims=True)
        x = x + bias
    gap = np.full(len(x), np.inf)
    if groups > left:
        parts = -np.sort(-x.reshape(len(x), groups, -1), -1)
        of_group = parts[..., 0] + (0 if rule.get("group_score") == GROUP_MAX else parts[..., 1])
        order = np.argsort(-of_group, -1)
        best = np.take_along_axis(of_group, order, -1)
        gap = best[:, left - 1] - best[:, left]
        allowed = np.zeros_like(of_group, bool)
        np.put_along_axis(allowed, order[:, :left], True, -1)
        x = np.where(np.repeat(allowed, model.experts // groups, -1), x, -np.inf)
    best = -np.sort(-x, -1)
    return x, np.minimum(gap, best[:, k - 1] - best[:, k])


def by_id(ids, weights):
    order = np.argsort(ids, -1)
    return np.take_along_axis(ids, order, -1), np.take_along_axis(weights, order, -1)


def compare(model, logits, bias, ours, theirs, within=2e-6):
    """Asserts that ours, ids and weights, are theirs. Returns the largest difference of weights above 1 as a share of them, else
    absolute, and the number of tokens with a tie."""
    numbers, gap = choices(model, logits, bias)
    ids, weights = ours[0], ours[1]
    assert ((ids >= 0) & (ids < model.experts)).all()
    chosen = np.take_along_axis(numbers, ids.astype(np.int64), -1)
    assert (chosen[:, :-1] >= chosen[:, 1:] - NEAR).all(), "the best is not first"
    decided = gap > NEAR
    ids, weights = by_id(ids, weights)
    their_ids, their_weights = by_id(theirs[0].astype(np.int32), theirs[1])
    wrong = np.flatnonzero(decided & (ids != their_ids).any(-1))
    assert len(wrong) == 0, f"{len(wrong)} tokens, the first {wrong[0]}: {ids[wrong[0]]}, {their_ids[wrong[0]]}"
    off = np.abs(weights - their_weights)[decided] / np.maximum(1, np.abs(their_weights[decided]))
    assert (off <= within).all(), f"weights differ by {off.max()}"
    return off.max(), int((~decided).sum())


# ---- transformers --------------------------------------------------------------------------------------------

def classes(model):
    """The module of the model, its configuration and its router."""
    module = importlib.import_module(f"transformers.models.{model.name}.modeling_{model.name}")
    settings = importlib.import_module(f"transformers.models.{model.name}.configuration_{model.name}")
    router = next(kind for kind in ("TopKRouter", "TopkRouter", "Router") if hasattr(module, model.prefix + kind))
    config = "Llama4TextConfig" if model.name == "llama4" else model.prefix + "Config"
    return module, getattr(settings, config), getattr(module, model.prefix + router)


def random_bias(model, generator):
    return (0.1 * generator.standard_normal(model.experts)).astype("float32") if model.has_bias else None


def their_route(model, hidden, weight, router_bias=None, bias=None, dtype=None):
    """Logits, ids and weights of transformers' router, whose product is hidden weight^T + router_bias."""
    import torch
    _, config, router = classes(model)
    gate = router(config(hidden_size=hidden.shape[1], **model.config)).to(dtype or torch.float32)
    with torch.no_grad():
        gate.weight.copy_(torch.from_numpy(weight))
        if model.name == "gpt_oss":
            gate.bias.copy_(torch.from_numpy(router_bias if router_bias is not None else np.zeros(len(weight), "float32")))
        arguments = [torch.from_numpy(hidden).to(gate.weight.dtype)]
        if model.name == "minimax_m2":
            arguments.append(torch.from_numpy(bias))
        elif model.name == "ernie4_5_moe":
            gate.moe_statics.e_score_correction_bias.data = torch.from_numpy(bias)[None]
        elif bias is not None:
            gate.e_score_correction_bias = torch.from_numpy(bias)
        out = gate(*arguments)
        if model.name == "llama4":  # scores of all experts, 0 for those that were not chosen
            ids = out[0].topk(model.top_k, -1).indices
            out = out[1], out[0].gather(1, ids), ids
    return out[0], out[2].numpy(), out[1].float().numpy()


def their_loss(model, logits):
    """load_balancing_loss_func, which is top_k times our load_balance_loss."""
    import torch
    module, *_ = classes(model)
    return module.load_balancing_loss_func((torch.as_tensor(logits),), model.experts, model.top_k).numpy().reshape(1)


# ---- The file ------------------------------------------------------------------------------------------------

def draw_logits(generator):
    """Normal numbers of three scales, int16 in UNIT, different within a token."""
    scale = generator.choice([0.5, 1.5, 4.0], TOKENS)
    logits = np.zeros((TOKENS, MOST_EXPERTS), np.int16)
    for t in range(TOKENS):
        while len(set(logits[t])) < MOST_EXPERTS:
            logits[t] = np.rint(np.clip(scale[t] * generator.standard_normal(MOST_EXPERTS), -31, 31) / UNIT)
    return logits


def golden_logits(model, raw):
    return np.ascontiguousarray(raw[:, :model.experts] * np.float32(UNIT))


def make_golden(path):
    generator = np.random.default_rng(20261201)
    arrays = {"logits": draw_logits(generator)}
    for model in MODELS.values():
        logits, bias = golden_logits(model, arrays["logits"]), random_bias(model, generator)
        router_bias = (np.rint(generator.standard_normal(model.experts) / UNIT) * UNIT).astype("float32")
        hidden = logits - router_bias if model.name == "gpt_oss" else logits
        given, ids, weights = their_route(model, hidden, np.eye(model.experts, dtype="float32"), router_bias, bias)
        assert (given.numpy() == logits).all()
        ids, weights = by_id(ids, weights)
        arrays[model.name + "_ids"], arrays[model.name + "_weights"] = ids.astype(np.uint8), weights
        if bias is not None:
            arrays[model.name + "_bias"] = bias
        if model.has_loss:
            arrays[model.name + "_loss"] = their_loss(model, logits)
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    make_golden(sys.argv[1])
