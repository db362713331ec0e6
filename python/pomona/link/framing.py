"""Length-prefixed msgpack frames on a stream socket, for the blocking (worker) side and asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import msgspec

LENGTH = struct.Struct("<I")
READ_BYTES = 1 << 16

_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


class FrameBuffer:
    """Cuts a byte stream into frame bodies."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._data += data
        frames = []
        while len(self._data) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._data)
            end = LENGTH.size + length
            if len(self._data) < end:
                break
            frames.append(bytes(self._data[LENGTH.size : end]))
            del self._data[:end]
        return frames


async def read_frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The bodies of frames until the peer closes."""
    buffer = FrameBuffer()
    with contextlib.suppress(ConnectionResetError):
        while data := await reader.read(READ_BYTES):
            for frame in buffer.feed(data):
                yield frame
