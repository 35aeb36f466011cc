# SPDX-License-Identifier: Apache-2.0
"""tessera apply as a command: its options and its refusals, with one sentence and nothing written."""
import math
import os
import re
import stat
import struct
import subprocess

import ml_dtypes
import numpy as np
import pytest

from apply_support import (
    DTYPES, MAIN, TESSERA, apply, draw, dtype_of, read, refuse, run, softmax, wide, write)

pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")


# ---- The command line --------------------------------------------------------------------------

def test_options_in_any_order(tmp_path):
    x = draw("x", (3, 4))
    write(tmp_path / "in", {"x": x, "weight": np.ones(4, np.float32)})
    i, o = ["--input", tmp_path / "in"], ["--output", tmp_path / "out"]
    results = []
    for arguments in (["layernorm", *i, *o, "--eps", "0.5"], ["--eps", "0.5", *o, "layernorm", *i],
                      [*o, *i, "--eps=0.5", "layernorm"],
                      ["-i", tmp_path / "in", "layernorm", "-o", tmp_path / "out", "--eps", "5e-1"]):
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        results.append((tmp_path / "out").read_bytes())
        (tmp_path / "out").unlink()
    assert len(set(results)) == 1


def test_a_file_named_as_the_operation(tmp_path):
    write(tmp_path / "softmax", {"x": draw("x", (3, 4))})
    done = subprocess.run([TESSERA, "apply", "--input", "softmax", "--output", "matmul", "softmax"],
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(read(tmp_path / "matmul")) == {"y"}


def test_help():
    done = run("--help")
    assert done.returncode == 0 and "softmax" in done.stdout and "--input" in done.stdout
    done = run("matmul", "--help")
    assert done.returncode == 0 and "--transpose-a" in done.stdout and "gelu_tanh" in done.stdout
    assert "--epilogue" in done.stdout
    done = run("layernorm", "--help")
    assert "layernorm_forward reads x, [residual], [weight], [bias],\nand writes y, [residual_out]" in done.stdout
    assert "layernorm_backward reads x," in done.stdout


def test_results(apply):
    """Only the named outputs, and their dtypes."""
    a, b, dc = draw("a", (3, 4), "bf16"), draw("b", (4, 5), "bf16"), draw("dc", (3, 5), "bf16")
    tensors = {"a": a, "b": b, "dc": dc}
    every = apply("matmul", tensors)
    assert set(every) == {"c", "da", "db"}
    some = apply("matmul", tensors, "--results", "db,c:f32")
    assert set(some) == {"db", "c"} and dtype_of(some["c"]) == "f32" and dtype_of(some["db"]) == "bf16"
    assert some["db"].tobytes() == every["db"].tobytes()
    np.testing.assert_array_equal(some["c"].astype(a.dtype), every["c"])
    # What backward reads from forward is computed without being requested.
    x, weight = draw("x", (3, 4)), np.ones(4, np.float32)
    assert set(apply("layernorm", {"x": x, "weight": weight, "dy": x}, "--results", "dweight")) == {"dweight"}


@pytest.mark.parametrize("dtype", MAIN)
def test_gradients_without_their_tensor(apply, dtype):
    """A bias is not an input of backward alone, but its gradient is an output."""
    a, b, dc = draw("a", (3, 4), dtype), draw("b", (4, 5), dtype), draw("dc", (3, 5), dtype)
    out = apply("matmul_backward", {"a": a, "b": b, "dc": dc})
    assert set(out) == {"da", "db", "dbias"}
    np.testing.assert_allclose(wide(out["dbias"]), wide(dc).sum(0), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", MAIN)
def test_dtype_converts(apply, dtype):
    x = draw("x", (5, 40), "f64")
    out = apply("softmax", {"x": x, "dy": x.astype(np.float32)}, "--dtype", dtype)
    rounded = apply("softmax", {"x": x.astype(DTYPES[dtype][0]), "dy": x.astype(np.float32).astype(
        DTYPES[dtype][0])})
    for name in ("y", "dx"):
        assert dtype_of(out[name]) == dtype
        assert out[name].tobytes() == rounded[name].tobytes()


def test_threads_and_isa_agree(apply):
    x = draw("x", (50, 300))
    base = apply("softmax", {"x": x}, "--threads", 1)["y"].tobytes()
    assert apply("softmax", {"x": x}, "--threads", 3, "--deterministic")["y"].tobytes() == base
    scalar = apply("softmax", {"x": x}, "--isa", "scalar")["y"]
    np.testing.assert_allclose(scalar, softmax(wide(x)), rtol=1e-5)


@pytest.mark.parametrize("dtype", MAIN)
def test_batch_invariant(apply, dtype):
    """A row has the same bits alone and among others, in both passes."""
    a, b, dc = draw("a", (40, 300), dtype), draw("b", (300, 200), dtype), draw("dc", (40, 200), dtype)
    flags = "--batch-invariant", "--deterministic", "--epilogue", "gelu"
    every = apply("matmul", {"a": a, "b": b, "dc": dc}, *flags)
    for count in (1, 5):
        few = apply("matmul", {"a": a[:count], "b": b, "dc": dc[:count]}, *flags)
        assert few["c"].tobytes() == every["c"][:count].tobytes()
        assert few["da"].tobytes() == every["da"][:count].tobytes()


def test_output_may_be_the_input(tmp_path):
    x = draw("x", (3, 4))
    write(tmp_path / "file", {"x": x})
    done = run("softmax", "--input", tmp_path / "file", "--output", tmp_path / "file")
    assert done.returncode == 0
    assert set(read(tmp_path / "file")) == {"y"}
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_misaligned_and_metadata(tmp_path):
    """An odd header length and odd offsets, as some writers produce."""
    x = draw("x", (3, 5))
    header = ('{"__metadata__":{"format":"np"},"x":{"dtype":"F32","shape":[3,5],"data_offsets":[0,60]}}')
    header += " " * (3 - len(header) % 2)
    (tmp_path / "in").write_bytes(struct.pack("<Q", len(header)) + header.encode() + x.tobytes())
    done = run("softmax", "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(read(tmp_path / "out")["y"], softmax(wide(x)), rtol=1e-5)


# ---- What is refused ---------------------------------------------------------------------------

@pytest.mark.parametrize("size, is_taken", [(2**31 - 1, True), (2**31, False), (2**63 - 1, False)])
def test_sizes_of_empty_tensors(tmp_path, size, is_taken):
    """Shapes that are larger than any file, and whose product overflows."""
    header = f'{{"x":{{"dtype":"F32","shape":[0,{size}],"data_offsets":[0,0]}}}}'
    (tmp_path / "in").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    done = run("softmax", "--input", tmp_path / "in", "--output", tmp_path / "out")
    if is_taken:
        assert done.returncode == 0 and read(tmp_path / "out")["y"].shape == (0, size), done.stderr
    else:
        assert done.returncode == 2 and not (tmp_path / "out").exists()
        assert f"x has shape (0, {size}), expected at most 2^31 - 1" in done.stderr


@pytest.mark.parametrize("size", [None, 2**31 - 1], ids=["as large as memory", "as large as sizes may be"])
def test_outputs_larger_than_memory(tmp_path, refuse, size):
    """Sums over no elements: the matrices are large, but their factors take no bytes."""
    if size is None:
        with open("/proc/meminfo", encoding="ascii") as lines:
            size = math.isqrt(int(re.search(r"MemTotal: +(\d+) kB", lines.read())[1]) * 256)
    header = (f'{{"a":{{"dtype":"F32","shape":[{size},0],"data_offsets":[0,0]}},'
              f'"b":{{"dtype":"F32","shape":[0,{size}],"data_offsets":[0,0]}}}}')
    (tmp_path / "in").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    needed = 4e-9 * size**2
    needed, unit = next((needed / scale, unit) for scale, unit in ((1, "GB"), (1e3, "TB"), (1e6, "PB"), (1e9, "EB"))
                        if needed < 1000 * scale)
    needed = f"{needed:.1f} {unit}"
    sentence = refuse("matmul", None, code=4, words=[f"matmul: c needs {needed}, the machine has "])
    assert sentence.endswith(" left\n")


def test_a_workspace_larger_than_memory(refuse):
    """The naive variant stores every score: terabytes for tensors of 4 MB."""
    tensor = np.zeros((1, 10**6, 1, 1), np.float32)
    sentence = refuse("attention --variant naive", {"q": tensor, "k": tensor, "v": tensor}, code=4,
                      words=["attention_forward: the workspace needs 4.0 TB, the machine has "])
    assert sentence.endswith(" left\n")


def test_names_have_no_control_characters(tmp_path):
    header = '{"x\\u001b[2J\\u009b2J":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    (tmp_path / "in").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    done = run("softmax", "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert done.returncode == 2 and "'x?[2J??2J'" in done.stderr


X = draw("x", (3, 4))
W = np.ones(4, np.float32)

REFUSED = {
    "unknown name": ("softmax", {"x": X, "z": X}, [], ["'z'", "x, dy"]),
    "unknown name of odd type": ("softmax", {"x": X, "z": X.astype(np.int64)}, [], ["'z'"]),
    "wrong name": ("softmax", {"input": X}, [], ["'input'"]),
    "control characters": ("softmax", {"x": X, "\x1b[2J\n": X}, [], ["?[2J?"]),
    "missing": ("softmax", {"dy": X}, [], ["'x'", "dy (3, 4)"]),
    "nothing": ("softmax", {}, [], ["'x'", "no tensor"]),
    "a result": ("softmax", {"x": X, "y": X}, [], ["'y'", "result"]),
    "half of backward": ("layernorm", {"x": X, "weight": W, "dresidual_out": X}, [],
                         ["'dresidual_out'", "'dy'"]),
    "rank 0": ("softmax", {"x": np.float32(1).reshape(())}, [], ["x has shape ()"]),
    "rank 6": ("softmax", {"x": X.reshape(1, 1, 1, 1, 3, 4)}, [], ["'x'", "6 dimensions"]),
    "other shape": ("softmax", {"x": X, "dy": X[:2]}, [], ["dy", "(2, 4)", "(3, 4)"]),
    "other rank": ("softmax", {"x": X, "dy": X.reshape(1, 3, 4)}, [], ["(1, 3, 4)", "(3, 4)"]),
    "other leading": ("softmax", {"x": X.reshape(3, 1, 4), "dy": X.reshape(1, 3, 4)}, [],
                      ["(1, 3, 4)", "(3, 1, 4)"]),
    "other dtype": ("softmax", {"x": X, "dy": X.astype(np.float16)}, [], ["dy.dtype is f16", "f32"]),
    "int32": ("softmax", {"x": X.astype(np.int32)}, [], ["x", "i32"]),
    "int64": ("softmax", {"x": X.astype(np.int64)}, [], ["'x'", "I64"]),
    "fp8": ("softmax", {"x": X.astype(ml_dtypes.float8_e4m3fn)}, [], ["x", "e4m3"]),
    "weight's shape": ("layernorm", {"x": X, "weight": W[:3]}, [], ["weight", "(3,)", "(4,)"]),
    "weight's rank": ("layernorm", {"x": X, "weight": W.reshape(1, 4)}, [], ["weight", "(1, 4)"]),
    "weight's dtype": ("layernorm", {"x": X, "weight": W.astype(np.int32)}, [], ["weight.dtype is i32"]),
    "bias without weight": ("layernorm", {"x": X, "bias": W}, [], ["bias"]),
    "negative eps": ("layernorm", {"x": X, "weight": W}, ["--eps", "-1"], ["eps"]),
    "k": ("matmul", {"a": X, "b": X}, [], ["b has shape (3, 4)"]),
    "a's rank": ("matmul", {"a": W, "b": X}, [], ["a has shape (4,)"]),
    "batch of b": ("matmul", {"a": X.reshape(1, 3, 4), "b": np.ones((2, 4, 5), np.float32)}, [],
                   ["a (1, 3, 4), b (2, 4, 5)"]),
    "bias of matmul": ("matmul", {"a": X, "b": X.T.copy(), "bias": W}, [], ["bias", "(4,)", "(3,)"]),
    "dtypes of matmul": ("matmul", {"a": X, "b": X.T.astype(np.int32)}, [], ["b.dtype is i32"]),
    "c without accumulate": ("matmul", {"a": X, "b": X.T.copy(), "c": np.ones((3, 3), np.float32)},
                             [], ["'c'"]),
    "accumulate without c": ("matmul", {"a": X, "b": X.T.copy()}, ["--accumulate"], ["'c'"]),
    "gradient of a gate": ("matmul", {"a": X, "b": X.T.copy(), "b_up": X.T.copy(),
                                      "dc": np.ones((3, 3), np.float32)}, [], ["b_up"]),
    "unknown result": ("softmax", {"x": X}, ["--results", "y,z"], ["'z'", "y, dx"]),
    "a result twice": ("softmax", {"x": X}, ["--results", "y,y"], ["'y' twice"]),
    "an empty result": ("softmax", {"x": X}, ["--results", "y,"], ["''"]),
    "dtype of a result": ("softmax", {"x": X}, ["--results", "y:f12"], ["'f12'"]),
    "a result that is not there": ("softmax", {"x": X}, ["--results", "dx"], ["'dx'"]),
    "another dtype of what is updated": ("adamw", {n: X for n in ("param", "grad", "m", "v")},
                                         ["--results", "m:bf16"], ["m.dtype is f32", "bf16"]),
    "no rows of a table": ("rope-table", {}, ["--rotary-dim", "4"], ["--num-positions"]),
    "no rows of a gradient": ("embedding_backward", {"ids": np.zeros(3, np.int32), "dy": X}, [], ["--vocab"]),
    "no heads": ("self-attention", {"x": X[None], "w_qkv": draw("w", (12, 4)), "w_out": draw("w", (4, 4))}, [],
                 ["num_heads is 0"]),
    "other heads": ("self-attention", {"x": X[None], "w_qkv": draw("w", (12, 4)), "w_out": draw("w", (4, 4))},
                    ["--num-heads", "1", "--num-kv-heads", "2"], ["num_kv_heads is given as 2", "1"]),
    "other fp8": ("matmul", {"a": X.astype(ml_dtypes.float8_e4m3fn), "b": X.T.astype(ml_dtypes.float8_e5m2)},
                  ["--fp8", "e4m3"], ["fp8 is given as e4m3", "e4m3_e5m2"]),
    "negative seed": ("attention", {n: draw(n, (1, 2, 1, 4)) for n in "qkv"}, ["--seed", "-1"], ["--seed", "0 to"]),
    "seed beyond what an option holds": ("attention", {n: draw(n, (1, 2, 1, 4)) for n in "qkv"}, ["--seed", "18446744073709551615"],
                                         ["--seed", "whole number up to 9e15"]),
    "beyond a float": ("matmul", {"a": X, "b": X.T.copy()}, ["--alpha", "1e39"], ["--alpha", "3.4"]),
    "window": ("attention", {n: draw(n, (1, 2, 1, 4)) for n in "qkv"}, ["--window-left", "-2"], ["window_left"]),
    "index beyond int32": ("cross-entropy", {"logits": X, "targets": np.zeros(3, np.int32)},
                           ["--ignore-index", "4294967196"], ["--ignore-index"]),
    "gradient through an activation of groups": (
        "matmul-grouped", {"a": X, "b": draw("b", (1, 4, 2)), "offsets": np.array([0, 3], np.int32),
                           "dc": draw("dc", (3, 2))}, ["--activation", "gelu"], ["dc is given with an activation"]),
    "gradient of another shape": ("rope", {"x": draw("x", (1, 3, 1, 4)), "dy": draw("dy", (1, 2, 1, 4)),
                                           "cos": draw("c", (3, 2)), "sin": draw("s", (3, 2))}, [], ["dx", "(1, 3, 1, 4)"]),
    "unknown operation": ("soft", {"x": X}, [], ["'soft'", "softmax"]),
    "two operations": ("softmax layernorm", {"x": X}, [], ["one operation"]),
    "unknown option": ("softmax", {"x": X}, ["--exp", "1"], ["--exp"]),
    "another operation's option": ("softmax", {"x": X}, ["--transpose-a"], ["--transpose-a"]),
    "no number": ("layernorm", {"x": X, "weight": W}, ["--eps", "x"], ["--eps", "'x'"]),
    "NaN": ("layernorm", {"x": X, "weight": W}, ["--eps", "nan"], ["--eps"]),
    "no value": ("layernorm", {"x": X, "weight": W}, ["--eps"], ["--eps"]),
    "value of a flag": ("matmul", {"a": X, "b": X}, ["--transpose-b=1"], ["--transpose-b"]),
    "unknown epilogue": ("matmul", {"a": X, "b": X}, ["--epilogue", "gelo"], ["gelo", "gelu_tanh"]),
    "unknown variant": ("softmax", {"x": X}, ["--variant", "best"], ["'best'", "fused"]),
    "unknown dtype": ("softmax", {"x": X}, ["--dtype", "f12"], ["'f12'"]),
    "dtype int32": ("softmax", {"x": X}, ["--dtype", "i32"], ["'i32'"]),
    "unknown device": ("softmax", {"x": X}, ["--device", "gpu"], ["'gpu'"]),
    "bad cuda": ("softmax", {"x": X}, ["--device", "cuda:x"], ["'cuda:x'"]),
    "unknown isa": ("softmax", {"x": X}, ["--isa", "sse"], ["'sse'"]),
    "no threads": ("softmax", {"x": X}, ["--threads", "0"], ["--threads"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(refuse, case):
    op, tensors, options, words = REFUSED[case]
    refuse(op, tensors, *options, words=words)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_no_such_device(refuse, device):
    refuse("softmax", {"x": X}, "--device", device, words=[device], code=77)


def test_missing_arguments():
    for arguments, word in ((["softmax"], "--input"), (["softmax", "--input", "x"], "--output"),
                            ([], "operation"), (["--input", "x", "--output", "y"], "operation")):
        done = run(*arguments)
        assert done.returncode == 2 and word in done.stderr and done.stderr.count("\n") == 1


def test_truncated_at_every_byte(refuse, tmp_path):
    write(tmp_path / "whole", {"x": X[:1]})
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "whole").unlink()
    for count in range(0, len(whole), 3):
        (tmp_path / "in").write_bytes(whole[:count])
        refuse("softmax", None, words=["safetensors", str(tmp_path / "in")])
    (tmp_path / "in").write_bytes(whole + b"\0")
    refuse("softmax", None, words=["bytes of data"])


def test_no_input_file(refuse, tmp_path):
    refuse("softmax", None, words=["No such file", str(tmp_path / "in")], code=4)


def test_directories(tmp_path):
    write(tmp_path / "in", {"x": X})
    done = run("softmax", "--input", tmp_path, "--output", tmp_path / "out")
    assert done.returncode == 2 and "directory" in done.stderr
    (tmp_path / "folder").mkdir()
    for output in (tmp_path / "folder", tmp_path / "none" / "out", "/dev/full"):
        done = run("softmax", "--input", tmp_path / "in", "--output", output)
        assert done.returncode == 4 and str(output) in done.stderr and done.stderr.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "in"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder(tmp_path):
    write(tmp_path / "in", {"x": X})
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    done = run("softmax", "--input", tmp_path / "in", "--output", folder / "out")
    assert done.returncode == 4 and re.search("denied", done.stderr)


def test_disk_full(tmp_path):
    """A limit on file sizes simulates a full disk: no new file, and the earlier one is intact."""
    write(tmp_path / "in", {"x": draw("x", (1000, 64))})
    (tmp_path / "out").write_bytes(b"earlier")
    done = subprocess.run(
        ["sh", "-c", 'trap "" XFSZ; ulimit -f 8; exec "$@"', "sh", TESSERA, "apply", "softmax",
         "--input", tmp_path / "in", "--output", tmp_path / "out"], capture_output=True, text=True)
    assert done.returncode == 4 and "cannot be written" in done.stderr
    assert (tmp_path / "out").read_bytes() == b"earlier"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]
