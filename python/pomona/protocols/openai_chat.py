"""POST /v1/chat/completions: the request's body to a conversation, events to a stream or one reply."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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
from pomona.conversation.events import (
    Event,
    Failed,
    Finished,
    Heartbeat,
    Started,
    TextDelta,
    TokenLogprob,
)
from pomona.protocols.openai_fields import GenerationBody, TokenLimit
from pomona.protocols.openai_unsupported import CHAT_FIELDS, MESSAGE_FIELDS, refuse_unsupported
from pomona.protocols.openai_wire import (
    KEEP_ALIVE,
    ChunkWriter,
    ReplyHead,
    encode,
    error_event,
    finite,
    fold,
    usage_fields,
)

TEXT_PARTS = ("text",)
OTHER_PARTS = ("image_url", "input_audio", "file", "refusal")
MAX_TOP_LOGPROBS = 20


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: Any = None


Messages = Annotated[list[ChatMessage], Field(min_length=1)]


class ChatRequest(GenerationBody):
    messages: Messages
    max_completion_tokens: TokenLimit | None = None
    max_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


# ---------------------------------------------------------------- the request


def to_generation(body: ChatRequest) -> GenerationRequest:
    refuse_unsupported(CHAT_FIELDS, body.model_extra or {})
    body.check_stream_options()
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequestError(
            "'top_logprobs' is only allowed when 'logprobs' is true.", "top_logprobs", "invalid_value"
        )
    return GenerationRequest(
        sources=(to_conversation(body.messages),),
        sampling=body.sampling(),
        stop=body.stop_options(body.max_completion_tokens or body.max_tokens),
        n=body.n or 1,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )


def to_conversation(messages: Iterable[ChatMessage]) -> Conversation:
    read = (_to_message(message, f"messages[{i}]") for i, message in enumerate(messages))
    return canonical(Conversation(tuple(read)))


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


class StreamWriter:
    """Events to server-sent events. Per delta only the text itself is encoded."""

    def __init__(self, head: ReplyHead, include_usage: bool) -> None:
        self._chunks = ChunkWriter(head, "chat.completion.chunk", include_usage)
        # Per choice, what stands before and after the text of a delta.
        self._around: list[tuple[bytes, bytes]] = []

    def write(self, event: Event) -> bytes:
        match event:
            case TextDelta(text=text, choice=choice, logprobs=()):
                before, after = self._around[choice]
                return before + encode(text) + after
            case TextDelta(text=text, choice=choice, logprobs=logprobs):
                return self._chunks.chunk(_part(choice, {"content": text}, _logprobs(logprobs)))
            case Heartbeat():
                return KEEP_ALIVE
            case Started(choice=choice):
                return self._begin(choice)
            case Finished(reason=reason, choice=choice, usage=usage):
                part = _part(choice, {}, finish_reason=reason.value)
                return self._chunks.last_chunk(part, usage)
            case Failed(error=error):
                return error_event(error)

    def _begin(self, choice: int) -> bytes:
        self._chunks.begin()
        before, after = self._chunks.chunk(_part(choice, {"content": ""})).split(b'"content":""')
        self._around.append((before + b'"content":', after))
        return self._chunks.chunk(_part(choice, {"role": "assistant", "content": ""}))


def _part(
    choice: int,
    delta: dict[str, str],
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    return {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


async def collect(head: ReplyHead, events: AsyncIterable[Event], logprobs: bool = False) -> bytes:
    """The fold of an answer's events into one body. Raises the error of a failed answer."""
    choices, usage = await fold(events)
    fields = [
        {
            "index": i,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": _logprobs(choice.logprobs) if logprobs else None,
            "finish_reason": choice.finish_reason,
        }
        for i, choice in enumerate(choices)
    ]
    return encode(head.fields("chat.completion") | {"choices": fields, "usage": usage_fields(usage)})


def _logprobs(logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
    content = [
        _token(item.token, item.logprob or 0.0)
        | {"top_logprobs": [_token(token, logprob) for token, logprob in item.top]}
        for item in logprobs
    ]
    return {"content": content, "refusal": None}


def _token(token: bytes, logprob: float) -> dict[str, Any]:
    """A token that is no whole character is told by its bytes; its text then has replacement characters."""
    return {
        "token": token.decode(errors="replace"),
        "logprob": finite(logprob),
        "bytes": list(token),
    }
