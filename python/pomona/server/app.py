"""The Sanic app: settings of the framework, routes, and errors in our own shape."""

from __future__ import annotations

import itertools

from sanic import Sanic

from pomona.config import ServeSettings
from pomona.server.errors import ShapedErrorHandler, add_request_id
from pomona.server.routes import chat, health, models
from pomona.server.services import App, Services

# Sanic's own limit counts from the last byte in either direction, and a long prefill of a reply that is
# not streamed is silent. Ours are in the engine and the worker.
NO_TIMEOUT_S = 24 * 3600

# Sanic keeps a registry of app names; a process may make more than one app (tests do).
_numbers = itertools.count(1)


def create_app(settings: ServeSettings, services: Services) -> App:
    app = Sanic(f"pomona-{next(_numbers)}", error_handler=ShapedErrorHandler(), configure_logging=False)
    app.config.update(
        {
            "AUTO_EXTEND": False,
            "ACCESS_LOG": False,
            "MOTD": False,
            "RESPONSE_TIMEOUT": NO_TIMEOUT_S,
            "REQUEST_MAX_SIZE": settings.max_body_bytes,
        }
    )
    app.ctx.services = services
    app.register_middleware(add_request_id, "response")
    for routes in (chat, models, health):
        routes.register(app)
    return app
