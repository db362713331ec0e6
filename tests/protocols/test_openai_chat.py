import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pomona.conversation.conversation import GenerationRequest, Message, Role, TextPart
from pomona.conversation.errors import InvalidRequestError, RowFailedError, UnsupportedParameterError
from pomona.conversation.events import (
    Event,
    Failed,
    Finished,
    Heartbeat,
    Started,
    StopReason,
    TextDelta,
    Usage,
)
from pomona.protocols.openai_chat import (
    KEEP_ALIVE,
    ChatRequest,
    ReplyHead,
    StreamWriter,
    collect,
    to_generation,
)
from pomona.protocols.openai_unsupported import CHAT_FIELDS, MESSAGE_FIELDS
from pomona.protocols.validation import field_path, parse_body

HEAD = ReplyHead('a "model"', "chatcmpl-1", 7)
END = Finished(StopReason.LENGTH, Usage(5, 2, cached_tokens=4))


def generation(**fields: Any) -> GenerationRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields
    return to_generation(parse_body(ChatRequest, json.dumps(body).encode()))


def messages(*given: Any) -> tuple[Message, ...]:
    return generation(messages=list(given)).conversation.messages


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


def test_limits_and_sampling() -> None:
    request = generation(temperature=0, top_p=1, seed=-3, max_tokens=5)
    assert (request.temperature, request.top_p, request.seed, request.max_tokens) == (0, 1, -3, 5)
    assert generation(max_tokens=5, max_completion_tokens=6).max_tokens == 6
    silent = generation(temperature=None, top_p=None, seed=None, max_tokens=None)
    assert silent == generation()
    assert (silent.temperature, silent.top_p, silent.seed, silent.max_tokens) == (None,) * 4


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
    "stop": "x",
    "stop_token_ids": [1],
    "ignore_eos": True,
    "n": 2,
    "logprobs": True,
    "top_logprobs": 3,
    "logit_bias": {"5": 1},
    "presence_penalty": 0.5,
    "frequency_penalty": -1,
    "repetition_penalty": 1.1,
    "top_k": 40,
    "min_p": 0.05,
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


@pytest.mark.parametrize(("name", "value"), [("n", True), ("logprobs", 0), ("presence_penalty", False)])
def test_true_is_not_one(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedParameterError):
        generation(**{name: value})


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
    data = StreamWriter(HEAD, False).write(TextDelta(text))
    assert parse(data)["choices"][0]["delta"]["content"] == text
    assert len(data.decode().splitlines()) == 2


def fold(*events: Event) -> dict[str, Any]:
    async def source() -> AsyncIterator[Event]:
        for event in events:
            yield event

    return dict(json.loads(asyncio.run(collect(HEAD, source()))))


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
