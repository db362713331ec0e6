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
from pomona.link.liveness import LivenessLimits
from pomona.link.messages import FinishReason, RowUpdate, Sampling, Submit
from pomona.link.process import WorkerProcess
from pomona.link.supervisor import Supervisor
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


def open_descriptors() -> list[str]:
    folder = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
    return sorted(path.name for path in folder.iterdir())


async def answer(worker: WorkerProcess | Supervisor, text: ModelText, row_id: int, command: str) -> str:
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
            assert worker.loss is None

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
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await anext(waiting)

    asyncio.run(run())


def test_waiting_in_vain_loses_nothing(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder) as worker:
            stream = worker.submit(row(text, 1, "begin a"))
            updates = [await anext(stream), await anext(stream)]
            assert [len(update.tokens) for update in updates] == [0, 1]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(stream)
            assert await answer(worker, text, 2, "release") == "released"
            assert [update async for update in stream] == [RowUpdate(1, finish=FinishReason.STOP)]

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
            assert worker.loss is not None
            assert "status 7" in worker.loss.message
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has real-time signals")
def test_a_worker_killed_by_a_signal_without_a_name_is_lost_too(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder) as worker:
            stream = worker.submit(row(text, 1, "hang"))
            await anext(stream)
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGRTMIN + 5)
            with pytest.raises(WorkerLostError, match=f"ended by signal {signal.SIGRTMIN + 5}"):
                async with asyncio.timeout(30):
                    await anext(stream)

    asyncio.run(run())


def test_a_worker_that_has_hung_up_is_not_asked_to_stop(
    folder: Path, text: ModelText, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "EXIT_WAIT_S", 0.01)
    monkeypatch.setattr(process_module, "STOP_WAIT_S", 1000.0)

    async def run() -> None:
        worker = make(folder)
        await worker.start()
        with pytest.raises(WorkerLostError, match="closed its connection"):
            await answer(worker, text, 1, "hang-up")
        async with asyncio.timeout(20):
            await worker.stop()

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
        assert worker.loss is not None

    asyncio.run(run())


def test_nothing_can_be_asked_before_the_model_is_loaded(folder: Path, text: ModelText) -> None:
    worker = make(folder)
    with pytest.raises(UnavailableError):
        worker.submit(row(text, 1, "say a"))
    with pytest.raises(UnavailableError):
        _ = worker.info


def test_a_worker_that_falls_silent_is_killed(folder: Path, text: ModelText) -> None:
    now = 0.0

    async def run() -> None:
        nonlocal now
        async with running(folder, clock=lambda: now) as worker:
            stream = worker.submit(row(text, 1, "hang"))
            await anext(stream)
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGSTOP)
            now += LivenessLimits().heartbeat_s + 1
            with pytest.raises(WorkerLostError, match="had not been heard of for 11 s"):
                await anext(stream)
            assert (await worker.wait_lost()) is worker.loss

    asyncio.run(run())


def test_a_worker_that_makes_no_progress_is_killed(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder, "stuck") as worker:
            stream = worker.submit(row(text, 1, "hang"))
            with pytest.raises(WorkerLostError, match="had made no progress for 1000 s"):
                [update async for update in stream]

    asyncio.run(run())


def test_nothing_is_left_of_a_worker(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder):
            pass
        descriptors, tasks = open_descriptors(), asyncio.all_tasks()
        async with running(folder) as worker:
            worker.submit(row(text, 1, "die"))
            await worker.wait_lost()
        with pytest.raises(ModelLoadError):
            await make(folder, "load-failed").start()
        assert open_descriptors() == descriptors
        assert asyncio.all_tasks() == tasks

    asyncio.run(run())


def test_what_a_worker_prints_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        with pytest.raises(WorkerLostError):
            await make(folder, "traceback").start()

    asyncio.run(run())
    records = [r for r in caplog.records if r.name == "pomona.worker.output"]
    assert "ValueError: broken at once" in records[-1].getMessage()
    assert all(r.getMessage().startswith("worker ") for r in records)


def test_stopping_ends_open_requests(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder) as worker:
            stream = worker.submit(row(text, 1, "hang"))
            await anext(stream)
            await worker.stop()
            with pytest.raises(WorkerLostError, match="shutting down"):
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
