"""The life of a request between its API and the worker: conversation, prompt, row, events."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import AsyncGenerator
from typing import Protocol

from pomona.conversation.conversation import Conversation, GenerationRequest
from pomona.conversation.errors import ContextLengthError, RowFailedError, UnavailableError
from pomona.conversation.events import (
    Event,
    Failed,
    Finished,
    Heartbeat,
    Started,
    StopReason,
    TextDelta,
    Usage,
)
from pomona.link.client import RowStream
from pomona.link.messages import FinishReason, ModelInfo, RowUpdate, Sampling, Submit
from pomona.text.detokenize import Detokenizer
from pomona.text.model_text import ModelText
from pomona.text.prompt import Prompt

log = logging.getLogger(__name__)

# Rendering and encoding more than this holds the event loop up for milliseconds.
MAX_INLINE_CHARACTERS = 4096
SEED_BITS = 63


class Worker(Protocol):
    """What the engine needs of a worker."""

    @property
    def info(self) -> ModelInfo: ...

    def submit(self, row: Submit) -> RowStream: ...


class Engine:
    """One model: its text side and its worker."""

    def __init__(self, text: ModelText, worker: Worker, keep_alive_s: float) -> None:
        self._text = text
        self._worker = worker
        self._keep_alive_s = keep_alive_s
        self._row_ids = itertools.count(1)

    async def answer(self, request: GenerationRequest) -> AsyncGenerator[Event]:
        """Started, then deltas and heartbeats, then Finished or Failed.

        What is wrong with the request is raised before Started. Closing the iterator cancels the row.
        """
        prompt = await self._prompt(request.conversation)
        row = self._row(request, prompt)
        stream = self._worker.submit(row)
        try:
            yield Started(len(prompt.ids))
            async for event in self._events(stream, RowAnswer(len(prompt.ids), self._text.detokenizer())):
                yield event
        finally:
            stream.close()

    async def _prompt(self, conversation: Conversation) -> Prompt:
        build = self._text.prompts.build
        if sum(len(message.text) for message in conversation.messages) <= MAX_INLINE_CHARACTERS:
            return build(conversation)
        return await asyncio.to_thread(build, conversation)

    def _row(self, request: GenerationRequest, prompt: Prompt) -> Submit:
        room = self._room(len(prompt.ids))
        defaults = self._text.defaults
        seed = secrets.randbits(SEED_BITS) if request.seed is None else request.seed % (1 << SEED_BITS)
        return Submit(
            id=next(self._row_ids),
            tokens=Submit.pack(prompt.ids),
            sampling=Sampling(
                temperature=defaults.temperature if request.temperature is None else request.temperature,
                top_p=defaults.top_p if request.top_p is None else request.top_p,
                seed=seed,
            ),
            max_tokens=room if request.max_tokens is None else min(request.max_tokens, room),
            stop_ids=self._text.tokenizer.stop_ids,
            boundaries=Submit.pack(prompt.boundaries),
        )

    def _room(self, prompt_tokens: int) -> int:
        """Tokens that an answer may have. max_tokens is a wish: what does not fit is cut."""
        info = self._worker.info
        room = info.row_limit_tokens - prompt_tokens
        if room < 1:
            raise ContextLengthError(prompt_tokens, info.row_limit_tokens, _remedy(info))
        return room

    async def _events(self, stream: RowStream, answer: RowAnswer) -> AsyncGenerator[Event]:
        """Updates to events, with a heartbeat whenever the client has heard nothing for a while."""
        due = time.monotonic() + self._keep_alive_s
        while not answer.ended:
            try:
                update = await stream.next(max(0.0, due - time.monotonic()))
            except UnavailableError as error:
                yield Failed(error)
                return
            events = [] if update is None else answer.take(update)
            if not events and time.monotonic() >= due:
                events = [Heartbeat(answer.progress)]
            for event in events:
                yield event
                due = time.monotonic() + self._keep_alive_s


class RowAnswer:
    """The answer of one row so far."""

    def __init__(self, prompt_tokens: int, detokenizer: Detokenizer) -> None:
        self._prompt_tokens = prompt_tokens
        self._detokenizer = detokenizer
        self._prompt_done = 0
        self._cached_tokens: int | None = None
        self._completion_tokens = 0
        self.ended = False

    @property
    def progress(self) -> float:
        return self._prompt_done / self._prompt_tokens

    def take(self, update: RowUpdate) -> list[Event]:
        self._count(update)
        text = self._detokenizer.feed(update.tokens)
        if update.finish is not None:
            text += self._detokenizer.flush()
        events: list[Event] = [TextDelta(text)] if text else []
        if update.finish is not None:
            self.ended = True
            events.append(self._end(update.finish, update.error))
        return events

    def _count(self, update: RowUpdate) -> None:
        self._completion_tokens += len(update.tokens)
        # A parked row starts its prompt again; what it finds then is its own work.
        self._prompt_done = max(self._prompt_done, update.prompt_done)
        if self._cached_tokens is None and update.prompt_done:
            self._cached_tokens = min(update.cached_tokens, self._prompt_tokens)

    def _end(self, finish: FinishReason, error: str | None) -> Event:
        if finish is FinishReason.ERROR:
            log.error("a row failed: %s", error)
            return Failed(RowFailedError(f"The request failed in the engine: {error or 'no reason given'}"))
        usage = Usage(self._prompt_tokens, self._completion_tokens, self._cached_tokens or 0)
        return Finished(StopReason(finish.value), usage)


def _remedy(info: ModelInfo) -> str:
    if info.pool_tokens < info.context_tokens:
        return (
            "Shorten the conversation, or start the server with more room for keys and values: the model "
            f"itself can take {info.context_tokens:,} tokens."
        )
    return "Shorten the conversation: this is the model's own limit."
