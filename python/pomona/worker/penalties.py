"""What a row does to its raw logits before sampling: logit_bias, penalties, the mask of stop ids.

Counts of known tokens are kept on the host, so parking and repeated steps need no care. The one token that is
sampled but unread joins them on the device (`_ops.edit_logits`).
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pomona import _ops
from pomona.link.messages import Sampling

Int32Array = NDArray[np.int32]
Shape = Callable[[], _ops.LogitEdits]

SHAPE_ERRORS = (ValueError, TypeError, RuntimeError, IndexError)

NO_IDS = np.empty(0, np.int32)
NO_COUNTS = np.empty(0, np.float32)


def shape_rows(
    logits: mx.array, shapes: list[Shape | None], unread: mx.array | None
) -> tuple[mx.array, dict[int, Exception]]:
    """Logits [W, V] with each row's shape applied, and the errors of rows whose shape failed, by place.

    They are float32 then; where nothing applies they stay as they are. unread: int32 [N], tokens in flight.
    """
    if not any(shapes):
        return logits, {}
    edits: list[_ops.LogitEdits | None] = [None] * len(shapes)
    errors: dict[int, Exception] = {}
    for i, shape in enumerate(shapes):
        if shape is not None:
            try:
                edits[i] = shape()
            except SHAPE_ERRORS as error:
                errors[i] = error
    return _ops.edit_logits(logits, edits, unread), errors


class LogitShaper:
    """One row's bias, penalties and min_tokens, with the counts of its tokens."""

    def __init__(
        self, sampling: Sampling, stop_ids: frozenset[int], prompt: Int32Array, vocab_size: int
    ) -> None:
        self._sampling = sampling
        self._penalises = has_penalties(sampling)
        self._counts = TokenCounts(prompt if sampling.repetition_penalty != 1.0 else prompt[:0])
        self._answered = 0
        biased = sampling.logit_bias
        self._bias_ids = np.fromiter(biased, np.int32, len(biased))
        self._bias = np.fromiter(biased.values(), np.float32, len(biased))
        self._stop_ids = np.array([token for token in stop_ids if 0 <= token < vocab_size], np.int32)

    def edits(self, answer: Int32Array, unread: int) -> _ops.LogitEdits:
        """After the known tokens `answer` and the token in flight at place `unread`, or -1 without one."""
        s = self._sampling
        ids, counts = NO_IDS, NO_COUNTS
        if self._penalises:
            self._counts.add(answer[self._answered :])
            self._answered = len(answer)
            ids, counts = self._counts.ids, self._counts.counts
        sampled = len(answer) + (unread >= 0)
        return _ops.LogitEdits(
            self._bias_ids,
            self._bias,
            ids,
            counts,
            self._stop_ids if sampled < s.min_tokens else NO_IDS,
            unread,
            s.repetition_penalty,
            s.frequency_penalty,
            s.presence_penalty,
        )


class TokenCounts:
    """Distinct tokens in order of appearance, and how often the answer holds each (0: only the prompt)."""

    def __init__(self, prompt: Int32Array) -> None:
        ids = np.unique(prompt)
        self._place = {token: i for i, token in enumerate(ids.tolist())}
        self._ids = np.concatenate([ids, np.empty(max(64, len(ids)), np.int32)]).astype(np.int32)
        self._counts = np.zeros(len(self._ids), np.float32)

    def __len__(self) -> int:
        return len(self._place)

    @property
    def ids(self) -> Int32Array:
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> NDArray[np.float32]:
        return self._counts[: len(self._place)]

    def add(self, answer: Int32Array) -> None:
        for token in answer.tolist():
            place = self._place.setdefault(token, len(self._place))
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token
            self._counts[place] += 1


def has_penalties(sampling: Sampling) -> bool:
    return bool(sampling.repetition_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty)


def make_shaper(
    sampling: Sampling, stop_ids: frozenset[int], prompt: Int32Array, vocab_size: int
) -> LogitShaper | None:
    """None for a row that leaves its logits as they are."""
    if has_penalties(sampling) or sampling.logit_bias or (sampling.min_tokens and stop_ids):
        return LogitShaper(sampling, stop_ids, prompt, vocab_size)
    return None
