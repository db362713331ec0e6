"""GET /v1/models: the one model served here, with the keys that clients of either vendor read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from sanic import HTTPResponse, Request, json

from pomona.server.services import App, ServedModel, services_of


def register(app: App) -> None:
    app.add_route(list_models, "/v1/models", methods=["GET"])
    # Ids may hold a slash, percent-encoded or not.
    app.add_route(retrieve_model, "/v1/models/<name:path>", methods=["GET"])


async def list_models(request: Request) -> HTTPResponse:
    model = services_of(request).model
    page = {"has_more": False, "first_id": model.name, "last_id": model.name}
    return json({"object": "list", "data": [_describe(model)], **page})


async def retrieve_model(request: Request, name: str) -> HTTPResponse:
    name = unquote(name).rstrip("/")
    if not name:  # a list asked for with a trailing slash
        return await list_models(request)
    model = services_of(request).model
    model.check(name)
    return json(_describe(model))


def _describe(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "pomona",
        "type": "model",
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.created, UTC).isoformat(),
    }
