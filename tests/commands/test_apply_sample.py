# SPDX-License-Identifier: Apache-2.0
"""tessera apply sample draws from the distribution that NumPy computes in double: filters, penalties, frequencies and
logarithms. Where a sum lies within rounding of a threshold, both sides are right. TESSERA_TEST_SEED repeats an earlier run."""
import os
import secrets

import numpy as np
import pytest

from apply_support import TESSERA, apply  # noqa: F401

pytestmark = pytest.mark.skipif(not TESSERA, reason="$TESSERA is not set")
SEED = int(os.environ.get("TESSERA_TEST_SEED", "0")) or secrets.randbits(32)
NEAR = 1e-5


def penalised(x, history, repetition, presence, frequency):
    """As vLLM does it, but with one history for all three."""
    counts = np.stack([np.bincount(row[(row >= 0) & (row < x.shape[1])], minlength=x.shape[1]) for row in history])
    x = np.where(counts > 0, np.where(x > 0, x / repetition, x * repetition), x)
    return x - frequency * counts - presence * (counts > 0)


def kept(z, temperature, top_k, top_p, min_p):
    """Probabilities of a row and, for a top_p a little lower and higher, which tokens remain."""
    order = np.argsort(-z, kind="stable")[:top_k or None]
    p = np.exp((z[order] - z[order[0]]) / temperature)
    p /= p.sum()
    before = np.cumsum(p) - p
    result = []
    for slack in (-NEAR, NEAR):
        is_kept = ((before < top_p + slack) | (top_p >= 1)) & (p >= (min_p - slack) * p[0])
        is_kept[0] = True
        result.append(set(order[is_kept].tolist()))
    return result


@pytest.mark.parametrize("temperature,top_k,top_p,min_p", [
    (1, 0, 1, 0), (0.7, 50, 1, 0), (1.5, 0, 0.9, 0), (1, 0, 1, 0.05), (1, 200, 0.8, 0.01), (2, 7, 0.5, 0)])
def test_tokens_that_remain(apply, temperature, top_k, top_p, min_p):  # noqa: F811
    print(f"TESSERA_TEST_SEED={SEED}")
    rng = np.random.default_rng(SEED)
    x = 2 * rng.standard_normal((40, 2000)).astype(np.float32)
    history = rng.integers(-3, 60, (40, 30), np.int32)
    bias = np.where(rng.random(2000) < 0.2, -np.inf, 0).astype(np.float32)
    got = apply("sample", {"logits": x, "history": history, "logit_bias": bias}, f"--temperature={temperature}",
                f"--top-k={top_k}", f"--top-p={top_p}", f"--min-p={min_p}", "--repetition-penalty=1.25",
                "--presence-penalty=0.5", "--frequency-penalty=0.125", "--logprobs-of=processed", f"--seed={SEED}")
    z = penalised(x.astype(np.float64), history, 1.25, 0.5, 0.125) + bias
    for row in range(40):
        low, high = kept(z[row], temperature, top_k, top_p, min_p)
        assert got["ids"][row] in high and len(low) <= got["kept"][row] <= len(high)
        if low == high:
            of_kept = z[row][sorted(low)] / temperature
            logprob = z[row][got["ids"][row]] / temperature - of_kept.max() - np.log(np.exp(of_kept - of_kept.max()).sum())
            assert abs(logprob - got["logprobs"][row]) < 1e-4


def test_frequencies(apply):  # noqa: F811
    """The chi-square of 30,000 draws, and other numbers with another offset."""
    x = np.linspace(-2, 2, 30, dtype=np.float32)
    rows = np.broadcast_to(x, (30000, 30)).copy()
    p = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum()
    ids = [apply("sample", {"logits": rows}, "--temperature=1", "--seed=5", f"--offset={offset}")["ids"] for offset in (0, 1)]
    for drawn in ids:
        counts = np.bincount(drawn, minlength=30)
        assert ((counts - 30000 * p) ** 2 / (30000 * p)).sum() < 80  # 29 degrees
    assert 0.5 < (ids[0] != ids[1]).mean() < 1


def test_raw_logprobs_and_greedy(apply):  # noqa: F811
    x = np.random.default_rng(SEED).standard_normal((9, 3001)).astype(np.float32)
    got = apply("sample", {"logits": x})
    assert (got["ids"] == x.argmax(-1)).all() and (got["kept"] == 1).all()
    x = x.astype(np.float64)
    lse = np.log(np.exp(x).sum(-1))
    assert np.abs(got["logprobs"] - (x.max(-1) - lse)).max() < 1e-5
