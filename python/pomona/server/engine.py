"""The life of a request between its API and the worker: sources, prompts, rows, events."""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from dataclasses import dataclass
from typing import Protocol, TypeVar

from msgspec.structs import replace

from pomona.config import ServeSettings
from pomona.conversation.conversation import (
    Conversation,
    GenerationRequest,
    Infill,
    RawText,
    Source,
    TokenIds,
)
from pomona.conversation.errors import (
    ContextLengthError,
    InvalidRequestError,
    PomonaError,
    RequestTimeoutError,
)
from pomona.conversation.events import Event, Failed, Heartbeat, Started
from pomona.link.client import RowStream
from pomona.link.messages import ModelInfo, Sampling, Submit
from pomona.server.ranking import best
from pomona.server.row_answer import Place, RowAnswer
from pomona.server.rows import OpenRows
from pomona.text.model_text import ModelText
from pomona.text.prompt import Prompt

T = TypeVar("T")

# Rendering and encoding more than this holds the event loop up for milliseconds.
MAX_INLINE_CHARACTERS = 4096
# A message or a prompt costs as much as so many characters, however short it is.
ITEM_CHARACTERS = 32
SEED_BITS = 63
# Rows of one request, whatever its prompts and answers per prompt.
MAX_ROWS = 2048


class Worker(Protocol):
    """What the engine needs of a worker."""

    @property
    def info(self) -> ModelInfo: ...

    def submit(self, row: Submit) -> RowStream: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may take."""

    keep_alive_s: float
    max_prompt_tokens: int | None = None
    max_choices: int = 128
    timeout_s: float | None = None

    @staticmethod
    def of(settings: ServeSettings) -> Limits:
        return Limits(
            keep_alive_s=settings.keep_alive_s,
            max_prompt_tokens=settings.max_prompt_tokens,
            max_choices=settings.max_choices,
            timeout_s=settings.request_timeout_s,
        )


class Engine:
    """One model: its text side and its worker."""

    def __init__(self, text: ModelText, worker: Worker, limits: Limits) -> None:
        self._text = text
        self._worker = worker
        self._limits = limits
        self._row_ids = itertools.count(1)

    async def answer(
        self, request: GenerationRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[Event]:
        """Started for every choice, then deltas and heartbeats, and for every choice Finished; or Failed.

        What is wrong with the request is raised before Started. Closing the iterator cancels its rows.
        """
        deadline = Deadline(timeout_s, self._limits.timeout_s)
        self._check(request)
        prompts = await self._prompts(request)
        answers: list[RowAnswer] = []
        rows = OpenRows()
        try:
            for place, row in self._rows(request, prompts):
                rows.add(self._worker.submit(row))
                answers.append(RowAnswer(request, prompts[place.source], place, self._text))
            events = self._events(rows, answers, deadline)
            if request.computed > request.n:
                events = best(events, answers, request.computed, request.n)
            for choice in range(len(prompts) * request.n):
                yield Started(len(prompts[choice // request.n].ids), choice)
            async for event in events:
                yield event
        finally:
            rows.close()

    # ------------------------------------------------------------------ the request

    def _check(self, request: GenerationRequest) -> None:
        limit = self._limits.max_choices
        for name, count in (("n", request.n), ("best_of", request.computed)):
            if count > limit:
                raise InvalidRequestError(
                    f"Invalid value for '{name}': this server computes at most {limit} answers to a prompt "
                    "(setting max_choices).",
                    name,
                    "invalid_value",
                )
        if len(request.sources) * request.computed > MAX_ROWS:
            raise InvalidRequestError(
                f"The request asks for {len(request.sources) * request.computed:,} answers, but one request "
                f"may have {MAX_ROWS:,}; send fewer prompts at once.",
                "prompt",
                "invalid_value",
            )
        self._check_ids("logit_bias", request.sampling.logit_bias)
        self._check_ids("stop_token_ids", request.stop.ids)
        for source in request.sources:
            prefix = source.prefix if isinstance(source, Infill) else source
            if isinstance(prefix, TokenIds):
                self._check_ids("prompt", prefix.ids)

    def _check_ids(self, param: str, ids: Collection[int]) -> None:
        if ids and max(ids) >= self._worker.info.vocab_size:
            raise InvalidRequestError(
                f"Invalid value for '{param}': the model has no token {max(ids)}; its ids end at "
                f"{self._worker.info.vocab_size - 1}.",
                param,
                "invalid_value",
            )

    async def _prompts(self, request: GenerationRequest) -> list[Prompt]:
        def build() -> list[Prompt]:
            return [self._text.prompts.build(source) for source in request.sources]

        sizes = [_size(source) for source in request.sources]
        for source, size in zip(request.sources, sizes, strict=True):
            if not isinstance(source, TokenIds):
                # Encoding what can never fit would keep a core busy for a minute.
                self._room(self._text.tokenizer.least_tokens(size), _param(source), counted=False)
        work = sum(sizes) + ITEM_CHARACTERS * sum(map(_items, request.sources))
        inline = work <= MAX_INLINE_CHARACTERS
        return build() if inline else await asyncio.to_thread(build)

    # ------------------------------------------------------------------ rows

    def _rows(self, request: GenerationRequest, prompts: list[Prompt]) -> list[tuple[Place, Submit]]:
        """In the order of choices. What does not fit is found before any is submitted."""
        rows = []
        for i, (source, prompt) in enumerate(zip(request.sources, prompts, strict=True)):
            first = self._row(request, prompt, self._room(len(prompt.ids), _param(source)))
            rows.append((Place(i, 0), first))
            # They share what may be long: tokens, stop ids, bias.
            rows += [(Place(i, k), self._again(first, request, k)) for k in range(1, request.computed)]
        return rows

    def _row(self, request: GenerationRequest, prompt: Prompt, room: int) -> Submit:
        """The row of a prompt's first answer."""
        wanted = request.stop.max_tokens
        max_tokens = room if wanted is None else max(1, min(wanted, room))
        return Submit(
            id=next(self._row_ids),
            tokens=Submit.pack(prompt.ids),
            sampling=self._sampling(request, max_tokens),
            max_tokens=max_tokens,
            stop_ids=self._stop_ids(request, prompt),
            boundaries=Submit.pack(prompt.boundaries),
            prompt_logprobs=request.logprobs if request.echo else None,
        )

    def _again(self, first: Submit, request: GenerationRequest, answer: int) -> Submit:
        sampling = replace(first.sampling, seed=_seed(request, answer))
        return replace(first, id=next(self._row_ids), sampling=sampling)

    def _sampling(self, request: GenerationRequest, max_tokens: int) -> Sampling:
        wanted, defaults = request.sampling, self._text.defaults
        ranked = request.computed > request.n
        return Sampling(
            temperature=_or(wanted.temperature, defaults.temperature),
            top_p=_or(wanted.top_p, defaults.top_p),
            top_k=_or(wanted.top_k, defaults.top_k),
            min_p=_or(wanted.min_p, defaults.min_p),
            repetition_penalty=_or(wanted.repetition_penalty, defaults.repetition_penalty),
            presence_penalty=wanted.presence_penalty,
            frequency_penalty=wanted.frequency_penalty,
            logit_bias=dict(wanted.logit_bias),
            seed=_seed(request, 0),
            min_tokens=min(request.stop.min_tokens, max_tokens),
            logprobs=0 if request.logprobs is None and ranked else request.logprobs,
        )

    def _stop_ids(self, request: GenerationRequest, prompt: Prompt) -> list[int]:
        own = [] if request.stop.ignore_eos else [*self._text.tokenizer.stop_ids, *prompt.stop_ids]
        limit = self._worker.info.vocab_size
        ids = [id_ for id_ in dict.fromkeys([*own, *request.stop.ids]) if id_ < limit]
        if request.stop.min_tokens and len(ids) == limit:
            raise InvalidRequestError(
                "Invalid value for 'stop_token_ids': with 'min_tokens' there must be a token that does not "
                "end the answer.",
                "stop_token_ids",
                "invalid_value",
            )
        return ids

    def _room(self, prompt_tokens: int, param: str, counted: bool = True) -> int:
        """Tokens that an answer may have. max_tokens is a wish: what does not fit is cut."""
        info, limit = self._worker.info, self._limits.max_prompt_tokens
        if limit is not None and prompt_tokens > limit:
            remedy = "Shorten it, or raise the setting max_prompt_tokens."
            raise ContextLengthError(prompt_tokens, limit, remedy, param, "prompt", counted)
        room = info.row_limit_tokens - prompt_tokens
        if room < 1:
            raise ContextLengthError(
                prompt_tokens, info.row_limit_tokens, _remedy(info), param, counted=counted
            )
        return room

    # ------------------------------------------------------------------ events

    async def _events(
        self, rows: OpenRows, answers: list[RowAnswer], deadline: Deadline
    ) -> AsyncIterator[Event]:
        """Updates to events, with a heartbeat whenever the client has heard nothing for a while."""
        silence_s = self._limits.keep_alive_s
        due = time.monotonic() + silence_s
        open_answers = len(answers)
        while open_answers:
            try:
                found = await rows.next(max(0.0, min(due, deadline.at) - time.monotonic()))
                deadline.check()
            except PomonaError as error:
                yield Failed(error)
                return
            events: list[Event] = []
            if found is not None:
                index, update = found
                if not answers[index].ended:
                    events = answers[index].take(update)
                    if answers[index].ended:
                        rows.end(index)
                        open_answers -= 1
            if not events and time.monotonic() >= due:
                events = [Heartbeat(sum(answer.progress for answer in answers) / len(answers))]
            for event in events:
                yield event
                if isinstance(event, Failed):
                    return
                due = time.monotonic() + silence_s


