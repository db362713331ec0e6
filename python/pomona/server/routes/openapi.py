"""GET /openapi.json: this server's API, for tools."""

from __future__ import annotations

from sanic import HTTPResponse, Request

from pomona.server.openapi import document_json
from pomona.server.services import App


def register(app: App) -> None:
    app.add_route(show_openapi, "/openapi.json", methods=["GET"])


async def show_openapi(request: Request) -> HTTPResponse:
    return HTTPResponse(document_json(), content_type="application/json")
