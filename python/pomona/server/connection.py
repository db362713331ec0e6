"""Sanic's HTTP/1.1 with our limits: size and time of a request's head, time and size of its body.

Sanic itself gives up on a silent client only, so one byte now and then would hold a connection for ever; its
time for a request ends with the head. What is refused is read to its end where that is near, because closing
a connection with unread bytes can take the reply with it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from sanic import Request
from sanic.exceptions import BadRequest, PayloadTooLarge, RequestTimeout
from sanic.http import Http, Stage
from sanic.server.protocols.http_protocol import HttpProtocol

from pomona.server.errors import RequestRefused

# Besides the time for the head, a body gets a second for each of these.
SLOWEST_BYTES_PER_S = 64 * 1024
# Of a refused request, so much more is read and dropped, for so long.
DRAIN_BYTES = 64 * 1024 * 1024
DRAIN_S = 10.0
HEAD_DRAIN_BYTES = 1024 * 1024
HEAD_DRAIN_S = 1.0

TOO_LARGE = "Request body exceeds the size limit"


class LimitedHttp(Http):
    """One connection's requests."""

    __slots__ = ("began_at",)

    def __init__(self, protocol: Any) -> None:
        super().__init__(protocol)  # type: ignore[no-untyped-call]  # of sanic, here and below
        self.began_at = time.monotonic()

    @property
    def HEADER_MAX_SIZE(self) -> int:  # type: ignore[override]  # sanic: a constant
        """Sanic keeps one limit, of at most 16 KiB, for all apps of a process."""
        return int(self.protocol.app.config.REQUEST_MAX_HEADER_SIZE)

    def init_for_request(self) -> None:
        super().init_for_request()  # type: ignore[no-untyped-call]
        self.began_at = time.monotonic()

    async def http1_request_header(self) -> None:
        try:
            await super().http1_request_header()  # type: ignore[no-untyped-call]
        except PayloadTooLarge:
            await self._drain_head()
            raise RequestRefused(
                431,
                f"The headers are larger than the server takes ({self.HEADER_MAX_SIZE:,} bytes); send fewer, "
                "or raise the setting max_header_bytes.",
                "headers_too_large",
            ) from None

    async def _drain_head(self) -> None:
        dropped = 0
        try:
            async with asyncio.timeout(HEAD_DRAIN_S):
                while b"\r\n\r\n" not in self.recv_buffer and dropped < HEAD_DRAIN_BYTES:
                    dropped += len(self.recv_buffer) - 3
                    del self.recv_buffer[:-3]
                    await self._receive_more()
        except TimeoutError:
            pass


class LimitedProtocol(HttpProtocol):
    """Ends a request whose head does not arrive in time, however busily it trickles in."""

    HTTP_CLASS = LimitedHttp

    def data_received(self, data: bytes) -> None:
        http = self._http if hasattr(self, "_http") else None
        if http is not None and http.stage is Stage.IDLE:
            http.began_at = time.monotonic()
        super().data_received(data)

    def check_timeouts(self) -> None:
        http, task = self._http, self._task
        late = http is not None and time.monotonic() - http.began_at > self.request_timeout
        if task is not None and late and http.stage is Stage.REQUEST:
            http.exception = RequestTimeout("Request Timeout")
            task.cancel()
            return
        super().check_timeouts()  # type: ignore[no-untyped-call]


class LimitedRequest(Request):
    """Checks a request before its body is read, and reads no more of it than is allowed."""

    @property
    def age_s(self) -> float:
        """Since the first byte of its head."""
        began_at = getattr(self.stream, "began_at", None)
        return 0.0 if began_at is None else time.monotonic() - began_at

    async def receive_body(self) -> None:
        http: Any = self.stream
        if self.body or http is None:
            return
        self.app.ctx.check_head(self)
        limit = self.app.config.REQUEST_MAX_SIZE
        if http.expecting_continue and (http.request_bytes or 0) > limit:
            # Told in time, such a client does not send it at all.
            http.expecting_continue = False
            raise PayloadTooLarge(TOO_LARGE)
        idle_s = self.app.config.REQUEST_TIMEOUT
        try:
            async with asyncio.timeout(idle_s + limit / SLOWEST_BYTES_PER_S):
                body = await _read_body(http, limit, idle_s)
        except TimeoutError:
            _give_up(http)
            raise RequestTimeout("Request Timeout") from None
        if http.request_body:
            await _drain(http)
            raise PayloadTooLarge(TOO_LARGE)
        self.body = body


async def _read_body(http: Any, limit: int, idle_s: float) -> bytes:
    """The body, or its start where it is larger than `limit`: then `http.request_body` is still set."""
    # Sanic's own limit would end the reading at once, and leave the rest in the connection.
    http.request_max_size = float("inf")
    pieces: list[bytes] = []
    size = 0
    while http.request_body and max(size, http.request_bytes or 0) <= limit:
        async with asyncio.timeout(idle_s):
            piece = await http.read()
        if piece:
            size += len(piece)
            pieces.append(piece)
    return b"".join(pieces)


async def _drain(http: Any) -> None:
    """Read and drop what is left, so that the client gets to see the refusal."""
    dropped = 0
    try:
        async with asyncio.timeout(DRAIN_S):
            while http.request_body and dropped < DRAIN_BYTES:
                dropped += len(await http.read() or b"")
    except (TimeoutError, BadRequest):
        pass
    if http.request_body:
        _give_up(http)


def _give_up(http: Any) -> None:
    """Close the connection after the reply, whatever is still to come."""
    http.keep_alive = False
    http.request_body = None
