"""GET /metrics, for Prometheus."""

from __future__ import annotations

from sanic import HTTPResponse, Request

from pomona.server.metrics import CONTENT_TYPE
from pomona.server.services import App, services_of


def register(app: App) -> None:
    app.add_route(show_metrics, "/metrics", methods=["GET"])


async def show_metrics(request: Request) -> HTTPResponse:
    return HTTPResponse(services_of(request).metrics.render(), content_type=CONTENT_TYPE)
