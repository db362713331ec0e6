"""The OpenAPI document is about the routes there are, and replies are as it says."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
import pytest
from tests.server.conftest import MODEL, Server, body

from pomona.config import ServeSettings, WorkerOptions
from pomona.link.supervisor import Supervisor
from pomona.server.app import create_app
from pomona.server.openapi import ERRORS, OPERATIONS, UNDOCUMENTED, document
from pomona.server.services import Services
from pomona.text.model_text import ModelText

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def served(server: Server) -> dict[str, Any]:
    reply = server.http.get("/openapi.json")
    assert reply.status_code == 200
    return dict(reply.json())


def routes_of(folder: Path) -> set[tuple[str, str]]:
    """Method and path of every route, with parameters written as OpenAPI does."""

    async def make() -> set[tuple[str, str]]:
        settings = ServeSettings(model_name=MODEL, worker=WorkerOptions(model=str(folder)))
        services = Services.of(settings, Supervisor(settings.worker), ModelText.load(folder))
        app = create_app(settings, services)
        return {
            (method, "/" + re.sub(r"<\w+?(:\w+)?>", "{}", route.path))
            for route in app.router.routes
            for method in route.methods
        }

    return asyncio.run(make())


def test_every_route_is_documented(folder: Path) -> None:
    documented = {(op.method, re.sub(r"\{\w+\}", "{}", op.path)) for op in OPERATIONS}
    routes = {(method, path) for method, path in routes_of(folder) if method != "HEAD"}
    assert routes - set(UNDOCUMENTED) == documented
    assert set(UNDOCUMENTED) <= routes
    assert not set(UNDOCUMENTED) & documented


def test_the_document_is_served_as_generated(served: dict[str, Any]) -> None:
    assert served == document()
    assert served["openapi"] == "3.1.0"


def test_references_lead_somewhere_and_schemas_are_schemas() -> None:
    text = str(document())
    names = set(re.findall(r"#/components/schemas/(\w+)", text))
    schemas = document()["components"]["schemas"]
    assert names <= set(schemas)
    for schema in schemas.values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def test_operations_are_told_apart_and_say_their_errors() -> None:
    ids = [op.id for op in OPERATIONS]
    assert len(ids) == len(set(ids))
    for op in OPERATIONS:
        responses = document()["paths"][op.path][op.method.lower()]["responses"]
        assert {"200", "401", "421", "500", "default"} <= set(responses)
        assert all(code in (200, *ERRORS) for code in map(int, responses.keys() - {"default"}))
        if op.method == "POST":
            assert {"400", "413", "415"} <= set(responses)


def validator(path: str, method: str, status: int) -> Any:
    described = document()
    response = described["paths"][path][method]["responses"][str(status)]
    schema = response["content"]["application/json"]["schema"]
    return jsonschema_rs.validator_for({**schema, "components": described["components"]})


@pytest.mark.parametrize(
    ("path", "template", "status"),
    [
        ("/v1/models", "/v1/models", 200),
        (f"/v1/models/{MODEL}", "/v1/models/{model}", 200),
        ("/v1/models/other", "/v1/models/{model}", 404),
        ("/health", "/health", 200),
        ("/health/live", "/health/live", 200),
        ("/health/ready", "/health/ready", 200),
        ("/openapi.json", "/openapi.json", 200),
    ],
)
def test_replies_are_as_described(server: Server, path: str, template: str, status: int) -> None:
    reply = server.http.get(path)
    assert reply.status_code == status
    validator(template, "get", status).validate(reply.json())


@pytest.mark.parametrize(
    ("fields", "status"),
    [({}, 200), ({"max_tokens": 1}, 200), ({"temperature": 9}, 400), ({"model": "x"}, 404)],
)
def test_chat_completions_are_as_described(server: Server, fields: dict[str, Any], status: int) -> None:
    reply = server.http.post(CHAT, json=body("say hi") | fields)
    assert reply.status_code == status
    validator(CHAT, "post", status).validate(reply.json())


def test_what_the_document_forbids_the_server_refuses(server: Server) -> None:
    """The schema of the body is the one that bodies are parsed with."""
    schema = cast(Any, document()["components"])
    checker = jsonschema_rs.validator_for({"$ref": "#/components/schemas/ChatRequest", "components": schema})
    for fields in ({"messages": []}, {"temperature": 3}, {"stream": "x"}, {"seed": 1.5}, {"max_tokens": 0}):
        sent = body("say hi") | fields
        assert not checker.is_valid(sent)
        assert server.http.post(CHAT, json=sent).status_code == 400
    assert checker.is_valid(body("say hi"))
