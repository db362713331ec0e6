from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pomona.link.messages import Sampling
from pomona.worker.sampler import FAILED, Draw, rule_of, sample

VOCAB = 50


def logits(seed: int, rows: int = 1) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(0, 2, (rows, VOCAB)).astype(np.float32))


def draw(index: int = 0, **changes: Any) -> Draw:
    return Draw(rule_of(Sampling(**{"temperature": 0.0, **changes})), index)


def test_greedy_takes_the_largest() -> None:
    values = logits(1, rows=5)
    assert sample(values, [draw()] * 5).tolist() == np.argmax(np.array(values), axis=1).tolist()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    values = logits(2, rows=4)
    draws = [draw(i, temperature=0.8, top_p=0.9, seed=i) for i in range(3)] + [draw()]
    together = sample(values, draws).tolist()
    alone = [sample(values[i : i + 1], [d]).item() for i, d in enumerate(draws)]
    assert together == alone


def test_seed_and_index_change_the_draw() -> None:
    values = mx.zeros((1, VOCAB))
    by_index = {sample(values, [draw(i, temperature=1.0, seed=5)]).item() for i in range(30)}
    by_seed = {sample(values, [draw(0, temperature=1.0, seed=s)]).item() for s in range(30)}
    assert len(by_index) > 10
    assert len(by_seed) > 10


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.5, 0.7), (1.0, 0.3)])
def test_frequencies_follow_the_distribution(temperature: float, top_p: float) -> None:
    values = logits(3)
    draws = 4000
    tokens = sample(
        mx.broadcast_to(values, (draws, VOCAB)),
        [draw(i, temperature=temperature, top_p=top_p, seed=99) for i in range(draws)],
    )
    observed = np.bincount(np.array(tokens), minlength=VOCAB) / draws
    expected = nucleus(np.array(values)[0] / temperature, top_p)
    assert not observed[expected == 0].any()
    assert np.abs(observed - expected).sum() < 0.12


def nucleus(scaled: np.ndarray, top_p: float) -> np.ndarray:
    """The smallest set of most likely tokens whose probability reaches top_p, renormalised."""
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    kept, total = np.zeros_like(p), 0.0
    for token in np.argsort(-p):
        kept[token] = p[token]
        total += p[token]
        if total >= top_p:
            break
    return kept / kept.sum()


def test_a_tiny_top_p_is_greedy() -> None:
    values = logits(4, rows=3)
    draws = [draw(i, temperature=1.0, top_p=1e-6, seed=i) for i in range(3)]
    assert sample(values, draws).tolist() == np.argmax(np.array(values), axis=1).tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_fail_their_row(bad: float, temperature: float) -> None:
    values = np.array(logits(5, rows=2))
    values[0, 7] = bad
    healthy, failed = draw(0, temperature=temperature), draw(1, temperature=temperature)
    tokens = sample(mx.array(values), [failed, healthy]).tolist()
    assert tokens[0] == FAILED
    assert tokens[1] != FAILED


def test_masked_logits_are_no_failure() -> None:
    values = np.full((1, VOCAB), -np.inf, np.float32)
    values[0, 3] = 1.0
    assert sample(mx.array(values), [draw(temperature=1.0)]).item() == 3
