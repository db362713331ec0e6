"""All sampling fields through HTTP with the real worker: streams, collected replies, seeds, choices."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion
from tests.e2e.server import Server, serve
from tokenizers import Tokenizer

from pomona.text.tokenizer import FastCodec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the worker through /proc")

COMBINATIONS = 240
AT_ONCE = 8
WORDS = ["The", "quick", "brown", "fox", "jumps", "over", "a", "server", "answers", "many", "requests"]
# What an untrained model writes soon enough.
STOPS = ["e", "re", "\n", " a", "o", "on", "s ", "in", "th", "\ufffd", "é", "모"]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server(tiny_model: Callable[[str], Path]) -> Iterator[Server]:
    with serve(tiny_model("llama"), "--block-size", "16", "--pool-tokens", "16384") as running:
        yield running


def combination(index: int) -> tuple[str, dict[str, Any]]:
    """A path and a body, the same in every run."""
    rng = random.Random(index)
    text = " ".join(rng.choices(WORDS, k=rng.randint(1, 8)))
    candidates: dict[str, Callable[[], Any]] = {
        "temperature": lambda: rng.choice([0, 0.3, 0.8, 1.0, 1.5, 2.0]),
        "top_p": lambda: rng.choice([0, 0.5, 0.9, 1.0]),
        "top_k": lambda: rng.choice([-1, 0, 1, 5, 40, 10_000]),
        "min_p": lambda: rng.choice([0, 0.02, 0.5]),
        "repetition_penalty": lambda: rng.choice([0.9, 1.0, 1.3]),
        "presence_penalty": lambda: round(rng.uniform(-2, 2), 2),
        "frequency_penalty": lambda: round(rng.uniform(-2, 2), 2),
        "logit_bias": lambda: {str(rng.randrange(512)): rng.choice([-100, -3, 2, 6]) for _ in range(5)},
        "n": lambda: rng.choice([1, 2, 3]),
        "stop": lambda: rng.choice([rng.choice(STOPS), rng.sample(STOPS, rng.randint(1, 4))]),
        "stop_token_ids": lambda: rng.sample(range(512), 20),
        "ignore_eos": lambda: rng.choice([False, True]),
        "min_tokens": lambda: rng.randint(0, 6),
    }
    names = rng.sample(sorted(candidates), rng.randint(1, 8))
    body = {name: candidates[name]() for name in names} | {"seed": rng.randrange(1000)}
    body |= {"model": "default", "max_tokens": rng.randint(6, 14)}
    logprobs = rng.random() < 0.4
    if rng.random() < 0.5:
        if logprobs:
            body |= {"logprobs": True, "top_logprobs": rng.randint(0, 20)}
        return CHAT, body | {"messages": [{"role": "user", "content": text}]}
    body |= {"prompt": rng.choice([text, [text, text + "!"]]), "echo": rng.random() < 0.3}
    return COMPLETIONS, body | ({"logprobs": rng.randint(0, 5)} if logprobs else {})


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    reply = httpx.post(server.url + path, json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return reply


def fold_stream(lines: str) -> dict[str, Any]:
    """A stream as the collected reply that it should be equal to."""
    *data, done, rest = lines.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(line.removeprefix("data: ")) for line in data if not line.startswith(":")]
    assert len({chunk["id"] for chunk in chunks}) == 1
    usage = chunks.pop()
    assert usage["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks)
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        [part] = chunk["choices"]
        choice = choices.setdefault(part["index"], {"text": "", "logprobs": {}, "finish_reason": None})
        assert choice["finish_reason"] is None
        choice["finish_reason"] = part["finish_reason"]
        choice["text"] += part["delta"].get("content", "") if "delta" in part else part["text"]
        for key, values in (part["logprobs"] or {}).items():
            if values:
                choice["logprobs"].setdefault(key, []).extend(values)
    return {"choices": [choices[i] for i in sorted(choices)], "usage": counts(usage["usage"])}


def fold_reply(reply: Any) -> dict[str, Any]:
    return {
        "choices": [
            {
                "text": choice["message"]["content"] if "message" in choice else choice["text"],
                "logprobs": {key: values for key, values in (choice["logprobs"] or {}).items() if values},
                "finish_reason": choice["finish_reason"],
            }
            for choice in reply["choices"]
        ],
        "usage": counts(reply["usage"]),
    }


def counts(usage: dict[str, Any]) -> dict[str, Any]:
    """Without what is cached, which depends on what came before."""
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


def test_streamed_and_collected_replies_are_equal(server: Server) -> None:
    """Each stream runs among others, each collected reply among others again: neighbours, chunks and cached
    prefixes must not change a digit.
    """
    options = {"stream": True, "stream_options": {"include_usage": True}}

    def both(index: int) -> tuple[dict[str, Any], dict[str, Any]]:
        path, body = combination(index)
        streamed = fold_stream(post(server, path, body | options).text)
        return streamed, fold_reply(post(server, path, body).json())

    with ThreadPoolExecutor(AT_ONCE) as pool:
        pairs = list(pool.map(both, range(COMBINATIONS)))
    unequal = [i for i, (streamed, collected) in enumerate(pairs) if streamed != collected]
    assert not unequal, [combination(i) for i in unequal]
    # The combinations reach what they should.
    choices = [choice for _, collected in pairs for choice in collected["choices"]]
    assert {choice["finish_reason"] for choice in choices} == {"stop", "length"}
    assert sum(len(collected["choices"]) > 1 for _, collected in pairs) > 40
    assert sum(bool(choice["logprobs"]) for choice in choices) > 40


def test_a_stop_string_cuts_what_the_same_seed_writes_without(server: Server) -> None:
    for seed in range(5):
        body = {"model": "default", "prompt": "The quick", "max_tokens": 24, "seed": seed, "ignore_eos": True}
        whole = post(server, COMPLETIONS, body).json()["choices"][0]
        for stop in STOPS:
            cut = whole["text"].find(stop)
            choice = post(server, COMPLETIONS, body | {"stop": stop}).json()["choices"][0]
            assert choice["text"] == whole["text"][: cut if cut >= 0 else None]
            assert choice["finish_reason"] == ("stop" if cut >= 0 else "length")


def test_a_seed_gives_the_same_text_alone_and_among_eight(server: Server) -> None:
    sampling = [
        {},
        {"top_k": 20, "top_p": 0.9},
        {"min_p": 0.02, "temperature": 1.4},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5},
        {"frequency_penalty": 1.5, "temperature": 0.7},
        {"logit_bias": {"100": 5, "101": -100}},
        {"min_tokens": 10, "logprobs": True, "top_logprobs": 2},
        {"temperature": 0},
    ]

    def answer(i: int) -> str:
        messages = [{"role": "user", "content": "Question: " + "why " * (5 * i + 1)}]
        body = {"model": "default", "messages": messages, "max_tokens": 24, "seed": 40 + i}
        return str(post(server, CHAT, body | sampling[i]).json()["choices"][0]["message"]["content"])

    alone = [answer(i) for i in range(8)]
    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(answer, range(8))) == alone


def test_choices_are_what_their_seeds_give_alone(server: Server) -> None:
    body = {"model": "default", "prompt": "The quick", "max_tokens": 16}
    together = post(server, COMPLETIONS, body | {"n": 8, "seed": 100}).json()["choices"]
    alone = [
        post(server, COMPLETIONS, body | {"seed": 100 + i}).json()["choices"][0]["text"] for i in range(8)
    ]
    assert [choice["text"] for choice in together] == alone
    assert len(set(alone)) == 8


def test_best_of_tells_the_most_likely_answers(server: Server) -> None:
    body = {"model": "default", "prompt": ["The quick", "A server"], "max_tokens": 8, "seed": 5}
    every = post(server, COMPLETIONS, body | {"n": 5, "logprobs": 0}).json()
    best = post(server, COMPLETIONS, body | {"best_of": 5, "n": 2}).json()
    for source in range(2):
        candidates = every["choices"][source * 5 : source * 5 + 5]
        candidates.sort(key=lambda choice: -mean(choice["logprobs"]["token_logprobs"]))
        told = best["choices"][source * 2 : source * 2 + 2]
        assert [choice["text"] for choice in told] == [choice["text"] for choice in candidates[:2]]
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
    assert counts(best["usage"]) == counts(every["usage"])


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_the_prompt_s_logprobs_are_those_of_the_answer_that_it_was(
    server: Server, tiny_model: Callable[[str], Path]
) -> None:
    """An answer's tokens, sent as a prompt, are as likely as when they were drawn."""
    codec = FastCodec(Tokenizer.from_file(str(tiny_model("llama") / "tokenizer.json")))
    prompt = codec.encode("The quick brown fox").ids
    ids = {codec.token_bytes(id_): id_ for id_ in range(512)}
    body = {"model": "default", "logprobs": 3, "ignore_eos": True}
    for seed in range(5):
        reply = post(server, COMPLETIONS, body | {"prompt": prompt, "seed": seed})
        drawn = reply.json()["choices"][0]["logprobs"]
        whole = prompt + [ids[bytes_of(token)] for token in drawn["tokens"]]
        reply = post(server, COMPLETIONS, body | {"prompt": whole, "echo": True, "max_tokens": 0})
        echoed = reply.json()["choices"][0]["logprobs"]
        assert echoed["token_logprobs"][0] is echoed["top_logprobs"][0] is None
        for name in ("tokens", "token_logprobs", "top_logprobs"):
            assert echoed[name][len(prompt) :] == drawn[name]


