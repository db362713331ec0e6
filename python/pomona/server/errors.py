"""Every error a client can see, in the shape of the API it speaks; nothing of the framework's own.

Also the request's id, which every reply carries and the log names.
"""

from __future__ import annotations

import logging
import re
import uuid

from sanic import HTTPResponse, Request
from sanic.exceptions import RequestCancelled, SanicException
from sanic.handlers import ErrorHandler
from sanic.response import BaseHTTPResponse

from pomona.conversation.errors import PomonaError
from pomona.protocols.openai_errors import ErrorReply, error_reply, http_error_reply

log = logging.getLogger(__name__)

ID_HEADER = "x-request-id"
# A client's own id is taken over where it is harmless in a header and in the log.
CLIENT_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
CLIENT_CLOSED = 499
INTERNAL_MESSAGE = "The server made an error; its log has the details under this request's id."


class ShapedErrorHandler(ErrorHandler):
    """Sanic calls `default` for everything that is raised, in a handler or before one is found."""

    def default(self, request: Request, exception: Exception) -> HTTPResponse:
        reply = to_reply(request, exception)
        return HTTPResponse(
            reply.body(), reply.status, headers=reply.headers, content_type="application/json"
        )


def to_reply(request: Request, exception: BaseException) -> ErrorReply:
    match exception:
        case PomonaError():
            return error_reply(exception)
        case RequestCancelled():  # nobody reads this
            return http_error_reply(CLIENT_CLOSED, "The client has closed the connection.")
        case SanicException() if exception.status_code < 500:
            return http_error_reply(exception.status_code, _http_message(request, exception))
        case SanicException() if exception.status_code == 503:
            return http_error_reply(503, "The reply took too long.")
    log.error("request %s: %s", request_id(request), exception, exc_info=exception)
    return http_error_reply(500, INTERNAL_MESSAGE)


def request_id(request: Request) -> str:
    if not hasattr(request.ctx, "request_id"):
        given = request.headers.get(ID_HEADER, "")
        request.ctx.request_id = given if CLIENT_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
    return str(request.ctx.request_id)


def add_request_id(request: Request, response: BaseHTTPResponse) -> None:
    response.headers[ID_HEADER] = request_id(request)


def _http_message(request: Request, exception: SanicException) -> str:
    match exception.status_code:
        case 404:
            return f"There is no {request.path} here."
        case 405:
            return f"{request.path} does not take {request.method}."
        case 413:
            limit = request.app.config.REQUEST_MAX_SIZE
            return f"The request is larger than the server takes ({limit:,} bytes of body)."
    return str(exception)
