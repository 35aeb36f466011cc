# SPDX-License-Identifier: Apache-2.0
"""tessera memory from outside: its three formats agree, its totals are correct, its files are complete, and a wrong
command line is reported before any measurement. The binary is $TESSERA."""
import csv
import io
import json
import os
import pathlib
import subprocess

import pytest

TESSERA = os.environ.get("TESSERA") or str(
    pathlib.Path(__file__).parents[2] / "build" / "release" / "tessera"
)
pytestmark = pytest.mark.skipif(
    not pathlib.Path(TESSERA).exists(), reason=f"no tessera command at {TESSERA}"
)
ATTENTION = ["attention", "--seqlen", "64,128", "--batch-size", "1", "--num-heads", "2",
             "--mask", "causal", "--rep", "1"]


def memory(*arguments, code=0):
    run = subprocess.run([TESSERA, "memory", *arguments], capture_output=True, text=True, timeout=120)
    assert run.returncode == code, run.stderr
    return run


def document(*arguments):
    return json.loads(memory(*arguments, "--format", "json").stdout, parse_constant=pytest.fail)


def test_rows_of_attention():
    told = document(*ATTENTION)
    rows = told["results"]
    assert told["schema"] == 1 and told["ceilings"]["fma_gflop_s"] > 0
    assert [row["variant"] for row in rows[:4]] == ["naive", "tuned", "flash2", "flash1"]
    assert [row["params"]["seqlen_k"] for row in rows] == [64] * 4 + [128] * 4
    for row in rows:
        assert row["form"] == ("unfused" if row["variant"] == "naive" else "fused")
        assert row["traffic_bytes"] == row["read_bytes"] + row["write_bytes"]
        assert row["predicted_bytes"] == row["tensor_bytes"] + row["workspace_bytes"]
        assert row["peak_bytes"] == row["predicted_bytes"]
        assert row["intensity"] == pytest.approx(row["flops"] / row["traffic_bytes"])
        assert row["share_of_roofline"] == pytest.approx(row["floor_ms"] / row["median_ms"])
        assert row["bound_by"] in ("memory", "compute")
    naive, tuned = rows[4], rows[5]
    assert naive["launches"] == 3 and tuned["launches"] == 1
    assert tuned["traffic_saved"] == pytest.approx(
        1 - tuned["traffic_bytes"] / naive["traffic_bytes"])


def test_tensors_count_once_when_fused():
    rows = document("softmax", "--rows", "8", "--cols", "16", "--rep", "1", "--pass", "forward",
                    "--dtype", "f32,bf16")["results"]
    assert [row["traffic_bytes"] for row in rows if row["form"] == "fused"] == [1024, 512]


def test_formats_tell_the_same(tmp_path):
    lines = list(csv.DictReader(io.StringIO(memory(*ATTENTION, "--format", "csv").stdout)))
    path = tmp_path / "rows.json"
    assert memory(*ATTENTION, "--out", str(path)).stdout == ""
    rows = json.loads(path.read_text())["results"]
    assert len(lines) == len(rows) == 8
    for line, row in zip(lines, rows):
        for name in ("op", "variant", "form", "dtype"):
            assert line[name] == row[name]
        for name in ("launches", "traffic_bytes", "predicted_bytes", "peak_bytes"):
            assert int(line[name]) == row[name]
    table = memory(*ATTENTION).stdout.splitlines()
    assert len({line.count("|") for line in table[:10]}) == 1
    assert any(line.startswith("Roofline") for line in table)


def test_several_operations_and_passes():
    rows = document("softmax_backward", "rmsnorm_forward", "--rows", "4", "--cols", "32", "--rep",
                    "1")["results"]
    assert [(row["op"], row["form"]) for row in rows] == [
        ("softmax_backward", "unfused"), ("softmax_backward", "fused"),
        ("rmsnorm_forward", "unfused"), ("rmsnorm_forward", "fused"),
    ]
    rows = document("self_attention", "--pass", "both", "--batch-size", "1", "--seqlen", "32",
                    "--embed-dim", "64", "--num-heads", "4", "--num-kv-heads", "2", "--variant",
                    "default", "--rep", "1")["results"]
    assert [row["op"] for row in rows] == ["self_attention_forward", "self_attention_backward"]
    assert all(row["peak_bytes"] == row["predicted_bytes"] for row in rows)


@pytest.mark.parametrize("arguments, words", [
    ([], ["no operation"]),
    (["nonsense"], ["nonsense", "attention"]),
    (["softmax", "--dtype", "f8"], ["--dtype", "f8"]),
    (["softmax", "--rows", "1:2"], ["--rows"]),
    (["softmax", "--format", "xml"], ["--format"]),
    (["softmax", "--out", "/nonexistent/file"], ["--out", "/nonexistent/file"]),
    (["adamw", "--pass", "backward"], ["backward"]),
    (["softmax", "--variant", "nonsense", "--rows", "4", "--cols", "4"], ["nonsense"]),
])
def test_usage(arguments, words):
    run = memory(*arguments, code=2)
    assert run.stdout == ""
    for word in words:
        assert word in run.stderr


def test_tensors_that_no_machine_holds_are_said_once():
    run = memory("softmax", "--pass", "forward", "--rows", "1000000000000", "--cols", "100000000", code=4)
    assert run.stderr.count("the tensors need 800.0 EB") == 1 and run.stderr.count("\n") == 1
    run = memory("softmax", "--pass", "forward", "--rows", "1000000", "--cols", "100000000", code=4)
    assert run.stderr.count("the tensors need 800.0 TB") == 1


def test_help():
    text = memory("--help").stdout
    assert "tessera memory OP" in text and "self-attention" in text
    assert "--seqlen-q" in memory("attention", "--help").stdout
