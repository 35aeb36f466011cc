# SPDX-License-Identifier: Apache-2.0
"""tessera kernels, and --device cuda of other commands, without a compiler or a GPU: their messages and exit codes. The
binary is $TESSERA."""
import os
import subprocess

import pytest

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")


def run(*arguments, code=0, **variables):
    nothing = {"TSR_LIBCUDA": "/nowhere/libcuda.so", "TSR_LIBNVRTC": "/nowhere/libnvrtc.so"}
    done = subprocess.run([TESSERA, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **nothing, **variables}, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("arguments", [["check"], ["check", "--all"], ["pack", "--out", "p"]], ids=" ".join)
def test_without_a_compiler(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("kernels", *arguments, "--arch", "sm_80",
               code=77, TSR_CACHE_DIR=str(tmp_path))
    assert done.stderr.count("\n") == 1 and done.stdout == ""
    assert "NVRTC" in done.stderr and "/nowhere/libnvrtc.so" in done.stderr
    assert not (tmp_path / "p").exists()


def test_an_architecture_that_the_compiler_does_not_know(tmp_path):
    """One sentence, not one per kernel."""
    done = subprocess.run([TESSERA, "kernels", "check", "--arch", "sm_99"], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "TSR_CACHE_DIR": str(tmp_path), "TSR_LIBNVRTC": ""}, check=False)
    assert done.returncode == 77 and done.stdout == "" and done.stderr.count("\n") == 1
    if "was not found" in done.stderr:
        pytest.skip("no NVRTC")
    assert "does not know sm_99" in done.stderr


def test_an_empty_cache(tmp_path):
    done = run("kernels", "list", TSR_CACHE_DIR=str(tmp_path))
    assert str(tmp_path) in done.stdout and "0 damaged" in done.stdout
    assert (tmp_path / "kernels").stat().st_mode & 0o777 == 0o700
    (tmp_path / "kernels" / "x.kernel").write_bytes(b"no kernel")
    assert "1 damaged" in run("kernels", "list", TSR_CACHE_DIR=str(tmp_path)).stdout
    assert run("kernels", "clear", TSR_CACHE_DIR=str(tmp_path)).stdout == "1 files removed\n"
    assert list((tmp_path / "kernels").iterdir()) == []


def test_a_cache_of_others(tmp_path):
    (tmp_path / "kernels").mkdir(mode=0o755)
    done = run("kernels", "list", code=4, TSR_CACHE_DIR=str(tmp_path))
    assert "0700" in done.stderr


@pytest.mark.parametrize("arguments", [
    ["kernels"], ["kernels", "bake"], ["kernels", "check", "list"], ["kernels", "check", "--arch", "sm_75"],
    ["kernels", "check", "--arch", "hopper"], ["kernels", "pack", "--arch", "sm_80,sm_90a"],
    ["verify", "--device", "gpu"], ["verify", "--cases", "rows=3"],
    ["verify", "--op", "softmax_forward", "--edges", "none", "--cases", "m=3"],
    ["bench", "softmax", "--device", "cuda:x"],
    ["bench", "softmax", "--device", "-1"], ["memory", "softmax", "--device", "cuda:"],
    ["report", "--device", "gpu"], ["profile", "softmax", "--device", "cuda 0"],
], ids=" ".join)
def test_usage(arguments, tmp_path):
    done = run(*arguments, code=2, TSR_CACHE_DIR=str(tmp_path))
    assert done.stderr.startswith("tessera ")


@pytest.mark.parametrize("command", [["verify"], ["bench", "softmax"], ["bench", "softmax", "--peer", "triton"],
                                     ["info"], ["info", "--format", "json"], ["memory", "softmax"],
                                     ["profile", "rows"], ["report", "--quick"]], ids=" ".join)
def test_no_such_device(command, tmp_path):
    more = ["--save-dir", tmp_path / "report"] if command[0] == "report" else []
    done = run(*command, *more, "--device", "cuda:1", code=77)
    assert done.stdout == "" and list(tmp_path.iterdir()) == []
    assert "cuda:1" in done.stderr and "/nowhere/libcuda.so" in done.stderr and done.stderr.count("\n") == 1


def test_given_cases():
    verify = "verify", "--op", "softmax_forward", "--edges", "none", "--configs", 0, "--dtype", "f32", "--cases"
    assert "2 edge cases" in run(*verify, "rows=3 cols=5; rows=0 cols=7").stdout
    assert "expected" in run(*verify, "rows=3 cols=q", code=2).stderr


def test_the_cpu_is_named():
    assert "| devices | cpu |" in run("info", "--no-measure").stdout
    assert "PASS" in run("verify", "--device", "cpu", "--op", "softmax_forward", "--configs", 3).stdout
