"""POST /tokenize, /detokenize and /apply_template, also under /v1."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sanic import HTTPResponse, Request

from pomona.conversation.errors import InvalidRequestError
from pomona.protocols.openai_chat import to_conversation
from pomona.protocols.tokenizing import (
    ApplyTemplateRequest,
    DetokenizeRequest,
    TokenizeRequest,
    TokenizingBody,
    content_reply,
    prompt_reply,
    to_source,
    tokens_reply,
)
from pomona.protocols.validation import parse_body
from pomona.server.routes.answering import JSON
from pomona.server.services import App, services_of
from pomona.text.model_text import ModelText

Body = TypeVar("Body", bound=TokenizingBody)

# More than this would hold the event loop up for milliseconds.
MAX_INLINE_BODY_BYTES = 4096
# Encoding takes about a second per million.
MAX_CHARACTERS = 4_000_000


def register(app: App) -> None:
    for handler in (tokenize, detokenize, apply_template):
        name = handler.__name__
        app.add_route(handler, f"/{name}", methods=["POST"])
        app.add_route(handler, f"/v1/{name}", methods=["POST"], name=f"v1_{name}")


async def tokenize(request: Request) -> HTTPResponse:
    return await _answer(request, TokenizeRequest, _tokenize)


async def detokenize(request: Request) -> HTTPResponse:
    return await _answer(request, DetokenizeRequest, _detokenize)


async def apply_template(request: Request) -> HTTPResponse:
    return await _answer(request, ApplyTemplateRequest, _apply_template)


async def _answer(
    request: Request, type_: type[Body], reply: Callable[[ModelText, Body], bytes]
) -> HTTPResponse:
    services = services_of(request)

    def work() -> bytes:
        body = parse_body(type_, request.body)
        if body.model is not None:
            services.model.check(body.model)
        return reply(services.text, body)

    inline = len(request.body) <= MAX_INLINE_BODY_BYTES
    return HTTPResponse(work() if inline else await asyncio.to_thread(work), content_type=JSON)


def _tokenize(text: ModelText, body: TokenizeRequest) -> bytes:
    source = to_source(body)
    if not isinstance(source, str):
        _check_length("messages", sum(len(message.text) for message in source.messages))
        return tokens_reply(text.prompts.build(source).ids)
    _check_length("content", len(source))
    if body.add_special:
        return tokens_reply(text.tokenizer.encode_raw(source))
    return tokens_reply(text.tokenizer.encode(source).ids)


def _check_length(param: str, characters: int) -> None:
    if characters > MAX_CHARACTERS:
        raise InvalidRequestError(
            f"Invalid value for '{param}': it has {characters:,} characters, and at most {MAX_CHARACTERS:,} "
            "are encoded at once; send it in parts.",
            param,
            "invalid_value",
        )


def _detokenize(text: ModelText, body: DetokenizeRequest) -> bytes:
    unknown = next((id_ for id_ in body.tokens if not text.tokenizer.codec.token_bytes(id_)), None)
    if unknown is not None:
        raise InvalidRequestError(
            f"Invalid value for 'tokens': the model has no token {unknown}.", "tokens", "invalid_value"
        )
    return content_reply(text.tokenizer.decode(body.tokens, special=True))


def _apply_template(text: ModelText, body: ApplyTemplateRequest) -> bytes:
    return prompt_reply(text.prompts.render(to_conversation(body.messages)))
