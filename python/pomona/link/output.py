"""What a worker prints, line by line into the server's log.

The worker's own log lines keep their level and logger; anything else (a traceback, a library's print) has
the level of the line before it.
"""

from __future__ import annotations

import asyncio
import logging
import re

log = logging.getLogger("pomona.worker.output")
# What is too quiet for the log was left out by the worker; all that comes is passed on.
log.setLevel(logging.DEBUG)

READ_BYTES = 1 << 16
# A longer line is passed on in pieces.
MAX_LINE_BYTES = 1 << 14
RECORD = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL):([\w.]+): ?(.*)", re.DOTALL)


async def relay(stream: asyncio.StreamReader, pid: int) -> None:
    """Log what comes from `stream` until it ends."""
    lines = LineLog(pid)
    buffer = b""
    while data := await stream.read(READ_BYTES):
        *whole, buffer = (buffer + data).split(b"\n")
        if len(buffer) > MAX_LINE_BYTES:
            whole.append(buffer)
            buffer = b""
        for line in whole:
            lines.write(line)
    lines.write(buffer)


class LineLog:
    """Gives each line of one worker its level."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._level = logging.INFO

    def write(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if not text:
            return
        source = None
        if record := RECORD.fullmatch(text):
            level, source, text = record.groups()
            self._level = logging.getLevelNamesMapping()[level]
        prefix = f"worker {self._pid}: " + (f"{source}: " if source else "")
        fields = {"worker_pid": self._pid, "source": source, "line": text}
        log.log(self._level, "%s%s", prefix, text, extra={"fields": fields})
