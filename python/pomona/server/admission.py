"""Counts the requests being answered, refuses new ones when full or closing, and waits for the last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pomona.conversation.errors import OverloadedError, ShuttingDownError

# Requests queue in the worker; this many waiting at once is a client gone wrong.
MAX_OPEN_REQUESTS = 1024


class Admission:
    """For one event loop."""

    def __init__(self, limit: int = MAX_OPEN_REQUESTS) -> None:
        self._limit = limit
        self._open = 0
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def closing(self) -> bool:
        return self._closing

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Hold a place. Raises ShuttingDownError or OverloadedError."""
        if self._closing:
            raise ShuttingDownError
        if self._open >= self._limit:
            raise OverloadedError(f"The server is already answering {self._open} requests; try again later.")
        self._open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    def close(self) -> None:
        self._closing = True

    async def wait_idle(self, timeout_s: float) -> bool:
        """Whether the last request ended within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
