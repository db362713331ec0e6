"""choose against sampling in numpy and float64, and what the op itself promises."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests.worker.sampling_oracle import acceptable

from pomona import _ops
from pomona.link.messages import Sampling

DTYPES = [mx.float32, mx.bfloat16, mx.float16]
RULES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.3, "top_k": 7},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 2.0, "top_p": 0.999},
    {"temperature": 1.0, "top_p": 0.0},
    {"temperature": 0.9, "min_p": 0.05},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.1, "top_k": 30, "top_p": 0.6, "min_p": 0.01},
    {"temperature": 1.0, "top_k": 10**6, "top_p": 0.9},
]


def choose(logits: mx.array, rules: list[dict[str, Any]], indices: list[int]) -> list[int]:
    tokens = _ops.choose(logits, [_ops.DrawRule(**rule) for rule in rules], indices)
    assert tokens.dtype == mx.int32
    assert tokens.shape == (len(rules),)
    return tokens.tolist()


def random_logits(rows: int, vocab: int, seed: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    values = np.random.default_rng(seed).normal(0, 3, (rows, vocab)).astype(np.float32)
    return mx.array(values).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 5, 127, 128, 1000, 5003])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_draw_is_one_that_numpy_may_make(rule: dict[str, Any], vocab: int, dtype: mx.Dtype) -> None:
    rows = 20
    logits = random_logits(rows, vocab, vocab, dtype)
    indices = list(range(3, 3 + rows))
    tokens = choose(logits, [rule | {"seed": 2**63 + 9}] * rows, indices)
    values = np.array(logits.astype(mx.float32))
    for token, row, index in zip(tokens, values, indices, strict=True):
        assert token in acceptable(row, Sampling(**rule, seed=2**63 + 9), index)


def kept(logits: np.ndarray, **rule: Any) -> set[int]:
    """The tokens that some of many draws give."""
    count = 3000
    rows = mx.broadcast_to(mx.array(logits[None]), (count, len(logits)))
    return set(choose(rows, [{"temperature": 1.0} | rule] * count, list(range(count))))


def test_top_k_and_top_p_keep_what_ties_with_the_last_one() -> None:
    logits = np.full(300, -20.0, np.float32)
    logits[[7, 130, 131, 299]] = [2.0, 1.0, 1.0, 1.0]
    assert kept(logits, top_k=2) == {7, 130, 131, 299}
    # The first has 0.475 of the probability, each other one 0.175.
    assert kept(logits, top_p=0.4) == {7}
    assert kept(logits, top_p=0.5) == {7, 130, 131, 299}
    # Of the two that top_k counts the first has 0.731.
    assert kept(logits, top_k=2, top_p=0.7) == {7}
    assert kept(logits, top_k=2, top_p=0.75) == {7, 130, 131, 299}
    assert kept(logits, min_p=0.36) == {7, 130, 131, 299}
    assert kept(logits, min_p=0.37) == {7}


@pytest.mark.parametrize("k", [2, 5, 7, 8, 40, 899])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0, 30.0])
def test_top_k_keeps_the_k_likeliest_whatever_the_distribution(k: int, spread: float) -> None:
    logits = np.random.default_rng(k).normal(0, 1, 900).astype(np.float32) * np.float32(spread)
    expected = set(np.flatnonzero(logits >= np.sort(logits)[-k]).tolist())
    # So hot that all that are kept are about as likely.
    found = kept(logits, temperature=10 * spread + 1, top_k=k)
    assert found <= expected
    assert found == expected or k > 40 or not spread


def test_of_equal_logits_greedy_takes_the_first() -> None:
    logits = np.zeros((3, 5000), np.float32)
    logits[1, [4000, 1030, 1100]] = 2.0
    logits[2, 4999] = 1.0
    assert choose(mx.array(logits), [{"temperature": 0.0}] * 3, [0] * 3) == [0, 1030, 4999]


def test_a_row_is_the_same_alone_and_among_others() -> None:
    """The rows are many enough to be shared out over threads."""
    rows, vocab = 24, 20_000
    logits = random_logits(rows, vocab, 1)
    rules = [RULES[i % len(RULES)] | {"seed": i} for i in range(rows)]
    alone = [choose(logits[i : i + 1], [rules[i]], [i])[0] for i in range(rows)]
    for _ in range(5):
        assert choose(logits, rules, list(range(rows))) == alone


@pytest.mark.parametrize("rule", RULES[:5], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_largest_logit_that_is_not_finite_gives_no_token(dtype: mx.Dtype, rule: dict[str, Any]) -> None:
    vocab = 1001
    values = np.array(random_logits(9, vocab, 2))
    for row, place in enumerate((0, 500, vocab - 1)):
        values[row, place] = np.nan
        values[3 + row, place] = np.inf
    values[6] = -np.inf
    values[7, 1:] = -np.inf
    tokens = choose(mx.array(values).astype(dtype), [rule] * 9, [0] * 9)
    assert tokens[:7] == [-1] * 7
    assert tokens[7] == 0
    assert tokens[8] >= 0


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 1e30, 1e300])
def test_extreme_temperatures(temperature: float) -> None:
    logits = np.full((1, 200), -np.inf, np.float32)
    logits[0, [3, 190]] = [1.0, 2.0]
    tokens = {choose(mx.array(logits), [{"temperature": temperature}], [i])[0] for i in range(40)}
    assert tokens == ({190} if temperature < 1 else {3, 190})


def test_views_are_read_as_what_they_show() -> None:
    logits = random_logits(6, 4000, 3)
    rules = [{"temperature": 1.0, "seed": i} for i in range(3)]
    view = logits[::2, 1000:]
    assert choose(view, rules, [0] * 3) == choose(mx.contiguous(view), rules, [0] * 3)


def test_no_rows() -> None:
    assert choose(mx.zeros((0, 10)), [], []) == []


@pytest.mark.parametrize(
    ("logits", "rules", "indices", "message"),
    [
        (mx.zeros(4), 1, 1, r"logits must be \[W, V\]"),
        (mx.zeros((1, 0)), 1, 1, r"logits must be \[W, V\]"),
        (mx.zeros((2, 4)), 1, 2, "2 rows of logits but 1 rules and 2 indices"),
        (mx.zeros((2, 4)), 2, 1, "2 rows of logits but 2 rules and 1 indices"),
        (mx.zeros((1, 4), mx.int32), 1, 1, "choose: logits"),
    ],
)
def test_what_does_not_fit_is_refused(logits: mx.array, rules: int, indices: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ops.choose(logits, [_ops.DrawRule(1.0)] * rules, [0] * indices)


@pytest.mark.parametrize(
    "rule",
    [{"temperature": float("nan")}]
    + [
        {"temperature": 1.0, name: value}
        for name in ("top_p", "min_p")
        for value in (-1.0, 2.0, float("nan"))
    ],
    ids=str,
)
def test_rules_that_could_keep_no_token_are_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="choose: a rule's"):
        _ops.choose(mx.zeros((1, 5)), [_ops.DrawRule(**rule)], [0])
