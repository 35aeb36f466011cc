# SPDX-License-Identifier: Apache-2.0
"""tessera bench --peer torch with the real torch, if $TESSERA_PYTHON or the tests' Python has it: both give the same
values. Speed does not matter."""
import os
import subprocess
import sys

import pytest
from peers_support import TESSERA, bench, peers_of


def find_torch():
    """A Python that has torch. test_peers.py tests the script's own search."""
    for python in filter(None, (os.environ.get("TESSERA_PYTHON"), sys.executable)):
        try:
            done = subprocess.run([python, "-c", "import torch"], capture_output=True, timeout=120)
        except OSError:
            continue
        if done.returncode == 0:
            return python
    return None


@pytest.fixture(scope="module")
def torch():
    python = find_torch() if TESSERA else None
    if python is None:
        pytest.skip("no torch")
    return {"TESSERA_PYTHON": python}


NORM = ["--rows", "5", "--cols", "24", "--pass", "both"]
PRODUCT = ["matmul", "--pass", "both", "--m", "5", "--n", "7", "--k", "6"]
EPILOGUE = [*PRODUCT[:2], "forward", *PRODUCT[3:]]
ATTENTION = ["attention", "--pass", "both", "--batch-size", "2", "--seqlen-q", "5", "--seqlen-k", "9",
             "--num-heads", "4", "--num-kv-heads", "2", "--head-dim", "16"]


@pytest.mark.parametrize("cases, count", [
    (["softmax", "layernorm", "rmsnorm", *NORM], 6),
    (["layernorm", *NORM, "--weight", "--bias", "--residual", "--residual-out"], 2),
    (["layernorm", "rmsnorm", "--rows", "16384", "--cols", "64", "--pass", "backward"], 2),
    (["cast", "activation", *NORM[:4]], 2), (["adamw", *NORM[:4]], 1),
    (["rope", "--batch", "2", "--seqlen", "5", "--num-heads", "3", "--head-dim", "16", "--pass", "both"], 2),
    (["embedding", "--tokens", "20", "--vocab", "7", "--hidden", "24", "--pass", "both"], 2),
    (PRODUCT, 2), ([*PRODUCT, "--transpose-a", "--transpose-b"], 2),
    ([*EPILOGUE, "--bias", "--activation", "none,gelu,gelu_tanh,silu,relu,relu2"], 6),
    ([*EPILOGUE, "--b-up", "--activation", "silu,gelu,swiglu_clamped", "--transpose-b"], 3),
    ([*EPILOGUE, "--bias", "--residual", "--b-up", "--activation", "relu"], 1),
    ([*EPILOGUE, "--residual"], 1), ([*PRODUCT[:2], "backward", *PRODUCT[3:], "--db", "--dbias"], 1),
    ([*ATTENTION, "--mask", "none,causal,causal-top-left", "--softmax-scale", "0.3"], 6),
], ids=("rows", "residual", "sums over many rows", "elements", "step", "rotations", "lookups", "matmul", "transposed", "bias", "gate", "all of it", "sum", "bias gradient",
                                         "attention"))
def test_torch_and_we_agree(torch, cases, count):
    results, said = bench(*cases, "--dtype", "f32,bf16", "--rep", 2, "--peer", "torch", **torch)
    theirs = [result for result in results if result["peer"] == "torch"]
    assert len(theirs) == 2 * count, said
    for result in theirs:
        assert result["median_ms"] > 0 and result["ours_ms"] > 0 and result["max_abs_err"] < 0.1


def test_what_torch_cannot_do(torch):
    results, said = bench(*ATTENTION, "--softcap", "5", "--rep", 2, "--peer", "torch", **torch)
    assert set(peers_of(results)) == {None} and len(said) == 1 and "no equivalent of softcap" in said[0]
