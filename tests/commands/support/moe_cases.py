# SPDX-License-Identifier: Apache-2.0
"""Random cases of the mixture-of-experts layer for calls_cases.py: tensors that fit together, their shapes, and the outputs
that a call can give. One of router, logits, and ids with weights says where tokens go."""
import numpy as np

ROUTED_OUTPUTS = {"mean_probs", "load_balance_loss", "z_loss", "usage_variance", "num_nan_rows"}
WITH_ROUTER = {"router", "logits_bias", "drouter", "dlogits_bias"}
WITH_LOGITS = {"logits", "dlogits"}
WITH_IDS = {"dtopk_weights"}
ROUTED = ROUTED_OUTPUTS | {"correction_bias", "dload_balance_loss", "dz_loss", "scoring", "no_renormalize", "routed_scaling",
                           "num_groups", "topk_groups", "group_score", "round_weights"}
GATED = {"w_gate", "b_gate", "dw_gate", "db_gate", "shared_w_gate", "dshared_w_gate", "w_gate_scale", "shared_w_gate_scale"}


WEIGHTS, SHARED_WEIGHTS = {"w_gate", "w_up", "w_down"}, {"shared_w_gate", "shared_w_up", "shared_w_down"}
NEEDED = {"drouter": "router", "dlogits_bias": "router", "dlogits": "logits", "db_gate": "w_gate",  # of an output
          "shared_preact": "shared_w_up", "dshared_w_gate": "shared_w_gate", "dshared_w_up": "shared_w_up",
          "dshared_w_down": "shared_w_up", "dshared_gate": "shared_gate"}


def is_moe(case):
    return case.calls[0].op in ("moe_forward", "moe_backward")


def is_routed(case):
    return "router" in case.tensors or "logits" in case.tensors


def is_fp8(case, name):
    """Whether these weights, or those of this scale, are e4m3."""
    name = name.removesuffix("_scale")
    return name in WEIGHTS and case.sizes.get("fp8") or name in SHARED_WEIGHTS and case.sizes.get("shared_fp8")


def num_rows(case):
    s = case.sizes
    rows = int(np.prod(s["leading"], dtype=np.int64)) * s["top_k"]
    capacity = case.scalars.get("capacity", 0)
    return min(rows, s["num_experts"] * capacity) if 0 < capacity <= rows else rows


