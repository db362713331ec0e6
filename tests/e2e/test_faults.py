"""Workers that die or hang, servers that die or are told to stop: with the real worker and a tiny model."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.server import Server, end, launch, serve, state, until, until_gone, workers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the worker through /proc")

FLAGS = ("--block-size", "16", "--pool-tokens", "65536")
TIRELESS = ("--restart-backoff-s", "0", "--restart-limit", "1000")
# A promise is 10 s; a busy machine may take a little longer to tell.
DETECTION_S = 12.0
LONG_PROMPT = "many words here " * 1800
ENDLESS = 30_000

ModelFolder = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(tiny_model: ModelFolder) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serve(folder, *FLAGS, *TIRELESS, "--heartbeat-limit-s", "2") as running:
        yield running


@pytest.fixture(scope="module")
def at_start(server: Server) -> dict[str, int]:
    """The server's descriptors before its first request."""
    return descriptors(server)


@pytest.fixture(autouse=True)
def _first(at_start: dict[str, int]) -> None:
    """Counted before any test runs."""


def body(text: str, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": text}
    request = {"model": "default", "temperature": 0, "max_tokens": 16, "ignore_eos": True}
    return request | {"messages": [message]} | fields


def ask(server: Server, text: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json=body(text, **fields), timeout=120)


@contextmanager
def streaming(server: Server, text: str, max_tokens: int = ENDLESS) -> Iterator[Iterator[str]]:
    """The events of a stream, without the comments between them."""
    request = body(text, stream=True, max_tokens=max_tokens)
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=request, timeout=120) as reply:
        assert reply.status_code == 200
        yield (
            line.removeprefix("data: ") for line in reply.iter_lines() if line and not line.startswith(":")
        )


def read_until_text(events: Iterator[str]) -> None:
    next(event for event in events if json.loads(event)["choices"][0]["delta"].get("content"))


def check_error(event: str) -> str:
    """The message of an error that tells a client to try again."""
    error = json.loads(event)["error"]
    assert error["type"] == "server_error"
    assert error["code"] == "unavailable"
    return str(error["message"])


def check_refused(reply: httpx.Response) -> None:
    assert reply.status_code == 503
    assert int(reply.headers["retry-after"]) >= 1
    check_error(reply.text)


def await_red(server: Server) -> httpx.Response:
    return server.wait_for(lambda reply: reply.status_code == 503)


def await_green(server: Server) -> httpx.Response:
    """Ready, nothing running, no block held."""

    def quiet(reply: httpx.Response) -> bool:
        if reply.status_code != 200 or "pool" not in (load := reply.json()):
            return False
        return bool(load["running"] == load["waiting"] == load["pool"]["in_use"] == 0)

    return server.wait_for(quiet)


# ---------------------------------------------------------------- the worker


@pytest.mark.parametrize("phase", ["prefill", "decode", "idle"])
def test_a_killed_worker_comes_back(server: Server, phase: str) -> None:
    before = ask(server, "Who is there?").json()["choices"][0]["message"]["content"]
    worker = server.worker_pid()
    if phase == "idle":
        os.kill(worker, signal.SIGKILL)
    else:
        with streaming(server, LONG_PROMPT if phase == "prefill" else "Go on.") as events:
            assert "role" in next(events)
            if phase == "decode":
                read_until_text(events)
            os.kill(worker, signal.SIGKILL)
            rest = list(events)
        assert "SIGKILL. Send the request again" in check_error(rest[-1])
        if phase == "prefill":
            assert len(rest) == 1
    red = await_red(server)
    assert "SIGKILL" in red.text
    refused = ask(server, "Who is there?")
    if refused.status_code != 200:  # it may have come back meanwhile
        check_refused(refused)
    assert httpx.get(f"{server.url}/health/live", timeout=30).status_code == 200
    await_green(server)
    assert server.worker_pid() != worker
    assert ask(server, "Who is there?").json()["choices"][0]["message"]["content"] == before


def test_a_collected_reply_gets_the_error_as_its_status(server: Server) -> None:
    replies: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: replies.append(ask(server, "Go on.", max_tokens=ENDLESS)))
    asking.start()
    server.wait_for(lambda reply: reply.json().get("running") == 1)
    os.kill(server.worker_pid(), signal.SIGKILL)
    asking.join()
    check_refused(replies[0])
    await_green(server)


