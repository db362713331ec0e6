"""Starts the server, holds a three-turn streamed chat through the official `openai` client, stops the server.

Prints each answer with its reused and new prompt tokens and the time to its first token. Exits with 1 and a
sentence when an answer is empty, the server dies, or a later turn does not reuse the earlier ones.
Run by `make demo`; arguments go to `pomona serve`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import openai
from openai.types.chat import ChatCompletionMessageParam

if TYPE_CHECKING:
    from collections.abc import Iterator

QUESTIONS = (
    "What is the capital of France?",
    "What language do people speak there?",
    "How do I say hello in it?",
)
MAX_TOKENS = 64

# The first start converts the model and compiles MLX's kernels.
READY_TIMEOUT_S = 300
STOP_TIMEOUT_S = 60
REQUEST_TIMEOUT_S = 300

# Only whole blocks of this many tokens are sure to be reused.
BLOCK_TOKENS = 64


class DemoError(Exception):
    """A sentence about what went wrong."""


@dataclass(frozen=True)
class Turn:
    answer: str
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    first_token_s: float


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryFile("w+") as log:
        try:
            with running_server(arguments, log) as base_url:
                chat(base_url)
        except (DemoError, openai.OpenAIError) as error:
            log.seek(0)
            print("".join(log.readlines()[-20:]), file=sys.stderr)
            print(f"demo: {error}", file=sys.stderr)
            return 1
    print("demo: all three turns answered, turns 2 and 3 reused their history, the server has stopped.")
    return 0


@contextmanager
def running_server(arguments: list[str], log: IO[str]) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "pomona", "serve", *arguments]
    command += ["--port", str(port)]
    server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until_ready(server, f"http://127.0.0.1:{port}/health/ready")
        yield f"http://127.0.0.1:{port}/v1"
        if server.poll() is not None:
            raise DemoError(f"the server died with status {server.returncode}.")
    finally:
        stop(server)
    if server.returncode != 0:
        raise DemoError(f"the server ended with status {server.returncode} when it was told to stop.")


def wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    started = time.monotonic()
    while time.monotonic() < started + READY_TIMEOUT_S:
        if server.poll() is not None:
            raise DemoError(f"the server ended with status {server.returncode} before it was ready.")
        try:
            with urllib.request.urlopen(url, timeout=5):
                print(f"server ready after {time.monotonic() - started:.1f} s", flush=True)
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise DemoError(f"the server was not ready after {READY_TIMEOUT_S} s.")


def chat(base_url: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key="none", timeout=REQUEST_TIMEOUT_S, max_retries=0)
    model = client.models.list().data[0].id
    messages: list[ChatCompletionMessageParam] = []
    known_tokens = 0
    for number, question in enumerate(QUESTIONS, start=1):
        messages.append({"role": "user", "content": question})
        turn = ask(client, model, messages)
        new_tokens = turn.prompt_tokens - turn.cached_tokens
        print(f"\nuser       {question}\n{model:10} {turn.answer}")
        print(
            f"           [turn {number}: {turn.cached_tokens} prompt tokens cached, {new_tokens} new, "
            f"first token after {turn.first_token_s:.2f} s, {turn.answer_tokens} tokens in the answer]",
            flush=True,
        )
        if not turn.answer.strip():
            raise DemoError(f"the answer of turn {number} is empty.")
        if number > 1 and turn.cached_tokens < max(1, known_tokens - BLOCK_TOKENS):
            raise DemoError(f"turn {number} reused {turn.cached_tokens} of {known_tokens} known tokens.")
        messages.append({"role": "assistant", "content": turn.answer})
        known_tokens = turn.prompt_tokens + turn.answer_tokens


def ask(client: openai.OpenAI, model: str, messages: list[ChatCompletionMessageParam]) -> Turn:
    started = time.monotonic()
    first_token_s = 0.0
    parts: list[str] = []
    usage = None
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        temperature=0,
        max_tokens=MAX_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        usage = chunk.usage or usage
        if chunk.choices and (text := chunk.choices[0].delta.content):
            first_token_s = first_token_s or time.monotonic() - started
            parts.append(text)
    if usage is None:
        raise DemoError("the stream ended without usage.")
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
    return Turn("".join(parts), usage.prompt_tokens, cached or 0, usage.completion_tokens, first_token_s)


def stop(server: subprocess.Popen[bytes]) -> None:
    """By its own process id, first politely."""
    if server.poll() is not None:
        return
    server.terminate()
    try:
        server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main(sys.argv[1:]))
