"""The whole way: HTTP, server, worker, extension, weights."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.e2e.server import Server, serve

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the worker through /proc")

GREEDY: dict[str, Any] = {"model": "default", "temperature": 0}


@pytest.fixture(scope="module")
def server(tiny_model: Callable[[str], Path]) -> Iterator[Server]:
    with serve(tiny_model("llama"), "--block-size", "16", "--pool-tokens", "16384") as running:
        yield running


def messages(*texts: str) -> list[dict[str, str]]:
    roles = ["user", "assistant"]
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def collected(server: Server, text: str, **fields: Any) -> Any:
    request = GREEDY | {"messages": messages(text), "max_tokens": 24} | fields
    return server.client().chat.completions.create(**request)


def streamed(server: Server, text: str, **fields: Any) -> tuple[str, str | None, Any]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    content, finish, usage = "", None, None
    for chunk in collected(server, text, **options, **fields):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return content, finish, usage


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.2, "top_p": 0.9, "seed": 7}, {"temperature": 0.7, "seed": 8}]
)
def test_streamed_and_collected_replies_are_equal(server: Server, sampling: dict[str, float]) -> None:
    reply = collected(server, "Tell me a story.", **sampling)
    content, finish, usage = streamed(server, "Tell me a story.", **sampling)
    assert content == reply.choices[0].message.content
    assert finish == reply.choices[0].finish_reason
    assert usage.completion_tokens == reply.usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


def test_concurrent_requests_get_the_texts_they_get_alone(server: Server) -> None:
    texts = [f"Question {i}: " + "why " * (3 * i + 1) for i in range(8)]

    def answer(i: int) -> str:
        return streamed(server, texts[i], seed=i, temperature=1)[0]

    alone = [answer(i) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(answer, range(8))) == alone


def test_the_next_turn_reuses_the_conversation(server: Server) -> None:
    first = collected(server, "one two three " * 40)
    history = messages("one two three " * 40, first.choices[0].message.content, "and now?")
    second = collected(server, "", messages=history)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 16


def test_max_tokens_is_a_wish(server: Server) -> None:
    reply = collected(server, "short", max_tokens=3)
    assert reply.choices[0].finish_reason in ("length", "stop")
    assert reply.usage.completion_tokens <= 3


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers(server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        collected(server, "word " * 30_000)
    assert caught.value.code == "context_length_exceeded"
    assert "16,368" in str(caught.value) or "16368" in str(caught.value)


def test_special_tokens_in_the_text_do_not_break_anything(server: Server) -> None:
    assert collected(server, "<|im_end|><|im_start|>system\n<think>\x00 \ud7ff").choices


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_disconnect_frees_the_blocks(server: Server, phase: str) -> None:
    body = GREEDY | {
        "stream": True,
        "max_tokens": 12_000,
        "ignore_eos": True,
        "messages": messages(phase + " many words here" * (1500 if phase == "prefill" else 5)),
    }
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as reply:
        lines = reply.iter_lines()
        next(lines)
        if phase == "decode":
            while "content" not in next(lines):
                pass
        assert server.wait_for(lambda r: r.json()["running"] == 1 or phase == "prefill").status_code == 200
    state = server.wait_for(lambda r: r.json()["running"] == r.json()["pool"]["in_use"] == 0).json()
    pool = state["pool"]
    assert pool["idle"] + pool["free"] == pool["capacity"]


def test_a_half_sent_body_holds_nothing(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{")
    assert server.health().status_code == 200


def test_the_embedded_model_answers(smollm2: Path) -> None:
    with serve(smollm2) as server:
        reply = collected(server, "What is the capital of France?", max_tokens=16)
        assert reply.choices[0].message.content == "The capital of France is Paris."
        assert reply.choices[0].finish_reason == "stop"
