"""POST /v1/chat/completions."""

from __future__ import annotations

from contextlib import aclosing

from sanic import HTTPResponse, Request

from pomona.conversation.conversation import GenerationRequest
from pomona.protocols.openai_chat import ChatRequest, StreamWriter, collect, to_generation
from pomona.protocols.openai_wire import ReplyHead
from pomona.protocols.validation import parse_body
from pomona.server.routes.answering import JSON, read, stream, timeout_of
from pomona.server.services import App, services_of


def register(app: App) -> None:
    app.add_route(create_chat_completion, "/v1/chat/completions", methods=["POST"])


async def create_chat_completion(request: Request) -> HTTPResponse | None:
    services = services_of(request)
    with services.admission.enter():
        body, generation = await read(request, _parse)
        services.model.check(body.model)
        head = ReplyHead.new(services.model.name, "chatcmpl")
        async with aclosing(services.engine.answer(generation, timeout_of(request))) as events:
            if body.stream:
                await stream(request, events, StreamWriter(head, body.include_usage))
                return None
            return HTTPResponse(await collect(head, events, bool(body.logprobs)), content_type=JSON)


def _parse(data: bytes) -> tuple[ChatRequest, GenerationRequest]:
    body = parse_body(ChatRequest, data)
    return body, to_generation(body)
