# SPDX-License-Identifier: Apache-2.0
"""The tessera command from outside: what its options mean, what it refuses, and its exit codes. The binary is
$TESSERA."""
import json
import os
import pathlib
import re
import resource
import subprocess
import time

import pytest

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")

SMALL = ["--rows", "2", "--cols", "2", "--rep", "1", "--warmup", "1"]


def run(*arguments, **options):
    return subprocess.run([TESSERA, *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, **options)


def cpu_seconds():
    """CPU time of ended child processes, which does not depend on other load."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# ---- Unwritable output -----------------------------------------------------------------------------

@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [
    ["--help"], ["--version"], ["info", "--no-measure"], ["info", "--no-measure", "--format", "json"],
    ["verify", "--op", "cast", "--configs", "3", "--dtype", "f32"], ["verify", "--help"],
    ["bench", "cast", *SMALL], ["bench", "cast", *SMALL, "--format", "json"], ["apply", "--help"],
], ids=" ".join)
def test_a_full_disk_behind_standard_output_is_an_error(arguments):
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([TESSERA, *arguments], stdout=full, stderr=subprocess.PIPE, text=True,
                              timeout=120, check=False)
    assert done.returncode == 4
    *progress, error = done.stderr.splitlines()
    assert error.startswith("tessera: cannot write ") and all(line.startswith("verify: ") for line in progress)


def test_out_is_looked_at_before_anything_is_measured(tmp_path):
    for path, word in ((tmp_path, "directory"), (tmp_path / "none" / "file", "No such file")):
        done = run("bench", "cast", *SMALL, "--out", path)
        assert done.returncode == 2 and done.stdout == ""
        assert word in done.stderr and str(path) in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_out_through_a_link(tmp_path):
    (tmp_path / "file.csv").write_text("earlier")
    link = tmp_path / "link.csv"
    link.symlink_to("file.csv")
    done = run("bench", "cast", *SMALL, "--out", link)
    assert done.returncode == 0 and done.stdout == ""
    assert link.is_symlink() and pathlib.Path(os.readlink(link)) == pathlib.Path("file.csv")
    header, row = (tmp_path / "file.csv").read_text().splitlines()
    assert header.startswith("op,params,dtype") and row.startswith('"cast","rows=2 cols=2","f32"')


@pytest.mark.parametrize("arguments", [
    ["bench", "cast", "--rows", "2", "--cols", "2", "--budget", "0.01"],
    ["memory", "cast", "--rows", "2", "--cols", "2", "--rep", "1"],
    ["tune", "matmul", "--m", "2", "--n", "2", "--k", "2", "--pass", "forward", "--budget", "0.01", "--dry-run"],
], ids=lambda arguments: arguments[0])
def test_files_are_replaced_not_overwritten(tmp_path, arguments):
    path = tmp_path / "out.json"
    path.write_text("earlier")
    os.link(path, tmp_path / "link")
    done = run(*arguments, "--out", path)
    assert done.returncode == 0, done.stderr
    assert json.loads(path.read_text()) and (tmp_path / "link").read_text() == "earlier"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "out.json"]


# ---- bench: options and cases ----------------------------------------------------------------------

def bench_params(*arguments):
    done = run("bench", *arguments, *SMALL, "--format", "json")
    assert done.returncode == 0, done.stderr
    return [result["params"] for result in json.loads(done.stdout)["results"]]


def test_giving_a_number_sets_its_flag():
    [plain] = bench_params("cast")
    assert plain["has_scale"] is False
    [scaled] = bench_params("cast", "--scale", "3")
    assert scaled["has_scale"] is True and scaled["scale"] == 3
    three = bench_params("cast", "--scale", "1,2,4")
    assert [(p["scale"], p["has_scale"]) for p in three] == [(1, True), (2, True), (4, True)]
    [scaled] = bench_params("adamw", "--grad-scale", "7")
    assert scaled["has_grad_scale"] is True and scaled["grad_scale"] == 7


def test_names_that_users_of_attention_know():
    """--max-seq-len doubles the lengths up to it, --embed-dim is the sum over all heads, --non-causal means no mask."""
    few = ["--batch-size", "1", "--num-heads", "2,4", "--no-verify", "--budget", "0.001", "--rep", "1"]
    done = run("bench", "attention", "--max-seq-len", "300", "--embed-dim", "64", "--non-causal", *few)
    assert done.returncode == 0, done.stderr
    shapes = re.findall(r"seqlen_q=(\d+) seqlen_k=(\d+) num_heads=(\d+) .*?head_dim=(\d+)", done.stdout)
    assert sorted(tuple(map(int, shape)) for shape in shapes) == [
        (256, 256, 2, 32), (256, 256, 4, 16), (300, 300, 2, 32), (300, 300, 4, 16)]
    assert "mask=" not in done.stdout
    assert "--embed-dim" in run("bench", "self-attention", "--help").stdout


@pytest.mark.parametrize("arguments, words", [
    (["--embed-dim", "100", "--num-heads", "3"], ["--embed-dim 100", "num_heads 3"]),
    (["--embed-dim", "96", "--num-heads", "0"], ["--embed-dim 96", "num_heads 0"]),
    (["--embed-dim", "96", "--head-dim", "32"], ["--embed-dim", "--head-dim"]),
    (["--max-seq-len", "512", "--seqlen", "64"], ["--max-seq-len", "--seqlen"]),
    (["--max-seq-len", "512,1024"], ["--max-seq-len", "one length"]),
    (["--non-causal", "--mask", "causal"], ["--non-causal", "--mask"]),
])
def test_names_that_users_know_do_not_contradict(arguments, words):
    done = run("bench", "attention", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert all(word in done.stderr for word in words), done.stderr


def test_help_names_no_option_that_is_missing():
    for command in ("apply", "bench"):
        for op in ("cast", "adamw"):
            text = run(command, op, "--help").stdout
            options = set(re.findall(r"--[a-z][a-z0-9-]*", text))
            for word in re.findall(r"\bhas_\w+", text):
                assert "--" + word.replace("_", "-") in options, (command, op, word)


def test_wrong_options_are_found_before_anything_is_measured():
    """The error in rope's head_dim must be found before softmax is measured."""
    used = cpu_seconds()
    done = run("bench", "softmax", "rope", "--rows", "64", "--cols", "64", "--budget", "20",
               "--head-dim", "abc")
    assert done.returncode == 2 and done.stdout == ""
    assert "--head-dim" in done.stderr
    assert cpu_seconds() - used < 10


@pytest.mark.parametrize("way", [["--format", "json"], ["--format", "jsonl"], ["--format", "csv"],
                                 ["--out", "x.json"]], ids=" ".join)
def test_results_for_programs_are_proved(way, tmp_path):
    done = run("bench", "cast", *SMALL, "--no-verify", *way, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert "--no-verify" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_table_may_be_unproved():
    done = run("bench", "cast", *SMALL, "--no-verify")
    assert done.returncode == 0 and "| cast | rows=2 cols=2 |" in done.stdout


def test_no_warmup():
    """The first sample is the first call: exactly as many samples as requested, and no other calls."""
    done = run("bench", "cast", "--rows", "2", "--cols", "2", "--rep", "3", "--warmup", "0",
               "--format", "json")
    assert done.returncode == 0, done.stderr
    [result] = json.loads(done.stdout)["results"]
    assert result["samples"] >= 1 and result["median_ms"] > 0
    assert run("bench", "cast", *SMALL[:4], "--warmup", "-1").returncode == 2


# ---- Options ---------------------------------------------------------------------------------------

def test_an_option_is_no_value():
    done = run("verify", "--op", "--quick")
    assert done.returncode == 2 and done.stdout == ""
    assert "--op needs a value" in done.stderr and "--quick" in done.stderr


def test_help_says_choices_once():
    for arguments in (["report"], ["bench"], ["bench", "matmul"], ["scale"], ["info"], ["apply", "matmul"]):
        for line in run(*arguments, "--help").stdout.splitlines():
            choices = re.findall(r"\w+(?:, \w+){2,}", line)
            assert len(choices) == len(set(choices)), line


def test_names_of_operations_with_either_dash():
    for name in ("matmul-grouped", "matmul_grouped", "matmul-grouped-backward"):
        assert "--groups" in run("bench", name, "--help").stdout
        assert "--transpose-b" in run("apply", name, "--help").stdout
    done = run("profile", "layr")
    assert done.returncode == 2 and "cross-entropy" in done.stderr and "layer-large" in done.stderr


EMULATOR = pathlib.Path(TESSERA).parent / "libtessera_emulator.so"


@pytest.mark.skipif(not EMULATOR.exists(), reason="no emulated device")
@pytest.mark.parametrize("arch, features", [("80", ["tensor cores"]), ("90", ["tensor cores", "fp8 products", "TMA"])])
def test_info_names_what_a_gpu_can_do(arch, features):
    emulate = pathlib.Path(__file__).parents[2] / "scripts" / "emulate"
    line = [emulate, TESSERA, "info", "--device", "cuda", "--no-measure"]
    environment = {**os.environ, "EMULATOR_ARCH": arch, "TESSERA_EMULATOR": str(EMULATOR)}
    told = subprocess.run([*line, "--format", "json"], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(told.stdout)["devices"][0]["features"] == features
    told = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    assert f"\n| features | {', '.join(features)} |\n" in told.stdout
