# SPDX-License-Identifier: Apache-2.0
"""tessera conformance: cases as files, and answers compared with the oracle: answers of `tessera apply`, of NumPy, and
wrong ones of several kinds. The binary is $TESSERA."""
import json
import math
import os
import shutil
import subprocess
import warnings

import numpy as np
import pytest

from apply_support import DTYPES, TESSERA, read, wide, write

pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")

APPLY = f"'{TESSERA}' apply {{op}} --input {{input}} --output {{output}} --threads 1 {{options}}"


def run(*arguments, code=0, **options):
    done = subprocess.run([TESSERA, "conformance", *map(str, arguments)], capture_output=True, text=True, timeout=240,
                          check=False, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def write_cases(folder, *operations, dtype="f32", configs=9, seed=1):
    run("write", *operations, "--output", folder, "--configs", configs, "--seed", seed,
        *(["--dtype", dtype] if dtype else []))
    return sorted(path.stem for path in folder.glob("*.json"))


def rows(text):
    """The table as {(op, dtype): (configs, verdict)}."""
    cells = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("| ")]
    return {(c[1], c[3]): (int(c[5]), c[10]) for c in cells[1:]}


# ---- The tool against itself ---------------------------------------------------------------------

@pytest.mark.parametrize("operations, dtype", [
    (["softmax"], "bf16"), (["matmul_backward", "layernorm_backward"], "f32"), (["attention-merge", "adamw"], "f16"),
    (["rope", "cross-entropy"], "f32")], ids=lambda value: "-".join(value))
def test_apply_passes(operations, dtype, tmp_path):
    names = write_cases(tmp_path / "cases", *operations, dtype=dtype)
    done = run("check", tmp_path / "cases", "--command", APPLY, "--name", "apply")
    table = rows(done.stdout)
    assert sum(count for count, _ in table.values()) == len(names)
    assert {verdict for _, verdict in table.values()} == {"PASS"} and {d for _, d in table} == {dtype}
    assert done.stdout.endswith("PASS\n") and "| apply |" in done.stdout


def test_every_dtype_is_written_and_the_seed_repeats(tmp_path):
    first = write_cases(tmp_path / "1", "cast", dtype=None, configs=6)
    assert {name.split("-")[1] for name in first} == {"f32", "bf16", "f16"}
    assert first == write_cases(tmp_path / "2", "cast", dtype=None, configs=6)
    for name in first:
        for end in ("json", "safetensors"):
            one, two = (tmp_path / folder / f"{name}.{end}" for folder in "12")
            assert one.read_bytes() == two.read_bytes()


def test_a_case_says_what_its_files_hold(tmp_path):
    for name in write_cases(tmp_path, "attention_forward", configs=3):
        call = json.loads((tmp_path / f"{name}.json").read_text())
        inputs = read(tmp_path / f"{name}.safetensors")
        assert call["schema"] == 1 and call["op"] == "attention_forward" and call["seed"] == 1
        assert {n: list(t.shape) for n, t in inputs.items()} == {n: t["shape"] for n, t in call["inputs"].items()}
        assert call["outputs"]["out"]["optional"] is False and call["outputs"]["lse"]["optional"] is True
        causal = [option for option in call["options"] if option.startswith("--mask=")]
        assert causal == ([] if call["params"]["mask"] == "none" else [f"--mask={call['params']['mask']}"])


# ---- NumPy ---------------------------------------------------------------------------------------

def softmax_forward(call, x):
    top = x.max(-1, keepdims=True) if x.shape[-1] else 0
    e = np.where(np.isneginf(top), 0, np.exp(x - top))
    total = e.sum(-1, keepdims=True)
    return {"y": np.where(total == 0, 0, e / np.where(total == 0, 1, total))}


def softmax_backward(call, y, dy):
    return {"dx": y * (dy - (y * dy).sum(-1, keepdims=True))}


def layernorm_forward(call, x, residual=None, weight=None, bias=0):
    total = x if residual is None else x + residual
    mean = total.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(((total - mean) ** 2).mean(-1, keepdims=True) + call["params"]["eps"])
    factor = 1 if weight is None else weight + call["params"]["zero_centered_weight"]
    out = {"y": (total - mean) * rstd * factor + bias}
    return out if residual is None else out | {"residual_out": total}


