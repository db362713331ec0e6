"""Starts `pomona serve` with its real worker, for tests and nothing else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from openai import OpenAI

READY = re.compile(r"at (http://\S+)/v1")
STOP_S = 60
POLLS = 600
POLL_S = 0.1


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
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (pid,) = [
            int(child) for child in children if "pomona.worker" in Path(f"/proc/{child}/cmdline").read_text()
        ]
        return pid


@contextmanager
def serve(model: Path | str, *flags: str) -> Iterator[Server]:
    """A server on a free port; ended by its process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pomona", "serve", str(model), "--port", "0", *flags],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"POMONA_LOG_LEVEL": "info"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = READY.search(line)
        assert found, f"no ready line: {line!r}, exit {process.poll()}"
        yield Server(process, found[1])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)
        if process.stdout is not None:
            process.stdout.close()
