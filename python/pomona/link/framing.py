"""Length-prefixed msgpack frames on a stream socket, for the blocking (worker) side and asyncio."""

from __future__ import annotations

import asyncio
import struct

import msgspec

LENGTH = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame's body, or None when the peer has closed."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return None


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
