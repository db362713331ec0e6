import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from tests.server.conftest import MODEL, Server, body
from tests.server.scripted_worker import CACHED_TOKENS, CONTEXT_TOKENS

TEXT = "Hello, 모델 😀! \u2028 It's me."


def messages(content: str) -> Any:
    return [{"role": "user", "content": content}]


def test_a_collected_reply(server: Server) -> None:
    reply = server.openai.chat.completions.create(model=MODEL, messages=messages(f"say {TEXT}"))
    assert reply.id.startswith("chatcmpl-")
    assert (reply.object, reply.model) == ("chat.completion", MODEL)
    [choice] = reply.choices
    assert choice.message.content == TEXT
    assert choice.message.refusal is None
    assert (choice.index, choice.finish_reason) == (0, "stop")
    usage = reply.usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == CACHED_TOKENS
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_a_streamed_reply(server: Server) -> None:
    chunks = list(
        server.openai.chat.completions.create(
            model=MODEL,
            messages=messages(f"say {TEXT}"),
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    first, *deltas, last, usage = chunks
    assert first.choices[0].delta.role == "assistant"
    assert first.choices[0].delta.content == ""
    assert "".join(chunk.choices[0].delta.content or "" for chunk in deltas) == TEXT
    assert last.choices[0].finish_reason == "stop"
    assert last.choices[0].delta.content is None
    assert usage.choices == []
    assert usage.usage is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_streamed_and_collected_agree(server: Server) -> None:
    collected = server.post(f"say {TEXT}").json()
    with server.openai.chat.completions.stream(
        model=MODEL, messages=messages(f"say {TEXT}"), stream_options={"include_usage": True}
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == collected["choices"][0]["message"]["content"]
    assert final.usage is not None
    assert final.usage.model_dump(exclude_none=True) == collected["usage"]


def test_the_lines_of_a_stream(server: Server) -> None:
    reply = server.post("say hi", stream=True)
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.headers["x-request-id"].startswith("req_")
    events = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert all("usage" not in chunk for chunk in chunks)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
    }


def test_max_tokens_is_the_length_of_the_answer(server: Server) -> None:
    reply = server.post("say one two three four", max_tokens=2).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 2
    reply = server.post("say one two three four", max_tokens=2, max_completion_tokens=1).json()
    assert reply["usage"]["completion_tokens"] == 1


def sampling(server: Server, **fields: Any) -> dict[str, Any]:
    return dict(json.loads(server.post("sampling", **fields).json()["choices"][0]["message"]["content"]))


def test_sampling_reaches_the_worker(server: Server) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": -2.0,
        "frequency_penalty": 0.25,
        "min_tokens": 3,
    }
    given = sampling(server, **fields, seed=-1, max_tokens=1000, logit_bias={"5": -100, "7": 0.5})
    assert given == fields | {
        "seed": 2**63 - 1,
        "max_tokens": 1000,
        "logit_bias": {"5": -100, "7": 0.5},
        "logprobs": None,
    }


def test_minus_one_is_all_tokens_too(server: Server) -> None:
    assert sampling(server, top_k=-1)["top_k"] == 0


def test_what_is_not_said_is_the_model_s_default(server: Server) -> None:
    prompt_tokens = server.post("sampling").json()["usage"]["prompt_tokens"]
    one, two = sampling(server), sampling(server, max_tokens=10**9)
    assert (one["temperature"], one["top_p"]) == (1.0, 1.0)
    assert one["seed"] != two["seed"]
    assert one["max_tokens"] == two["max_tokens"] == CONTEXT_TOKENS - prompt_tokens


def test_a_prompt_that_does_not_fit(server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai.chat.completions.create(model=MODEL, messages=messages("z" * 3 * CONTEXT_TOKENS))
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"
    assert "2,000 tokens" in caught.value.message


def test_a_row_that_fails(server: Server) -> None:
    with pytest.raises(openai.InternalServerError, match="the model broke") as caught:
        server.openai.chat.completions.create(model=MODEL, messages=messages("fail"))
    assert caught.value.response.headers["x-should-retry"] == "false"
    stream = server.openai.chat.completions.create(model=MODEL, messages=messages("fail"), stream=True)
    with pytest.raises(openai.APIError, match="the model broke"):
        list(stream)
    assert server.post("say still here").json()["choices"][0]["message"]["content"] == "still here"


@pytest.mark.parametrize("name", [MODEL, "tiny-folder", "default"])
def test_names_of_the_model(server: Server, name: str) -> None:
    reply = server.http.post("/v1/chat/completions", json=body("say hi") | {"model": name})
    assert reply.json()["model"] == MODEL


@pytest.mark.parametrize("name", ["ORG/TINY", "tiny", "", "gpt-4"])
def test_other_models_are_not_found(server: Server, name: str) -> None:
    reply = server.http.post("/v1/chat/completions", json=body("say hi") | {"model": name})
    assert reply.status_code == 404
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_silence_is_filled_with_comments(server: Server) -> None:
    with (
        server.http as client,
        client.stream("POST", "/v1/chat/completions", json=body("hang", stream=True)) as reply,
    ):
        lines = reply.iter_lines()
        while next(lines) != ": keep-alive":
            pass
        assert server.post("release").status_code == 200
        assert list(lines)[-2:] == ["data: [DONE]", ""]


def test_many_at_once(server: Server) -> None:
    texts = [f"answer {i}" for i in range(24)]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda text: server.post(f"say {text}").json(), texts))
    assert [reply["choices"][0]["message"]["content"] for reply in replies] == texts


def test_a_large_body_is_read_off_the_loop(start_server: Any) -> None:
    server = start_server(max_body_bytes=4 << 20)
    reply = server.post("say hi", ignored="x" * (2 << 20))
    assert reply.json()["choices"][0]["message"]["content"] == "hi"
