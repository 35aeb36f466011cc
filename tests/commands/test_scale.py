# SPDX-License-Identifier: Apache-2.0
"""tessera scale from outside: its sweeps contain the members that they name, and its efficiencies follow from the times
in the same rows. The binary is $TESSERA."""
import csv
import io
import json
import os
import subprocess

import pytest

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")

SOFTMAX = ["softmax_forward", "--rows", "8", "--cols", "32", "--rep", "1", "--warmup", "1"]


def scale(*arguments, code=0):
    done = subprocess.run([TESSERA, "scale", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done


def results(*arguments):
    return json.loads(scale(*arguments, "--format", "json").stdout, parse_constant=pytest.fail)["results"]


def test_sweeps_have_their_members():
    rows = results(*SOFTMAX, "--threads", "3")
    got = [(r["study"], r["params"]["rows"], r["params"]["cols"], r["threads"], r["times"]) for r in rows]
    assert got == ([("batch", 8 * n, 32, 3, n) for n in (1, 2, 4, 8, 16)]
                   + [("problem", 8, 32 * n, 3, n) for n in (1, 2, 4, 8)]
                   + [("threads", 8, 32, n, n) for n in (1, 2, 3)])
    for row in rows:
        assert row["err_over_bound"] <= 1 and row["peer"] is None


def test_efficiency_follows_from_the_times():
    rows = results(*SOFTMAX, "--threads", "2")
    for study in ("batch", "problem", "threads"):
        sweep = [r for r in rows if r["study"] == study]
        first = sweep[0]
        assert first["times"] == 1 and first["efficiency"] == 1
        for row in sweep[1:]:
            work = 1 if study == "threads" else row["times"]
            expected = work * first["median_ms"] / row["median_ms"]
            if study == "threads":
                expected /= row["times"]
            assert row["efficiency"] == pytest.approx(expected, rel=0.01)


def test_calls_that_share_nothing_stand_beside_threads():
    rows = results("attention", "--pass", "forward", "--over", "batch,threads", "--times", "1", "--batch-size", "2",
                   "--seqlen", "64", "--num-heads", "3", "--head-dim", "16", "--threads", "3", "--rep", "3", "--apart")
    over = {study: [r for r in rows if r["study"] == study] for study in ("batch", "threads")}
    assert [r["efficiency_apart"] for r in over["batch"]] == [None]
    assert [r["threads"] for r in over["threads"]] == [1, 2, 3]
    assert over["threads"][0]["efficiency_apart"] == 1
    assert all(0 < r["efficiency_apart"] < 2 for r in over["threads"])
    plain = results(*SOFTMAX, "--over", "threads", "--threads", "2")
    assert [r["efficiency_apart"] for r in plain] == [None, None]


def test_attention_and_matmul_unless_named():
    rows = results("--over", "batch", "--times", "1,3", "--batch-size", "2", "--seqlen", "8", "--num-heads", "1",
                   "--head-dim", "8", "--m", "8", "--n", "8", "--k", "8", "--rep", "1", "--warmup", "1")
    assert [r["op"] for r in rows] == [op for op in ("attention_forward", "attention_backward", "matmul_forward",
                                                     "matmul_backward") for _ in range(2)]
    for row in rows:
        batch = row["params"].get("batch_size", row["params"].get("batch"))
        assert batch == 2 * row["times"]


def test_the_problem_of_attention_is_square():
    rows = results("attention", "--pass", "forward", "--over", "problem", "--times", "1:2:x2", "--batch-size", "1",
                   "--seqlen", "8", "--num-heads", "1", "--head-dim", "8", "--rep", "1", "--warmup", "1")
    assert [(r["params"]["seqlen_q"], r["params"]["seqlen_k"]) for r in rows] == [(8, 8), (16, 16)]
    work = [r["tflops"] * r["median_ms"] for r in rows]
    assert work[1] == pytest.approx(4 * work[0], rel=0.01)


def test_formats_agree():
    small = [*SOFTMAX, "--over", "batch", "--times", "1,2"]
    table = scale(*small).stdout.splitlines()
    assert "| over | threads | times | efficiency |" in table[0] and "| batch |" in table[2]
    assert {line.count("|") for line in table[:4]} == {table[0].count("|")}
    lines = list(csv.DictReader(io.StringIO(scale(*small, "--format", "csv").stdout)))
    assert [(line["study"], float(line["times"])) for line in lines] == [("batch", 1), ("batch", 2)]
    assert float(lines[0]["efficiency"]) == 1


def test_each_case_is_a_sweep_of_its_own():
    rows = results("softmax_forward", "--rows", "8", "--cols", "16,32", "--dtype", "f32,bf16", "--over", "batch,threads",
                   "--times", "1,2", "--threads", "2", "--rep", "1", "--warmup", "1")
    assert [(r["params"]["cols"], r["dtype"], r["study"], r["times"]) for r in rows] == [
        (cols, dtype, study, times) for cols in (16, 32) for dtype in ("f32", "bf16") for study in ("batch", "threads")
        for times in (1, 2)]


@pytest.mark.parametrize("arguments, word", [
    (["--over", "size"], "--over is 'size', expected batch, problem or threads"),
    (["--times", "0"], "--times has 0"), (["--times", "1.5"], "--times has 1.5"), (["nothing"], "'nothing'"),
    (["softmax", "--rows", "-1"], "--rows"), (["adamw", "--pass", "backward"], "adamw has no backward pass"),
], ids=str)
def test_what_is_wrong_is_said(arguments, word):
    done = scale(*arguments, code=2)
    assert word in done.stderr and done.stdout == ""


def test_a_variant_that_does_not_serve():
    done = scale(*SOFTMAX, "--over", "batch", "--times", "1", "--variant", "cuda-rows", code=4)
    assert "cuda-rows" in done.stderr
