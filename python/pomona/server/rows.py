"""The rows of one request: their updates in the order in which they arrive, and their common end."""

from __future__ import annotations

import asyncio

from pomona.link.client import RowStream
from pomona.link.messages import RowUpdate


class OpenRows:
    """`close` ends what is still running; it may be called any number of times."""

    def __init__(self) -> None:
        self._streams: list[RowStream] = []
        self._readers: list[asyncio.Task[None]] = []
        self._queue: asyncio.Queue[tuple[int, RowUpdate | Exception]] = asyncio.Queue()

    def add(self, stream: RowStream) -> None:
        index = len(self._streams)
        self._streams.append(stream)
        self._readers.append(asyncio.create_task(self._read(index, stream), name=f"row {index}"))

    async def next(self, timeout_s: float) -> tuple[int, RowUpdate] | None:
        """The next update, with its row's number, or None after that much silence. Raises a row's error."""
        if self._queue.empty():
            try:
                async with asyncio.timeout(timeout_s):
                    index, item = await self._queue.get()
            except TimeoutError:
                return None
        else:
            index, item = self._queue.get_nowait()
        if isinstance(item, Exception):
            raise item
        return index, item

    def end(self, index: int) -> None:
        """Cancel one row, if it has not ended by itself."""
        self._readers[index].cancel()
        self._streams[index].close()

    def close(self) -> None:
        for index in range(len(self._streams)):
            self.end(index)

    async def _read(self, index: int, stream: RowStream) -> None:
        try:
            async for update in stream:
                self._queue.put_nowait((index, update))
        except Exception as error:  # raised again where the queue is read
            self._queue.put_nowait((index, error))
