"""POST /v1/chat/completions: the request's body to a conversation, events to a stream or one reply."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from pomona import __version__
from pomona.conversation.canonical import canonical
from pomona.conversation.conversation import (
    Conversation,
    GenerationRequest,
    Message,
    Part,
    Role,
    TextPart,
)
from pomona.conversation.errors import InvalidRequestError, UnsupportedParameterError
from pomona.conversation.events import Event, Failed, Finished, Heartbeat, Started, TextDelta, Usage
from pomona.protocols.openai_errors import error_reply
from pomona.protocols.openai_unsupported import CHAT_FIELDS, MESSAGE_FIELDS, refuse_unsupported

FINGERPRINT = f"pomona-{__version__}"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
# Some clients cut a stream into lines wherever Unicode sees a line end; JSON may escape these.
LINE_ENDS = [(char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\u0085\u2028\u2029"]

TEXT_PARTS = ("text",)
OTHER_PARTS = ("image_url", "input_audio", "file", "refusal")

Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TokenLimit = Annotated[int, Field(ge=1)]


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: Any = None


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None


class ChatRequest(BaseModel):
    """Fields that are honoured. Others are kept only to refuse the known ones among them."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: TokenLimit | None = None
    max_tokens: TokenLimit | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    seed: Int64 | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


# ---------------------------------------------------------------- the request


def to_generation(body: ChatRequest) -> GenerationRequest:
    refuse_unsupported(CHAT_FIELDS, body.model_extra or {})
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError(
            "'stream_options' is only allowed when 'stream' is true.", "stream_options", "invalid_value"
        )
    messages = tuple(_to_message(message, f"messages[{i}]") for i, message in enumerate(body.messages))
    return GenerationRequest(
        conversation=canonical(Conversation(messages)),
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        max_tokens=body.max_completion_tokens or body.max_tokens,
    )


def _to_message(message: ChatMessage, path: str) -> Message:
    if message.role == "function":
        raise UnsupportedParameterError(
            f"{path}.role", "The role 'function' is not supported; use tools and the role 'tool'."
        )
    refuse_unsupported(MESSAGE_FIELDS, message.model_extra or {}, f"{path}.")
    role = Role.SYSTEM if message.role == "developer" else Role(message.role)
    return Message(role, _to_parts(message.content, f"{path}.content"))


def _to_parts(content: Any, path: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    if isinstance(content, list):
        return tuple(_to_part(part, f"{path}[{i}]") for i, part in enumerate(content))
    if content is None:
        raise InvalidRequestError(
            f"Missing required parameter: '{path}'.", path, "missing_required_parameter"
        )
    raise InvalidRequestError(
        f"Invalid value for '{path}': it must be a string or a list of parts.", path, "invalid_type"
    )


def _to_part(part: Any, path: str) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in TEXT_PARTS:
        text = part.get("text")
        if isinstance(text, str):
            return TextPart(text)
        raise InvalidRequestError(
            f"Invalid value for '{path}.text': it must be a string.", f"{path}.text", "invalid_type"
        )
    if kind in OTHER_PARTS:
        raise UnsupportedParameterError(
            path, f"Content of type '{kind}' is not supported yet; send text only."
        )
    raise InvalidRequestError(
        f'Invalid value for \'{path}\': it must be an object with "type": "text".', path, "invalid_value"
    )


# ---------------------------------------------------------------- the reply


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What every chunk of a reply repeats."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, object_: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": object_,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }


class StreamWriter:
    """Events to server-sent events. Per delta only the text itself is encoded."""

    def __init__(self, head: ReplyHead, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        before, after = self._chunk({"content": ""}).split(b'"content":""')
        self._before, self._after = before + b'"content":', after

    def write(self, event: Event) -> bytes:
        match event:
            case TextDelta(text=text):
                return self._before + _encode(text) + self._after
            case Heartbeat():
                return KEEP_ALIVE
            case Started():
                return self._chunk({"role": "assistant", "content": ""})
            case Finished():
                return self._end(event)
            case Failed(error=error):
                return b"data: " + error_reply(error).body() + b"\n\n"

    def _end(self, event: Finished) -> bytes:
        last = self._chunk({}, event.reason.value)
        if self._include_usage:
            last += self._event({"choices": [], "usage": _usage(event.usage)})
        return last + DONE

    def _chunk(self, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._include_usage else {}
        return self._event({"choices": [choice], **usage})

    def _event(self, fields: dict[str, Any]) -> bytes:
        return b"data: " + _encode(self._head.fields("chat.completion.chunk") | fields) + b"\n\n"


async def collect(head: ReplyHead, events: AsyncIterable[Event]) -> bytes:
    """The fold of an answer's events into one body. Raises the error of a failed answer."""
    texts: list[str] = []
    async for event in events:
        match event:
            case TextDelta(text=text):
                texts.append(text)
            case Finished():
                return _encode(_completion(head, "".join(texts), event))
            case Failed(error=error):
                raise error
    raise AssertionError("an answer ends with Finished or Failed")


def _completion(head: ReplyHead, text: str, end: Finished) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": end.reason.value}
    return head.fields("chat.completion") | {"choices": [choice], "usage": _usage(end.usage)}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _encode(value: Any) -> bytes:
    data = msgspec.json.encode(value)
    for char, escape in LINE_ENDS:
        data = data.replace(char, escape)
    return data