def bytes_of(token: str) -> bytes:
    written_out = token.removeprefix("bytes:")
    return token.encode() if written_out == token else bytes.fromhex(written_out.replace("\\x", ""))


# ---------------------------------------------------------------- the official client, strict


def chat(server: Server, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": "The quick brown fox"}]
    request = {"model": "default", "messages": messages, "max_tokens": 8, "seed": 1} | fields
    return server.client().chat.completions.create(**request)


@pytest.mark.parametrize(
    "fields",
    [{}, {"n": 3}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 20, "n": 2}, {"stop": "e"}],
)
def test_chat_by_the_official_client(server: Server, fields: dict[str, Any]) -> None:
    reply = chat(server, **fields)
    assert [choice.index for choice in reply.choices] == list(range(fields.get("n", 1)))
    for choice in reply.choices:
        assert (choice.logprobs is None) == ("logprobs" not in fields)
        if choice.logprobs is not None:
            assert all(
                len(item.top_logprobs) == fields.get("top_logprobs", 0) for item in choice.logprobs.content
            )
            text = b"".join(bytes(item.bytes) for item in choice.logprobs.content).decode(errors="replace")
            assert text == choice.message.content
    texts = dict.fromkeys(range(len(reply.choices)), "")
    for chunk in chat(server, stream=True, stream_options={"include_usage": True}, **fields):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
        if chunk.usage is not None:
            assert chunk.usage.completion_tokens == reply.usage.completion_tokens
    assert list(texts.values()) == [choice.message.content for choice in reply.choices]