def activate(kind, x):
    erf = np.vectorize(math.erf, otypes=[float])
    sigmoid = lambda v: 1 / (1 + np.exp(-v))
    return {"none": lambda: x, "relu": lambda: np.maximum(x, 0), "relu2": lambda: np.maximum(x, 0) ** 2,
            "swiglu_clamped": lambda: np.clip(x, -300, 7) * sigmoid(1.702 * np.clip(x, -300, 7)), "silu": lambda: x / (1 + np.exp(-x)),
            "gelu": lambda: x * 0.5 * (1 + erf(x / math.sqrt(2))),
            "gelu_tanh": lambda: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))}[kind]()


def matmul_forward(call, a, b, b_up=None, bias=0, bias_up=0, residual=0, c=0):
    params = call["params"]
    a = np.swapaxes(a, -1, -2) if params["transpose_a"] else a
    turn = (lambda t: np.swapaxes(t, -1, -2)) if params["transpose_b"] else lambda t: t
    out = activate(params["activation"], params["alpha"] * (a @ turn(b)) + bias)
    if b_up is not None:
        up = params["alpha"] * (a @ turn(b_up)) + bias_up
        out = out * (np.clip(up, -7, 7) + 1 if params["activation"] == "swiglu_clamped" else up)
    return {"c": out + residual + (c if params["accumulate"] else 0)}


def embedding_backward(call, ids, dy, dweight=None):
    out = np.zeros(call["outputs"]["dweight"]["shape"]) if dweight is None else dweight.copy()
    ids = ids.astype(int)
    known = (ids >= 0) & (ids < out.shape[0]) & (ids != call["params"]["padding_id"])
    np.add.at(out, ids[known], dy[known])
    return {"dweight": out}


def answer(cases, results, implementation, names):
    results.mkdir(exist_ok=True)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mean of no columns
        for name in names:
            call = json.loads((cases / f"{name}.json").read_text())
            inputs = {key: wide(value) for key, value in read(cases / f"{name}.safetensors").items()}
            outputs = implementation[call["op"]](call, **inputs)
            write(results / f"{name}.safetensors", {
                key: value.astype(DTYPES[call["outputs"][key]["dtype"]][0]) for key, value in outputs.items()})


NUMPY = {f.__name__: f for f in (softmax_forward, softmax_backward, layernorm_forward, matmul_forward,
                                 embedding_backward)}


@pytest.mark.parametrize("dtype, operations", [("f32", list(NUMPY)), ("bf16", ["layernorm_forward"])],
                         ids=["f32", "bf16"])
def test_numpy_passes(dtype, operations, tmp_path):
    cases, results = tmp_path / "cases", tmp_path / "results"
    names = write_cases(cases, *operations, dtype=dtype, configs=10)
    answer(cases, results, NUMPY, names)
    done = run("check", cases, "--results", results)
    assert {op for op, _ in rows(done.stdout)} == set(operations)
    assert "optional outputs were missing, not compared" in done.stderr  # mean and rstd


# ---- Wrong answers --------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def softmax(tmp_path_factory):
    """Cases of softmax with correct answers."""
    folder = tmp_path_factory.mktemp("softmax")
    names = write_cases(folder / "cases", "softmax_forward", configs=6)
    answer(folder / "cases", folder / "results", NUMPY, names)
    run("check", folder / "cases", "--results", folder / "results")
    return folder, names


@pytest.fixture
def results(softmax, tmp_path):
    return shutil.copytree(softmax[0] / "results", tmp_path / "results")


def test_a_wrong_implementation_fails_and_the_case_is_named(softmax, results):
    folder, names = softmax
    wrong = [name for name in names if json.loads((folder / "cases" / f"{name}.json").read_text())["edge"] is None]
    answer(folder / "cases", results, {"softmax_forward": lambda call, x: {
        "y": np.exp2(x) / np.exp2(x).sum(-1, keepdims=True)}}, wrong[-1:])
    done = run("check", folder / "cases", "--results", results, code=1)
    assert rows(done.stdout) == {("softmax_forward", "f32"): (len(names), "FAIL")}
    line = next(line for line in done.stdout.splitlines() if line.startswith("FAIL (1): "))
    assert wrong[-1] in line and "rows=" in line and "expected" in line and "times over" in line
    assert done.stdout.endswith("FAIL\n")
    [sentence] = [line for line in done.stderr.splitlines() if line.startswith("tessera conformance: softmax")]
    assert wrong[-1] in sentence
    document = json.loads(run("check", folder / "cases", "--results", results, "--format", "json", code=1).stdout)
    [row] = document["results"]
    assert row["failed"] == 1 and wrong[-1] in row["failure"] and row["configs"] == len(names)


