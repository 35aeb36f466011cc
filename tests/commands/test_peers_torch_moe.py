# SPDX-License-Identifier: Apache-2.0
"""bench/peer_torch_moe.py, with torch if there is one: routing as torch does it beside ours, its written gradient beside
autograd's, and the ways of a whole layer beside two loops over tokens and experts in double."""
import pathlib
import sys
import types

import pytest
from peers_support import TESSERA, bench
from test_peers_torch import find_torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))
import peer_torch_moe  # noqa: E402

SIZES = ["moe-route", "--tokens", "50", "--num-experts", "24", "--top-k", "4"]
SUMS = ["--tokens-per-expert", "--mean-probs", "--load-balance-loss", "--z-loss", "--usage-variance", "--lse", "--num-nan-rows"]
LOSSES = ["--pass", "backward", "--tokens-per-expert", "--dload-balance-loss", "--dz-loss"]
CASES = {"both scores": ["--scoring", "softmax,sigmoid"], "sums": ["--scoring", "softmax,sigmoid", *SUMS],
         "raw, rounded": ["--no-renormalize", "--routed-scaling", "1,16", "--round-weights", "bf16"],
         "groups": ["--scoring", "softmax,sigmoid", "--num-groups", "4", "--topk-groups", "2", "--correction-bias"],
         "best of groups": ["--num-groups", "4,6", "--topk-groups", "2", "--group-score", "max", *SUMS],
         "gradient": ["--scoring", "softmax,sigmoid", *LOSSES[:2]], "losses": ["--scoring", "softmax,sigmoid", *LOSSES],
         "gradient of raw": ["--routed-scaling", "1,16", "--no-renormalize", *LOSSES]}


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_torch_and_we_agree(case):
    python = find_torch() if TESSERA else None
    if python is None:
        pytest.skip("no torch")
    results, said = bench(*SIZES, *case, "--dtype", "f32,bf16", "--rep", 2, "--peer", "torch", TESSERA_PYTHON=python)
    theirs = [result for result in results if result["peer"] == "torch"]
    assert len(theirs) == 4, said
    for result in theirs:
        assert result["median_ms"] > 0 and result["max_abs_err"] < 0.1


LAYER = ["moe", "--tokens", "30", "--hidden", "24", "--intermediate", "16", "--experts", "5", "--top-k", "2", "--router"]
GRADIENTS = ["--dx", "--drouter", "--dw-up", "--dw-down"]


@pytest.mark.parametrize("case", [["--w-gate"], ["--activation", "none,gelu_tanh"], ["--w-gate", "--preact", "--activation", "relu2"],
                                  ["--pass", "backward", *GRADIENTS], ["--pass", "backward", "--w-gate", "--dw-gate", *GRADIENTS]],
                         ids=("SwiGLU", "without a gate", "saving", "gradients", "gradients of SwiGLU"))
def test_layers_agree(case):
    python = find_torch() if TESSERA else None
    if python is None:
        pytest.skip("no torch")
    results, said = bench(*LAYER, *case, "--dtype", "f32,bf16", "--rep", 2, "--peer", "torch", TESSERA_PYTHON=python)
    theirs = [result for result in results if result["peer"] == "torch"]
    assert len(theirs) == 2 * (1 + ("none,gelu_tanh" in case)), said
    for result in theirs:
        assert result["median_ms"] > 0 and result["max_abs_err"] < 0.1


def test_a_layer_that_torch_cannot_compute():
    python = find_torch() if TESSERA else None
    if python is None:
        pytest.skip("no torch")
    results, said = bench(*LAYER, "--b-up", "--rep", 2, "--peer", "torch", TESSERA_PYTHON=python)
    assert {result["peer"] for result in results} == {None} and len(said) == 1 and "no equivalent of b_up" in said[0]


class Job:
    """The part of peer_torch.Job that the routing's gradient needs."""

    def __init__(self, torch, **params):
        self.torch, self.params, self.number_of, self.dtypes = torch, {"top_k": 3, "routed_scaling": 1, **params}, {}, {}
        self.dtype = torch.float32
        self.tensors = {"logits": torch.randn(40, 12), "topk_ids": torch.zeros(40, 3, dtype=torch.int32),
                        "dtopk_weights": torch.randn(40, 3)}
        if params["has_losses"]:
            self.tensors.update(tokens_per_expert=torch.zeros(12, dtype=torch.int32),
                                dload_balance_loss=torch.randn(1), dz_loss=torch.randn(1))

    def __getitem__(self, name):
        return self.tensors.get(name)

    def ours(self, **_):
        return lambda: None


