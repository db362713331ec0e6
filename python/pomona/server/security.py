"""Who may call: API keys, the Host header, origins of web pages, and listening beyond this machine.

Checked before a request's body is read. Keys come in headers only, are compared as hashes, and are
never logged; a refusal does not tell a wrong key from a missing one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from sanic import Request

from pomona.config import ServeSettings
from pomona.config.errors import SettingsError
from pomona.config.home import keys_file
from pomona.config.keys import KeyStore
from pomona.conversation.errors import PomonaError
from pomona.server.errors import RequestRefused

ANY = "*"
LOOPBACK_NAME = "localhost"
# An empty host is every address, as for bind(2).
WILDCARDS = ("", "0.0.0.0", "::")
# Answered without a key, and without details: a supervisor must be able to ask.
OPEN_PATHS = ("/health", "/health/live", "/health/ready")
# These change nothing, and a page of another origin cannot read what they return.
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

PREFLIGHT_MAX_AGE_S = 600
ALLOWED_METHODS = "GET, HEAD, POST, OPTIONS"
EXPOSED_HEADERS = "x-request-id, openai-processing-ms, retry-after"


class Keys(Protocol):
    """What is needed of the key store."""

    @property
    def empty(self) -> bool: ...

    def verify(self, key: str, /) -> object | None: ...


def key_store(settings: ServeSettings) -> KeyStore:
    return KeyStore(Path(settings.api_keys_file) if settings.api_keys_file else keys_file())


def check_exposure(settings: ServeSettings, keys: Keys) -> None:
    """Before binding. Raises PomonaError when everyone on the network could use the server, and when the keys
    cannot be read."""
    try:
        keyless = keys.empty
    except SettingsError as error:
        raise PomonaError(str(error)) from None
    if is_loopback(settings.host) or settings.allow_remote or not keyless:
        return
    raise PomonaError(
        f"Listening on {settings.host or 'all addresses'} lets everyone on the network use this server: "
        "make a key with `pomona keys create NAME`, or serve without one with --allow-remote."
    )


class Gate:
    """Decides on a request by its head."""

    def __init__(self, settings: ServeSettings, keys: Keys) -> None:
        self._keys = keys
        # As at the start: revoking the last key must not open a server to the network.
        self._works_keyless = settings.allow_remote or is_loopback(settings.host)
        self._bound = settings.host.lower()
        self._beyond_loopback = not is_loopback(settings.host)
        self._hosts = frozenset(host.lower().strip("[]") for host in settings.allowed_hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.cors_origins)

    def check(self, request: Request) -> None:
        """Raises RequestRefused. A preflight carries no key, and gets no further than its own answer."""
        self._check_host(request)
        self._check_origin(request)
        if request.path not in OPEN_PATHS and not is_preflight(request) and not self.knows(request):
            raise RequestRefused(
                401,
                "A valid API key is needed; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
                "invalid_api_key",
                {"www-authenticate": "Bearer"},
            )

    def knows(self, request: Request) -> bool:
        """Whether the caller may see everything: has a key, or none is needed."""
        if self._keys.empty:
            return self._works_keyless
        return any(self._keys.verify(key) is not None for key in _given_keys(request.headers))

    def allows_origin(self, origin: str) -> bool:
        return ANY in self._origins or origin.lower() in self._origins

    def allows_host(self, host: str) -> bool:
        """`host` as in the Host header. The port does not matter: rebinding is about names, and a
        forwarded port differs."""
        name = _host_name(host)
        if name is None:
            return False
        if ANY in self._hosts or name in self._hosts or name == LOOPBACK_NAME:
            return True
        if name == self._bound and name not in WILDCARDS:
            return True
        address = _address(name)
        # An address in the Host header is the one that was connected to: no name was rebound.
        return address is not None and (address.is_loopback or self._beyond_loopback)

    def _check_host(self, request: Request) -> None:
        hosts = request.headers.getall("host", [])
        if not hosts and request.version == "1.0":  # no browser
            return
        if len(hosts) != 1:
            raise RequestRefused(400, "A request has exactly one Host header.", "invalid_host")
        if not self.allows_host(hosts[0]):
            raise RequestRefused(
                421,
                f"This server does not answer for the host '{hosts[0]}'; use localhost, or add the name to "
                "the setting allowed_hosts.",
                "host_not_allowed",
            )

    def _check_origin(self, request: Request) -> None:
        """A page of another origin could send what it cannot read the answer of."""
        origin = request.headers.get("origin")
        if origin is None or self.allows_origin(origin) or _same_origin(origin, request):
            return
        if request.method in SAFE_METHODS and not is_preflight(request):
            return
        raise RequestRefused(
            403,
            f"Web pages of '{origin}' may not call this server; add the origin to the setting cors_origins.",
            "origin_not_allowed",
        )


def is_preflight(request: Request) -> bool:
    headers = request.headers
    return request.method == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers


def preflight_headers(request: Request) -> dict[str, str]:
    """Besides `cors_headers`, which every reply to an allowed origin has."""
    asked = request.headers.get("access-control-request-headers")
    return {
        "access-control-allow-methods": ALLOWED_METHODS,
        "access-control-max-age": str(PREFLIGHT_MAX_AGE_S),
        **({"access-control-allow-headers": asked} if asked else {}),
    }


def cors_headers(gate: Gate, request: Request) -> dict[str, str]:
    """Nothing for a request that came from no page, or from one of another origin."""
    origin = request.headers.get("origin")
    if origin is None or not gate.allows_origin(origin):
        return {}
    return {
        "access-control-allow-origin": origin,
        "access-control-expose-headers": EXPOSED_HEADERS,
        "vary": "origin",
    }


def is_loopback(host: str) -> bool:
    address = _address(host.strip("[]"))
    return host.lower() == LOOPBACK_NAME if address is None else address.is_loopback


def _given_keys(headers: Mapping[str, str]) -> list[str]:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    keys = [token.strip()] if scheme.lower() == "bearer" else []
    return [key for key in (*keys, headers.get("x-api-key", "").strip()) if key]


def _host_name(host: str) -> str | None:
    """The name or address of a Host header, without the port; None where it is not one."""
    try:
        parts = urlsplit(f"//{host}")
        valid = parts.netloc == host and "@" not in host and (parts.port is None or parts.port >= 0)
    except ValueError:
        return None
    return (parts.hostname or "").rstrip(".") or None if valid else None


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _same_origin(origin: str, request: Request) -> bool:
    try:
        netloc = urlsplit(origin).netloc.lower()
    except ValueError:
        return False
    return bool(netloc) and netloc == request.headers.get("host", "").lower()
