"""Starts `pomona serve` with its real worker, for tests and nothing else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx
from openai import OpenAI

READY = re.compile(r"at (http://\S+)/v1")
STOP_S = 60
POLLS = 600
POLL_S = 0.1
HOME = tempfile.TemporaryDirectory(prefix="pomona-test-")


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str

    def client(self) -> OpenAI:
        return OpenAI(
            base_url=f"{self.url}/v1",
            api_key="none",
            max_retries=0,
            timeout=120,
            _strict_response_validation=True,
        )

    def health(self) -> httpx.Response:
        return httpx.get(f"{self.url}/health/ready", timeout=30)

    def wait_for(self, condition: Callable[[httpx.Response], bool]) -> httpx.Response:
        """Poll readiness until it says what the test waits for."""
        for _ in range(POLLS):
            reply = self.health()
            if condition(reply):
                return reply
            try:
                self.process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError("the server has ended")
        raise AssertionError(f"never so: last {reply.status_code} {reply.text}")

    def worker_pid(self) -> int:
        (pid,) = self.worker_pids()
        return pid

    def worker_pids(self) -> list[int]:
        return workers_of(self.process.pid)


def workers_of(pid: int) -> list[int]:
    """The worker processes of a server, the unreaped ones too."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(child)
        for child in children
        if state(int(child)) == "Z" or "pomona.worker" in Path(f"/proc/{child}/cmdline").read_text()
    ]


def state(pid: int) -> str:
    """As in ps; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(POLLS):
        if condition():
            return
        time.sleep(POLL_S)
    raise AssertionError(f"never so: {what}")


def until_gone(*pids: int) -> None:
    # A zombie is gone; reaping an orphan is the business of whoever runs as process 1.
    until(lambda: all(state(pid) in ("", "Z") for pid in pids), f"{pids} have ended")


def launch(model: Path | str, *flags: str, log: IO[str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pomona", "serve", str(model), "--log-level", "info", *flags],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=environment(),
    )


def environment() -> dict[str, str]:
    """Without the settings, keys and configuration file of whoever runs the tests."""
    foreign = {name for name in os.environ if name.startswith("POMONA_")}
    return {k: v for k, v in os.environ.items() if k not in foreign} | {"POMONA_HOME": HOME.name}


@contextmanager
def serve(model: Path | str, *flags: str, log: IO[str] | None = None) -> Iterator[Server]:
    """A server on a free port; ended by its process id."""
    process = launch(model, "--port", "0", *flags, log=log)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = READY.search(line)
        assert found, f"no ready line: {line!r}, exit {process.poll()}"
        yield Server(process, found[1])
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)
    if process.stdout is not None:
        process.stdout.close()
