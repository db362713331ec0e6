"""Requests made from the OpenAPI document, good and bad ones, to a server with a real worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance
from tests.e2e.server import Server, serve

from pomona.server.openapi import OPERATIONS, document

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]
EXAMPLES = {"POST": 60, "GET": 10}
MAX_TOKENS = 4
TIMEOUT_S = 20


@pytest.fixture(scope="module")
def served(tiny_model: Callable[[str], Path]) -> Iterator[Server]:
    with serve(tiny_model("llama"), "--pool-tokens", "4096") as server:
        worker = server.worker_pid()
        yield server
        assert server.worker_pid() == worker
        assert server.wait_for(lambda r: r.json()["running"] == r.json()["pool"]["in_use"] == 0)


@pytest.fixture(scope="module")
def schema(served: Server) -> Any:
    loaded = schemathesis.openapi.from_dict(document())
    loaded.config.update(base_url=served.url)
    return loaded


# Without a body there is nothing in a request that could be wrong.
CASES = [
    pytest.param(operation, mode, id=f"{operation.id}-{mode.value}")
    for operation in OPERATIONS
    for mode in GenerationMode
    if operation.body is not None or mode is GenerationMode.POSITIVE
]


@pytest.mark.parametrize(("operation", "mode"), CASES)
def test_no_request_breaks_an_operation(schema: Any, operation: Any, mode: GenerationMode) -> None:
    described = schema[operation.path][operation.method]
    seen: set[int] = set()

    @settings(
        max_examples=EXAMPLES[operation.method],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=described.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        if mode is GenerationMode.POSITIVE:
            tame(case.body)
        reply = case.call(timeout=TIMEOUT_S)
        seen.add(reply.status_code)
        case.validate_response(reply, checks=CHECKS)

    run()
    assert mode is GenerationMode.NEGATIVE or operation.path.startswith("/v1/models/") or 200 in seen, seen
    assert mode is GenerationMode.POSITIVE or seen & {400, 415}, seen


def tame(body: Any) -> None:
    """A good body as it is, but for this model, short, and with text where anything would fit the schema."""
    if not isinstance(body, dict) or "model" not in body:
        return
    body["model"] = "default"
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is not None or name == "max_tokens":
            body[name] = min(body.get(name) or MAX_TOKENS, MAX_TOKENS)
    if body.get("stream_options") is not None:
        body["stream"] = True
    for message in body.get("messages") or ():
        message["role"] = message["role"].replace("function", "user")
        if not isinstance(message.get("content"), str):
            message["content"] = "hi"