class Deadline:
    """The nearest of the times that a request is given, counted from now."""

    def __init__(self, *timeouts_s: float | None) -> None:
        self._timeout_s = min((timeout for timeout in timeouts_s if timeout is not None), default=math.inf)
        self.at = time.monotonic() + self._timeout_s

    def check(self) -> None:
        if time.monotonic() >= self.at:
            raise RequestTimeoutError(self._timeout_s)


def _param(source: Source) -> str:
    return "messages" if isinstance(source, Conversation) else "prompt"


def _seed(request: GenerationRequest, answer: int) -> int:
    wanted = request.sampling.seed
    return secrets.randbits(SEED_BITS) if wanted is None else (wanted + answer) % (1 << SEED_BITS)


def _items(source: Source) -> int:
    return len(source.messages) if isinstance(source, Conversation) else 1


def _size(source: Source) -> int:
    match source:
        case Conversation(messages=messages):
            return sum(len(message.text) for message in messages)
        case RawText(text=text):
            return len(text)
        case TokenIds(ids=ids):
            return len(ids)
        case Infill(prefix=prefix, suffix=suffix):
            return _size(prefix) + len(suffix)


def _or(wanted: T | None, default: T) -> T:
    return default if wanted is None else wanted


def _remedy(info: ModelInfo) -> str:
    if info.pool_tokens < info.context_tokens:
        return (
            "Shorten the prompt, or start the server with more room for keys and values: the model "
            f"itself can take {info.context_tokens:,} tokens."
        )
    return "Shorten the prompt: this is the model's own limit."
