"""What all routes that generate share: reading a body, the request's own deadline, streaming."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable
from typing import Protocol, TypeVar

from sanic import Request
from sanic.exceptions import SanicException

from pomona.conversation.errors import InvalidRequestError, PomonaError
from pomona.conversation.events import Event, Failed
from pomona.server.errors import INTERNAL_MESSAGE, request_id

log = logging.getLogger(__name__)

T = TypeVar("T")

# Of small messages, reading more than this holds the event loop up for milliseconds.
MAX_INLINE_BYTES = 64 * 1024
TIMEOUT_HEADER = "x-request-timeout"
# Proxies must pass events on as they come.
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
JSON = "application/json"


class Writer(Protocol):
    def write(self, event: Event) -> bytes: ...


async def read(request: Request, parse: Callable[[bytes], T]) -> T:
    if len(request.body) > MAX_INLINE_BYTES:
        return await asyncio.to_thread(parse, request.body)
    return parse(request.body)


def timeout_of(request: Request) -> float | None:
    """Seconds that the client gives the whole answer (header x-request-timeout), or None."""
    given = request.headers.get(TIMEOUT_HEADER)
    if given is None:
        return None
    try:
        timeout_s = float(given)
    except ValueError:
        timeout_s = math.nan
    if not 0 < timeout_s < math.inf:
        raise InvalidRequestError(
            f"Invalid value for the header '{TIMEOUT_HEADER}': it must be a number of seconds above 0.",
            TIMEOUT_HEADER,
            "invalid_value",
        )
    return timeout_s


async def stream(request: Request, events: AsyncGenerator[Event], writer: Writer) -> None:
    # What is wrong with the request shows before the first event, while the status is still open.
    first = await anext(events)
    response = await request.respond(content_type="text/event-stream", headers=STREAM_HEADERS)
    try:
        await response.send(writer.write(first))
        async for event in events:
            if data := writer.write(event):
                await response.send(data)
    except SanicException:  # the client has gone
        raise
    except Exception:  # the status is sent: only an event can still tell the client, whatever went wrong
        log.exception("request %s failed in mid-stream", request_id(request))
        await response.send(writer.write(Failed(PomonaError(INTERNAL_MESSAGE))))
    await response.eof()
