# SPDX-License-Identifier: Apache-2.0
"""Every command under memory limits of all sizes: it works, or says in a sentence that it could not, with a matching exit
code, and never dies from a signal. $TESSERA_MEMORY_STEPS: the number of limits per command. The binary is $TESSERA."""
import json
import os
import random
import resource
import subprocess

import numpy as np
import pytest

from apply_support import write

TESSERA = os.environ.get("TESSERA", "")
pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA names no binary")

STEPS = int(os.environ.get("TESSERA_MEMORY_STEPS", "4"))
SEED = int(os.environ.get("TESSERA_TEST_SEED", random.randrange(10**6)))
SHAPE = ["--rows", "64", "--cols", "64"]
COMMANDS = {
    "info": ["info"],
    "verify": ["verify", "--op", "attention", "--configs", "4", "--edges", "none", "--isa", "scalar"],
    "verify a module": ["verify", "--op", "self_attention", "--configs", "3", "--edges", "none", "--isa", "scalar"],
    "bench": ["bench", "softmax", *SHAPE, "--budget", "0.002", "--rep", "1", "--format", "json", "--out", "bench.json"],
    "bench a peer": ["bench", "matmul", "--m", "8", "--n", "8", "--k", "8", "--rep", "1", "--peer", "openblas,torch"],
    "compare": ["compare", "softmax", *SHAPE, "--pass", "forward", "--budget", "0.002", "--limit", "2"],
    "compare files": ["compare", "run.json", "run.json", "--out", "compared"],
    "history add": ["history", "add", "run.json", "--file", "new.sqlite"],
    "history check": ["history", "check", "--file", "kept.sqlite"],
    "memory": ["memory", "softmax", *SHAPE, "--rep", "1"],
    "profile": ["profile", "softmax", *SHAPE, "--output", "trace.json"],
    "scale": ["scale", "softmax", "--pass", "forward", *SHAPE, "--over", "threads", "--budget", "0.002", "--format", "json"],
    "tune": ["tune", "matmul", "--m", "8", "--n", "8", "--k", "8", "--pass", "forward", "--budget", "0.002"],
    "apply": ["apply", "softmax", "-i", "x.safetensors", "-o", "y.safetensors"],
    "write": ["conformance", "write", "softmax", "--configs", "2", "--seed", "1", "--output", "written"],
    "check": ["conformance", "check", "cases", "--command", "cp {input} {output}"],
    "kernels": ["kernels", "list"],
    "manual": ["manual", "bench"],
    "completion": ["completion", "bash"],
}


def limited(command, folder, kilobytes):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (kilobytes << 10, kilobytes << 10))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return subprocess.run([TESSERA, *command], capture_output=True, text=True, errors="replace", timeout=120, check=False, cwd=folder,
                          preexec_fn=limit, env={**os.environ, "TSR_TUNING_FILE": str(folder / "tuning"), "TMPDIR": str(folder)})


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    results = [{"op": "softmax_forward", "params": {"cols": cols}, "dtype": "f32", "variant": "fused", "peer": None,
                "median_ms": 1.0, "p20_ms": 0.9, "p80_ms": 1.1, "err_over_bound": 0.5} for cols in range(500)]
    (folder / "run.json").write_text(json.dumps({"schema": 1, "env": {"cpu": "a", "date": "b"}, "results": results}))
    write(folder / "x.safetensors", {"x": np.ones((500, 500), np.float32)})
    for command in (["history", "add", "run.json", "--file", "kept.sqlite"],
                    ["conformance", "write", "softmax", "--configs", "2", "--output", "cases"]):
        subprocess.run([TESSERA, *command], cwd=folder, check=True, capture_output=True, timeout=60)
    return folder


@pytest.fixture(name="least", scope="module")
def fixture_least(folder):
    """The least limit with which the loader can start the program."""
    least = 4 << 10
    while limited(["--version"], folder, least).returncode != 0:
        least += 512
        assert least < 1 << 20
    return least


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_without_memory_says_so(name, folder, least):
    enough = least
    while limited(COMMANDS[name], folder, enough).returncode not in (0, 1, 77) and enough < 16 << 20:
        enough *= 2
    draw = random.Random(f"{SEED} {name}")
    for _ in range(STEPS):
        kilobytes = draw.randrange(least, least + max(enough - least, 1024))
        before = {path.name for path in folder.iterdir()}
        done = limited(COMMANDS[name], folder, kilobytes)
        what = f"seed {SEED}, ulimit -v {kilobytes}: exit code {done.returncode}, '{done.stderr[-300:]}'"
        print(what)
        # 1 is a verdict: the answers are just the inputs, or a variant was faster.
        assert done.returncode in (0, 2, 3, 4, 77) or (done.returncode == 1 and name in ("check", "compare")), what
        assert done.returncode in (0, 1) or "tessera" in done.stderr, what
        new = {path.name for path in folder.iterdir()} - before - {"new.sqlite", "written", "bench.json", "trace.json", "compared",
                                                                  "tuning", "y.safetensors"}
        assert not new, f"{what}: {new}"
