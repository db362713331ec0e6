"""The rows of one request: their updates in the order in which they arrive, and their common end."""

from __future__ import annotations

import asyncio
from collections import deque

from pomona.conversation.errors import PomonaError
from pomona.link.client import RowStream
from pomona.link.messages import RowUpdate


class OpenRows:
    """`close` ends what is still running; it may be called any number of times."""

    def __init__(self) -> None:
        self._streams: list[RowStream] = []
        self._items: deque[tuple[int, RowUpdate | PomonaError]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def add(self, stream: RowStream) -> None:
        index = len(self._streams)
        self._streams.append(stream)
        stream.listen(lambda item: self._take(index, item))

    async def next(self, timeout_s: float) -> tuple[int, RowUpdate] | None:
        """The next update, with its row's number, or None after that much silence. Raises a row's error."""
        if not self._items:
            await self._wait(timeout_s)
        if not self._items:
            return None
        index, item = self._items.popleft()
        if isinstance(item, Exception):
            raise item
        return index, item

    def end(self, index: int) -> None:
        """Cancel one row, if it has not ended by itself."""
        self._streams[index].close()

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def _take(self, index: int, item: RowUpdate | PomonaError) -> None:
        self._items.append((index, item))
        self._wake()

    async def _wait(self, timeout_s: float) -> None:
        # Once per token: asyncio.timeout and a queue would take three times as long.
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
