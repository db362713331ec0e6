import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests import tiny_tokenizer
from tests.link.test_process import answer, open_descriptors, row
from tests.server import scripted_worker

from pomona.config import WorkerOptions
from pomona.conversation.errors import ModelLoadError, UnavailableError, WorkerLostError
from pomona.link.restarts import RestartPolicy
from pomona.link.supervisor import State, Supervisor
from pomona.text.model_text import ModelText

AT_ONCE = RestartPolicy(backoff_s=0.0, limit=100)
LATER = RestartPolicy(backoff_s=30.0, limit=100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_tokenizer.build(tmp_path / "model")


@pytest.fixture
def text(folder: Path) -> ModelText:
    return ModelText.load(folder)


def make(folder: Path, mode: str, policy: RestartPolicy) -> Supervisor:
    command = (sys.executable, scripted_worker.__file__, mode)
    return Supervisor(WorkerOptions(model=str(folder)), command, policy)


@asynccontextmanager
async def running(
    folder: Path, mode: str = "ready", policy: RestartPolicy = AT_ONCE
) -> AsyncIterator[Supervisor]:
    supervisor = make(folder, mode, policy)
    await supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()


async def until(supervisor: Supervisor, state: State) -> None:
    async with asyncio.timeout(60):
        while supervisor.health().state is not state:
            await asyncio.sleep(0.001)


def kill(supervisor: Supervisor) -> None:
    assert supervisor.pid is not None
    os.kill(supervisor.pid, signal.SIGKILL)


def test_a_lost_worker_is_replaced(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder) as supervisor:
            first = supervisor.pid
            stream = supervisor.submit(row(text, 1, "hang"))
            kill(supervisor)
            with pytest.raises(WorkerLostError, match=r"SIGKILL\. Send the request again"):
                [update async for update in stream]
            assert supervisor.health().state is State.RESTARTING
            assert "SIGKILL" in supervisor.health().reason
            with pytest.raises(UnavailableError):
                supervisor.submit(row(text, 2, "say a"))
            assert supervisor.info == scripted_worker.INFO
            await until(supervisor, State.READY)
            assert supervisor.pid != first
            assert supervisor.restarts == 1
            assert await answer(supervisor, text, 3, "say again") == "again"

    asyncio.run(run())


def test_a_refused_request_is_told_when_to_come_back(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder, policy=LATER) as supervisor:
            kill(supervisor)
            await until(supervisor, State.RESTARTING)
            await asyncio.sleep(0)
            with pytest.raises(UnavailableError) as refusal:
                supervisor.submit(row(text, 1, "say a"))
            assert 25 <= refusal.value.retry_after_s <= 60

    asyncio.run(run())


def test_many_losses_leave_nothing_behind(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder):
            pass
        descriptors, tasks = open_descriptors(), asyncio.all_tasks()
        async with running(folder) as supervisor:
            pids = []
            for number in range(5):
                pids.append(supervisor.pid)
                stream = supervisor.submit(row(text, number, "die"))
                with pytest.raises(WorkerLostError):
                    [update async for update in stream]
                await until(supervisor, State.READY)
            pids.append(supervisor.pid)
            assert supervisor.open_rows == 0
        assert open_descriptors() == descriptors
        assert asyncio.all_tasks() == tasks
        for pid in pids:
            assert pid is not None
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    asyncio.run(run())


def test_too_many_losses_end_the_restarts(folder: Path, text: ModelText) -> None:
    async def run() -> None:
        async with running(folder, policy=RestartPolicy(backoff_s=0.0, limit=2)) as supervisor:
            for _ in range(2):
                kill(supervisor)
                await until(supervisor, State.RESTARTING)
                await until(supervisor, State.READY)
            kill(supervisor)
            await until(supervisor, State.FAILED)
            reason = supervisor.health().reason
            assert "SIGKILL. That was loss 3 within 10 minutes" in reason
            with pytest.raises(UnavailableError, match="restart the server"):
                supervisor.submit(row(text, 1, "say a"))

    asyncio.run(run())


def test_a_restart_that_cannot_load_counts_as_a_loss(folder: Path) -> None:
    async def run() -> None:
        async with running(folder, "once", RestartPolicy(backoff_s=0.0, limit=3)) as supervisor:
            kill(supervisor)
            await until(supervisor, State.FAILED)
            assert "the weights are not there" in supervisor.health().reason
            assert supervisor.restarts == 3

    asyncio.run(run())


def test_a_model_that_has_never_loaded_is_not_tried_again(folder: Path) -> None:
    async def run() -> None:
        supervisor = make(folder, "load-failed", AT_ONCE)
        with pytest.raises(ModelLoadError, match="the weights are not there"):
            await supervisor.start()
        assert supervisor.restarts == 0
        await supervisor.stop()

    asyncio.run(run())


def test_nothing_can_be_asked_before_the_model_is_loaded(folder: Path, text: ModelText) -> None:
    supervisor = make(folder, "ready", AT_ONCE)
    assert supervisor.health().state is State.STARTING
    with pytest.raises(UnavailableError, match="still being loaded"):
        supervisor.submit(row(text, 1, "say a"))
    with pytest.raises(UnavailableError):
        _ = supervisor.info


@pytest.mark.parametrize("policy", [AT_ONCE, LATER])
def test_stopping_ends_a_restart(folder: Path, policy: RestartPolicy) -> None:
    async def run() -> None:
        async with running(folder, policy=policy) as supervisor:
            kill(supervisor)
            await until(supervisor, State.RESTARTING)
            await supervisor.stop()
            assert supervisor.health().state is State.STOPPED
            # The next one may not have been started yet.
            if supervisor.pid is not None:
                with pytest.raises(ProcessLookupError):
                    os.kill(supervisor.pid, 0)

    asyncio.run(run())
