import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests import tiny_tokenizer
from tests.server import scripted_worker

from pomona.config import WorkerOptions
from pomona.conversation.errors import ModelLoadError, UnavailableError, WorkerLostError
from pomona.link import process as process_module
from pomona.link.messages import FinishReason, RowUpdate, Sampling, Submit
from pomona.link.process import HEARTBEAT_LIMIT_S, WorkerProcess
from pomona.text.model_text import ModelText


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer.build(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def text(folder: Path) -> ModelText:
    return ModelText.load(folder)


Clock = Callable[[], float]


def make(folder: Path, mode: str = "ready", **clock: Clock) -> WorkerProcess:
    command = (sys.executable, scripted_worker.__file__, mode)
    return WorkerProcess(WorkerOptions(model=str(folder)), command, **clock)


@asynccontextmanager
async def running(folder: Path, mode: str = "ready", **clock: Clock) -> AsyncIterator[WorkerProcess]:
    worker = make(folder, mode, **clock)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


def row(text: ModelText, row_id: int, command: str, max_tokens: int = 100) -> Submit:
    ids = text.tokenizer.encode(f"<|im_start|>user\n{command}<|im_end|>\n").ids
    return Submit(row_id, Submit.pack(ids), Sampling(seed=1), max_tokens, text.tokenizer.stop_ids)


async def answer(worker: WorkerProcess, text: ModelText, row_id: int, command: str) -> str:
    ids = [id_ async for update in worker.submit(row(text, row_id, command)) for id_ in update.tokens]
    return text.tokenizer.decode(ids)


def test_updates_reach_the_request_they_belong_to(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder) as worker:
            assert worker.info == scripted_worker.INFO
            words = [f"answer number {i}" for i in range(10)]
            answers = await asyncio.gather(
                *(answer(worker, text, i, f"say {word}") for i, word in enumerate(words))
            )
            assert answers == words
            assert worker.open_rows == 0
            assert worker.healthy

    asyncio.run(run())


def test_closing_early_cancels_the_row(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder) as worker:
            stream = worker.submit(row(text, 1, "begin a"))
            await anext(stream)
            stream.close()
            stream.close()
            assert [update async for update in stream] == []
            assert await answer(worker, text, 2, "await-cancel") == "cancelled"
            assert worker.open_rows == 0

    asyncio.run(run())


def test_closing_an_ended_row_cancels_nothing(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder) as worker:
            ended = worker.submit(row(text, 1, "say a"))
            assert [update async for update in ended][-1] == RowUpdate(1, finish=FinishReason.STOP)
            ended.close()
            waiting = worker.submit(row(text, 2, "await-cancel"))
            assert await answer(worker, text, 3, "say b") == "b"
            assert await waiting.next(0.0) is None

    asyncio.run(run())


def test_silence_gives_none_and_loses_nothing(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder) as worker:
            stream = worker.submit(row(text, 1, "begin a"))
            updates = [await anext(stream), await anext(stream)]
            assert [len(update.tokens) for update in updates] == [0, 1]
            assert await stream.next(0.01) is None
            assert await answer(worker, text, 2, "release") == "released"
            assert await stream.next(0.0) == RowUpdate(1, finish=FinishReason.STOP)
            assert await stream.next(0.0) is None

    asyncio.run(run())


def test_a_lost_worker_fails_every_open_request(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder) as worker:
            streams = [worker.submit(row(text, i, "hang")) for i in range(3)]
            worker.submit(row(text, 9, "die"))
            for stream in streams:
                assert (await anext(stream)).prompt_done > 0
                with pytest.raises(WorkerLostError, match="ended with status 7"):
                    await anext(stream)
                assert [update async for update in stream] == []
            assert not worker.healthy
            assert "status 7" in worker.health().reason
            with pytest.raises(WorkerLostError):
                worker.submit(row(text, 10, "say a"))

    asyncio.run(run())


def test_a_killed_worker_is_named_by_its_signal(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder) as worker:
            stream = worker.submit(row(text, 1, "hang"))
            await anext(stream)
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(WorkerLostError, match="SIGKILL"):
                await anext(stream)

    asyncio.run(run())


def test_a_model_that_does_not_load_says_why(folder: Path) -> None:
    async def run() -> None:
        with pytest.raises(ModelLoadError, match="the weights are not there"):
            await make(folder, "load-failed").start()

    asyncio.run(run())


def test_a_worker_that_ends_before_it_has_loaded(folder: Path) -> None:
    async def run() -> None:
        worker = make(folder, "exit")
        with pytest.raises(WorkerLostError, match="ended with status 3"):
            await worker.start()
        assert not worker.healthy

    asyncio.run(run())


def test_nothing_can_be_asked_before_the_model_is_loaded(folder: Path, text: ModelText) -> None:
    worker = make(folder)
    assert worker.health().reason == "The model is still being loaded."
    with pytest.raises(UnavailableError):
        worker.submit(row(text, 1, "say a"))
    with pytest.raises(UnavailableError):
        _ = worker.info


def test_health_goes_red_when_heartbeats_stop(folder: Path) -> None:
    now = 0.0

    async def run() -> None:
        nonlocal now
        async with running(folder, clock=lambda: now) as worker:
            assert worker.healthy
            now += HEARTBEAT_LIMIT_S + 1
            assert not worker.healthy
            assert "not been heard of for 11 s" in worker.health().reason

    asyncio.run(run())


def test_stopping_ends_open_requests(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder) as worker:
            stream = worker.submit(row(text, 1, "hang"))
            await anext(stream)
            await worker.stop()
            with pytest.raises(WorkerLostError, match="has stopped"):
                await anext(stream)

    asyncio.run(run())


def test_a_worker_that_does_not_stop_is_killed(
    folder: Path, text: ModelText, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "STOP_WAIT_S", 0.01)
    monkeypatch.setattr(process_module, "TERMINATE_WAIT_S", 0.01)

    async def run() -> None:
        worker = make(folder, "stubborn")
        await worker.start()
        pid = worker.pid
        assert pid is not None
        await worker.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        await worker.stop()

    asyncio.run(run())
