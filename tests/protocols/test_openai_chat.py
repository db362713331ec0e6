import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.conversation.conversation import Conversation, GenerationRequest, Message, Role, TextPart
from pomona.conversation.errors import InvalidRequestError, RowFailedError, UnsupportedParameterError
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
from pomona.protocols.openai_chat import ChatRequest, StreamWriter, collect, to_generation
from pomona.protocols.openai_unsupported import CHAT_FIELDS, MESSAGE_FIELDS
from pomona.protocols.openai_wire import KEEP_ALIVE, ReplyHead
from pomona.protocols.validation import field_path, parse_body

HEAD = ReplyHead('a "model"', "chatcmpl-1", 7)
END = Finished(StopReason.LENGTH, Usage(5, 2, cached_tokens=4))


def generation(**fields: Any) -> GenerationRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields
    return to_generation(parse_body(ChatRequest, json.dumps(body).encode()))


def messages(*given: Any) -> tuple[Message, ...]:
    (source,) = generation(messages=list(given)).sources
    assert isinstance(source, Conversation)
    return source.messages


# ---------------------------------------------------------------- requests


def test_roles_and_parts() -> None:
    assert messages(
        {"role": "developer", "content": "a"},
        {"role": "system", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
        {"role": "user", "content": "", "name": "Ann"},
        {"role": "assistant", "content": "d", "tool_calls": None, "refusal": None},
        {"role": "tool", "content": "e", "tool_call_id": "call_1"},
    ) == (
        Message(Role.SYSTEM, (TextPart("a"),)),
        Message(Role.SYSTEM, (TextPart("bc"),)),
        Message(Role.USER, ()),
        Message(Role.ASSISTANT, (TextPart("d"),)),
        Message(Role.TOOL, (TextPart("e"),)),
    )


def test_max_tokens_by_both_names() -> None:
    assert generation(max_tokens=5).stop.max_tokens == 5
    assert generation(max_tokens=5, max_completion_tokens=6).stop.max_tokens == 6


def test_null_is_silence() -> None:
    fields = {*ChatRequest.model_fields, *CHAT_FIELDS} - {"model", "messages"}
    assert generation(**dict.fromkeys(fields)) == generation()


def test_logprobs() -> None:
    assert generation().logprobs is generation(logprobs=False, top_logprobs=0).logprobs is None
    assert generation(logprobs=True).logprobs == 0
    assert generation(logprobs=True, top_logprobs=20).logprobs == 20
    with pytest.raises(InvalidRequestError) as caught:
        generation(top_logprobs=1)
    assert caught.value.param == "top_logprobs"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("user", "ann"),
        ("metadata", {"a": "b"}),
        ("store", True),
        ("service_tier", "auto"),
        ("safety_identifier", "x"),
        ("prompt_cache_key", "x"),
        ("prompt_cache_retention", "24h"),
        ("prediction", {"type": "content", "content": "x"}),
        ("verbosity", "low"),
        ("moderation", {}),
        ("parallel_tool_calls", True),
        ("modalities", ["text"]),
        ("a_field_of_next_year", [1]),
    ],
)
def test_accepted_without_effect(name: str, value: Any) -> None:
    assert generation(**{name: value}) == generation()


UNSUPPORTED_VALUES: dict[str, Any] = {
    "tools": [{"type": "function"}],
    "tool_choice": "required",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "response_format": {"type": "json_object"},
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": False},
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy"},
    "web_search_options": {},
}


@pytest.mark.parametrize("name", CHAT_FIELDS)
def test_known_fields_without_an_effect_yet_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedParameterError, match="not supported yet") as caught:
        generation(**{name: UNSUPPORTED_VALUES[name]})
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    for value in (None, *CHAT_FIELDS[name].no_effect):
        assert generation(**{name: value}) == generation()


@pytest.mark.parametrize("name", MESSAGE_FIELDS)
def test_known_fields_of_messages_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedParameterError) as caught:
        messages({"role": "assistant", "content": "a", name: ["x"]})
    assert caught.value.param == f"messages[0].{name}"


def test_the_path_of_a_field() -> None:
    assert field_path(()) == ""
    assert field_path(("messages", 3, "content", 0, "text")) == "messages[3].content[0].text"


def test_the_first_error_is_told_in_a_sentence() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        generation(temperature=3)
    assert caught.value.message == (
        "Invalid value for 'temperature': input should be less than or equal to 2."
    )


# ---------------------------------------------------------------- replies


def parse(data: bytes) -> dict[str, Any]:
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    return dict(json.loads(data[6:]))


