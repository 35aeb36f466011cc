# SPDX-License-Identifier: Apache-2.0
"""tessera profile from outside, on the CPU and without a driver and CUPTI: its tables, its timeline, and its messages for
wrong command lines. The binary is $TESSERA."""
import json
import os
import resource
import signal
import subprocess

import pytest

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")
SOFTMAX = ["softmax", "--rows", "64", "--cols", "96,128", "--rep", "3", "--threads", "2"]


def profile(*arguments, code=0, **environment):
    done = subprocess.run([TESSERA, "profile", *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **environment}, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_figures_of_every_step(tmp_path):
    told = json.loads(profile(*SOFTMAX, "--pass", "both", "--format", "json").stdout, parse_constant=pytest.fail)
    assert told["schema"] == 1 and told["device"] == "cpu" and told["rep"] == 3 and told["lost"] == 0
    steps = told["operations"]
    assert [(step["op"], step["params"]) for step in steps] == [
        (f"softmax_{p}", f"rows=64 cols={c}") for p in ("forward", "backward") for c in (96, 128)]
    for step in steps:
        assert step["variant"] == "fused" and step["dtype"] == "f32"
        assert step["device_us"] > 0 and step["gb_s"] > 0 and step["share_of_bandwidth"] > 0
        assert step["kernels"] is None and step["gap_us"] is None
    assert sum(kernel["number"] for kernel in told["kernels"]) == 4 * 2 * 3
    assert sum(kernel["share"] for kernel in told["kernels"]) == pytest.approx(1)
    assert told["copies"] == [] and told["copy_share"] is None


def test_the_timeline(tmp_path):
    path = tmp_path / "trace.json"
    profile(*SOFTMAX, "--no-measure", "--output", path)
    trace = json.loads(path.read_text(), parse_constant=pytest.fail)
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert {"host", "calls"} <= names
    calls = [span for span in spans if span["cat"] == "call"]
    assert len(calls) == 2 * 2 * 3
    for call in calls:
        assert call["name"] == "softmax_forward" and call["dur"] > 0 and call["ts"] >= 0
        around = [span for span in spans if span["cat"] == "range" and span["name"] == call["args"]["step"]
                  and span["ts"] <= call["ts"] and call["ts"] + call["dur"] <= span["ts"] + span["dur"]]
        assert len(around) == 1 and around[0]["args"]["phase"] in ("one at a time", "in a row")
    assert min(span["ts"] for span in spans) == 0


def test_a_full_disk_leaves_the_earlier_timeline(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("an earlier one")

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = subprocess.run([TESSERA, "profile", *SOFTMAX, "--no-measure", "--output", str(path)], capture_output=True,
                          text=True, timeout=120, check=False, preexec_fn=limit)
    assert done.returncode == 4 and "| softmax_forward rows=64 cols=96 f32 |" in done.stdout
    assert done.stderr == f"tessera: cannot write '{path}': File too large\n"
    assert path.read_text() == "an earlier one" and [p.name for p in tmp_path.iterdir()] == ["trace.json"]


def test_a_workload_has_its_steps_in_order():
    told = json.loads(profile("layer", "--rep", "1", "--no-measure", "--format", "json").stdout)
    assert [step["op"] for step in told["operations"]] == [
        "rmsnorm_forward", "matmul_forward", "rope_forward", "attention_forward", "matmul_forward",
        "rmsnorm_forward", "matmul_forward", "matmul_forward"]
    assert all(step["share_of_bandwidth"] is None for step in told["operations"])


def test_tables():
    text = profile(*SOFTMAX, "--top", "1").stdout
    for word in ("Calls by time", "Operations", "threads at work", "softmax_forward rows=64 cols=96 f32"):
        assert word in text


@pytest.mark.parametrize("arguments, word", [
    ([], "no operation"), (["sofmax"], "sofmax"), (["softmax", "--dtype", "f64"], "f64"),
    (["softmax", "--pass", "sideways"], "sideways"), (["softmax", "--rows", "x"], "rows"),
    (["adamw", "--pass", "backward"], "backward"), (["softmax", "--variant", "none"], "none"),
    (["softmax", "--rep", "0"], "rep"), (["softmax", "--output", "/no/such/folder/t.json"], "/no/such/folder"),
])
def test_wrong_command_lines(arguments, word):
    done = profile(*arguments, code=2)
    assert word in done.stderr and done.stdout == ""


def test_no_device():
    done = profile("softmax", "--device", "cuda", code=77, TSR_LIBCUDA="/nowhere/libcuda.so")
    assert done.stderr.count("\n") == 1 and "/nowhere/libcuda.so" in done.stderr
