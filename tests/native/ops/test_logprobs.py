"""logprobs against log_softmax in float64."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pomona import _ops


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("vocab", [1, 7, 130, 30_011])
def test_own_and_top(vocab: int, dtype: mx.Dtype) -> None:
    rows = 9
    logits = (5 * mx.random.normal((rows, vocab), key=mx.random.key(vocab)) + 1000).astype(dtype)
    tokens = np.random.default_rng(vocab).integers(0, vocab, rows).astype(np.int32)
    own, ids, values = map(np.array, _ops.logprobs(logits, mx.array(tokens), 5))
    exact = np.array(logits.astype(mx.float32))
    expected = log_softmax(exact)
    np.testing.assert_allclose(own, expected[np.arange(rows), tokens], rtol=1e-6, atol=3e-6)
    order = np.argsort(-exact, axis=-1, kind="stable")[:, :5]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_allclose(values, np.take_along_axis(expected, order, -1), rtol=1e-6, atol=3e-6)


def test_a_row_is_the_same_alone_and_among_others() -> None:
    """The rows are many enough to be shared out over threads."""
    logits = mx.random.normal((20, 9000), key=mx.random.key(1))
    tokens = mx.arange(20, dtype=mx.int32)
    together = _ops.logprobs(logits, tokens, 3)
    for i in range(20):
        alone = _ops.logprobs(logits[i : i + 1], tokens[i : i + 1], 3)
        for one, all_ in zip(alone, together, strict=True):
            assert mx.array_equal(one[0], all_[i])


def test_no_top_and_no_rows() -> None:
    own, ids, values = _ops.logprobs(mx.zeros((2, 4)), mx.array([0, 3]), 0)
    np.testing.assert_allclose(np.array(own), np.log([0.25, 0.25]), rtol=1e-6)
    assert (ids.shape, values.shape) == ((2, 0), (2, 0))
    assert [x.shape for x in _ops.logprobs(mx.zeros((0, 4)), mx.zeros(0, mx.int32), 2)] == [
        (0,),
        (0, 2),
        (0, 2),
    ]


def test_what_has_no_logprob_is_not_a_number() -> None:
    logits = np.zeros((4, 300), np.float32)
    logits[1, 7], logits[2, 299] = np.nan, np.inf
    own, ids, values = map(np.array, _ops.logprobs(mx.array(logits), mx.array([-1, 0, 0, 300]), 2))
    assert np.isnan(own).all()
    assert np.isnan(values[1:3]).all()
    assert ids.tolist() == [[0, 1], [0, 0], [0, 0], [0, 1]]


def test_a_masked_token_has_none_of_the_probability() -> None:
    logits = mx.array([[0.0, -np.inf, 0.0]])
    own, ids, values = _ops.logprobs(logits, mx.array([1]), 3)
    assert own.tolist() == [-np.inf]
    assert ids.tolist() == [[0, 2, 1]]
    np.testing.assert_allclose(np.array(values)[0], [np.log(0.5), np.log(0.5), -np.inf], rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((mx.zeros(4), mx.array([1]), 1), r"logits must be \[N, V\]"),
        ((mx.zeros((2, 0)), mx.array([1, 1]), 1), r"logits must be \[N, V\]"),
        ((mx.zeros((1, 4), mx.int32), mx.array([1]), 1), "logprobs: logits"),
        ((mx.zeros((2, 4)), mx.array([1]), 1), r"tokens must be int32 \[2\]"),
        ((mx.zeros((1, 4)), mx.array([1.0]), 1), r"tokens must be int32 \[1\]"),
        ((mx.zeros((1, 4)), mx.array([1]), -1), "top must not be negative, got -1"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ops.logprobs(*arguments)
