"""One worker process: started, watched and ended by the server. `supervisor` starts the next one.

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

import msgspec

from pomona.config import WorkerOptions
from pomona.conversation.errors import UnavailableError, WorkerLostError
from pomona.link.client import RowStream, WorkerClient
from pomona.link.liveness import LivenessLimits
from pomona.link.messages import Heartbeat, ModelInfo, Submit
from pomona.link.output import relay

log = logging.getLogger(__name__)

DEFAULT_COMMAND = (sys.executable, "-m", "pomona.worker")

LOADING = "The model is still being loaded."
STOPPED = "The server is shutting down and has cut its answers."

# How often a running worker's heartbeats are looked at.
CHECK_S = 0.25
# The event loop was held up (or the server stopped) when it comes back this late: heartbeats may lie unread.
LATE_S = 1.0
# Between closing its socket and being gone.
EXIT_WAIT_S = 2.0
# For the step in flight and the store.
STOP_WAIT_S = 10.0
TERMINATE_WAIT_S = 3.0
# A killed process is gone as soon as the kernel lets go of it.
KILL_WAIT_S = 10.0
# For the last lines of its output.
OUTPUT_WAIT_S = 1.0


class WorkerProcess:
    """Rows go in by `submit` once `start` has returned. A lost worker stays lost.

    A worker that is silent or stuck beyond the limits is killed, and lost like any other.
    """

    def __init__(
        self,
        options: WorkerOptions,
        command: Sequence[str] = DEFAULT_COMMAND,
        limits: LivenessLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._command = tuple(command)
        self._limits = limits or LivenessLimits()
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._client: WorkerClient | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._info: ModelInfo | None = None
        self._fault: str | None = None
        self._stopping = False

    async def start(self) -> ModelInfo:
        """Start the process and wait for its model. Raises ModelLoadError or WorkerLostError."""
        try:
            self._client = await self._spawn()
            self._info = await self._client.wait_loaded()
        except BaseException:  # a cancelled start leaves no process behind; it goes on
            await self.stop()
            raise
        return self._info

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise UnavailableError(LOADING)
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
    def loss(self) -> WorkerLostError | None:
        return None if self._client is None else self._client.loss

    def submit(self, row: Submit) -> RowStream:
        if self._client is None or not (self._client.loaded or self._client.loss):
            raise UnavailableError(LOADING)
        return self._client.submit(row)

    async def wait_lost(self) -> WorkerLostError:
        """Returns once the worker is gone and every open request has its error."""
        assert self._client is not None
        return await self._client.wait_lost()

    async def stop(self) -> None:
        """End the process: ask, then terminate, then kill; leave nothing behind. Safe to call again."""
        self._stopping = True
        if self._process is not None:
            if self._client is not None and self._client.loaded and self._client.loss is None:
                self._client.send_stop()
                await _wait(self._process, STOP_WAIT_S)
            await _end(self._process)
        if self._client is not None:
            await self._client.close()
        if self._tasks:
            # The output ends with the process; what still holds the pipe is not ours.
            await asyncio.wait(self._tasks[-1:], timeout=OUTPUT_WAIT_S)
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def kill(self) -> None:
        """End the process at once and wait for nothing."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _spawn(self) -> WorkerClient:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                options = msgspec.json.encode(self._options).decode()
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    *("--fd", str(theirs.fileno()), "--options", options),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                )
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:  # nor a socket
            ours.close()
            raise
        pid = self._process.pid
        log.info("worker %d started for %s", pid, self._options.model)
        client = WorkerClient(reader, writer, self._explain_loss, self._clock)
        assert self._process.stdout is not None
        self._tasks = [
            asyncio.create_task(self._guard(client), name=f"guard of worker {pid}"),
            asyncio.create_task(relay(self._process.stdout, pid), name=f"output of worker {pid}"),
        ]
        return client

    async def _guard(self, client: WorkerClient) -> None:
        """Kill the worker when it counts as lost."""
        while client.loss is None:
            before = self._clock()
            pause = min(CHECK_S, max(0.0, client.pulse.time_left_s(self._limits)))
            await asyncio.sleep(pause)
            if self._clock() - before > pause + LATE_S:
                continue
            self._fault = client.pulse.fault(self._limits)
            if self._fault is not None:
                self.kill()
                return

    async def _explain_loss(self) -> str:
        """The link is closed: say how the process went."""
        assert self._process is not None
        if self._stopping:
            return STOPPED
        code = await _wait(self._process, EXIT_WAIT_S)
        if self._fault is not None:
            how = f"was ended because it {self._fault}"
        elif code is None:
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
    for sig, wait_s in ((signal.SIGTERM, TERMINATE_WAIT_S), (signal.SIGKILL, KILL_WAIT_S)):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(sig)
        await _wait(process, wait_s)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # real-time signals have numbers only
        name = f"signal {-code}"
    return f"was ended by {name}"
