# SPDX-License-Identifier: Apache-2.0
"""tessera apply equals the C call: every tensor and every scalar of every public call, as the headers declare them, is
tested with `apply` and with the library by ctypes. Both must give the same bits or both must refuse. This finds fields
that apply cannot express, drops or invents, and new fields of a header that have no rule here.

TESSERA_TEST_CASES=20000: this many random cases instead of a few. TESSERA_TEST_SEED: repeats an earlier run.
TESSERA_TEST_DEVICE=cuda:0: this device, which `scripts/emulate` can emulate. TESSERA_TEST_OPS=softmax,matmul: only
these commands. TSR_ISA=scalar, avx2 or avx512: only this instruction set."""
import os
import random
import re
import secrets

import numpy as np
import pytest

import calls_cases
import moe_cases
from apply_support import TESSERA, read, run, write
from calls_support import CALL_FIELDS, DTYPES, LIBRARY, Library, Refused, dtype_name

DEVICE = os.environ.get("TESSERA_TEST_DEVICE", "cpu")
SEED = os.environ.get("TESSERA_TEST_SEED", "")
CASES = int(os.environ.get("TESSERA_TEST_CASES", "150"))
OPS = os.environ.get("TESSERA_TEST_OPS", "")
pytestmark = pytest.mark.skipif(not TESSERA or not os.path.exists(LIBRARY),
                                reason="$TESSERA or $TESSERA_LIBRARY names no file")

# ---- Intended differences ----------------------------------------------------------------------

UNREACHABLE = {  # fields without an option
    "size": "the macro of the args struct sets it",
    "workspace": "the context's arena serves: apply calls once",
    "workspace_bytes": "as workspace",
}
# Other differences: seed and offset above 9e15 are refused, because values of options are doubles. A tensor that the
# call would ignore (c without accumulate, preact without an activation) is refused, because it was surely given for a
# reason. A window or padding_id of -1 means none.
NO_FIELDS = {  # options that are no fields
    "cols": "columns of y", "b_dtype": "the dtype of b",
    **{name + "_dtype": "the dtype of " + name for name in ("residual", "residual_out", "weight", "y", "dy", "dresidual_out", "dx")},
    "to": "the dtype of y", "from": "the dtype of x", "fp8": "the dtypes of a and b", "scaling": "sets has_scaling",
    "num_positions": "rows of what rope_table gives", "rotary_dim": "columns of it", "vocab": "rows of dweight",
    "top_k": "columns of topk_ids", "capacity_factor": "sets capacity", "num_experts": "offsets but one", "num_rows": "rows of row_tokens, or of drows",
}
INERT = {  # scalars that never change the result of an accepted case
    "fast_accumulate": "a permission, of which the CPU makes no use", "math": "as fast_accumulate",
    "num_kv_heads": "the tensors tell it, and any other value is refused", "rotary_dim": "as num_kv_heads",
    "top_k": "the call takes it from an output's shape too; apply, which makes the outputs, needs it",
    **{("moe_backward", name): "the choice of experts is given" for name in (
        "num_groups", "topk_groups", "group_score", "round_weights")},
}
INFERRED = {  # fields that follow from the tensors if no option sets them
    "rotary_dim": lambda case: 2 * case.tensors["cos"].shape[1] if "cos" in case.tensors else 0,
    "num_kv_heads": lambda case: heads_of(case),
    "max_seqlen_q": lambda case: longest_of(case, "q", 2), "max_seqlen_k": lambda case: longest_of(case, "k", 3),
}
COMMON = {"input", "output", "results", "dtype", "variant", "device", "threads", "isa", "deterministic",
          "batch_invariant", "epilogue", "help"}


NO_GRADIENT = {  # pairs of calls without a matching backward
    "matmul_forward": lambda case: "b_up" in case.tensors or case.scalars.get("alpha", 1) != 1,
    "matmul_grouped_forward": lambda case: "b_up" in case.tensors or case.scalars.get("activation", 0) != 0,
}


