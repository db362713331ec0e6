"""The Sanic app: settings of the framework, routes, what happens before and after each of them, and errors
in our own shape."""

from __future__ import annotations

import asyncio
import itertools

from sanic import HTTPResponse, Request
from sanic.response import BaseHTTPResponse, empty

from pomona.config import ServeSettings
from pomona.server.connection import LimitedRequest
from pomona.server.errors import ID_HEADER, ShapedErrorHandler, request_id
from pomona.server.limits import MAX_INLINE_BYTES, JsonLimits, check_body_headers
from pomona.server.logs import LoggedSanic
from pomona.server.routes import chat, completions, health, metrics, models, openapi, tokenize
from pomona.server.security import Gate, Keys, cors_headers, is_preflight, key_store, preflight_headers
from pomona.server.services import App, Services

# Sanic's own limit counts from the last byte in either direction, and a long prefill of a reply that is
# not streamed is silent. Ours are in the engine and the worker.
NO_TIMEOUT_S = 24 * 3600

# Sanic keeps a registry of app names; a process may make more than one app (tests do).
_numbers = itertools.count(1)


def create_app(settings: ServeSettings, services: Services, keys: Keys | None = None) -> App:
    app = LoggedSanic(
        f"pomona-{next(_numbers)}",
        error_handler=ShapedErrorHandler(),
        configure_logging=False,
        request_class=LimitedRequest,
    )
    app.config.update(
        {
            "AUTO_EXTEND": False,
            "ACCESS_LOG": False,
            "MOTD": False,
            "REQUEST_MAX_SIZE": settings.max_body_bytes,
            "REQUEST_MAX_HEADER_SIZE": settings.max_header_bytes,
            "REQUEST_TIMEOUT": settings.receive_timeout_s,
            "RESPONSE_TIMEOUT": NO_TIMEOUT_S,
        }
    )
    app.ctx.services = services
    _Around(settings, services, keys or key_store(settings)).install(app)
    for routes in (chat, completions, models, tokenize, health, metrics, openapi):
        routes.register(app)
    return app


class _Around:
    """What every request passes on its way in and out, also where no route is found."""

    def __init__(self, settings: ServeSettings, services: Services, keys: Keys) -> None:
        self._gate = Gate(settings, keys)
        self._json = JsonLimits.of(settings)
        self._metrics = services.metrics

    def install(self, app: App) -> None:
        app.ctx.gate = self._gate
        app.ctx.check_head = self.check_head
        app.register_middleware(self.before, "request")
        app.register_middleware(self.after, "response")

    def check_head(self, request: Request) -> None:
        """Once, and for a request with a body before that is read."""
        if hasattr(request.ctx, "checked"):
            return
        # Set at once: what is refused comes by again on the way to its error.
        request.ctx.checked = True
        self._gate.check(request)
        if "content-length" in request.headers or "transfer-encoding" in request.headers:
            check_body_headers(request)

    async def before(self, request: Request) -> HTTPResponse | None:
        if not request.head:  # the bytes were no request
            return None
        self.check_head(request)
        if is_preflight(request):
            return empty(204, headers=preflight_headers(request))
        if request.body and not hasattr(request.ctx, "checked_body"):
            request.ctx.checked_body = True
            if len(request.body) <= MAX_INLINE_BYTES:
                self._json.check(request.body)
            else:
                await asyncio.to_thread(self._json.check, request.body)
        return None

    def after(self, request: Request, response: BaseHTTPResponse) -> None:
        age_s = request.age_s if isinstance(request, LimitedRequest) else 0.0
        response.headers[ID_HEADER] = request_id(request)
        response.headers["openai-processing-ms"] = str(round(age_s * 1000))
        for name, value in cors_headers(self._gate, request).items():
            response.headers[name] = value
        route = request.route
        self._metrics.replied(None if route is None else f"/{route.path}", request.method, response.status)
