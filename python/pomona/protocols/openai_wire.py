"""What replies of the OpenAI API share: their head, usage, server-sent events and JSON."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from pomona import __version__
from pomona.conversation.errors import PomonaError
from pomona.conversation.events import (
    Event,
    Failed,
    Finished,
    Started,
    TextDelta,
    TokenLogprob,
    Usage,
)
from pomona.protocols.openai_errors import error_reply

FINGERPRINT = f"pomona-{__version__}"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
# Some clients cut a stream into lines wherever Unicode sees a line end; JSON may escape these.
LINE_ENDS = [(char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\u0085\u2028\u2029"]
# JSON has no infinity; this is what OpenAI writes for a token that is as good as impossible.
LEAST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What every chunk of a reply repeats."""

    model: str
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    @staticmethod
    def new(model: str, prefix: Literal["chatcmpl", "cmpl"]) -> ReplyHead:
        return ReplyHead(model, f"{prefix}-{uuid.uuid4().hex}")

    def fields(self, object_: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": object_,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }


def usage_fields(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def error_event(error: PomonaError) -> bytes:
    return b"data: " + _on_one_line(error_reply(error).body()) + b"\n\n"


def encode(value: Any) -> bytes:
    return _on_one_line(msgspec.json.encode(value))


class ChunkWriter:
    """The chunks of a stream. Each repeats the reply's head and has one choice; usage comes last."""

    def __init__(self, head: ReplyHead, object_: str, include_usage: bool) -> None:
        self._head = head.fields(object_)
        self._include_usage = include_usage
        self._open = 0
        self._usage = Usage(0, 0)

    def begin(self) -> None:
        """One more choice."""
        self._open += 1

    def chunk(self, choice: dict[str, Any]) -> bytes:
        usage = {"usage": None} if self._include_usage else {}
        return _server_sent(self._head | {"choices": [choice], **usage})

    def last_chunk(self, choice: dict[str, Any], usage: Usage) -> bytes:
        """Of a choice; after that of the last one the stream is complete."""
        self._open -= 1
        self._usage += usage
        data = self.chunk(choice)
        if self._open:
            return data
        if self._include_usage:
            data += _server_sent(self._head | {"choices": [], "usage": usage_fields(self._usage)})
        return data + DONE


@dataclass(slots=True)
class FoldedChoice:
    """One choice of a collected reply."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


async def fold(events: AsyncIterable[Event]) -> tuple[list[FoldedChoice], Usage]:
    """The events of an answer as one reply. Raises the error of a failed answer."""
    choices: list[FoldedChoice] = []
    usage = Usage(0, 0)
    async for event in events:
        match event:
            case Started():
                choices.append(FoldedChoice())
            case TextDelta(text=text, choice=choice, logprobs=logprobs):
                choices[choice].texts.append(text)
                choices[choice].logprobs += logprobs
            case Finished(reason=reason, choice=choice):
                choices[choice].finish_reason = reason.value
                usage += event.usage
            case Failed(error=error):
                raise error
    return choices, usage


def _server_sent(value: Any) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def _on_one_line(json: bytes) -> bytes:
    for char, escape in LINE_ENDS:
        json = json.replace(char, escape)
    return json
