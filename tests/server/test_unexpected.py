"""Mistakes of our own: logged with the request's id, told in the API's shape, survived."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from sanic import Sanic
from tests.server.conftest import MODEL, body
from tests.server.scripted_worker import INFO

from pomona.config import ServeSettings, WorkerOptions
from pomona.link.client import RowStream
from pomona.link.messages import Submit
from pomona.link.supervisor import Health, Supervisor
from pomona.server.app import create_app
from pomona.server.services import Services
from pomona.text.model_text import ModelText

# Sanic rewrites its own classes when an app starts; in this mode it can do so more than once.
Sanic.test_mode = True


class BrokenStream(RowStream):
    def __init__(self) -> None:
        super().__init__(cast(Any, None), 1)
        self.put(cast(Any, RuntimeError("broken in mid-stream")))

    def close(self) -> None:
        pass


class BrokenWorker:
    info = INFO
    heartbeat = None

    def submit(self, row: Submit) -> RowStream:
        if row.max_tokens == 1:
            raise RuntimeError("broken before the start")
        return BrokenStream()

    def health(self) -> Health:
        return Health(True, "ready")


@asynccontextmanager
async def client_of(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    settings = ServeSettings(model_name=MODEL, worker=WorkerOptions(model=str(folder)))
    worker = cast(Supervisor, BrokenWorker())
    app = create_app(settings, Services.of(settings, worker, ModelText.load(folder)))
    with socket.create_server(("127.0.0.1", 0)) as sock:
        server = await app.create_server(sock=sock)
        assert server is not None
        await server.startup()
        await server.start_serving()
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            yield client
        server.close()


def run(folder: Path, use: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with client_of(folder) as client:
            await use(client)
            assert (await client.get("/health")).status_code == 200

    asyncio.run(main())


def test_before_the_reply_has_begun(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        for stream in (False, True):
            reply = await client.post("/v1/chat/completions", json=body("hi", max_tokens=1, stream=stream))
            assert reply.status_code == 500
            assert reply.json()["error"]["code"] is None
            assert "broken" not in reply.text
            assert reply.headers["x-request-id"] in caplog.text

    with caplog.at_level(logging.ERROR):
        run(folder, use)
    assert "broken before the start" in caplog.text


def test_in_the_middle_of_a_reply(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def use(client: httpx.AsyncClient) -> None:
        reply = await client.post("/v1/chat/completions", json=body("hi", stream=True))
        assert reply.status_code == 200
        assert '"error":{' in reply.text.rstrip().rpartition("\n\n")[2]
        assert reply.headers["x-request-id"] in caplog.text
        collected = await client.post("/v1/chat/completions", json=body("hi"))
        assert collected.status_code == 500

    with caplog.at_level(logging.ERROR):
        run(folder, use)
    assert "broken in mid-stream" in caplog.text
