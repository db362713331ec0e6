"""Servers and engines that answer prompts, for the benchmarks that look from outside: pomona and mlx-lm over
HTTP, llama.cpp through node-llama-cpp in a process of its own (llamacpp.mjs).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

START_S = 300
REQUEST_S = 900
STOP_S = 60
POMONA, SHIPPED, WITH_BLAS = "pomona", "mlx-lm", "mlx-lm + OpenBLAS"
LLAMA_CPP = "llama.cpp"
# Before mlx is imported, as in pomona's worker.
LAUNCHER = "from pomona.worker import blas; blas.load(); from mlx_lm.server import main; main()"
LLAMA_SCRIPT = Path(__file__).with_name("llamacpp.mjs")

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Answer:
    """Times are seconds of one clock: of the request and of the first and the last visible text."""

    sent: float
    first: float
    last: float
    prompt_tokens: int
    tokens: int
    cached_tokens: int = 0
    text: str = ""

    @property
    def first_s(self) -> float:
        return self.first - self.sent

    @property
    def rate(self) -> float:
        """Tokens per second after the first."""
        return (self.tokens - 1) / (self.last - self.first)

    @property
    def prefill_rate(self) -> float:
        return (self.prompt_tokens - self.cached_tokens) / self.first_s


class Peer(Protocol):
    @property
    def name(self) -> str: ...
    def wave(self, prompts: list[str], tokens: int) -> list[Answer]:
        """Answers to all prompts at once, each as long as `tokens` says."""


class HttpPeer:
    """A server with `POST /v1/chat/completions`."""

    def __init__(self, name: str, url: str, pid: int) -> None:
        self.name = name
        self.url = url
        self.pid = pid

    def wave(self, prompts: list[str], tokens: int) -> list[Answer]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.ask(user(prompt), tokens), prompts))

    def ask(self, messages: Messages, max_tokens: int, **fields: Any) -> Answer:
        """Streams an answer. Lines are read only when all have come: reading takes time from the server.
        `fields` go into the request."""
        sent = time.perf_counter()
        arrivals = []
        with self.stream(messages, max_tokens, **fields) as chunks:
            for chunk in chunks:
                arrivals.append((time.perf_counter(), chunk))
        return _read(self.name, sent, arrivals)

    @contextlib.contextmanager
    def stream(self, messages: Messages, max_tokens: int, **fields: Any) -> Iterator[Iterator[bytes]]:
        """The bytes of an answer as they come. Leaving early gives the answer up."""
        body: dict[str, Any] = {
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= (
            {"model": "default", "ignore_eos": True} if self.name == POMONA else {"model": "default_model"}
        )
        url, plain = f"{self.url}/v1/chat/completions", {"Accept-Encoding": "identity"}
        with httpx.stream("POST", url, json=body | fields, timeout=REQUEST_S, headers=plain) as reply:
            if reply.status_code != 200:
                raise RuntimeError(f"{self.name} answered {reply.status_code}: {reply.read()[:300]!r}")
            yield reply.iter_raw()


class LlamaPeer:
    """llama.cpp without HTTP and without a chat template."""

    name = LLAMA_CPP

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def wave(self, prompts: list[str], tokens: int) -> list[Answer]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"prompts": prompts, "tokens": tokens}), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith('{"answers"'):
                return [Answer(**fields) for fields in json.loads(line)["answers"]]
        raise RuntimeError("llama.cpp ended")


def user(prompt: str) -> Messages:
    return [{"role": "user", "content": prompt}]


# ---------------------------------------------------------------- starting them


@contextlib.contextmanager
def serving(name: str, folder: str, log: Path, *flags: str) -> Iterator[HttpPeer]:
    """A server of one's own on a free port, once it has answered; `flags` are its own options."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = ["--host", "127.0.0.1", "--port", str(port), *flags]
    command = {
        POMONA: ["-m", "pomona", "serve", folder, *address],
        SHIPPED: ["-m", "mlx_lm", "server", "--model", folder, *address],
        WITH_BLAS: ["-c", LAUNCHER, "--model", folder, *address],
    }[name]
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, *command], stdout=output, stderr=output)
        try:
            peer = HttpPeer(name, f"http://127.0.0.1:{port}", process.pid)
            _await_answer(peer, process, log)
            yield peer
        finally:
            process.terminate()
            process.wait(STOP_S)


def llama_problem(folder: Path | None, gguf: Path) -> str | None:
    """Why llama.cpp can't be measured, as a sentence; None when it can."""
    if folder is None:
        return "llama.cpp is left out: no --llamacpp FOLDER with node_modules/node-llama-cpp was named."
    if not (folder / "node_modules" / "node-llama-cpp").is_dir():
        return f"llama.cpp is left out: {folder} holds no node_modules/node-llama-cpp."
    if shutil.which("node") is None:
        return "llama.cpp is left out: node is not installed."
    return None if gguf.is_file() else f"llama.cpp is left out: there is no file {gguf}."


@contextlib.contextmanager
def llama_cpp(folder: Path, gguf: Path, threads: int, log: Path) -> Iterator[LlamaPeer]:
    command = ["node", str(LLAMA_SCRIPT), str(folder), str(gguf), "--threads", str(threads)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdin is not None
        try:
            peer = LlamaPeer(process)
            peer.wave(["Say hi."], 4)
            yield peer
        finally:
            process.stdin.close()
            process.wait(STOP_S)


def _await_answer(peer: HttpPeer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError, RuntimeError):
            peer.ask(user("Say hi."), 4)
            return
        time.sleep(0.5)
    raise RuntimeError(f"{peer.name} did not start:\n{log.read_text()[-2000:]}")


# ---------------------------------------------------------------- reading a stream


def _read(name: str, sent: float, arrivals: list[tuple[float, bytes]]) -> Answer:
    visible: list[float] = []
    text, usage = "", dict[str, Any]()
    for at, line in _lines(arrivals):
        if not line.startswith(b"data: {"):
            continue
        event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
        usage = event.get("usage") or usage
        if piece := "".join(choice["delta"].get("content") or "" for choice in event.get("choices", [])):
            visible.append(at)
            text += piece
    if not visible or not usage:
        raise RuntimeError(f"{name} showed no text, or did not count its tokens")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    times = sent, visible[0], visible[-1]
    return Answer(*times, usage["prompt_tokens"], usage["completion_tokens"], cached, text)


def _lines(arrivals: list[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Lines with the time at which their end arrived."""
    rest = b""
    for at, chunk in arrivals:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield at, line
