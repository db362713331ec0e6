"""The server's end of the link: sends rows to a worker and hands each request its own updates.

Everything runs on one event loop. A worker that goes away fails every open request once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec

from pomona.conversation.errors import ModelLoadError, PomonaError, WorkerLostError
from pomona.link.framing import encode, read_frames
from pomona.link.liveness import Pulse
from pomona.link.messages import (
    Cancel,
    FromWorker,
    Heartbeat,
    Loaded,
    LoadFailed,
    ModelInfo,
    RowUpdate,
    StepOutput,
    Stop,
    Submit,
    ToWorker,
)
from pomona.link.trace import RowTrace, current

log = logging.getLogger(__name__)

REMEDY = "Send the request again."

_decoder: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


Item = RowUpdate | PomonaError


class RowStream:
    """The updates of one row, in order. Ends after the update that has `finish`, or with an error.

    They are iterated over, or given to the one who listens. `close` before the end cancels the row; it may be
    called any number of times.
    """

    def __init__(self, client: WorkerClient, row_id: int, trace: RowTrace | None = None) -> None:
        self._client = client
        self._row_id = row_id
        self._trace = trace
        self._queue: asyncio.Queue[Item] = asyncio.Queue()
        self._sink: Callable[[Item], None] = self._queue.put_nowait
        self._ended = False

    def __aiter__(self) -> RowStream:
        return self

    async def __anext__(self) -> RowUpdate:
        if self._ended:
            raise StopAsyncIteration
        item = await self._queue.get()
        self._note_end(item)
        if isinstance(item, Exception):
            raise item
        return item

    def listen(self, sink: Callable[[Item], None]) -> None:
        """Give `sink` what has come and all that comes. It must not raise: the link's reader calls it."""

        def pass_on(item: Item) -> None:
            self._note_end(item)
            sink(item)

        self._sink = pass_on
        while not self._queue.empty():
            pass_on(self._queue.get_nowait())

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._client.cancel(self._row_id)

    def put(self, item: Item) -> None:
        if self._trace is not None:
            if isinstance(item, PomonaError):
                self._trace.fail(item.message)
            else:
                self._trace.take(item)
        self._sink(item)

    def _note_end(self, item: Item) -> None:
        if isinstance(item, Exception) or item.finish is not None:
            self._ended = True


class WorkerClient:
    """One connection to one worker. `explain_loss` says why the worker closed it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        explain_loss: Callable[[], Awaitable[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._explain_loss = explain_loss
        self._clock = clock
        self._streams: dict[int, RowStream] = {}
        self._loaded: asyncio.Future[ModelInfo] = asyncio.get_running_loop().create_future()
        self.loss: WorkerLostError | None = None
        self.heartbeat: Heartbeat | None = None
        self._heartbeat_at = clock()
        self._reading = asyncio.create_task(self._read(), name="worker link")

    @property
    def loaded(self) -> bool:
        return self._loaded.done() and self._loaded.exception() is None

    @property
    def open_rows(self) -> int:
        return len(self._streams)

    @property
    def pulse(self) -> Pulse:
        # Loading counts as a sign of life, as a heartbeat does.
        silence = self._clock() - self._heartbeat_at
        idle = 0.0 if self.heartbeat is None else self.heartbeat.idle_s
        return Pulse(self.loaded, silence, idle + silence)

    async def wait_lost(self) -> WorkerLostError:
        """Returns once the connection is gone and every open request has its error."""
        await asyncio.shield(self._reading)
        assert self.loss is not None
        return self.loss

    async def wait_loaded(self) -> ModelInfo:
        return await asyncio.shield(self._loaded)

    def submit(self, row: Submit) -> RowStream:
        if self.loss is not None:
            raise WorkerLostError(self.loss.message)
        request, trace = current(), None
        if request is not None:
            row = msgspec.structs.replace(row, request_id=request.request_id)
            trace = request.row(row.prompt_tokens)
        stream = RowStream(self, row.id, trace)
        self._streams[row.id] = stream
        self._send(row)
        return stream

    def cancel(self, row_id: int) -> None:
        if self._streams.pop(row_id, None) is not None:
            self._send(Cancel(row_id))

    def send_stop(self) -> None:
        self._send(Stop())

    async def close(self) -> None:
        """Close the socket and wait until every open request has its error."""
        self._writer.close()
        await self._reading
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _send(self, message: ToWorker) -> None:
        # Frames are small beside the socket's buffer; the transport keeps what does not fit at once.
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def _read(self) -> None:
        try:
            async for frame in read_frames(self._reader):
                self._dispatch(_decoder.decode(frame))
        except (OSError, msgspec.MsgspecError) as error:
            log.error("the link to the worker broke: %s", error)
        self._lose(await self._explain_loss())

    def _dispatch(self, message: FromWorker) -> None:
        match message:
            case StepOutput(rows=rows):
                for row in rows:
                    self._dispatch_row(row)
            case Heartbeat():
                if self.loaded:  # one before that is a sign of life and no more
                    self.heartbeat = message
                self._heartbeat_at = self._clock()
            case Loaded(info=info):
                self._heartbeat_at = self._clock()
                self._settle(info)
            case LoadFailed(message=text):
                self._settle(ModelLoadError(text))

    def _dispatch_row(self, row: RowUpdate) -> None:
        # A cancelled row may still have updates under way.
        stream = self._streams.get(row.id)
        if stream is None:
            return
        if row.finish is not None:
            del self._streams[row.id]
        stream.put(row)

    def _lose(self, reason: str) -> None:
        self.loss = WorkerLostError(reason)
        self._writer.close()
        self._settle(self.loss)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.put(WorkerLostError(f"{reason} {REMEDY}"))

    def _settle(self, outcome: ModelInfo | PomonaError) -> None:
        if self._loaded.done():
            return
        if isinstance(outcome, PomonaError):
            self._loaded.set_exception(outcome)
            self._loaded.exception()  # retrieved: nobody may be waiting
        else:
            self._loaded.set_result(outcome)
