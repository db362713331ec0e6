"""edit_logits against the same in numpy."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pomona import _ops

VOCAB = 40


def edits(**fields: Any) -> _ops.LogitEdits:
    arrays: dict[str, Any] = {"bias_ids": [], "bias": [], "ids": [], "counts": [], "masked": []}
    given = arrays | fields
    floats = ("bias", "counts")
    for name in arrays:
        given[name] = np.array(given[name], np.float32 if name in floats else np.int32)
    return _ops.LogitEdits(**given)


def logits(rows: int, seed: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal((rows, VOCAB), key=mx.random.key(seed)).astype(dtype)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_bias_then_penalties_then_the_mask(dtype: mx.Dtype) -> None:
    row = np.array(logits(1, 1, dtype).astype(mx.float32))[0]
    row[[3, 4, 5]] = [1.0, -1.0, 0.5]
    out = _ops.edit_logits(
        mx.array(row[None]).astype(dtype),
        [
            edits(
                bias_ids=[3, 9],
                bias=[1.0, -2.0],
                ids=[3, 4, 5],
                counts=[2, 0, 1],
                masked=[5, 7],
                repetition=2.0,
                frequency=0.25,
                presence=0.125,
            )
        ],
    )
    assert out.dtype == mx.float32
    expected = row.copy()
    expected[9] -= 2.0
    expected[3] = (1.0 + 1.0) / 2 - 2 * 0.25 - 0.125
    expected[4] = -1.0 * 2
    expected[[5, 7]] = -np.inf
    np.testing.assert_array_equal(np.array(out)[0], expected)


def test_an_unread_token_counts_like_a_known_one() -> None:
    values = logits(4, 2)
    unread = mx.array([8, 11, 99, -1]) + 0
    penalties = {"repetition": 1.5, "frequency": 0.3, "presence": 0.2}
    seen = {"ids": [8, 2], "counts": [1, 1]} | penalties
    out = _ops.edit_logits(
        values,
        [
            edits(**seen, unread=0),  # seen before
            edits(**seen, unread=1),  # new
            edits(**seen, unread=2),  # outside the vocabulary
            edits(**seen, unread=3),  # of a row that failed
        ],
        unread,
    )
    known = _ops.edit_logits(
        values,
        [
            edits(ids=[8, 2], counts=[2, 1], **penalties),
            edits(ids=[8, 2, 11], counts=[1, 1, 1], **penalties),
            edits(**seen),
            edits(**seen),
        ],
    )
    np.testing.assert_array_equal(np.array(out), np.array(known))


def test_rows_without_edits_and_the_input_stay_as_they_are() -> None:
    values = logits(3, 3)
    before = np.array(values)
    out = np.array(_ops.edit_logits(values, [None, edits(bias_ids=[1], bias=[5.0]), None]))
    np.testing.assert_array_equal(np.array(values), before)
    np.testing.assert_array_equal(out[[0, 2]], before[[0, 2]])
    assert out[1, 1] == before[1, 1] + 5


def test_ids_outside_the_vocabulary_are_passed_over() -> None:
    values = logits(1, 4)
    outside = [-1, VOCAB, 2**31 - 1]
    out = _ops.edit_logits(
        values,
        [
            edits(
                bias_ids=outside, bias=[1, 1, 1], ids=outside, counts=[1, 1, 1], masked=outside, presence=1.0
            )
        ],
    )
    np.testing.assert_array_equal(np.array(out), np.array(values))


def test_views_and_no_rows() -> None:
    values = logits(4, 5)[::2, 3:20]
    out = _ops.edit_logits(values, [None, edits(masked=[0])])
    np.testing.assert_array_equal(np.array(out)[0], np.array(values)[0])
    assert _ops.edit_logits(mx.zeros((0, 5)), []).shape == (0, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((mx.zeros(4), [None]), r"logits must be \[W, V\]"),
        ((mx.zeros((2, 4)), [None]), "2 rows of logits but 1 edits"),
        ((mx.zeros((1, 4), mx.int32), [None]), "edit_logits: logits"),
        ((mx.zeros((1, 4)), [None], mx.zeros(3)), r"unread must be int32 \[N\]"),
        ((mx.zeros((1, 4)), [edits(unread=0)]), r"edits\[0\] takes unread token 0 of 0"),
        (
            (mx.zeros((1, 4)), [edits(unread=2)], mx.zeros(2, mx.int32)),
            r"edits\[0\] takes unread token 2 of 2",
        ),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ops.edit_logits(*arguments)


def test_arrays_that_belong_together_are_of_one_length() -> None:
    with pytest.raises(ValueError, match="must be of one length"):
        edits(ids=[1, 2], counts=[1])
