"""The OpenAPI 3.1 document: one table of operations, with schemas from the pydantic models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pomona import __version__
from pomona.protocols.openai_chat import ChatRequest
from pomona.protocols.openai_completions import CompletionRequest
from pomona.protocols.tokenizing import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest
from pomona.server.openapi_replies import (
    ChatCompletion,
    Completion,
    Content,
    Document,
    ErrorReply,
    Health,
    ModelList,
    RenderedPrompt,
    Tokens,
)
from pomona.server.openapi_replies import Model as ModelReply

JSON = "application/json"
EVENTS = "text/event-stream"
REF = "#/components/schemas/{model}"

# With `stream`: server-sent events, whose last one has the data [DONE].
EVENT = {
    "type": "object",
    "properties": {"data": {"type": "string", "description": "A chunk as JSON, or [DONE]."}},
    "required": ["data"],
}

ERRORS = {
    400: "The request cannot be served as it is; `param` names the field.",
    401: "An API key is needed.",
    403: "Web pages of this origin may not call the server.",
    404: "There is no such model or route.",
    408: "The request took too long to arrive, or its deadline (header x-request-timeout) has passed.",
    413: "The body is too large.",
    415: "The body is compressed, or not JSON in UTF-8.",
    421: "The server does not answer for this host.",
    429: "Too many requests are open.",
    431: "The headers are too large.",
    500: "The server failed; the same request would most likely fail again.",
    503: "Not now: the model is being loaded, or the server is shutting down.",
}
ANY_REQUEST = (401, 421, 431, 500)
WITH_BODY = (400, 403, 408, 413, 415)
GENERATING = (*WITH_BODY, 404, 429, 503)

# Answered, but no part of the API: probes that clients send to a base URL, and second names.
UNDOCUMENTED = (
    *(("GET", "/"), ("GET", "/api/hello")),
    *(("POST", "/tokenize"), ("POST", "/detokenize"), ("POST", "/apply_template")),
)


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    id: str
    summary: str
    tag: str
    reply: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    streams: bool = False
    text_reply: bool = False
    errors: tuple[int, ...] = ()
    # Statuses besides 200 that have the same reply.
    also: tuple[int, ...] = ()


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        *("POST", "/v1/chat/completions", "createChatCompletion", "Answer a conversation.", "Generation"),
        body=ChatRequest,
        reply=ChatCompletion,
        streams=True,
        errors=GENERATING,
    ),
    Operation(
        *("POST", "/v1/completions", "createCompletion", "Continue a text.", "Generation"),
        body=CompletionRequest,
        reply=Completion,
        streams=True,
        errors=GENERATING,
    ),
    Operation(
        *("POST", "/v1/tokenize", "tokenize", "A text or messages as tokens; also at /tokenize.", "Text"),
        body=TokenizeRequest,
        reply=Tokens,
        errors=(*WITH_BODY, 404),
    ),
    Operation(
        *("POST", "/v1/detokenize", "detokenize", "Tokens as text; also at /detokenize.", "Text"),
        body=DetokenizeRequest,
        reply=Content,
        errors=(*WITH_BODY, 404),
    ),
    Operation(
        *("POST", "/v1/apply_template", "applyTemplate", "Messages as the model sees them.", "Text"),
        body=ApplyTemplateRequest,
        reply=RenderedPrompt,
        errors=(*WITH_BODY, 404),
    ),
    Operation("GET", "/v1/models", "listModels", "The models served here.", "Models", reply=ModelList),
    Operation(
        *("GET", "/v1/models/{model}", "retrieveModel", "One model; its id may hold slashes.", "Models"),
        reply=ModelReply,
        errors=(404,),
    ),
    Operation("GET", "/health/live", "live", "Whether the server runs.", "Health", reply=Health),
    Operation(
        *("GET", "/health/ready", "ready", "Whether a request sent now would be answered.", "Health"),
        reply=Health,
        also=(503,),
    ),
    Operation("GET", "/health", "health", "The same as /health/ready.", "Health", reply=Health, also=(503,)),
    Operation("GET", "/metrics", "metrics", "Figures for Prometheus.", "Health", text_reply=True),
    Operation("GET", "/openapi.json", "openapi", "This document.", "Health", reply=Document),
)


@cache
def document_json() -> bytes:
    return msgspec.json.encode(document())


def document() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pomona",
            "version": __version__,
            "description": "LLM inference server with the OpenAI API.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        # The second: none, for a server without keys.
        "security": [{"bearer": []}, {"header": []}, {}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _describe(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation),
    }
    if "{" in operation.path:
        name = operation.path.partition("{")[2].partition("}")[0]
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        ]
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": _ref(operation.body)}}}
    if operation.tag == "Health" and operation.path.startswith("/health"):
        described["security"] = []
    return described


def _responses(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.reply is not None:
        content[JSON] = {"schema": _ref(operation.reply)}
    if operation.streams:
        content[EVENTS] = {"schema": EVENT}
    if operation.text_reply:
        content["text/plain"] = {"schema": {"type": "string"}}
    responses = {
        str(code): {"description": "The answer.", "content": content} for code in (200, *operation.also)
    }
    for code in sorted({*ANY_REQUEST, *operation.errors}):
        responses[str(code)] = _error(ERRORS[code])
    responses["default"] = _error("Any other error.")
    return responses


def _error(text: str) -> dict[str, Any]:
    return {"description": text, "content": {JSON: {"schema": _ref(ErrorReply)}}}


def _schemas() -> dict[str, Any]:
    bodies = [(op.body, "validation") for op in OPERATIONS if op.body is not None]
    replies = [(op.reply, "serialization") for op in OPERATIONS if op.reply is not None]
    models = list(dict.fromkeys([*bodies, *replies, (ErrorReply, "serialization")]))
    _, schema = models_json_schema(models, ref_template=REF)  # type: ignore[arg-type]  # the mode is a str here
    return dict(schema["$defs"])


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=model.__name__)}
