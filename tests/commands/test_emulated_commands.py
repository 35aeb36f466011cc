# SPDX-License-Identifier: Apache-2.0
"""The measuring commands of the tool with --device cuda on the emulated device: they succeed and print figures of a
kernel. The binary is $TESSERA."""
import json
import os
import pathlib
import subprocess

import pytest

TESSERA = os.environ.get("TESSERA", "")
ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(TESSERA).parent
EMULATOR = BUILD / "libtessera_emulator.so"
pytestmark = pytest.mark.skipif(not EMULATOR.exists(), reason="the emulated device is not built")

SHORT = ["--device", "cuda", "--rep", "2", "--budget", "0.01"]
SOFTMAX = ["softmax", "--rows", "4", "--cols", "8"]


def run(*arguments):
    environment = {**os.environ, "TESSERA_EMULATOR": str(EMULATOR), "TSR_CACHE_DIR": str(BUILD / "emulator-cache")}
    done = subprocess.run([ROOT / "scripts/emulate", TESSERA, *map(str, arguments)], capture_output=True, text=True,
                          timeout=300, check=False, env=environment)
    assert done.returncode == 0, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done


@pytest.mark.parametrize("arguments", [
    SOFTMAX,
    [*SOFTMAX, "--variant", "all"],
    [*SOFTMAX, "--pass", "both", "--cold"],
    ["attention", "--batch-size", "1", "--num-heads", "1", "--seqlen", "16", "--dtype", "bf16", "--pass", "backward", "--bias"],
], ids=" ".join)
def test_bench(arguments, tmp_path):
    run("bench", *arguments, *SHORT, "--format", "json", "--out", tmp_path / "o.json")
    results = json.loads((tmp_path / "o.json").read_text())["results"]
    assert results
    for result in results:
        assert result["device"] == "cuda:0" and result["median_ms"] > 0 and result["variant"].startswith("cuda-")
        assert 0 <= result["err_over_bound"] <= 1


def test_memory():
    assert "cuda-" in run("memory", *SOFTMAX, "--device", "cuda").stdout
