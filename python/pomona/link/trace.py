"""What the log tells of a request: its rows as the link saw them.

The server sets the current trace when a request begins; rows submitted in its context are noted there and
carry its id to the worker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from pomona.link.messages import RowUpdate


@dataclass(slots=True)
class RowTrace:
    """Times are of `time.monotonic`."""

    prompt_tokens: int
    keep_tokens: bool = False
    submitted_at: float = field(default_factory=time.monotonic)
    started_at: float | None = None
    first_token_at: float | None = None
    cached_tokens: int = 0
    new_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None

    def take(self, update: RowUpdate) -> None:
        if self.started_at is None:
            self.started_at = time.monotonic()
            self.cached_tokens = min(update.cached_tokens, self.prompt_tokens)
        if update.tokens:
            self.first_token_at = self.first_token_at or time.monotonic()
            self.new_tokens += len(update.tokens)
            if self.keep_tokens:
                self.tokens += update.tokens
        if update.finish is not None:
            self.finish = update.finish.value
            self.error = update.error

    def fail(self, message: str) -> None:
        self.finish, self.error = "error", message


@dataclass(slots=True)
class RequestTrace:
    request_id: str
    keep_tokens: bool = False
    rows: list[RowTrace] = field(default_factory=list)
    began_at: float = field(default_factory=time.monotonic)

    def row(self, prompt_tokens: int) -> RowTrace:
        self.rows.append(RowTrace(prompt_tokens, self.keep_tokens))
        return self.rows[-1]


_current: ContextVar[RequestTrace | None] = ContextVar("request trace", default=None)


def current() -> RequestTrace | None:
    return _current.get()


@contextmanager
def tracing(trace: RequestTrace) -> Iterator[RequestTrace]:
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)
