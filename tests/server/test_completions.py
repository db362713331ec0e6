"""/v1/completions through HTTP and the official client, before a scripted worker."""

import json
from typing import Any

import openai
import pytest
from openai.types import Completion
from tests.server.conftest import MODEL, Server
from tests.server.test_errors import MALFORMED, SAMPLING, check_shape

TEXT = "Hello, 모델 😀! \u2028 It's me."
URL = "/v1/completions"


def create(server: Server, prompt: Any, **fields: Any) -> Any:
    return server.openai.completions.create(model=MODEL, prompt=prompt, **({"max_tokens": 99} | fields))


def post(server: Server, prompt: Any, **fields: Any) -> Any:
    reply = server.http.post(URL, json={"model": MODEL, "prompt": prompt, "max_tokens": 99, **fields})
    assert reply.status_code == 200, reply.text
    return reply


def streamed(server: Server, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
    """The chunks, each held against the client's own types.

    Those want a finish_reason in every chunk, which OpenAI itself does not send.
    """
    lines = [line for line in post(server, prompt, stream=True, **fields).text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if not line.startswith(":")]
    for chunk in chunks:
        choices = [
            choice | {"finish_reason": choice["finish_reason"] or "stop"} for choice in chunk["choices"]
        ]
        Completion.model_validate(chunk | {"choices": choices}, strict=True)
    return chunks


def test_a_collected_reply(server: Server) -> None:
    reply = create(server, f"say {TEXT}")
    assert reply.id.startswith("cmpl-")
    assert (reply.object, reply.model) == ("text_completion", MODEL)
    [choice] = reply.choices
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, TEXT, "stop", None)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_sixteen_tokens_by_default(server: Server) -> None:
    reply = create(server, "say " + "a " * 40, max_tokens=openai.omit)
    assert reply.usage.completion_tokens == 16
    assert reply.choices[0].finish_reason == "length"


def test_a_streamed_reply(server: Server) -> None:
    *chunks, last, usage = streamed(server, f"say {TEXT}", stream_options={"include_usage": True})
    assert len({(chunk["id"], chunk["created"]) for chunk in [*chunks, last, usage]}) == 1
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT
    assert last["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}]
    assert usage["choices"] == []
    assert usage["usage"] == post(server, f"say {TEXT}").json()["usage"]
    assert all("usage" not in chunk for chunk in streamed(server, "say hi"))


def test_the_client_reads_a_stream(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.root}/v1", api_key="none", max_retries=0)
    stream = client.completions.create(model=MODEL, prompt=f"say {TEXT}", max_tokens=99, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == TEXT


def test_several_prompts_and_answers(server: Server) -> None:
    reply = create(server, ["say one", "say two"], n=2)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in reply.choices] == ["one", "one", "two", "two"]
    texts = [""] * 4
    for chunk in streamed(server, ["say one", "say two"], n=2):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["one", "one", "two", "two"]
    single = [create(server, prompt).usage for prompt in ("say one", "say two")]
    assert reply.usage.prompt_tokens == sum(usage.prompt_tokens for usage in single)
    assert reply.usage.completion_tokens == 2 * sum(usage.completion_tokens for usage in single)


def test_token_ids(server: Server) -> None:
    ids = server.http.post("/tokenize", json={"content": "say hi"}).json()["tokens"]
    for prompt in (ids, [ids]):
        assert create(server, prompt).choices[0].text == "hi"
    assert [choice.text for choice in create(server, [ids, ids]).choices] == ["hi", "hi"]
    error = check_shape(server.http.post(URL, json={"model": MODEL, "prompt": [512]}), 400)
    assert (error["param"], error["code"]) == ("prompt", "invalid_value")


def test_an_echo(server: Server) -> None:
    assert create(server, "say hi", echo=True).choices[0].text == "say hihi"
    texts = [chunk["choices"][0]["text"] for chunk in streamed(server, "say hi", echo=True)]
    assert texts[0] == "say hi"
    assert "".join(texts) == "say hihi"
    reply = create(server, "say hi", echo=True, max_tokens=0)
    assert (reply.choices[0].text, reply.usage.completion_tokens) == ("say hi", 0)


@pytest.mark.parametrize("stop", [", ", ["nothing", ", 모"], ["! ", "lo,", "o, "]])
def test_stop_strings(server: Server, stop: Any) -> None:
    strings = [stop] if isinstance(stop, str) else stop
    expected = TEXT[: min(TEXT.find(string) for string in strings if string in TEXT)]
    reply = create(server, f"say {TEXT}", stop=stop)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == (expected, "stop")
    chunks = streamed(server, f"say {TEXT}", stop=stop, stream_options={"include_usage": True})
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == expected
    assert chunks[-1]["usage"]["completion_tokens"] == reply.usage.completion_tokens


def test_a_stop_string_cancels_the_row(server: Server) -> None:
    """The worker would go on for ever."""
    reply = create(server, "begin one, two", stop=[","])
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("one", "stop")
    assert create(server, "await-cancel").choices[0].text == "cancelled"


def test_a_suffix_needs_a_model_for_it(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot fill in the middle") as caught:
        create(server, "say hi", suffix="x")
    assert (caught.value.param, caught.value.code) == ("suffix", "unsupported_parameter")


def test_what_the_fields_of_both_endpoints_refuse(server: Server) -> None:
    malformed = [body for body in MALFORMED if isinstance(body[0], bytes)]
    with server.http as client:
        for fields, code, param in SAMPLING:
            reply = client.post(URL, json={"model": MODEL, "prompt": "say hi", **fields})
            error = check_shape(reply, 400)
            assert (error["code"], error["param"]) == (code, param), fields
        for data, _, _ in malformed:
            check_shape(client.post(URL, content=data), 400)
        assert check_shape(client.post(URL, json={"model": "x", "prompt": "a"}), 404)["param"] == "model"
        error = check_shape(client.post(URL, json={"model": MODEL, "prompt": "z" * 10_000}), 400)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")


def test_a_failed_row(server: Server) -> None:
    with pytest.raises(openai.InternalServerError, match="the model broke"):
        create(server, "fail")
    reply = post(server, "fail", stream=True)
    assert '"error":{' in reply.text.rstrip().rpartition("\n\n")[2]


def test_silence_is_filled_with_comments(server: Server) -> None:
    body = {"model": MODEL, "prompt": "hang", "stream": True}
    with server.http as client, client.stream("POST", URL, json=body) as reply:
        lines = reply.iter_lines()
        for _ in range(3):
            while next(lines) != ": keep-alive":
                pass
        assert create(server, "release").choices[0].text == "released"
        assert list(lines)[-2:] == ["data: [DONE]", ""]
