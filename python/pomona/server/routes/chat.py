"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from sanic import HTTPResponse, Request
from sanic.exceptions import SanicException

from pomona.conversation.conversation import GenerationRequest
from pomona.conversation.errors import PomonaError
from pomona.conversation.events import Event, Failed
from pomona.protocols.openai_chat import ChatRequest, ReplyHead, StreamWriter, collect, to_generation
from pomona.protocols.validation import parse_body
from pomona.server.errors import INTERNAL_MESSAGE, request_id
from pomona.server.services import App, services_of

log = logging.getLogger(__name__)

# Parsing more than this holds the event loop up for milliseconds.
MAX_INLINE_BODY_BYTES = 1 << 20
# Proxies must pass events on as they come.
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def register(app: App) -> None:
    app.add_route(create_chat_completion, "/v1/chat/completions", methods=["POST"])


async def create_chat_completion(request: Request) -> HTTPResponse | None:
    services = services_of(request)
    with services.admission.enter():
        body, generation = await _read(request)
        services.model.check(body.model)
        head = ReplyHead(services.model.name)
        async with aclosing(services.engine.answer(generation)) as events:
            if body.stream:
                await _stream(request, events, StreamWriter(head, body.include_usage))
                return None
            return HTTPResponse(await collect(head, events), content_type="application/json")


async def _read(request: Request) -> tuple[ChatRequest, GenerationRequest]:
    if len(request.body) > MAX_INLINE_BODY_BYTES:
        return await asyncio.to_thread(_parse, request.body)
    return _parse(request.body)


def _parse(data: bytes) -> tuple[ChatRequest, GenerationRequest]:
    body = parse_body(ChatRequest, data)
    return body, to_generation(body)


async def _stream(request: Request, events: AsyncGenerator[Event], writer: StreamWriter) -> None:
    # What is wrong with the request shows before the first event, while the status is still open.
    first = await anext(events)
    response = await request.respond(content_type="text/event-stream", headers=STREAM_HEADERS)
    try:
        await response.send(writer.write(first))
        async for event in events:
            await response.send(writer.write(event))
    except SanicException:  # the client has gone
        raise
    except Exception:
        log.exception("request %s failed in mid-stream", request_id(request))
        await response.send(writer.write(Failed(PomonaError(INTERNAL_MESSAGE))))
    await response.eof()
