"""Errors in the shape of the OpenAI API: status, body and the headers that steer a client's retries.

The official clients retry 408, 409, 429 and every status from 500 on, so what cannot succeed when sent
again is a 4xx or carries `x-should-retry: false`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from pomona.conversation.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PomonaError,
    RequestTimeoutError,
    RowFailedError,
    UnavailableError,
)

NO_RETRY = {"x-should-retry": "false"}
INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"


@dataclass(frozen=True, slots=True)
class ErrorReply:
    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def error_reply(error: PomonaError) -> ErrorReply:
    text = error.message
    match error:
        case InvalidRequestError(param=param, code=code):
            return ErrorReply(400, text, INVALID_REQUEST, param, code)
        case ModelNotFoundError():
            return ErrorReply(404, text, INVALID_REQUEST, "model", "model_not_found")
        case OverloadedError():
            return ErrorReply(429, text, "rate_limit_error", None, "overloaded", _retry_after(error))
        case UnavailableError():
            return ErrorReply(503, text, SERVER_ERROR, None, "unavailable", _retry_after(error))
        case RequestTimeoutError():
            return ErrorReply(408, text, "timeout_error", None, "request_timeout", dict(NO_RETRY))
        case RowFailedError():
            return ErrorReply(500, text, SERVER_ERROR, None, "generation_failed", dict(NO_RETRY))
        case _:
            return ErrorReply(500, text, SERVER_ERROR, None, "internal_error")


def http_error_reply(status: int, message: str) -> ErrorReply:
    """For what the web framework refuses: routes, methods, sizes, time-outs."""
    codes = {404: "not_found", 405: "method_not_allowed", 408: "timeout", 413: "request_too_large"}
    type_ = INVALID_REQUEST if status < 500 else SERVER_ERROR
    return ErrorReply(status, message, type_, None, codes.get(status))


def _retry_after(error: UnavailableError) -> dict[str, str]:
    return {"retry-after": str(error.retry_after_s)}
