"""Runs a server: binds, loads the model in a worker, serves, and ends in good order.

The first SIGTERM or SIGINT stops admission, lets running answers end and stops the worker; a second one
ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import uvloop
from rich.console import Console
from sanic.application.state import ApplicationServerInfo
from sanic.http.constants import HTTP
from sanic.server.async_server import AsyncioServer

from pomona.config import ServeSettings
from pomona.conversation.errors import ModelLoadError, PomonaError
from pomona.link.liveness import LivenessLimits
from pomona.link.process import DEFAULT_COMMAND
from pomona.link.restarts import RestartPolicy
from pomona.link.supervisor import Supervisor
from pomona.server import logs
from pomona.server.app import create_app
from pomona.server.connection import LimitedProtocol
from pomona.server.security import check_exposure, key_store
from pomona.server.services import DEFAULT_ALIAS, Services
from pomona.text.model_text import ModelText

log = logging.getLogger(__name__)

BACKLOG = 1024
# For handlers to write their last event once the worker is gone.
LAST_WORDS_S = 1.0


def run(settings: ServeSettings, worker_command: Sequence[str] = DEFAULT_COMMAND) -> int:
    """Serve until told to stop; the exit status. Errors of the start are one sentence on stderr."""
    logs.configure(settings)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, worker_command))
    except PomonaError as error:
        print(f"pomona: {error.message}", file=sys.stderr)
        return 1


async def _serve(settings: ServeSettings, worker_command: Sequence[str]) -> int:
    check_exposure(settings, key_store(settings))
    # Bound before anything is loaded: a port in use should be known at once.
    with _bind(settings) as sock:
        worker = Supervisor(
            settings.worker,
            worker_command,
            RestartPolicy(settings.restart_backoff_s, settings.restart_limit),
            LivenessLimits(settings.heartbeat_limit_s, settings.wedge_limit_s),
        )
        stop = StopSignals(worker)
        # The small files first: what is wrong with them need not wait for the weights.
        text = await asyncio.to_thread(ModelText.load, Path(settings.worker.model))
        services = Services.of(settings, worker, text)
        # Readiness answers from here on, with the truth.
        server = await _listen(settings, services, sock)
        try:
            if await _load(settings, worker, stop):
                print(_ready_line(settings, sock), flush=True)
                await stop.requested.wait()
        finally:
            await _shut_down(settings, services, server)
    return 0


class StopSignals:
    """`requested` is set by the first signal; the second ends the process."""

    def __init__(self, worker: Supervisor) -> None:
        self.requested = asyncio.Event()
        self._worker = worker
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self._handle, sig)

    def _handle(self, sig: signal.Signals) -> None:
        if self.requested.is_set():
            self._end_now(sig)
        self.requested.set()

    def _end_now(self, sig: signal.Signals) -> NoReturn:
        self._worker.kill()
        os._exit(128 + sig)


# ---------------------------------------------------------------- start


def _bind(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
    except OSError as error:
        sock.close()
        raise PomonaError(
            f"Cannot listen on {settings.host}:{settings.port}: {error.strerror}. "
            "Choose another port, or stop the process that holds this one."
        ) from error
    return sock


async def _load(settings: ServeSettings, worker: Supervisor, stop: StopSignals) -> bool:
    """Whether the model is loaded; False when told to stop meanwhile."""
    with _progress(f"Loading {settings.model_name}"):
        loading = asyncio.create_task(worker.start())
        stopping = asyncio.create_task(stop.requested.wait())
        await asyncio.wait([loading, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if loading.done():
            loading.result()
            return True
        loading.cancel()
        await asyncio.wait([loading])
        return False


async def _listen(settings: ServeSettings, services: Services, sock: socket.socket) -> AsyncioServer:
    app = create_app(settings, services)
    # Sanic's own `run` notes this too; without it every reply has an empty alt-svc header.
    app.state.server_info.append(ApplicationServerInfo(settings={"version": HTTP.VERSION_1}))
    server = await app.create_server(sock=sock, backlog=BACKLOG, protocol=LimitedProtocol)
    if server is None:
        raise ModelLoadError("The web server could not be started.")
    await server.startup()  # type: ignore[no-untyped-call]  # of sanic, here and below
    await server.start_serving()  # type: ignore[no-untyped-call]
    return server


@contextlib.contextmanager
def _progress(text: str) -> Iterator[None]:
    """A spinner for a person, one line for a log."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{text} ...", highlight=False)
        yield
        return
    with console.status(f"{text} ..."):
        yield


def _ready_line(settings: ServeSettings, sock: socket.socket) -> str:
    url = base_url(settings.host, sock.getsockname()[1])
    body = json.dumps({"model": DEFAULT_ALIAS, "messages": [{"role": "user", "content": "Hello!"}]})
    return (
        f"Ready: {settings.model_name} at {url} - try: "
        f"curl {url}/chat/completions -H 'Content-Type: application/json' -d '{body}'"
    )


def base_url(host: str, port: int) -> str:
    """Where a client on this machine finds a server that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


# ---------------------------------------------------------------- end


async def _shut_down(settings: ServeSettings, services: Services, server: AsyncioServer) -> None:
    services.admission.close()
    if not await services.admission.wait_idle(settings.shutdown_grace_s):
        log.warning("some answers did not end within %g s and are cut", settings.shutdown_grace_s)
    await services.worker.stop()
    await services.admission.wait_idle(LAST_WORDS_S)
    await _close_connections(server)


async def _close_connections(server: AsyncioServer) -> None:
    closed = server.close()  # type: ignore[no-untyped-call]
    for connection in list(server.connections):
        if not connection.close_if_idle():
            connection.abort()
    if closed is not None:
        await asyncio.wait([closed], timeout=LAST_WORDS_S)
