"""What a row does to its raw logits before sampling: logit_bias, penalties, the mask of stop ids.

Counts of known tokens are kept on the host, so parking and repeated steps need no care. The one token that is
sampled but unread joins them lazily, on the device. Only the touched logits are computed, then written into
a copy of the row.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pomona.link.messages import Sampling

Int32Array = NDArray[np.int32]
Shape = Callable[[mx.array], mx.array]
"""From raw logits float32 [V] to those that are sampled."""

SHAPE_ERRORS = (ValueError, TypeError, RuntimeError, IndexError)


def shape_rows(logits: mx.array, shapes: list[Shape | None]) -> tuple[mx.array, dict[int, Exception]]:
    """Logits [W, V] with each row's shape applied, and the errors of rows whose shape failed, by place.

    They are float32 then; where nothing applies they stay as they are.
    """
    if not any(shapes):
        return logits, {}
    logits = logits.astype(mx.float32)
    rows: list[mx.array] = []
    errors: dict[int, Exception] = {}
    for i, shape in enumerate(shapes):
        row = logits[i]
        if shape is not None:
            try:
                row = shape(row)
            except SHAPE_ERRORS as error:
                errors[i] = error
        rows.append(row)
    return mx.stack(rows), errors


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
        self._bias_ids = mx.array(np.fromiter(biased, np.int32, len(biased)))
        self._bias = mx.array(np.fromiter(biased.values(), np.float32, len(biased)))
        self._stop_ids = mx.array([token for token in sorted(stop_ids) if 0 <= token < vocab_size], mx.int32)

    def apply(self, logits: mx.array, answer: Int32Array, unread: mx.array | None) -> mx.array:
        """Shape logits [V] after the known tokens `answer` and the token [1] in flight, if there is one."""
        if self._bias.size:
            logits = logits.at[self._bias_ids].add(self._bias)
        if self._penalises:
            logits = self._penalise(logits, answer, unread)
        sampled = len(answer) + (unread is not None)
        if sampled < self._sampling.min_tokens and self._stop_ids.size:
            masked = mx.full(self._stop_ids.shape, -mx.inf)
            logits = mx.put_along_axis(logits, self._stop_ids, masked, axis=-1)
        return logits

    def _penalise(self, logits: mx.array, answer: Int32Array, unread: mx.array | None) -> mx.array:
        s = self._sampling
        self._counts.add(answer[self._answered :])
        self._answered = len(answer)
        if not len(self._counts) and unread is None:
            return logits
        ids, counts = mx.array(self._counts.ids), mx.array(self._counts.counts)
        if unread is not None:
            # The token in flight may be among the known ones: both entries then hold the same value.
            same = ids == unread
            counts = mx.concatenate([counts + same, 1 + mx.sum(counts * same, keepdims=True)])
            ids = mx.concatenate([ids, unread])
        values = logits[ids]
        if s.repetition_penalty != 1.0:
            penalty = s.repetition_penalty
            values = mx.where(values > 0, values / penalty, values * penalty)
        if s.frequency_penalty:
            values = values - s.frequency_penalty * counts
        if s.presence_penalty:
            values = values - s.presence_penalty * (counts > 0)
        return mx.put_along_axis(logits, ids, values, axis=-1)


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