def test_a_stopped_worker_is_found_out(folder: Path) -> None:
    with serve(folder, *FLAGS, *TIRELESS) as server:
        worker = server.worker_pid()
        with streaming(server, "Go on.") as events:
            read_until_text(events)
            stopped_at = time.monotonic()
            os.kill(worker, signal.SIGSTOP)
            *_, last = events
        assert time.monotonic() - stopped_at < DETECTION_S
        assert "had not been heard of for 10 s" in check_error(last)
        assert state(worker) == ""
        await_green(server)
        assert ask(server, "Still there?").status_code == 200


def test_a_worker_that_goes_on_in_time_is_left_alone(server: Server) -> None:
    await_green(server)
    worker = server.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    until(lambda: state(worker) == "T", "the worker is stopped")
    os.kill(worker, signal.SIGCONT)
    assert ask(server, "Still there?").status_code == 200
    assert server.worker_pid() == worker


def test_too_many_losses_leave_readiness_red(folder: Path) -> None:
    with serve(folder, *FLAGS, "--restart-backoff-s", "0", "--restart-limit", "1") as server:
        first = server.worker_pid()
        os.kill(first, signal.SIGKILL)
        until(lambda: first not in server.worker_pids(), "the first worker is reaped")
        await_green(server)
        os.kill(server.worker_pid(), signal.SIGKILL)
        red = server.wait_for(lambda reply: "restart the server" in reply.text)
        assert "loss 2 within 10 minutes" in red.json()["reason"]
        check_refused(ask(server, "Anyone?"))
        assert server.worker_pids() == []
        assert httpx.get(f"{server.url}/health/live", timeout=30).status_code == 200
        server.process.terminate()
        assert server.process.wait(60) == 0


# ---------------------------------------------------------------- many losses under load


@dataclass
class Load:
    """Clients that ask without a pause; every answer must be whole or end in a proper error."""

    server: Server
    clients: int = 4
    whole: int = 0
    failed: int = 0
    events: int = 0
    wrong: list[str] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask_on, args=(i,)) for i in range(self.clients)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self, number: int) -> None:
        choose = random.Random(number)
        with httpx.Client(base_url=self.server.url, timeout=120) as client:
            while not self._over.is_set():
                words = choose.choice([3, 40, 900])
                request = body(f"{number} {choose.random()} " + "word " * words, stream=choose.random() < 0.7)
                request["max_tokens"] = choose.choice([4, 60, 300])
                try:
                    self._one(client, request)
                except Exception as error:  # whatever goes wrong is counted and fails the test
                    self._count(wrong=f"{type(error).__name__}: {error}")

    def _one(self, client: httpx.Client, request: dict[str, Any]) -> None:
        with client.stream("POST", "/v1/chat/completions", json=request) as reply:
            if reply.status_code != 200:
                reply.read()
                check_refused(reply)
                self._count(failed=1)
                return
            last = ""
            for line in reply.iter_lines():
                last = line or last
                self._count(events=1)
        if request["stream"]:
            last = last.removeprefix("data: ")
            if last != "[DONE]":
                check_error(last)
                self._count(failed=1)
                return
        else:
            assert json.loads(last)["choices"]
        self._count(whole=1)

    def _count(self, whole: int = 0, failed: int = 0, events: int = 0, wrong: str = "") -> None:
        with self._lock:
            self.whole += whole
            self.failed += failed
            self.events += events
            if wrong:
                self.wrong.append(wrong)


def descriptors(server: Server) -> dict[str, int]:
    """How many of each kind the server holds."""
    kinds: dict[str, int] = {}
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            kind = os.readlink(link).partition(":")[0]
            kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def tear_at(server: Server, before: dict[str, int], rounds: int, seed: int) -> None:
    choose = random.Random(seed)
    workers: list[int] = []
    with Load(server) as load:
        for _ in range(rounds):
            # Readiness alone may still be that of the worker just killed.
            until(lambda: set(server.worker_pids()) - set(workers), "there is a new worker")
            server.wait_for(lambda reply: reply.status_code == 200)
            worker = server.worker_pid()
            workers.append(worker)
            target = load.events + choose.randrange(200)
            until(lambda target=target: load.events >= target, "the clients get on")
            os.kill(worker, signal.SIGSTOP if choose.random() < 0.2 else signal.SIGKILL)
            until(lambda worker=worker: worker not in server.worker_pids(), "the lost worker is reaped")
    assert load.wrong == []
    assert load.failed
    await_green(server)
    until(lambda: descriptors(server) == before, f"as many descriptors as at the start: {before}")
    assert len(server.worker_pids()) == 1
    assert all(state(worker) == "" for worker in workers)
    assert ask(server, "Still there?").status_code == 200


