"""The worker's end of the link: frames in and out, and the heartbeat thread."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable

import msgspec

from pomona.link.framing import FrameBuffer, encode
from pomona.link.messages import FromWorker, Heartbeat, ToWorker

HEARTBEAT_S = 1.0
RECEIVE_BYTES = 1 << 20

_decoder = msgspec.msgpack.Decoder(ToWorker)


class ConnectionLostError(Exception):
    """The server has gone."""


class Connection:
    """Thread-safety: `send` may be called from any thread, `receive` from one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
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
        while select.select([self._sock], [], [], 0 if messages else timeout_s)[0]:
            try:
                data = self._sock.recv(RECEIVE_BYTES)
            except OSError as error:
                raise ConnectionLostError from error
            if not data:
                raise ConnectionLostError
            messages += [_decoder.decode(frame) for frame in self._buffer.feed(data)]
        return messages


class HeartbeatThread(threading.Thread):
    """Sends a heartbeat every second; what it says about progress comes from the engine thread."""

    def __init__(self, connection: Connection, beat: Callable[[], Heartbeat]) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._connection = connection
        self._beat = beat
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S):
            try:
                self._connection.send(self._beat())
            except ConnectionLostError:
                return  # the engine thread notices it too, and ends the process

    def stop(self) -> None:
        self._stopped.set()
