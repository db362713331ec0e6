"""What replies of the OpenAI API share: their head, usage, server-sent events and JSON."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from pomona import __version__
from pomona.conversation.errors import PomonaError
from pomona.conversation.events import TokenLogprob, Usage
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
    return b"data: " + error_reply(error).body() + b"\n\n"


def server_sent(value: Any) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def encode(value: Any) -> bytes:
    data = msgspec.json.encode(value)
    for char, escape in LINE_ENDS:
        data = data.replace(char, escape)
    return data


class EndOfReply:
    """Adds up the choices of a reply: when the last of them has ended, and their usage."""

    def __init__(self) -> None:
        self.open = 0
        self.usage = Usage(0, 0)

    def begin(self) -> None:
        self.open += 1

    def end(self, usage: Usage) -> bool:
        """Whether this was the last one."""
        self.open -= 1
        self.usage += usage
        return not self.open


@dataclass(slots=True)
class ChoiceFold:
    """One choice of a collected reply so far."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = ""

    @property
    def text(self) -> str:
        return "".join(self.texts)
