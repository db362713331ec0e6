"""POST /v1/completions: prompts to continue as they are, events to a stream or one reply."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema

from pomona.conversation.conversation import GenerationRequest, Infill, RawText, Source, TokenIds
from pomona.conversation.errors import InvalidRequestError
from pomona.conversation.events import (
    Event,
    Failed,
    Finished,
    Heartbeat,
    Started,
    TextDelta,
    TokenLogprob,
)
from pomona.protocols.openai_fields import MAX_TOKEN_ID, GenerationBody, is_token_id, wrong_type
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

DEFAULT_MAX_TOKENS = 16
MAX_LOGPROBS = 5

OBJECT = "text_completion"


def _check_prompt(value: Any) -> tuple[RawText | TokenIds, ...]:
    """A text, texts, a list of token ids, or lists of token ids."""
    if isinstance(value, str):
        return (RawText(value),)
    if not isinstance(value, list):
        raise wrong_type("it must be a string, a list of strings, or token ids.")
    if not value:
        raise ValueError("it must not be empty.")
    if isinstance(value[0], str) and all(isinstance(item, str) for item in value):
        return tuple(map(RawText, value))
    if isinstance(value[0], list):
        return tuple(map(_token_ids, value))
    return (_token_ids(value),)


def _token_ids(value: Any) -> TokenIds:
    if not isinstance(value, list) or any(type(id_) is not int for id_ in value):
        raise wrong_type("it must be a string, a list of strings, token ids, or lists of token ids.")
    if not value:
        raise ValueError("a list of token ids must not be empty.")
    if not all(map(is_token_id, value)):
        raise ValueError(f"token ids are numbers from 0 to {MAX_TOKEN_ID}.")
    return TokenIds(tuple(value))


_IDS_SCHEMA = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID},
}
PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "minItems": 1, "items": {"type": "string"}},
        _IDS_SCHEMA,
        {"type": "array", "minItems": 1, "items": _IDS_SCHEMA},
    ]
}


class CompletionRequest(GenerationBody):
    prompt: Annotated[Any, AfterValidator(_check_prompt), WithJsonSchema(PROMPT_SCHEMA)]
    suffix: str | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None


# ---------------------------------------------------------------- the request


def to_generation(body: CompletionRequest) -> GenerationRequest:
    body.check_stream_options()
    n = body.n or 1
    _check_best_of(body, n)
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if max_tokens == 0 and not body.echo:
        raise InvalidRequestError(
            "Invalid value for 'max_tokens': it must be at least 1, unless 'echo' is true.",
            "max_tokens",
            "invalid_value",
        )
    if body.max_tokens is None:
        max_tokens = max(max_tokens, body.min_tokens or 0)
    return GenerationRequest(
        sources=tuple(_to_source(prompt, body) for prompt in body.prompt),
        sampling=body.sampling(),
        stop=body.stop_options(max_tokens),
        n=n,
        best_of=body.best_of,
        logprobs=body.logprobs,
        echo=bool(body.echo),
    )


def _check_best_of(body: CompletionRequest, n: int) -> None:
    best_of = body.best_of or n
    if best_of < n:
        raise InvalidRequestError(
            f"Invalid value for 'best_of': it must be at least n, which is {n}.", "best_of", "invalid_value"
        )
    if best_of > n and body.stream:
        raise InvalidRequestError(
            "'best_of' cannot be streamed: the best answer is known only when all are complete.",
            "best_of",
            "invalid_value",
        )


def _to_source(prompt: RawText | TokenIds, body: CompletionRequest) -> Source:
    if body.suffix is None:
        return prompt
    if body.echo:
        raise InvalidRequestError("'echo' cannot be combined with 'suffix'.", "echo", "invalid_value")
    return Infill(prompt, body.suffix)


# ---------------------------------------------------------------- the reply


class StreamWriter:
    """Events to server-sent events. What is not worth one is an empty string."""

    def __init__(self, head: ReplyHead, include_usage: bool, logprobs: int | None = None) -> None:
        self._chunks = ChunkWriter(head, OBJECT, include_usage)
        self._logprobs = logprobs

    def write(self, event: Event) -> bytes:
        match event:
            case TextDelta(text=text, choice=choice, logprobs=logprobs):
                return self._chunks.chunk(_part(choice, text, _logprobs(logprobs, self._logprobs)))
            case Heartbeat():
                return KEEP_ALIVE
            case Started(choice=choice):
                self._chunks.begin()
                # There is no chunk for this; the head of the reply should not wait for the first token.
                return b"" if choice else KEEP_ALIVE
            case Finished(reason=reason, choice=choice, usage=usage):
                return self._chunks.last_chunk(_part(choice, "", finish_reason=reason.value), usage)
            case Failed(error=error):
                return error_event(error)


async def collect(head: ReplyHead, events: AsyncIterable[Event], logprobs: int | None = None) -> bytes:
    """The fold of an answer's events into one body. Raises the error of a failed answer."""
    choices, usage = await fold(events)
    fields = [
        _part(i, choice.text, _logprobs(choice.logprobs, logprobs), choice.finish_reason)
        for i, choice in enumerate(choices)
    ]
    return encode(head.fields(OBJECT) | {"choices": fields, "usage": usage_fields(usage)})


def _part(
    choice: int, text: str, logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
) -> dict[str, Any]:
    return {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _logprobs(logprobs: Iterable[TokenLogprob], count: int | None) -> dict[str, Any] | None:
    if count is None:
        return None
    items = list(logprobs)
    return {
        "tokens": [_token(item.token) for item in items],
        "token_logprobs": [None if item.logprob is None else finite(item.logprob) for item in items],
        "top_logprobs": [_top(item) for item in items] if count else None,
        "text_offset": [item.offset for item in items],
    }


def _top(item: TokenLogprob) -> dict[str, float] | None:
    """The most likely tokens and the drawn one: up to one more than was asked for, as OpenAI has it."""
    if item.logprob is None:
        return None
    top: dict[str, float] = {}
    for token, logprob in (*item.top, (item.token, item.logprob)):
        # Two tokens may have the same text; the more likely one stands for both.
        top.setdefault(_token(token), finite(logprob))
    return top


def _token(token: bytes) -> str:
    """Where a token is no whole character, its bytes are written out, so that no two look the same."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
