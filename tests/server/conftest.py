"""A real server process before a scripted worker, on a free port."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from tests import tiny_tokenizer

from pomona.config import ServeSettings, WorkerOptions

MODEL = "org/tiny"


class Server:
    """The process, its address, and clients for it."""

    def __init__(
        self, folder: Path, mode: str = "ready", worker: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        defaults = {"port": 0, "keep_alive_s": 0.1, "max_body_bytes": 100_000, "shutdown_grace_s": 60.0}
        defaults["api_keys_file"] = str(folder / "keys.json")
        self.settings = ServeSettings(
            model_name=MODEL,
            worker=WorkerOptions(model=str(folder), **(worker or {})),
            **(defaults | settings),
        )
        self.folder = folder
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.server.serve_scripted"),
                *(msgspec.json.encode(self.settings).decode(), mode),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()
        self.root = self.ready_line.partition(" at ")[2].partition("/v1 ")[0]

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.root, timeout=30)

    @property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.root}/v1",
            api_key="none",
            max_retries=0,
            timeout=30,
            _strict_response_validation=True,
        )

    def post(self, content: str, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=body(content, **fields))

    def connect(self, content: str, **fields: Any) -> socket.socket:
        """A raw connection with the request sent, for clients that behave badly."""
        data = msgspec.json.encode(body(content, **fields))
        url = httpx.URL(self.root)
        sock = socket.create_connection((url.host, url.port or 0), timeout=30)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        sock.sendall(head.encode() + data)
        return sock

    def await_not_ready(self) -> dict[str, Any]:
        """The readiness reply once it is red."""
        with self.http as client:
            while (reply := client.get("/health/ready")).status_code == 200:
                pass
        assert reply.status_code == 503
        return dict(reply.json())

    def end(self) -> tuple[int, str, str]:
        """Exit status, the rest of stdout, and stderr, once the process has ended by itself."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def terminate(self) -> tuple[int, str, str]:
        self.process.terminate()
        return self.end()


def body(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


def streamed_text(lines: Iterator[str]) -> str:
    """The text of the rest of a stream, which must end in good order."""
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events]
    assert choices[-1]["finish_reason"]
    return "".join(choice["delta"].get("content", "") for choice in choices)


StartServer = Callable[..., Server]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer.build(tmp_path_factory.mktemp("models") / "tiny-folder")


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Server]:
    """Shared by tests that leave the server as they found it."""
    server = Server(folder)
    yield server
    status, out, err = server.terminate()
    assert (status, out) == (0, "")
    assert "Traceback" not in err


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers of the test's own; what still runs at its end is killed."""
    servers: list[Server] = []

    def start(mode: str = "ready", **settings: Any) -> Server:
        servers.append(Server(tiny_tokenizer.build(tmp_path / "tiny"), mode, **settings))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.communicate()
