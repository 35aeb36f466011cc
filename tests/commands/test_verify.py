# SPDX-License-Identifier: Apache-2.0
"""tessera verify from outside: its table and its JSON. The binary is $TESSERA."""
import json
import os
import resource
import subprocess

import pytest

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")


def run(*arguments, code=0):
    done = subprocess.run([TESSERA, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done


VERIFY = ("verify", "--op", "softmax_forward", "--configs", 9, "--seed", 3, "--edges", "near")


def test_verify_as_json():
    document = json.loads(run(*VERIFY, "--format", "json").stdout)
    assert document["schema"] == 1 and {"host", "cpu", "isa", "threads", "version"} <= set(document["env"])
    summary = document["verify"]
    assert summary["seed"] == 3 and summary["configs"] == 9 and summary["failed"] == 0
    rows = document["results"]
    keys = {(r["op"], r["variant"], r["dtype"], r["isa"]) for r in rows}
    assert len(keys) == len(rows)
    assert {k[1] for k in keys} >= {"(default)", "fused", "unfused", "reference"}
    assert {k[2] for k in keys} == {"f32", "bf16", "f16"} and "scalar" in {k[3] for k in keys}
    for row in rows:
        assert 0 <= row["err_over_bound"] <= 1 and row["max_abs_err"] >= row["mean_abs_err"] >= 0
        assert row["configs"] > 0 and row["failed"] == 0 and row["failure"] is None
        assert row["device"] == "cpu" and row["threads"] >= 1 and row["peer"] is None
        assert row["median_ms"] is None and row["cache"] is None and row["params"] == {}


def test_edges_all_near_or_none():
    small = ("verify", "--op", "softmax_forward", "--configs", 0, "--dtype", "f32", "--variant", "unfused")

    def of(*arguments):
        return json.loads(run(*small, "--format", "json", *arguments).stdout)["verify"]["edges"]
    everything = of()
    assert of("--edges", "all") == everything
    assert of("--edges", "near") == everything - 2  # two edges exceed 2^31 elements
    assert "edges" in run(*small, "--edges", "far", code=2).stderr
    none = json.loads(run(*VERIFY, "--format", "json", "--edges", "none").stdout)["verify"]
    assert none["edges"] == 0 and none["configs"] == 9


def test_verify_json_and_table_agree():
    rows = json.loads(run(*VERIFY, "--format", "json", "--threads", 2).stdout)["results"]
    assert {row["threads"] for row in rows} == {2}
    table = run(*VERIFY, "--format", "md", "--threads", 2).stdout
    assert table.startswith("| operation | variant | dtype | isa | configs |")
    for row in rows:
        line = "| {op} | {variant} | {dtype} | {isa} | {configs} | {max_abs_err:.2e} |".format(**row)
        assert line in table
    assert table.endswith("PASS\n")


def test_verify_table_is_the_default():
    seconds = run(*VERIFY).stdout.splitlines()
    assert seconds[:-2] == run(*VERIFY, "--format", "md").stdout.splitlines()[:-2]


@pytest.mark.parametrize("arguments", [("--format", "xml"), ("--dtype", "f64"), ("--op", "nonsense"),
                                       ("--threads", 0), ("--isa", "sse"), ("surplus",)])
def test_verify_usage(arguments):
    done = run("verify", *arguments, code=2)
    assert done.stdout == "" and done.stderr.count("\n") == 1 and done.stderr.startswith("tessera verify: ")


def test_verify_help_names_every_option():
    text = run("verify", "--help").stdout
    for option in ("op", "variant", "dtype", "isa", "configs", "edges", "quick", "long", "seed", "threads", "format"):
        assert f"--{option}" in text
    assert "md, json" in text


def test_an_operation_by_its_name_has_both_passes():
    small = ("verify", "--configs", 2, "--edges", "none", "--dtype", "f32", "--format", "json")
    for name in ("self-attention", "self_attention"):
        rows = json.loads(run(*small, "--op", name).stdout)["results"]
        assert {row["op"] for row in rows} == {"self_attention_forward", "self_attention_backward"}


def test_names_that_are_none_say_what_there_is():
    none = ("--configs", 0, "--edges", "none")
    error = run("verify", "--op", "softmx", *none, code=2).stderr
    assert "'softmx'" in error and "matmul-grouped" in error and "rmsnorm" in error
    error = run("verify", "--op", "softmax_forward", "--variant", "fusd", *none, code=2).stderr
    assert "'fusd' for cpu" in error and "(default), fused, online, unfused, reference" in error
    assert "'fusd' for cpu" in run("verify", "--variant", "fusd", *none, code=2).stderr
    assert "there are no cases" in run("verify", "--op", "softmax_forward", "--variant", "fused", *none, code=2).stderr
    error = run("verify", "--op", "attention_forward", "--variant", "amx_bf16", "--dtype", "f32", *none, "--cases",
                "seqlen_q=3 seqlen_k=5", code=2).stderr
    assert "'amx_bf16' supports none of the cases" in error


def test_large_cases_are_not_made_ahead():
    """One case of 5 million elements takes about 200 MB. Without a limit the oracle would be up to five cases ahead."""
    cases = ";".join(f"rows={rows} cols=2500" for rows in range(2000, 2005))
    command = [TESSERA, "verify", "--op", "softmax_forward", "--configs", "0", "--edges", "none", "--isa", "scalar",
               "--variant", "fused", "--dtype", "f32", "--repeats", "15", "--cases", cases]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert usage.ru_maxrss < 400 << 10  # KiB


@pytest.mark.parametrize("rows, address_space", [(10**6, None), (2**13, 1 << 30)])
def test_a_case_without_memory_is_named_with_its_bytes(rows, address_space):
    """8 bytes per element of input, output and the output's bound. A case that cannot run is neither success nor failure."""
    def limit():
        if address_space is not None:
            resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    done = subprocess.run([TESSERA, "verify", "--op", "softmax_forward", "--configs", "0", "--edges", "none", "--dtype",
                           "f32", "--cases", f"rows={rows} cols={rows}"], capture_output=True, text=True, timeout=120,
                          preexec_fn=limit)
    assert done.returncode == 4, done.stderr
    assert ", 0 failed, 1 not run\nCOULD NOT RUN: memory was short\n" in done.stdout and "FAIL" not in done.stdout
    assert done.stderr.startswith("tessera verify: 1 of the cases could not run: softmax_forward ")
    line = next(line for line in done.stdout.splitlines() if line.startswith("NOT RUN (1): "))
    assert f"softmax_forward rows={rows} cols={rows}, variant reference, f32" in line
    assert line.endswith(f": no memory for the {24 * rows * rows} bytes that the reference needs")


def test_a_case_that_the_oracle_refuses_alone_is_shown():
    done = run("verify", "--op", "attention_forward", "--configs", 0, "--edges", "none", "--dtype", "f32",
               "--cases", "head_dim=300 seqlen_q=3 seqlen_k=5", code=1)
    assert "FAIL (1): attention_forward " in done.stdout and "head_dim of q is 300, expected 1 to 256" in done.stdout