def shape_of(case, name):
    s, lead = case.sizes, tuple(case.sizes["leading"])
    e, h, i, k, shared = s["num_experts"], s["hidden"], s["intermediate"], s["top_k"], s["intermediate_s"]
    cols = 2 if "w_gate" in case.tensors or s.get("is_gated") else 1
    shapes = {
        "x": (*lead, h), "router": (e, h), "logits_bias": (e,), "logits": (*lead, e), "correction_bias": (e,),
        "w_gate": (e, i, h), "w_up": (e, i, h), "w_down": (e, h, i), "b_gate": (e, i), "b_up": (e, i), "b_down": (e, h),
        "shared_w_gate": (shared, h), "shared_w_up": (shared, h), "shared_w_down": (h, shared), "shared_gate": (h,),
        "preact": (num_rows(case), cols * i), "shared_preact": (int(np.prod(lead, dtype=np.int64)), cols * shared),
        "topk_ids": (*lead, k), "topk_weights": (*lead, k), "offsets": (e + 1,), "tokens_per_expert": (e,),
        "mean_probs": (e,)}
    if name.endswith("_scale"):
        *experts, rows, columns = shapes[name.removesuffix("_scale")]
        return (*experts, -(-rows // 128), -(-columns // 128)) if case.sizes["has_blocks"] or not experts else (e,)
    if name in ("residual", "y", "dy", "dx"):
        return shapes["x"]
    if name in shapes:
        return shapes[name]
    return shapes.get(name[1:], (1,))  # a gradient, or a number


def can_give(case, name):
    """Whether the calls can give this output."""
    if name in ROUTED_OUTPUTS | {"topk_ids", "topk_weights"}:
        return is_routed(case)
    if name == "dtopk_weights":
        return not is_routed(case)
    if name in NEEDED:
        return NEEDED[name] in case.tensors
    if name == "dw_gate" and "w_gate" not in case.tensors:
        return False
    if name in ("dw_gate", "dw_up", "dw_down") and case.scalars.get("accumulate"):
        return name in case.tensors
    return True


def ids(rng, case, shape):
    """Different experts of a token; where they are given, also -1."""
    flat = np.zeros((int(np.prod(shape[:-1], dtype=np.int64)), shape[-1]), np.int32)
    for row in flat:
        row[:] = rng.sample(range(case.sizes["num_experts"]), shape[-1])
        for k in range(shape[-1]):
            if not is_routed(case) and rng.random() < 0.1:
                row[k] = -1
    return flat.reshape(shape)


def choose_source(rng, forced, absent):
    sources = [s for s in ("router", "router", "logits", "ids") if s not in absent]
    if forced & WITH_ROUTER:
        sources = ["router"]
    elif forced & WITH_LOGITS:
        sources = ["logits"]
    elif forced & WITH_IDS:
        sources = ["ids"]
    elif forced & ROUTED:
        sources = [s for s in sources if s != "ids"]
    return rng.choice(sources)


def draw_tensors(rng, case, forced, absent, values):
    """Fills case.tensors. values(name, shape) draws one."""
    forced, absent, s = set(forced), set(absent), case.sizes
    names = {n for call in case.calls for n in call.tensors}
    is_pair, is_backward = len(case.calls) > 1, case.calls[-1].op == "moe_backward"
    source = choose_source(rng, forced, absent)
    s["is_gated"] = bool(forced & GATED) or "w_gate" not in absent and rng.random() < 0.6
    has_shared = any(n.startswith(("shared_", "dshared_")) for n in forced) or \
        "shared_w_up" not in absent and rng.random() < 0.4
    maybe = lambda name, chance=0.45: name in forced or name not in absent and rng.random() < chance
    given = ["x", "w_up", "w_down"] + ([source] if source != "ids" else ["topk_ids", "topk_weights"])
    given += ["w_gate"] if s["is_gated"] else []
    given += [n for n, is_legal in (("logits_bias", source == "router"), ("correction_bias", source != "ids"),
                                    ("b_gate", s["is_gated"]), ("b_up", True), ("b_down", True), ("residual", True))
              if is_legal and maybe(n)]
    if has_shared:
        given += ["shared_w_up", "shared_w_down"] + (["shared_w_gate"] if s["is_gated"] else [])
        given += ["shared_gate"] if maybe("shared_gate") else []
    is_alone = not is_pair and not is_backward and case.main != "f64"
    scales = lambda weights: [n + "_scale" for n in sorted(weights) if n in given]
    s["fp8"] = is_alone and (bool(forced & set(scales(WEIGHTS))) or rng.random() < 0.15)
    s["shared_fp8"] = is_alone and has_shared and (bool(forced & set(scales(SHARED_WEIGHTS))) or rng.random() < 0.2)
    given += (scales(WEIGHTS) if s["fp8"] else []) + (scales(SHARED_WEIGHTS) if s["shared_fp8"] else [])
    if is_backward:
        given += ["dy"] + [n for n in ("dload_balance_loss", "dz_loss") if source != "ids" and maybe(n)]
        if case.scalars.get("accumulate"):
            given += [n for n in ("dw_up", "dw_down") if maybe(n, 0.8)]
            given += ["dw_gate"] if s["is_gated"] and maybe("dw_gate", 0.8) else []
    if is_backward and not is_pair:
        given += ["preact"] + (["shared_preact"] if has_shared else [])
        given += [n for n in ("topk_ids", "topk_weights") if n not in given]
    for name in given:
        if name in names:
            case.tensors[name] = values(name, shape_of(case, name))