def test_losses_under_load_leave_nothing_behind(server: Server, at_start: dict[str, int]) -> None:
    tear_at(server, at_start, rounds=6, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_many_losses_under_load_leave_nothing_behind(
    server: Server, at_start: dict[str, int], seed: int
) -> None:
    tear_at(server, at_start, rounds=20, seed=seed)


# ---------------------------------------------------------------- the server


@pytest.mark.parametrize("phase", ["loading", "prefill", "idle", "stopped"])
def test_a_killed_server_takes_its_worker_along(folder: Path, phase: str) -> None:
    process = launch(folder, "--port", "0", *FLAGS)
    assert process.stdout is not None
    try:
        if phase == "loading":
            until(lambda: len(workers_of(process.pid)) == 1, "the worker is started")
            (worker,) = workers_of(process.pid)
        else:
            url = process.stdout.readline().partition(" at ")[2].partition("/v1 ")[0]
            server = Server(process, url)
            worker = server.worker_pid()
        if phase == "stopped":
            os.kill(worker, signal.SIGSTOP)
        if phase == "prefill":
            with streaming(server, LONG_PROMPT) as events:
                next(events)
                process.kill()
                with pytest.raises(httpx.HTTPError):
                    list(events)
        process.kill()
        process.wait(60)
        until_gone(worker)
    finally:
        end(process)


def test_a_server_that_is_told_to_stop_lets_its_streams_end(folder: Path) -> None:
    with serve(folder, *FLAGS) as server:
        worker = server.worker_pid()
        with streaming(server, "Go on.", max_tokens=1500) as events:
            read_until_text(events)
            server.process.terminate()
            assert "shutting down" in await_red(server).json()["reason"]
            check_refused(ask(server, "Anyone?"))
            *_, last = events
        assert last == "[DONE]"
        assert server.process.wait(60) == 0
        until_gone(worker)


def test_a_stream_that_does_not_end_in_time_is_cut_with_an_error(folder: Path) -> None:
    with serve(folder, *FLAGS, "--shutdown-grace-s", "0.2") as server:
        worker = server.worker_pid()
        with streaming(server, "Go on.") as events:
            read_until_text(events)
            server.process.terminate()
            *_, last = events
        assert "shutting down" in check_error(last)
        assert server.process.wait(60) == 0
        until_gone(worker)


def test_a_second_signal_ends_the_server_at_once(folder: Path) -> None:
    with serve(folder, *FLAGS) as server:
        worker = server.worker_pid()
        with streaming(server, "Go on.") as events:
            read_until_text(events)
            server.process.terminate()
            await_red(server)
            server.process.terminate()
            assert server.process.wait(5) == 128 + signal.SIGTERM
            with pytest.raises(httpx.HTTPError):
                list(events)
        until_gone(worker)


def test_a_server_can_be_stopped_while_its_worker_is_away(folder: Path) -> None:
    with serve(folder, *FLAGS, "--restart-backoff-s", "600") as server:
        os.kill(server.worker_pid(), signal.SIGKILL)
        assert "restarted" in await_red(server).json()["reason"]
        assert int(ask(server, "Anyone?").headers["retry-after"]) > 300
        server.process.terminate()
        assert server.process.wait(60) == 0


def test_readiness_while_loading(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = launch(folder, "--port", str(port), *FLAGS)
    try:
        server = Server(process, f"http://127.0.0.1:{port}")
        until(lambda: listens(port), "the server listens")
        reply = server.health()
        assert (reply.status_code, reply.json()["reason"]) == (503, "The model is still being loaded.")
        check_refused(ask(server, "Too early?"))
        (worker,) = server.worker_pids()
        process.terminate()
        assert process.wait(60) == 0
        until_gone(worker)
        assert process.stdout is not None
        assert process.stdout.read() == ""
    finally:
        end(process)


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
