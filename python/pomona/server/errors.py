"""Every error a client can see, in the shape of the API it speaks; nothing of the framework's own.

Also the request's id, which every reply carries and the log names.
"""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import replace

from sanic import HTTPResponse, Request
from sanic.exceptions import RequestCancelled, SanicException
from sanic.handlers import ErrorHandler

from pomona.conversation.errors import PomonaError
from pomona.protocols.openai_errors import ErrorReply, error_reply, http_error_reply

log = logging.getLogger(__name__)

ID_HEADER = "x-request-id"
# A client's own id is taken over where it is harmless in a header and in the log.
CLIENT_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
CLIENT_CLOSED = 499
INTERNAL_MESSAGE = "The server made an error; its log has the details under this request's id."
# Messages quote what the client sent, which may be of any length.
MAX_MESSAGE_CHARACTERS = 1000
MAX_PARAM_CHARACTERS = 200


class RequestRefused(SanicException):
    """The web server's own refusals, for what is wrong with a request before its API is asked."""

    def __init__(self, status: int, message: str, code: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message, status, headers=headers or {})
        self.code = code

    def reply(self) -> ErrorReply:
        return replace(
            http_error_reply(self.status_code, str(self)), code=self.code, headers=dict(self.headers)
        )


class ShapedErrorHandler(ErrorHandler):
    """Sanic calls `default` for everything that is raised, in a handler or before one is found."""

    def default(self, request: Request, exception: Exception) -> HTTPResponse:
        reply = to_reply(request, exception)
        return HTTPResponse(
            reply.body(), reply.status, headers=reply.headers, content_type="application/json"
        )


def to_reply(request: Request, exception: BaseException) -> ErrorReply:
    reply = _to_reply(request, exception)
    if reply.status < 500:
        # Quoted: what the client sent must not write lines of its own.
        log.info(
            "request %s refused: %d %s: %r",
            *(request_id(request), reply.status, reply.code, _cut(reply.message, MAX_MESSAGE_CHARACTERS)),
        )
    return replace(
        reply,
        message=_cut(reply.message, MAX_MESSAGE_CHARACTERS),
        param=None if reply.param is None else _cut(reply.param, MAX_PARAM_CHARACTERS),
    )


def request_id(request: Request) -> str:
    if not hasattr(request.ctx, "request_id"):
        given = request.headers.get(ID_HEADER, "")
        request.ctx.request_id = given if CLIENT_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
    return str(request.ctx.request_id)


def _to_reply(request: Request, exception: BaseException) -> ErrorReply:
    match exception:
        case PomonaError():
            return error_reply(exception)
        case RequestRefused():
            return exception.reply()
        case RequestCancelled():  # nobody reads this
            return http_error_reply(CLIENT_CLOSED, "The client has closed the connection.")
        case SanicException() if exception.status_code < 500:
            return http_error_reply(exception.status_code, _http_message(request, exception))
        case SanicException() if exception.status_code == 503:
            return http_error_reply(503, "The reply took too long.")
    log.error("request %s: %s", request_id(request), exception, exc_info=exception)
    return http_error_reply(500, INTERNAL_MESSAGE)


def _http_message(request: Request, exception: SanicException) -> str:
    match exception.status_code:
        case 404:
            return f"There is no {request.path} here."
        case 405:
            return f"{request.path} does not take {request.method}."
        case 408:
            return "The request took too long to arrive."
        case 413:
            limit = request.app.config.REQUEST_MAX_SIZE
            return f"The request is larger than the server takes ({limit:,} bytes of body)."
    return str(exception)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."