def longest_of(case, side, dimension):
    """The maximum length in packed attention: from bias, or else from the offsets."""
    t = case.tensors
    if "seqused_k" not in case.calls[0].fields or not {"cu_seqlens_q", "cu_seqlens_k"} <= set(t):
        return 0
    if "bias" in t and t["bias"].shape[dimension] > 1:
        return min(t["bias"].shape[dimension], t[side].shape[0]) if side in t else 0
    return calls_cases.longest_of(case, side)


def heads_of(case):
    heads = case.scalars.get("num_heads", 0)
    if not heads or not {"w_out", "w_qkv"} <= set(case.tensors) or not case.tensors["w_out"].shape[1] // heads:
        return 0
    head_dim = case.tensors["w_out"].shape[1] // heads
    return max((case.tensors["w_qkv"].shape[0] // head_dim - heads) // 2, 0)


# ---- The command -------------------------------------------------------------------------------

def read_help(op):
    """{option, with _: (choices or None, default)} from `tessera apply OP --help`."""
    options = {}
    text = run(op, "--help").stdout
    for name, value, words in re.findall(r"^ +(?:-\w, )?--([\w-]+) ?([A-Z]*) +(.*)$", text, re.M):
        choice = re.match(r".*, ([\w-]+) by default: (.*)$", words)
        standard = re.search(r"\(([-+.\de]+)\)$", words)
        if choice:
            choices = choice[2].split(", ")
            options[name.replace("-", "_")] = choices, choices.index(choice[1])
        else:
            options[name.replace("-", "_")] = None, float(standard[1]) if standard else 0
    return options


def option_of(name):
    return "scaling" if name == "has_scaling" else name.split(".")[-1]


def arguments_of(case, options, isa):
    result = [f"--isa={isa}", "--threads=2", f"--device={DEVICE}"]
    for name, value in case.scalars.items():
        option = option_of(name)
        choices = options[option][0]
        flag = "--" + option.replace("_", "-")
        is_flag = name == "to" or case.field(name).type == "int32_t"
        if name != "to" and is_flag and choices is None and option in FLAGS:
            result.append(flag)
        elif name == "to":
            result.append(f"{flag}={value}")
        else:
            at = value - FIRST_CHOICE.get(name, 0)
            known = choices is None or at < len(choices)  # like its call, decode has no causal-top-left
            result.append(f"{flag}={choices[at] if choices and known else repr(value)}")
    if any(name.startswith("scaling.") for name in case.scalars):
        result.append("--scaling=llama3")
    if case.flags & 1:
        result.append("--deterministic")
    if case.flags & 2:
        result.append("--batch-invariant")
    if case.variant:
        result.append(f"--variant={case.variant}")
    if case.asked:
        result.append("--results=" + ",".join(n + (f":{d}" if d else "") for n, d in case.asked.items()))
    return result + case.shape_options


FIRST_CHOICE = {"quant": 1}  # the value of an option's first word
FLAGS = {"transpose_a", "transpose_b", "accumulate", "fast_accumulate", "interleaved", "no_renormalize",
         "weights_on_input", "zero_centered_weight"}


# ---- The call ----------------------------------------------------------------------------------

def scalars_for(case, call, options):
    """The fields of a call: given values, or else defaults from --help or from the tensors."""
    fields = {}
    for name, f in call.scalars.items():
        if name.startswith("has_"):
            partner = name[4:]
            fields[name] = int(partner in case.scalars or any(s.startswith(partner + ".") for s in case.scalars))
        elif name in case.scalars:
            fields[name] = case.scalars[name]
        elif "has_" + name in call.scalars:
            fields[name] = 0
        elif name in INFERRED:
            fields[name] = INFERRED[name](case)
        elif "." not in name or any(s.startswith("scaling.") for s in case.scalars):
            standard = options[option_of(name)][1]
            fields[name] = standard if f.type in ("float", "double") else int(standard) + FIRST_CHOICE.get(name, 0)
    return fields


def call_library(library, case, options, isa, like=None):
    """Returns the calls' outputs by name, for copies of the tensors. like: arrays with the shapes and dtypes of the outputs."""
    wanted, results = case.wanted(), {}
    if len(case.calls) > 1 and NO_GRADIENT.get(case.calls[0].op, lambda case: False)(case):
        raise Refused("TSR_UNSUPPORTED", "no gradient of both calls")
    for call in case.calls:
        scalars = scalars_for(case, call, options)
        tensors = {n: case.tensors[n] for n in call.tensors if n in case.tensors}
        if call is not case.calls[0]:
            tensors |= {n: results[n] for n, f in call.tensors.items() if n in results and f.is_read}
            if "residual_out" in results and "x" in call.fields:
                tensors["x"] = results["residual_out"]
            if "preact" in call.fields and "a" in call.fields and scalars["activation"]:
                tensors["preact"] = preact_of(library, case, options, isa)
        outputs = {}
        for name in call.tensors:
            is_added_to = "accumulate" in call.fields[name].comment and scalars["accumulate"]
            if name in wanted and name not in tensors and call.fields[name].is_written and not is_added_to:
                outputs[name] = np.zeros_like(like[name]) if like and name in like else np.zeros(
                    case.shape_of(name), DTYPES[case.output_dtype(name)])
                of = case.tensors.get(name[1:]) if name[0] == "d" and len(case.calls) > 1 else None
                if of is not None and of.size != outputs[name].size:
                    raise Refused("TSR_INVALID_ARGUMENT", "a gradient of another shape than its tensor")
                outputs[name] = outputs[name].reshape(outputs[name].shape if of is None else of.shape)
        variant = case.variant if len(case.calls) == 1 or case.variant in library.variants(call.op) else None
        results |= library.run(call.op, isa, tensors, scalars, outputs, case.flags, variant)
    return {n: a for n, a in results.items() if n in wanted and (not case.asked or n in case.asked)}


def preact_of(library, case, options, isa):
    forward = case.calls[0]
    scalars = scalars_for(case, forward, options) | {"activation": 0, "accumulate": 0}
    tensors = {n: case.tensors[n] for n in ("a", "b", "bias") if n in case.tensors}
    c = np.zeros(case.shape_of("c"), case.tensors["a"].dtype)
    return library.run(forward.op, isa, tensors, scalars, {"c": c}, case.flags)["c"]


# ---- Both --------------------------------------------------------------------------------------

class Walk:
    """Runs cases through both sides, and notes which fields were in cases that both accepted."""

    def __init__(self, library, folder):
        self.library, self.folder, self.helps, self.seen = library, folder, {}, set()
        self.taken = self.refused = self.verbatim = 0

    def name_of(self, calls):
        return calls[0].op if len(calls) == 1 else re.sub(r"_forward$", "", calls[0].op)

    def options(self, calls):
        name = self.name_of(calls)
        if name not in self.helps:
            self.helps[name] = read_help(name)
        return self.helps[name]

    def check(self, case, isa):
        """Returns whether both accepted the case. Fails if they differ."""
        name, options = self.name_of(case.calls), self.options(case.calls)
        arguments = arguments_of(case, options, isa)
        write(self.folder / "in", case.tensors)
        (self.folder / "out").unlink(missing_ok=True)
        done = run(name, "--input", self.folder / "in", "--output", self.folder / "out", *arguments)
        told = f"{name} {' '.join(arguments)} of " + ", ".join(
            f"{n} {dtype_name(t)} {t.shape}" for n, t in case.tensors.items()) + f": {done.stderr.strip()}"
        assert done.returncode in (0, 2), told
        got = read(self.folder / "out") if done.returncode == 0 else None
        try:
            expected = call_library(self.library, case, options, isa, got if case.is_spoiled else None)
        except Refused as refusal:
            assert refusal.status in ("TSR_INVALID_ARGUMENT", "TSR_UNSUPPORTED"), (told, refusal)
            assert got is None, f"apply takes what the call refuses with '{refusal}': {told}"
            self.refused += 1
            self.verbatim += refusal.sentence in done.stderr
            assert case.calls[0].op.split("_")[0] in done.stderr.replace("-", "_") or "--" in done.stderr, told
            return False
        assert got is not None, f"apply refuses what the call takes: {told}"
        assert set(got) == set(expected), f"apply gives {sorted(got)}, expected {sorted(expected)}: {told}"
        for n, array in expected.items():
            assert got[n].dtype == array.dtype, f"{n} is {got[n].dtype}, expected {array.dtype}: {told}"
            if not case.is_spoiled and n not in case.tensors:
                shape = case.shape_of(n)
                assert got[n].shape == shape, f"{n} has shape {got[n].shape}, expected {shape}: {told}"
            assert got[n].tobytes() == array.tobytes(), f"the bits of {n} differ: {told}"
        self.taken += 1
        for call in case.calls if len(case.calls) == 1 else ():
            self.seen |= {(call.op, n, "given") for n in call.tensors if n in case.tensors or n in expected}
            self.seen |= {(call.op, n, "absent") for n in call.tensors if n not in case.tensors and n not in expected}
            self.seen |= {(call.op, n, "given") for n in scalars_of(call)
                          if n in case.scalars and self.matters(case, n, expected, options, isa)}
        return True

    def matters(self, case, name, expected, options, isa):
        """Whether the call's result changes without a scalar. If so, apply has not dropped the scalar."""
        if {name, (case.calls[0].op, name)} & set(INERT) or (case.calls[0].op, name, "given") in self.seen:
            return True
        scalars, case.scalars = case.scalars, {n: v for n, v in case.scalars.items() if n != name}
        try:
            other = call_library(self.library, case, options, isa)
        except Refused:
            return True
        finally:
            case.scalars = scalars
        return other.keys() != expected.keys() or any(a.tobytes() != expected[n].tobytes() for n, a in other.items())


def scalars_of(call):
    return [n for n in call.scalars if not n.startswith("has_")]


def shape_options_of(rng, case):
    """Options for output sizes that no tensor determines."""
    op, s = case.calls[0].op, case.sizes
    if op == "rope_table":
        rotary_dim = [] if "inv_freq" in case.tensors and rng.random() < 0.5 else [f"--rotary-dim={s['rotary_dim']}"]
        return [f"--num-positions={s['num_positions']}", *rotary_dim]
    if op == "embedding_backward" and not case.scalars.get("accumulate"):
        return [f"--vocab={s['vocab']}"]
    if op == "moe_route_forward":
        return [f"--top-k={s['top_k']}"]
    if op == "moe_permute":
        return [f"--num-experts={s['num_experts']}", f"--num-rows={s['num_rows']}"]
    if op == "dequantize":
        return [f"--cols={s['cols']}"]
    if op == "moe_combine_backward" and "rows" not in case.tensors:
        return [f"--num-rows={s['num_rows']}"]
    return []


def draw(rng, library, calls, forced=(), absent=(), spoiled=None, plain=False):
    case = None
    while case is None:
        case = calls_cases.draw_case(rng, calls, forced, absent, spoiled)
    case.is_spoiled, case.shape_options = spoiled is not None, shape_options_of(rng, case)
    outputs = [n for n, f in case.outputs().items() if not f.is_read or "accumulate" in f.comment or n in case.tensors]
    outputs = [n for n in outputs if not moe_cases.is_moe(case) or moe_cases.can_give(case, n)]
    names = None
    if set(forced) & set(outputs) or not plain and rng.random() < 0.3:
        names = {*rng.sample(outputs, rng.randint(1, len(outputs))), *(n for n in forced if n in outputs)}
    elif set(absent) & set(outputs):
        names = {n for n in outputs if n not in absent} or {outputs[0]}
    for name in sorted(names or ()):
        has_dtype = not plain and name not in case.tensors and rng.random() < 0.4
        case.asked[name] = rng.choice(["f32", "bf16", "f16"]) if has_dtype else None
    if not plain:
        case.flags = rng.choice([0, 0, 0, 1, 2, 3])
        names = [v for call in calls for v in library.variants(call.op)]
        case.variant = rng.choice(names) if rng.random() < 0.2 else None
        spoil_tensor(rng, case)
    return case


def spoil_tensor(rng, case):
    """Sometimes makes a tensor inconsistent with the others: another shape or dtype, or absent."""
    if rng.random() > 0.08 or not case.tensors:
        return
    case.is_spoiled, case.asked = True, {}
    name = rng.choice(sorted(case.tensors))
    array, way = case.tensors[name], rng.choice(["dtype", "rank", "longer", "absent"])
    if way == "dtype" and name not in calls_cases.INDICES:
        case.tensors[name] = array.astype(DTYPES[rng.choice(["f32", "bf16", "f16"])])
    elif way == "rank" and array.ndim < 5:
        case.tensors[name] = array[None]
    elif way == "longer" and array.ndim > 0:
        axis = rng.randrange(array.ndim)
        case.tensors[name] = np.concatenate([array, np.take(array, [0], axis)], axis) if array.size else array
    elif way == "absent" and len(case.calls) == 1 and not case.field(name).is_optional:
        del case.tensors[name]


# ---- Tests -------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def library():
    os.environ["TSR_TUNING_FILE"] = "/nowhere/tuning"  # a file that changes during the test would cause differences
    library = Library(DEVICE)
    assert len(library.calls) >= 27, "calls of the headers that were not read"
    return library


@pytest.fixture
def rng():
    seed = int(SEED) if SEED else secrets.randbits(32)
    print(f"TESSERA_TEST_SEED={seed}")
    return random.Random(seed)


def forms(library):
    """Each call alone, and each forward with its backward."""
    calls = library.calls
    pairs = [[calls[op], calls[op.replace("_forward", "_backward")]] for op in calls
             if op.endswith("_forward") and op.replace("_forward", "_backward") in calls]
    chosen = [f for f in [[c] for c in calls.values()] + pairs
              if not OPS or any(f[0].op.startswith(o.replace("-", "_")) for o in OPS.split(","))]
    return chosen


def test_every_field_has_an_option(library):
    """Every scalar of a header has an option, and every option has a field or a reason."""
    for call in library.calls.values():
        options = set(read_help(call.op))
        fields = {option_of(n) for n in call.scalars if not n.startswith("has_") or n == "has_scaling"}
        assert fields <= options, f"{call.op}: no option for {sorted(fields - options)}"
        made_up = options - fields - COMMON - set(NO_FIELDS)
        assert not made_up, f"{call.op}: no field for {sorted(made_up)}"
        assert set(CALL_FIELDS) - {"flags", "variant"} == set(UNREACHABLE)
        missing = [n for n in scalars_of(call) if n not in calls_cases.SCALARS]
        assert not missing, f"{call.op}: calls_cases.SCALARS has no values for {missing}"


def test_every_field(library, rng, tmp_path):
    """Each tensor is given, and absent if that is allowed; each scalar is given; both sides agree."""
    walk = Walk(library, tmp_path)
    for (call,) in (f for f in forms(library) if len(f) == 1):
        needed = [(n, "given") for n in call.tensors] + [(n, "given") for n in scalars_of(call)]
        needed += [(n, "absent") for n, f in call.tensors.items() if f.is_optional]
        for name, state in needed:
            for _ in range(400):  # one call in fifty draws a format with groups
                if (call.op, name, state) in walk.seen:
                    break
                forced, absent = ((name,), ()) if state == "given" else ((), (name,))
                walk.check(draw(rng, library, [call], forced, absent, plain=True), rng.choice(library.isas()))
            assert (call.op, name, state) in walk.seen, f"{call.op}: no case with {name} {state}"
    print(f"{walk.taken} cases taken, {walk.refused} refused, {walk.verbatim} of these in the library's words")


def test_every_bad_scalar(library, rng, tmp_path):
    walk = Walk(library, tmp_path)
    for (call,) in (f for f in forms(library) if len(f) == 1):
        for name in scalars_of(call):
            if calls_cases.SCALARS[name][1] is not None:
                walk.check(draw(rng, library, [call], (name,), (), name, plain=True), rng.choice(library.isas()))
    assert walk.refused > 0 or OPS


def test_random_cases(library, rng, tmp_path):
    walk, chosen = Walk(library, tmp_path), forms(library)
    for i in range(CASES):
        walk.check(draw(rng, library, chosen[i % len(chosen)]), rng.choice(library.isas()))
    print(f"{walk.taken} cases taken, {walk.refused} refused, {walk.verbatim} of these in the library's words")
    assert walk.taken > CASES // 3
