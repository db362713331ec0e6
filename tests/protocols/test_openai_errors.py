import json

import pytest

from pomona.conversation.errors import (
    ContextLengthError,
    InvalidRequestError,
    ModelLoadError,
    ModelNotFoundError,
    OverloadedError,
    PomonaError,
    RequestTimeoutError,
    RowFailedError,
    ShuttingDownError,
    UnsupportedParameterError,
    WorkerLostError,
)
from pomona.protocols.openai_errors import error_reply, http_error_reply
from pomona.protocols.openai_wire import error_event


@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (InvalidRequestError("m", "p", "c"), 400, "c", "p"),
        (UnsupportedParameterError("p", "m"), 400, "unsupported_parameter", "p"),
        (ContextLengthError(10, 5, "Shorten it."), 400, "context_length_exceeded", "messages"),
        (ModelNotFoundError("x", ["y"]), 404, "model_not_found", "model"),
        (OverloadedError("m"), 429, "overloaded", None),
        (ShuttingDownError(), 503, "unavailable", None),
        (WorkerLostError("m"), 503, "unavailable", None),
        (RequestTimeoutError(2.5), 408, "request_timeout", None),
        (RowFailedError("m"), 500, "generation_failed", None),
        (ModelLoadError("m"), 500, "internal_error", None),
    ],
)
def test_status_and_body(error: PomonaError, status: int, code: str, param: str | None) -> None:
    reply = error_reply(error)
    assert reply.status == status
    assert json.loads(reply.body()) == {
        "error": {"message": error.message, "type": reply.type, "param": param, "code": code}
    }


def test_only_what_may_succeed_later_is_retried() -> None:
    """Clients retry 408, 409, 429 and from 500 on."""
    assert error_reply(WorkerLostError("m")).headers == {"retry-after": "5"}
    assert error_reply(OverloadedError("m")).headers == {"retry-after": "5"}
    assert error_reply(RequestTimeoutError(1)).headers == {"x-should-retry": "false"}
    assert error_reply(RowFailedError("m")).headers == {"x-should-retry": "false"}


@pytest.mark.parametrize(("status", "type_"), [(404, "invalid_request_error"), (503, "server_error")])
def test_errors_of_the_framework(status: int, type_: str) -> None:
    assert http_error_reply(status, "m").type == type_


def test_an_error_in_a_stream_is_one_line() -> None:
    event = error_event(RowFailedError("a\u2028b\u2029c\u0085d\ne")).decode()
    assert event.splitlines() == [event.rstrip("\n"), ""]
    assert json.loads(event.removeprefix("data: "))["error"]["message"] == "a\u2028b\u2029c\u0085d\ne"
