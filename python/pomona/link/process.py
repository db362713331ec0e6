"""One worker process: started, watched and stopped by the server.

The process is a child in its own session, so that Ctrl-C reaches the server alone, which then decides
when the worker ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from pomona.config import WorkerOptions
from pomona.conversation.errors import UnavailableError
from pomona.link.client import RowStream, WorkerClient
from pomona.link.messages import Heartbeat, ModelInfo, Submit

log = logging.getLogger(__name__)

DEFAULT_COMMAND = (sys.executable, "-m", "pomona.worker")
STDERR = 2  # the worker's prints must not mix with what the server says on stdout

# The worker sends a heartbeat every second.
HEARTBEAT_LIMIT_S = 10.0
# A step takes a fraction of a second; an engine thread silent for this long will not come back.
WEDGE_LIMIT_S = 120.0
# Between closing its socket and being gone.
EXIT_WAIT_S = 5.0
# For the step in flight and the store.
STOP_WAIT_S = 10.0
TERMINATE_WAIT_S = 3.0


@dataclass(frozen=True, slots=True)
class Health:
    ready: bool
    reason: str


class WorkerProcess:
    """Rows go in by `submit` once `start` has returned. A lost worker stays lost (no restart yet)."""

    def __init__(
        self,
        options: WorkerOptions,
        command: Sequence[str] = DEFAULT_COMMAND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._command = tuple(command)
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._client: WorkerClient | None = None
        self._info: ModelInfo | None = None
        self._stopping = False

    async def start(self) -> ModelInfo:
        """Start the process and wait for its model. Raises ModelLoadError or WorkerLostError."""
        self._client = await self._spawn()
        try:
            self._info = await self._client.wait_loaded()
        except BaseException:
            await self.stop()
            raise
        return self._info

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise UnavailableError("The model is still being loaded.")
        return self._info

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def heartbeat(self) -> Heartbeat | None:
        return None if self._client is None else self._client.heartbeat

    @property
    def open_rows(self) -> int:
        return 0 if self._client is None else self._client.open_rows

    @property
    def healthy(self) -> bool:
        return self.health().ready

    def health(self) -> Health:
        client = self._client
        if client is None or not (client.loaded or client.loss):
            return Health(False, "The model is still being loaded.")
        if client.loss is not None:
            return Health(False, client.loss.message)
        if client.heartbeat_age_s > HEARTBEAT_LIMIT_S:
            return Health(False, f"The worker has not been heard of for {client.heartbeat_age_s:.0f} s.")
        if client.heartbeat is not None and client.heartbeat.idle_s > WEDGE_LIMIT_S:
            return Health(False, f"The engine has made no progress for {client.heartbeat.idle_s:.0f} s.")
        return Health(True, "ready")

    def submit(self, row: Submit) -> RowStream:
        if self._client is None or not (self._client.loaded or self._client.loss):
            raise UnavailableError("The model is still being loaded.")
        return self._client.submit(row)

    async def stop(self) -> None:
        """End the process: ask, then terminate, then kill. Safe to call again."""
        self._stopping = True
        process, client = self._process, self._client
        if process is None or client is None:
            return
        if client.loaded:
            client.send_stop()
            await _wait(process, STOP_WAIT_S)
        await _end(process)
        await client.close()

    def kill(self) -> None:
        """End the process at once and wait for nothing."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _spawn(self) -> WorkerClient:
        ours, theirs = socket.socketpair()
        with theirs:
            options = msgspec.json.encode(self._options).decode()
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                *("--fd", str(theirs.fileno()), "--options", options),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=STDERR,
                start_new_session=True,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        log.info("worker %d started for %s", self._process.pid, self._options.model)
        return WorkerClient(reader, writer, self._explain_loss, self._clock)

    async def _explain_loss(self) -> str:
        """The link is closed: make sure that the process is gone too, and say how it went."""
        assert self._process is not None
        if self._stopping:
            return "The server has stopped the model's worker process."
        code = await _wait(self._process, EXIT_WAIT_S)
        if code is None:
            await _end(self._process)
            how = "closed its connection"
        else:
            how = _describe_exit(code)
        log.error("worker %d %s", self._process.pid, how)
        return f"The model's worker process {how}."


async def _wait(process: asyncio.subprocess.Process, timeout_s: float) -> int | None:
    """The exit code, or None when the process still runs after `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            return await process.wait()
    except TimeoutError:
        return None


async def _end(process: asyncio.subprocess.Process) -> None:
    for sig in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(sig)
        await _wait(process, TERMINATE_WAIT_S)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    return f"was ended by {signal.Signals(-code).name}"
