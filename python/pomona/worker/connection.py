"""The worker's end of the link: frames in and out, the heartbeat thread, and the end with the server."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from pomona.link.framing import FrameBuffer, encode
from pomona.link.messages import FromWorker, Heartbeat, PoolStats, ToWorker

HEARTBEAT_S = 1.0
RECEIVE_BYTES = 1 << 20
# For the step in flight and the store, once the server has gone.
ORPHAN_EXIT_S = 5.0
LOADING = Heartbeat(0.0, 0, 0, PoolStats(0, 0, 0, 0, 0), 0, 0, 0, 0)

_PR_SET_PDEATHSIG = 1

_decoder = msgspec.msgpack.Decoder(ToWorker)


class ConnectionLostError(Exception):
    """The server has gone."""


class Connection:
    """Thread-safety: `send` may be called from any thread, `receive` from one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # Not select.select: the number is the server's, and may be above its 1023.
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._buffer = FrameBuffer()
        self._lock = threading.Lock()

    def send(self, message: FromWorker) -> None:
        data = encode(message)
        try:
            with self._lock:
                self._sock.sendall(data)
        except OSError as error:
            raise ConnectionLostError from error

    def receive(self, timeout_s: float) -> list[ToWorker]:
        """Messages that have arrived; waits up to `timeout_s` when there are none yet."""
        messages: list[ToWorker] = []
        while self._poll.poll(0 if messages else timeout_s * 1000):
            try:
                data = self._sock.recv(RECEIVE_BYTES)
            except OSError as error:
                raise ConnectionLostError from error
            if not data:
                raise ConnectionLostError
            messages += [_decoder.decode(frame) for frame in self._buffer.feed(data)]
        return messages


class HeartbeatThread(threading.Thread):
    """Sends a heartbeat every second; what it says about progress comes from the engine thread.

    When the server has gone, the engine thread ends the process; where that is stuck, this one does.
    """

    def __init__(self, connection: Connection, beat: Callable[[], Heartbeat]) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._connection = connection
        self._beat = beat
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            self._connection.send(self._beat())
            while not self._stopped.wait(HEARTBEAT_S):
                self._connection.send(self._beat())
        except ConnectionLostError:
            if not self._stopped.wait(ORPHAN_EXIT_S):
                os._exit(1)

    def stop(self) -> None:
        self._stopped.set()


@contextmanager
def heartbeats(connection: Connection, beat: Callable[[], Heartbeat] = lambda: LOADING) -> Iterator[None]:
    thread = HeartbeatThread(connection, beat)
    thread.start()
    try:
        yield
    finally:
        thread.stop()
        # It holds what its beat speaks of.
        thread.join(HEARTBEAT_S)


def die_with_server() -> None:
    """Let the kernel kill this process when the server ends in any way, even in a step that never returns.

    Linux only; elsewhere the closed socket is what tells, at the next step or heartbeat.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