def test_answers_that_are_no_answers(softmax, results):
    folder, names = softmax
    shapes = {n: json.loads((folder / "cases" / f"{n}.json").read_text())["outputs"]["y"]["shape"] for n in names}
    names = [n for n in names if min(shapes[n]) > 1]
    paths = [results / f"{name}.safetensors" for name in names]
    y = [read(path)["y"] for path in paths[:6]]
    paths[0].unlink()
    write(paths[1], {"z": y[1]})
    write(paths[2], {"y": y[2][:-1]})
    write(paths[3], {"y": y[3].reshape(1, *y[3].shape)})
    write(paths[4], {"y": y[4].astype(np.float64)})
    paths[5].write_bytes(b"no file of tensors")
    done = run("check", folder / "cases", "--results", results, code=1)
    said = dict(line.removeprefix("tessera conformance: ").split(": ", 1) for line in done.stderr.splitlines())
    rows_2, cols_2 = shapes[names[2]]
    rows_3, cols_3 = shapes[names[3]]
    expected = [f"there is no {paths[0]}", "the results have no 'y'",
                f"y has shape ({rows_2 - 1}, {cols_2}), expected ({rows_2}, {cols_2})",
                f"y has shape (1, {rows_3}, {cols_3}), expected ({rows_3}, {cols_3})",
                "y has dtype f64, expected f32"]
    assert [said[name] for name in names[:5]] == expected
    assert str(paths[5]) in said[names[5]] and len(said) == 6
    assert "FAIL (6): " + names[0] in done.stdout


def test_a_command_that_fails(softmax, tmp_path):
    folder, names = softmax
    few = shutil.copytree(folder / "cases", tmp_path / "it's few")
    for name in names[3:]:
        (few / f"{name}.json").unlink()
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp)}
    done = run("check", few, "--command", "echo printed; exit 3", code=1, env=environment)
    assert done.stderr.count("the command ended with exit code 3") == 3
    assert done.stderr.count("printed") == 3 and "printed" not in done.stdout
    done = run("check", few, "--command", "true", code=1, env=environment)
    assert done.stderr.count("there is no ") == 3
    assert list(tmp.iterdir()) == []
    run("check", few, "--command", APPLY, "--results", tmp / "kept", env=environment)
    assert sorted(path.stem for path in (tmp / "kept").iterdir()) == names[:3]
    done = run("check", few, "--command", "true", "--results", tmp / "kept", code=1)
    assert done.stderr.count("there is no ") == 3, "an earlier answer must not count"


def test_usage(softmax, tmp_path):
    def refused(*arguments, code=2):
        done = run(*arguments, code=code)
        assert done.stdout == "" and done.stderr.startswith("tessera conformance: ")
        return done.stderr

    cases = softmax[0] / "cases"
    assert "expected write or check" in refused()
    assert "write needs an operation" in refused("write", "--output", tmp_path)
    assert "write needs --output" in refused("write", "softmax")
    assert "there is no operation 'soft', expected one of activation" in refused("write", "soft", "-o", tmp_path)
    assert "--dtype is 'f64'" in refused("write", "softmax", "-o", tmp_path, "--dtype", "f64")
    (tmp_path / "file").touch()
    assert "cannot write" in refused("write", "softmax", "-o", tmp_path / "file", code=4)
    assert "check needs one folder" in refused("check")
    assert "check needs --results or --command" in refused("check", cases)
    assert "no cases; 'conformance write' makes them" in refused("check", tmp_path, "--results", tmp_path)
    assert "No such file" in refused("check", tmp_path / "none", "--results", tmp_path, code=4)
    for text, words in (("{", "bad.json"), ('{"op": "nothing", "params": {}}', "no operation 'nothing'"),
                        ("[]", "is no case"), ('{"op": "softmax_forward"}', "is no case"),
                        ('{"op": "rope_forward", "params": {"interleaved": 3}}', "params.interleaved")):
        (tmp_path / "bad.json").write_text(text)
        assert words in refused("check", tmp_path, "--results", tmp_path)
    (tmp_path / "bad.json").write_text('{"op": "softmax_forward", "params": {}}')
    assert "bad.safetensors" in refused("check", tmp_path, "--results", tmp_path, code=4)
