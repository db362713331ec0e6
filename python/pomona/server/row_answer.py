"""One row's updates to the events of its choice: text, stop strings, log probabilities, usage."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from pomona.conversation.conversation import GenerationRequest
from pomona.conversation.errors import RowFailedError
from pomona.conversation.events import (
    Event,
    Failed,
    Finished,
    StopReason,
    TextDelta,
    TokenLogprob,
    Usage,
)
from pomona.formats.stop import StopMatcher
from pomona.link.messages import FinishReason, RowUpdate, TokenLogprobs
from pomona.text.detokenize import Detokenizer
from pomona.text.model_text import ModelText
from pomona.text.prompt import Prompt

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands in its request."""

    source: int
    answer: int  # of that source

    @property
    def counts_prompt(self) -> bool:
        return self.answer == 0


class RowAnswer:
    """The answer of one row so far."""

    def __init__(self, request: GenerationRequest, prompt: Prompt, place: Place, text: ModelText) -> None:
        self.choice = place.source * request.computed + place.answer
        self.ended = False
        self.logprob_sum = 0.0
        self.tokens = 0  # of the answer, up to the one that completed a stop string
        self._place = place
        self._prompt_tokens = len(prompt.ids)
        self._prompt_done = 0
        self._cached_tokens: int | None = None
        self._max_tokens = request.stop.max_tokens
        self._writer = _Writer(request, text)
        self._echo = _Echo(request, prompt, text) if request.echo else None

    @property
    def progress(self) -> float:
        return self._prompt_done / self._prompt_tokens

    @property
    def mean_logprob(self) -> float:
        return self.logprob_sum / max(1, self.tokens)

    def take(self, update: RowUpdate) -> list[Event]:
        """The events of an update. `ended` may be true after it though the row itself goes on."""
        self._note(update)
        self._take_echo(update)
        reason = self._take_tokens(update)
        if update.finish is FinishReason.ERROR:
            return [*self._delta(), self._fail(update.error)]
        if reason is None and update.finish is not None:
            reason = StopReason(update.finish.value) if self._max_tokens != 0 else StopReason.LENGTH
            if self._writer.end():
                reason = StopReason.STOP
        if reason is None:
            return self._delta()
        self.ended = True
        return [*self._delta(), Finished(reason, self._usage(), self.choice)]

    def _take_echo(self, update: RowUpdate) -> None:
        if self._echo is None:
            return
        self._echo.take(update.prompt_logprobs)
        if self._echo.complete or update.tokens or update.finish is not None:
            self._writer.begin_with(self._echo.text, self._echo.logprobs())
            self._echo = None

    def _take_tokens(self, update: RowUpdate) -> StopReason | None:
        if self._max_tokens == 0:  # the worker draws one at least
            return None
        for i, id_ in enumerate(update.tokens):
            logprobs = update.logprobs[i] if update.logprobs else None
            self.tokens += 1
            self.logprob_sum += 0.0 if logprobs is None else logprobs.logprob
            if self._writer.take(id_, logprobs):
                return StopReason.STOP
        return None

    def _delta(self) -> list[Event]:
        text, logprobs = self._writer.given()
        return [TextDelta(text, self.choice, logprobs)] if text or logprobs else []

    def _note(self, update: RowUpdate) -> None:
        # A parked row starts its prompt again; what it finds then is its own work.
        self._prompt_done = max(self._prompt_done, update.prompt_done)
        if self._cached_tokens is None and update.prompt_done:
            self._cached_tokens = min(update.cached_tokens, self._prompt_tokens)

    def _fail(self, error: str | None) -> Event:
        self.ended = True
        log.error("a row failed: %s", error)
        message = f"The request failed in the engine: {error or 'no reason given'}"
        return Failed(RowFailedError(message), self.choice)

    def _usage(self) -> Usage:
        if self._place.counts_prompt:
            return Usage(self._prompt_tokens, self.tokens, self._cached_tokens or 0)
        return Usage(0, self.tokens)


