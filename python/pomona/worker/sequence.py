"""The state of one row from submission to its last token."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from pomona._ops import DrawRule
from pomona.link.messages import Sampling
from pomona.worker.penalties import LogitShaper
from pomona.worker.sampler import rule_of

Int32Array = NDArray[np.int32]
EMPTY = np.empty(0, np.int32)

SCORED_CHUNK = 128
"""Prompt tokens per step of a row that wants their logprobs: each needs a full row of logits."""


class RowState(Enum):
    WAITING = auto()
    RUNNING = auto()
    ENDED = auto()


class TokenBuffer:
    """A growing int32 array; `view` is free of copies."""

    def __init__(self, tokens: Int32Array) -> None:
        self._data = np.empty(max(64, 2 * len(tokens)), np.int32)
        self._data[: len(tokens)] = tokens
        self._length = len(tokens)

    def __len__(self) -> int:
        return self._length

    def append(self, token: int) -> None:
        if self._length == len(self._data):
            self._data = np.concatenate([self._data, np.empty_like(self._data)])
        self._data[self._length] = token
        self._length += 1

    def view(self, start: int = 0, stop: int | None = None) -> Int32Array:
        return self._data[start : self._length if stop is None else stop]


@dataclass(slots=True, eq=False)
class Sequence:
    """One row. Positions count from the start of the prompt.

    `computed` counts tokens whose K/V the dispatched steps write; `confirmed` those of completed steps.
    Between dispatch and reading, a sampled token exists only on the device (`unread`). `scored` counts prompt
    tokens whose logprobs have been sent.
    """

    id: int
    tokens: TokenBuffer
    prompt_tokens: int
    max_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    boundaries: tuple[int, ...] = ()
    shaper: LogitShaper | None = None
    prompt_logprobs: int | None = None
    rule: DrawRule = field(init=False)
    state: RowState = RowState.WAITING
    table: Int32Array = field(default_factory=lambda: EMPTY)
    reserved: int = 0
    computed: int = 0
    confirmed: int = 0
    published: int = 0
    cached: int | None = None
    """Tokens that others had computed when the row was first admitted."""
    unread: int = 0
    passing_state: int = 0
    """Handle of a snapshot that goes when the next chunk has left its own, or 0."""
    scored: int = 0
    awaited: AwaitedPrefix | None = None
    """What a waiting row lets a running one compute first."""

    def __post_init__(self) -> None:
        self.rule = rule_of(self.sampling)

    @property
    def pending(self) -> int:
        """Tokens that wait to run, the unread one included."""
        return len(self.tokens) + self.unread - self.computed

    @property
    def generated(self) -> int:
        """Sampled tokens, the unread one included."""
        return len(self.tokens) + self.unread - self.prompt_tokens

    @property
    def prefilling(self) -> bool:
        return self.confirmed < self.prompt_tokens

    @property
    def exhausted(self) -> bool:
        """Nothing may be sampled any more; the row ends when its last token has been read."""
        return self.generated >= self.max_tokens

    @property
    def runnable(self) -> int:
        """Pending tokens that may run in one step: those up to the next boundary."""
        if self.pending <= 1:
            return self.pending
        until = next((end - self.computed for end in self.boundaries if end > self.computed), self.pending)
        limit = SCORED_CHUNK if self.wants_scores else self.pending
        return min(self.pending, until, limit)

    @property
    def wants_scores(self) -> bool:
        """Whether logprobs of prompt tokens are still to be sent (the first token has none)."""
        return self.prompt_logprobs is not None and self.scored < self.prompt_tokens - 1

    @property
    def reusable(self) -> int:
        """Tokens that may come from the cache: the last one always runs, and so do those whose logits the
        logprobs of the prompt need.
        """
        last = len(self.tokens) - 1
        return min(last, self.scored) if self.wants_scores else last


@dataclass(frozen=True, slots=True)
class AwaitedPrefix:
    """A prefix that a running row has in common with a waiting one."""

    row: Sequence
    until: int
    """Tokens that the row has computed when less than a block is left to wait for."""

    @property
    def coming(self) -> bool:
        row = self.row
        return row.state is RowState.RUNNING and row.prefilling and row.confirmed <= self.until
