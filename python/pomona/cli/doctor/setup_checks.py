"""The set-up: settings, keys and models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pomona.cli import machine
from pomona.cli.doctor.finding import Finding, State
from pomona.config.definitions import DEFINITIONS
from pomona.config.errors import SettingsError
from pomona.config.keys import KeyStore
from pomona.config.resolve import Resolved
from pomona.config.units import format_bytes
from pomona.models.embedded import embedded_gguf
from pomona.models.errors import ModelError
from pomona.models.inventory import known_models


def check_settings(settings: Resolved) -> Finding:
    """They are read and checked already; what is said here is what may surprise."""
    given = [name for name in DEFINITIONS if settings.is_set(name)]
    cache = settings.value("kv_memory_bytes")
    if cache is not None and cache > machine.memory_bytes():
        detail = f"kv_memory_bytes is {format_bytes(cache)}, more than this machine has"
        return Finding(State.WARNING, "settings", f"{detail}; lower it")
    return Finding(State.OK, "settings", f"{len(given)} set: {', '.join(given)}" if given else "all defaults")


def check_private(what: str, path: Path) -> Finding:
    if not path.exists():
        return Finding(State.OK, what, f"{path}, not there: defaults hold")
    if path.stat().st_mode & 0o077:
        return Finding(State.WARNING, what, f"{path} can be read by others: chmod 600 {path}")
    return Finding(State.OK, what, str(path))


def check_keys(settings: Resolved) -> Iterator[Finding]:
    # Here, because it loads the web framework.
    from pomona.server.security import is_loopback

    what, path = "API keys", Path(settings.value("api_keys_file"))
    try:
        count = len(KeyStore(path).list())
    except SettingsError as error:
        yield Finding(State.FAILED, what, str(error))
        return
    if path.exists():
        yield check_private("keys file", path)
    if count:
        yield Finding(State.OK, what, f"{count} in {path}")
    elif is_loopback(host := settings.value("host")):
        yield Finding(State.OK, what, "none: every program on this machine may use the server")
    else:
        state = State.WARNING if settings.value("allow_remote") else State.FAILED
        yield Finding(state, what, f"none, and the host is {host}; make one: pomona keys create")


def check_models(settings: Resolved) -> Iterator[Finding]:
    """What a plain `pomona serve` would serve, and what else is there."""
    found = list(known_models(settings.value("model")))
    for model in found:
        if model.kind in ("configured", "embedded"):
            size = format_bytes(model.size_bytes)
            state = State.FAILED if model.problem else State.OK
            yield Finding(state, f"{model.kind} model", model.problem or f"{model.name}, {size}")
    if not any(model.kind in ("configured", "embedded") for model in found):
        try:
            embedded_gguf()
        except ModelError as error:
            yield Finding(State.WARNING, "embedded model", str(error))
    for model in found:
        if model.kind == "unfinished":
            detail = f"{model.path} is left over or under way; it can be deleted when no pomona converts"
            yield Finding(State.WARNING, "conversion", detail)