@pytest.mark.parametrize("has_losses", [False, True])
@pytest.mark.parametrize("raw", [0, 1])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_the_written_gradient_is_autograds(torch, scoring, raw, has_losses):
    torch.manual_seed(11)
    job = Job(torch, scoring=scoring, no_renormalize=raw, has_losses=has_losses)
    (_, autograd), (name, formula) = peer_torch_moe.moe_route_backward(job).paths
    assert name == "formula"
    torch.testing.assert_close(formula()[0], autograd()[0], rtol=1e-5, atol=1e-6)


# ---- A layer -------------------------------------------------------------------------------------------------

def layer_in_double(torch, layer, dy, w_gate, w_up):
    """y and the gradients of x, router, [w_gate,] w_up and w_down: expert by expert, each token by itself."""
    given_x, given_router, _, given_down = layer.inputs
    ids = torch.nn.functional.linear(given_x, given_router).topk(layer.top_k, -1).indices
    leaves = [t.detach().double().requires_grad_() for t in (given_x, given_router, *([w_gate] if layer.is_gated else []),
                                                             w_up, given_down)]
    x, router, *w_in, w_down = leaves
    weights = (x @ router.T).gather(1, ids).softmax(-1)
    rows = []
    for t in range(len(x)):
        row = 0
        for k, e in enumerate(ids[t].tolist()):
            h = layer.activation(torch.nn.functional, w_in[0][e] @ x[t])
            row = row + weights[t, k] * (w_down[e] @ (h * (w_in[1][e] @ x[t]) if layer.is_gated else h))
        rows.append(row)
    y = torch.stack(rows)
    return y.detach(), torch.autograd.grad(y, leaves, dy.double())


def places(torch):
    yield from (("cpu", torch.float32), ("cpu", torch.bfloat16))
    if torch.cuda.is_available():
        yield "cuda", torch.bfloat16


@pytest.mark.parametrize("activation", peer_torch_moe.ACTIVATIONS)
@pytest.mark.parametrize("is_gated", [False, True], ids=["plain", "gated"])
def test_ways_of_a_layer(torch, is_gated, activation):
    """Compiled ways on a GPU only, for one activation: on the CPU compiling all of them takes minutes."""
    tokens, hidden, inner, experts, top_k = 37, 32, 48, 6, 2
    for device, dtype in places(torch):
        torch.manual_seed(5)
        x, router, w_gate, w_up, w_down, dy = (
            (torch.randn(size, device=device) * scale).to(dtype) for size, scale in (
                ((tokens, hidden), 1), ((experts, hidden), 1), ((experts, inner, hidden), hidden ** -0.5),
                ((experts, inner, hidden), hidden ** -0.5), ((experts, hidden, inner), inner ** -0.5), ((tokens, hidden), 1)))
        router[3] = -router[2]  # different numbers of tokens
        router[4] = 0
        layer = peer_torch_moe.Layer(torch, x, router, w_gate if is_gated else None, w_up, w_down, top_k, activation)
        y, grads = layer_in_double(torch, layer, dy, w_gate, w_up)
        compiles = device == "cuda" and activation == "silu" and is_gated
        found = set()
        for paths, expected in ((layer.forward(compiles), [y]), (layer.backward(dy, compiles), grads)):
            for name, path in paths:
                try:
                    with torch.no_grad():
                        made = path()
                except (RuntimeError, NotImplementedError):
                    assert name.startswith("grouped_mm")  # not for this dtype or device
                    continue
                found.add(name)
                assert len(made) == len(expected)
                for ours, right in zip(made, expected):
                    off = (ours.double() - right).norm() / right.norm()
                    assert off < (1e-5 if dtype == torch.float32 else 2e-2), (name, device, dtype, off)
        assert "loop over experts" in found
        if device == "cuda":
            assert len(found) == (6 if compiles else 3), found


def test_an_activation_that_torch_does_not_have():
    with pytest.raises(peer_torch_moe.Refusal, match="swish7"):
        peer_torch_moe.Layer(types.SimpleNamespace(), None, None, None, None, None, 1, "swish7")