class _Writer:
    """Tokens to text and log probabilities that can be given out, cut at a stop string.

    A token's log probability goes with the first character that the token is part of. So those of an
    incomplete character wait for its rest, and those of tokens beyond the cut are never given out.
    """

    def __init__(self, request: GenerationRequest, text: ModelText) -> None:
        self._describe = Describer(text, request.logprobs)
        self._detokenizer = text.detokenizer()
        self._matcher = StopMatcher(request.stop.strings) if request.stop.strings else None
        self._unmatched_tokens = request.stop.min_tokens
        self._tokens = 0
        self._decoded = 0  # characters
        self._released = 0
        self._texts: list[str] = []
        self._waiting: deque[TokenLogprob] = deque()
        self._all = False

    def begin_with(self, text: str, logprobs: Iterable[TokenLogprob]) -> None:
        """Text that is no part of the answer's own tokens."""
        self._decoded += len(text)
        self._waiting += logprobs
        self._release(text)

    def take(self, id_: int, logprobs: TokenLogprobs | None) -> bool:
        """Whether a stop string is complete with this token."""
        if logprobs is not None and self._describe.wanted:
            self._waiting.append(self._describe(logprobs, self._decoded))
        self._tokens += 1
        return self._match(self._detokenizer.feed([id_]))

    def end(self) -> bool:
        """Let go of all that was held back. Whether it has a stop string."""
        stopped = self._match(self._detokenizer.flush())
        if self._matcher is not None and not stopped:
            self._release(self._matcher.flush())
            stopped = self._matcher.stopped
        self._all = not stopped
        return stopped

    def given(self) -> tuple[str, tuple[TokenLogprob, ...]]:
        """What can be given out since the last call."""
        text, logprobs = "".join(self._texts), []
        self._texts = []
        while self._waiting and (self._all or self._waiting[0].offset < self._released):
            logprobs.append(self._waiting.popleft())
        return text, tuple(logprobs)

    def _match(self, text: str) -> bool:
        self._decoded += len(text)
        if self._matcher is None or self._tokens <= self._unmatched_tokens:
            self._release(text)
            return False
        self._release(self._matcher.feed(text))
        return self._matcher.stopped

    def _release(self, text: str) -> None:
        self._released += len(text)
        self._texts.append(text)


class _Echo:
    """The prompt as the beginning of its answer. Its log probabilities come while it is computed."""

    def __init__(self, request: GenerationRequest, prompt: Prompt, text: ModelText) -> None:
        self.text = prompt.text
        self._ids = prompt.ids
        self._describe = Describer(text, request.logprobs)
        self._bytes = text.tokenizer.codec.token_bytes
        self._special_ids = text.special_ids
        self._detokenizer: Detokenizer = text.detokenizer()
        self._logprobs: list[TokenLogprobs] = []

    @property
    def complete(self) -> bool:
        return not self._describe.wanted or len(self._logprobs) >= len(self._ids) - 1

    def take(self, logprobs: list[TokenLogprobs]) -> None:
        self._logprobs += logprobs

    def logprobs(self) -> list[TokenLogprob]:
        if not self._describe.wanted:
            return []
        described, offset = [], 0
        # The first token has none: nothing comes before it.
        for id_, logprobs in zip(self._ids, [None, *self._logprobs], strict=False):
            # The text that was sent need not be what its tokens decode to.
            at = min(offset, max(0, len(self.text) - 1))
            described.append(
                self._describe.unknown(id_, at) if logprobs is None else self._describe(logprobs, at)
            )
            offset += self._length(id_, offset)
        return described

    def _length(self, id_: int, offset: int) -> int:
        """Characters that a token adds. A special token has some where the client wrote it out."""
        if id_ not in self._special_ids:
            return len(self._detokenizer.feed([id_]))
        written = self._bytes(id_).decode()
        return len(written) if self.text.startswith(written, offset) else 0


class Describer:
    """The worker's log probabilities as an answer has them."""

    def __init__(self, text: ModelText, count: int | None) -> None:
        self.wanted = count is not None
        self._count = count or 0
        self._bytes = text.tokenizer.codec.token_bytes

    def __call__(self, logprobs: TokenLogprobs, offset: int) -> TokenLogprob:
        top = tuple((self._bytes(id_), value) for id_, value in logprobs.top[: self._count])
        return TokenLogprob(self._bytes(logprobs.token), logprobs.logprob, top, offset)

    def unknown(self, id_: int, offset: int) -> TokenLogprob:
        return TokenLogprob(self._bytes(id_), None, (), offset)