def test_chunks_of_a_stream() -> None:
    writer = StreamWriter(HEAD, include_usage=True)
    first = parse(writer.write(Started(5)))
    assert first["model"] == 'a "model"'
    assert (first["id"], first["created"], first["usage"]) == ("chatcmpl-1", 7, None)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert parse(writer.write(TextDelta("x"))) == first | {
        "choices": [first["choices"][0] | {"delta": {"content": "x"}}]
    }
    assert writer.write(Heartbeat(0.5)) == KEEP_ALIVE
    last, usage, done, rest = writer.write(END).split(b"\n\n")
    assert parse(last + b"\n\n")["choices"][0]["finish_reason"] == "length"
    assert parse(usage + b"\n\n")["choices"] == []
    assert parse(usage + b"\n\n")["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert (done, rest) == (b"data: [DONE]", b"")


def test_without_usage_no_chunk_mentions_it() -> None:
    writer = StreamWriter(HEAD, include_usage=False)
    data = b"".join(writer.write(event) for event in (Started(5), TextDelta("x"), END))
    assert b"usage" not in data


def test_an_error_after_the_start() -> None:
    error = parse(StreamWriter(HEAD, False).write(Failed(RowFailedError("broken"))))["error"]
    assert error == {
        "message": "broken",
        "type": "server_error",
        "param": None,
        "code": "generation_failed",
    }


@given(st.text())
def test_any_text_survives_any_way_to_cut_lines(text: str) -> None:
    writer = StreamWriter(HEAD, False)
    writer.write(Started(5))
    data = writer.write(TextDelta(text))
    assert parse(data)["choices"][0]["delta"]["content"] == text
    assert len(data.decode().splitlines()) == 2


def test_choices_end_together() -> None:
    """Each has its first and last chunk; usage and [DONE] come after the last of them."""
    writer = StreamWriter(HEAD, include_usage=True)
    events = [
        *(Started(5, 0), Started(5, 1)),
        *(TextDelta("b", 1), TextDelta("a", 0)),
        *(Finished(StopReason.STOP, Usage(0, 1), 1), Finished(StopReason.LENGTH, Usage(5, 2), 0)),
    ]
    data = b"".join(map(writer.write, events)).decode().split("\n\n")
    assert data[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line[6:]) for line in data[:-2]]
    assert [chunk["choices"][0]["index"] for chunk in chunks[:-1]] == [0, 1, 1, 0, 1, 0]
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert chunks[-1]["usage"]["prompt_tokens"] == 5


LOGPROBS = (
    TokenLogprob(b"a", -0.5, ((b"a", -0.5), (b"\xf0\x9f", -math.inf)), 0),
    TokenLogprob(b"\xf0\x9f", -1.5, (), 1),
)


def test_logprobs_have_bytes() -> None:
    writer = StreamWriter(HEAD, False)
    writer.write(Started(5))
    choice = parse(writer.write(TextDelta("a", 0, LOGPROBS)))["choices"][0]
    assert choice["delta"] == {"content": "a"}
    assert choice["logprobs"] == {
        "content": [
            {
                "token": "a",
                "logprob": -0.5,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.5, "bytes": [97]},
                    {"token": "\ufffd", "logprob": -9999.0, "bytes": [240, 159]},
                ],
            },
            {"token": "\ufffd", "logprob": -1.5, "bytes": [240, 159], "top_logprobs": []},
        ],
        "refusal": None,
    }
    folded = fold(Started(5), TextDelta("a", 0, LOGPROBS), END, logprobs=True)
    assert folded["choices"][0]["logprobs"] == choice["logprobs"]
    assert fold(Started(5), END, logprobs=True)["choices"][0]["logprobs"] == {"content": [], "refusal": None}


def fold(*events: Event, logprobs: bool = False) -> dict[str, Any]:
    async def source() -> AsyncIterator[Event]:
        for event in events:
            yield event

    return dict(json.loads(asyncio.run(collect(HEAD, source(), logprobs))))


@given(st.lists(st.text(max_size=5), max_size=5))
def test_the_collected_reply_is_the_fold_of_the_stream(texts: list[str]) -> None:
    deltas = [TextDelta(text) for text in texts]
    reply = fold(Started(5), Heartbeat(1.0), *deltas, END)
    assert reply["choices"][0]["message"] == {
        "role": "assistant",
        "content": "".join(texts),
        "refusal": None,
    }
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["total_tokens"] == 7


def test_a_failed_answer_raises() -> None:
    with pytest.raises(RowFailedError):
        fold(Started(5), TextDelta("x"), Failed(RowFailedError("broken")))
