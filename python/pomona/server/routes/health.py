"""Liveness, readiness, and the probes that clients send to a base URL."""

from __future__ import annotations

from typing import Any

import msgspec
from sanic import HTTPResponse, Request, json

from pomona import __version__
from pomona.server.services import App, Services, services_of


def register(app: App) -> None:
    app.add_route(live, "/health/live", methods=["GET", "HEAD"])
    app.add_route(ready, "/health/ready", methods=["GET", "HEAD"], name="ready")
    app.add_route(ready, "/health", methods=["GET", "HEAD"], name="health")
    app.add_route(hello, "/", methods=["GET", "HEAD"], name="root")
    app.add_route(hello, "/api/hello", methods=["GET", "HEAD"], name="hello")


async def live(request: Request) -> HTTPResponse:
    """The event loop turns."""
    return json({"status": "ok"})


async def ready(request: Request) -> HTTPResponse:
    """A request sent now would be answered. Who has no key where one is needed learns nothing more."""
    services = services_of(request)
    health = services.worker.health()
    details: dict[str, Any]
    if services.admission.closing:
        status, details = "unavailable", {"reason": "The server is shutting down."}
    elif not health.ready:
        status, details = "unavailable", {"reason": health.reason}
    else:
        status, details = "ready", {"model": services.model.name, **_load(services)}
    if not request.app.ctx.gate.knows(request):
        details = {}
    return json({"status": status, **details}, status=200 if status == "ready" else 503)


async def hello(request: Request) -> HTTPResponse:
    return json({"server": "pomona", "version": __version__})


def _load(services: Services) -> dict[str, Any]:
    beat = services.worker.heartbeat
    if beat is None:
        return {}
    return {"running": beat.running, "waiting": beat.waiting, "pool": msgspec.to_builtins(beat.pool)}