def test_the_client_s_own_fold_of_a_stream(server: Server) -> None:
    fields: dict[str, Any] = {"n": 2, "logprobs": True, "top_logprobs": 2, "seed": 1, "max_tokens": 8}
    messages: Any = [{"role": "user", "content": "The quick brown fox"}]
    with server.client().chat.completions.stream(model="default", messages=messages, **fields) as stream:
        stream.until_done()
        folded = stream.current_completion_snapshot
    reply = chat(server, **fields)
    for ours, theirs in zip(reply.choices, folded.choices, strict=True):
        assert theirs.message.content == ours.message.content
        assert theirs.logprobs is not None
        assert [item.token for item in theirs.logprobs.content or []] == [
            item.token for item in ours.logprobs.content
        ]


@pytest.mark.parametrize(
    "fields", [{}, {"n": 2}, {"best_of": 3}, {"logprobs": 5}, {"logprobs": 0}, {"echo": True, "n": 2}]
)
def test_completions_by_the_official_client(server: Server, fields: dict[str, Any]) -> None:
    request = {"model": "default", "prompt": ["The quick", "A server"], "max_tokens": 8, "seed": 1} | fields
    reply = server.client().completions.create(**request)
    assert [choice.index for choice in reply.choices] == list(range(2 * fields.get("n", 1)))
    if "best_of" in fields:
        return
    # Its types want a finish_reason in every chunk, which OpenAI itself does not send.
    lenient = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    texts = dict.fromkeys(range(len(reply.choices)), "")
    for chunk in lenient.completions.create(stream=True, **request):
        [choice] = chunk.choices
        texts[choice.index] += choice.text
        as_ended = choice.to_dict() | {"finish_reason": choice.finish_reason or "stop"}
        Completion.model_validate(chunk.to_dict() | {"choices": [as_ended]}, strict=True)
    assert list(texts.values()) == [choice.text for choice in reply.choices]


def test_models_by_the_official_client(server: Server) -> None:
    [model] = server.client().models.list()
    assert server.client().models.retrieve(model.id) == model
