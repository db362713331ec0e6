import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pomona.conversation.conversation import GenerationRequest, Infill, RawText, TokenIds
from pomona.conversation.errors import InvalidRequestError, RowFailedError
from pomona.conversation.events import (
    Event,
    Failed,
    Finished,
    Heartbeat,
    Started,
    StopReason,
    TextDelta,
    TokenLogprob,
    Usage,
)
from pomona.protocols.openai_completions import CompletionRequest, StreamWriter, collect, to_generation
from pomona.protocols.openai_wire import KEEP_ALIVE, ReplyHead
from pomona.protocols.validation import parse_body

HEAD = ReplyHead("m", "cmpl-1", 7)
END = Finished(StopReason.LENGTH, Usage(5, 2, cached_tokens=4))


def generation(prompt: Any = "hi", **fields: Any) -> GenerationRequest:
    body = {"model": "m", "prompt": prompt} | fields
    return to_generation(parse_body(CompletionRequest, json.dumps(body).encode()))


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("prompt", "sources"),
    [
        ("a", (RawText("a"),)),
        ("", (RawText(""),)),
        (["a", "b"], (RawText("a"), RawText("b"))),
        ([1, 2], (TokenIds((1, 2)),)),
        ([[1, 2], [3]], (TokenIds((1, 2)), TokenIds((3,)))),
    ],
)
def test_prompts(prompt: Any, sources: Any) -> None:
    assert generation(prompt).sources == sources


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        (None, "invalid_type"),
        (5, "invalid_type"),
        (True, "invalid_type"),
        ({"a": 1}, "invalid_type"),
        ([], "invalid_value"),
        ([[]], "invalid_value"),
        (["a", 1], "invalid_type"),
        ([1, "a"], "invalid_type"),
        ([1, 2.5], "invalid_type"),
        ([1, True], "invalid_type"),
        ([1, [2]], "invalid_type"),
        ([[1], 2], "invalid_type"),
        ([-1], "invalid_value"),
        ([2**31], "invalid_value"),
    ],
)
def test_what_is_no_prompt(prompt: Any, code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        generation(prompt)
    assert (caught.value.param, caught.value.code) == ("prompt", code)


def test_a_prompt_is_required() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(CompletionRequest, b'{"model": "m"}')
    assert (caught.value.param, caught.value.code) == ("prompt", "missing_required_parameter")


def test_defaults() -> None:
    assert generation().stop.max_tokens == 16
    assert generation(min_tokens=20).stop.max_tokens == 20
    fields = set(CompletionRequest.model_fields) - {"model", "prompt"}
    assert generation(**dict.fromkeys(fields)) == generation()
    assert generation(echo=True, max_tokens=0).stop.max_tokens == 0
    assert generation(logprobs=0).logprobs == 0


def test_a_suffix_asks_for_the_middle() -> None:
    request = generation(["a", "b"], suffix="c")
    assert request.sources == (Infill(RawText("a"), "c"), Infill(RawText("b"), "c"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"suffix": "x", "echo": True}, "echo"),
        ({"suffix": 5}, "suffix"),
        ({"stream_options": {}}, "stream_options"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        generation(**fields)
    assert caught.value.param == param


def test_best_of_n_is_no_choice_and_may_be_streamed() -> None:
    assert generation(best_of=2, n=2, stream=True).computed == 2


# ---------------------------------------------------------------- replies

LOGPROBS = (
    TokenLogprob(b"The", None, (), 0),
    TokenLogprob(b" q", -0.5, ((b" q", -0.5), (b"\xf0\x9f", -math.inf)), 3),
    TokenLogprob(b"\xf0", -7.0, ((b"x", -0.1), (b"x", -0.2)), 5),
)


def fold(*events: Event, logprobs: int | None = None) -> dict[str, Any]:
    async def source() -> AsyncIterator[Event]:
        for event in events:
            yield event

    return dict(json.loads(asyncio.run(collect(HEAD, source(), logprobs))))


def chunks(writer: StreamWriter, *events: Event) -> list[Any]:
    lines = b"".join(map(writer.write, events)).decode().split("\n\n")
    assert lines[-1] == ""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in data]


def test_the_chunks_of_a_stream() -> None:
    writer = StreamWriter(HEAD, include_usage=True)
    events = (Started(5, 0), Started(5, 1), TextDelta("a", 1), Heartbeat(0.5), TextDelta("b", 0), END)
    text, other, _, last, usage, done = chunks(writer, *events, Finished(StopReason.STOP, Usage(0, 1), 1))
    assert text["object"] == "text_completion"
    assert text["choices"] == [{"index": 1, "text": "a", "logprobs": None, "finish_reason": None}]
    assert other["choices"][0]["index"] == 0
    assert last["choices"] == [{"index": 1, "text": "", "logprobs": None, "finish_reason": "stop"}]
    assert text["usage"] is last["usage"] is None
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 8)
    assert done == "[DONE]"


def test_the_head_of_a_reply_goes_out_at_once() -> None:
    writer = StreamWriter(HEAD, include_usage=False)
    assert [writer.write(Started(5, i)) for i in range(2)] == [KEEP_ALIVE, b""]


def test_logprobs() -> None:
    expected = {
        "tokens": ["The", " q", "bytes:\\xf0"],
        "token_logprobs": [None, -0.5, -7.0],
        "top_logprobs": [
            None,
            {" q": -0.5, "bytes:\\xf0\\x9f": -9999.0},
            {"x": -0.1, "bytes:\\xf0": -7.0},
        ],
        "text_offset": [0, 3, 5],
    }
    delta = TextDelta("The q", 0, LOGPROBS)
    assert fold(Started(5), delta, END, logprobs=2)["choices"][0]["logprobs"] == expected
    chunk = chunks(StreamWriter(HEAD, False, 2), Started(5), delta)[0]
    assert chunk["choices"][0]["logprobs"] == expected
    assert fold(Started(5), delta, END, logprobs=0)["choices"][0]["logprobs"]["top_logprobs"] is None
    assert fold(Started(5), TextDelta("x"), END)["choices"][0]["logprobs"] is None


def test_a_failed_answer() -> None:
    error = Failed(RowFailedError("broken"))
    with pytest.raises(RowFailedError):
        fold(Started(5), error)
    [chunk] = chunks(StreamWriter(HEAD, False), Started(5), error)
    assert chunk["error"]["code"] == "generation_failed"
