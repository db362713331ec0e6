"""/tokenize, /detokenize and /apply_template, and the routes of models."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.conftest import MODEL, Server
from tests.server.test_errors import check_shape
from tokenizers import Tokenizer

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
]
RENDERED = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def post(server: Server, path: str, **body: Any) -> Any:
    reply = server.http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_there_and_back(server: Server, tokenizer: Tokenizer, prefix: str) -> None:
    text = "<|im_start|>Hello, 모델 😀!"
    reply = post(server, f"{prefix}/tokenize", content=text, model=MODEL, messages=None, add_special=None)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert reply == {"tokens": ids, "count": len(ids)}
    assert post(server, f"{prefix}/detokenize", tokens=ids, model="default") == {"content": text}


@settings(max_examples=30)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(server: Server, text: str) -> None:
    tokens = post(server, "/tokenize", content=text)["tokens"]
    assert post(server, "/detokenize", tokens=tokens)["content"] == text


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_messages_as_the_model_sees_them(server: Server, tokenizer: Tokenizer, prefix: str) -> None:
    assert post(server, f"{prefix}/apply_template", messages=MESSAGES) == {"prompt": RENDERED}
    ids = tokenizer.encode(RENDERED, add_special_tokens=False).ids
    assert post(server, f"{prefix}/tokenize", messages=MESSAGES)["tokens"] == ids


def test_a_long_text(server: Server) -> None:
    text = "The quick brown fox. " * 3000
    tokens = post(server, "/tokenize", content=text)["tokens"]
    assert post(server, "/detokenize", tokens=tokens)["content"] == text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("tokenize", {}, "content"),
        ("tokenize", {"content": None}, "content"),
        ("tokenize", {"content": 5}, "content"),
        ("tokenize", {"content": "a", "messages": MESSAGES}, "content"),
        ("tokenize", {"messages": MESSAGES, "add_special": True}, "add_special"),
        ("tokenize", {"content": "a", "add_special": 1}, "add_special"),
        ("tokenize", {"messages": []}, "messages"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": "a"}, "tokens"),
        ("detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("detokenize", {"tokens": [2**40]}, "tokens[0]"),
        ("detokenize", {"tokens": [5, 100_000]}, "tokens"),
        ("apply_template", {}, "messages"),
        ("apply_template", {"messages": [{"role": "user"}]}, "messages[0].content"),
    ],
)
def test_what_is_wrong_is_named(server: Server, path: str, body: Any, param: str) -> None:
    error = check_shape(server.http.post(f"/v1/{path}", json=body), 400)
    assert error["param"] == param


@pytest.mark.parametrize("path", ["tokenize", "detokenize", "apply_template"])
def test_another_model(server: Server, path: str) -> None:
    body = {"model": "gpt-4", "content": "a", "tokens": [1], "messages": MESSAGES}
    assert check_shape(server.http.post(f"/{path}", json=body), 404)["code"] == "model_not_found"


# ---------------------------------------------------------------- models


def test_the_client_lists_and_finds_models(server: Server) -> None:
    assert [model.id for model in server.openai.models.list()] == [MODEL]
    assert server.openai.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize(
    "name", ["org/tiny", "org%2Ftiny", "org%2ftiny", "org/tiny/", "org%2Ftiny/", "default"]
)
def test_names_with_slashes(server: Server, name: str) -> None:
    assert server.http.get(f"/v1/models/{name}").json()["id"] == MODEL


@pytest.mark.parametrize("name", ["tiny", "org%252Ftiny", "org", "ORG/TINY", "org//tiny"])
def test_names_of_no_model(server: Server, name: str) -> None:
    assert check_shape(server.http.get(f"/v1/models/{name}"), 404)["code"] == "model_not_found"
