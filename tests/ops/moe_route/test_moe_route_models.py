# SPDX-License-Identifier: Apache-2.0
"""Routing as published models do it: our ids and weights against transformers'. Numbers that transformers gave are in
moe_route_models.npz; where it is installed, its routers run too, on random weights. $TESSERA_LIBRARY is libtessera.so,
$TESSERA_TEST_DEVICE=cuda runs our side on the GPU (needs torch)."""
import os
import pathlib

import moe_route_models as models
import numpy as np
import pytest

LIBRARY = os.environ.get("TESSERA_LIBRARY", "")
pytestmark = pytest.mark.skipif(not os.path.exists(LIBRARY), reason="$TESSERA_LIBRARY names no file")
each_model = pytest.mark.parametrize("model", models.MODELS.values(), ids=lambda model: model.name)


@pytest.fixture(scope="module")
def library():
    return models.peer_library.Library(LIBRARY)


@pytest.fixture(scope="module")
def golden():
    with np.load(pathlib.Path(__file__).with_name("moe_route_models.npz")) as file:
        return dict(file)


@pytest.fixture(scope="module")
def device():
    if os.environ.get("TESSERA_TEST_DEVICE") != "cuda":
        return None
    torch = pytest.importorskip("torch")
    return torch.device("cuda", 0) if torch.cuda.is_available() else pytest.skip("no CUDA device")


@each_model
def test_numbers_of_transformers(library, golden, device, model):
    logits, bias = models.golden_logits(model, golden["logits"]), golden.get(model.name + "_bias")
    assert model.has_bias == (bias is not None) and model.has_loss == (model.name + "_loss" in golden)
    theirs = golden[model.name + "_ids"], golden[model.name + "_weights"]
    *ours, loss = models.route(library, model, logits, bias, device)
    _, ties = models.compare(model, logits, bias, ours, theirs)
    assert ties < models.TOKENS / 100
    if model.has_loss:
        assert loss * model.top_k == pytest.approx(golden[model.name + "_loss"], rel=1e-5)


@each_model
def test_the_comparison_can_fail(library, golden, model):
    """For other experts in one token, and for weights that are 4e-6 off."""
    logits, bias = models.golden_logits(model, golden["logits"]), golden.get(model.name + "_bias")
    ids, weights, _ = models.route(library, model, logits, bias)
    theirs = golden[model.name + "_ids"], golden[model.name + "_weights"]
    other = theirs[0].copy()
    other[17] = (other[17] + 1) % model.experts
    with pytest.raises(AssertionError, match="1 tokens, the first 17"):
        models.compare(model, logits, bias, (ids, weights), (other, theirs[1]))
    with pytest.raises(AssertionError, match="weights differ"):
        models.compare(model, logits, bias, (ids, weights + 4e-6 * np.maximum(1, weights)), theirs)


@each_model
def test_router_of_transformers(library, device, model):
    """Random hidden states and router weights: the logits are those of its own product."""
    pytest.importorskip("transformers")
    seed = int(os.environ.get("TESSERA_TEST_SEED", "20261201"))
    print("seed", seed)
    generator, hidden_size = np.random.default_rng(seed), 96
    hidden = generator.standard_normal((models.TOKENS, hidden_size)).astype("float32")
    weight = (generator.standard_normal((model.experts, hidden_size)) * 2 / hidden_size ** 0.5).astype("float32")
    router_bias, bias = generator.standard_normal(model.experts).astype("float32"), models.random_bias(model, generator)
    logits, *theirs = models.their_route(model, hidden, weight, router_bias, bias)
    *ours, loss = models.route(library, model, logits.numpy(), bias, device)
    off, ties = models.compare(model, logits.numpy(), bias, ours, theirs)
    print(f"{model.name}: weights differ by at most {off:.2g}, {ties} tokens have ties")
    assert ties < models.TOKENS / 100
    if model.has_loss:
        assert loss * model.top_k == pytest.approx(models.their_loss(model, logits), rel=1e-5)


@pytest.mark.parametrize("model", [model for model in models.MODELS.values() if model.rounds], ids=lambda model: model.name)
def test_router_of_transformers_in_bf16(library, device, model):
    """Models that round their weights do it last, so at most one in 500 is rounded the other way."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    generator, hidden_size = np.random.default_rng(int(os.environ.get("TESSERA_TEST_SEED", "20261201"))), 96
    hidden = generator.standard_normal((models.TOKENS, hidden_size)).astype("float32")
    weight = (generator.standard_normal((model.experts, hidden_size)) * 2 / hidden_size ** 0.5).astype("float32")
    bias = models.random_bias(model, generator)
    logits, *theirs = models.their_route(model, hidden, weight, None, bias, torch.bfloat16)
    ours = models.route(library, model, logits, bias, device, round_weights=models.peer_library.BF16)
    models.compare(model, logits.float().numpy(), bias, ours, theirs, within=2 ** -8)
    _, gap = models.choices(model, logits.float().numpy(), bias)
    same = (models.by_id(*ours[:2])[1] == models.by_id(*theirs)[1])[gap > models.NEAR]
    assert same.mean() > 0.998
