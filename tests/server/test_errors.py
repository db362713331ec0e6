"""Everything that goes wrong has the API's shape, and the server goes on."""

import json
import socket
from typing import Any

import httpx
import pytest
from tests.server.conftest import MODEL, Server

USER = [{"role": "user", "content": "say hi"}]
OK = {"model": MODEL, "messages": USER}


def with_message(**message: Any) -> dict[str, Any]:
    return OK | {"messages": [message]}


def with_part(part: Any) -> dict[str, Any]:
    return with_message(role="user", content=[part])


def check_shape(reply: httpx.Response, status: int) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["x-request-id"]
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) > 5
    return dict(error)


# Fields of both generation endpoints. The tiny model has 512 tokens.
SAMPLING: list[tuple[dict[str, Any], str, str]] = [
    *(({"n": value}, "invalid_value", "n") for value in (0, -1, 129, 10**30)),
    *(({"n": value}, "invalid_type", "n") for value in (1.5, "1", True)),
    *(({"top_k": value}, "invalid_value", "top_k") for value in (-2, 2**31, 10**30)),
    ({"top_k": 0.5}, "invalid_type", "top_k"),
    *(({"min_p": value}, "invalid_value", "min_p") for value in (-0.01, 1.01, 1e300)),
    *(({"repetition_penalty": value}, "invalid_value", "repetition_penalty") for value in (0, -1, 11)),
    *(({"presence_penalty": value}, "invalid_value", "presence_penalty") for value in (-2.1, 2.1)),
    *(({"frequency_penalty": value}, "invalid_value", "frequency_penalty") for value in (-2.1, 2.1)),
    ({"frequency_penalty": True}, "invalid_type", "frequency_penalty"),
    *(({"logit_bias": {"5": value}}, "invalid_value", "logit_bias") for value in (-100.5, 101, 1e300)),
    *(({"logit_bias": {"5": value}}, "invalid_type", "logit_bias") for value in ("1", None, True, [1])),
    *(
        ({"logit_bias": {key: 1}}, "invalid_value", "logit_bias")
        for key in ("x", "-1", "1.0", "", "512", "٣")
    ),
    ({"logit_bias": {"9" * 5000: 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": [5]}, "invalid_type", "logit_bias"),
    *(({"stop": value}, "invalid_value", "stop") for value in ("", ["a", ""], ["a"] * 5, "x" * 5000)),
    *(({"stop": value}, "invalid_type", "stop") for value in (5, {"a": 1}, ["a", 5], [["a"]], True)),
    ({"stop_token_ids": [-1]}, "invalid_value", "stop_token_ids[0]"),
    ({"stop_token_ids": [512]}, "invalid_value", "stop_token_ids"),
    ({"stop_token_ids": 5}, "invalid_type", "stop_token_ids"),
    ({"ignore_eos": 1}, "invalid_type", "ignore_eos"),
    ({"min_tokens": -1}, "invalid_value", "min_tokens"),
    ({"min_tokens": 3, "max_tokens": 2}, "invalid_value", "min_tokens"),
]
LOGPROBS: list[tuple[dict[str, Any], str, str]] = [
    ({"logprobs": 1}, "invalid_type", "logprobs"),
    ({"top_logprobs": 1}, "invalid_value", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "invalid_value", "top_logprobs"),
]

# body, code, param
MALFORMED: list[tuple[Any, str | None, str | None]] = [
    (b"", "invalid_json", None),
    (b"{", "invalid_json", None),
    (b"{'model': 1}", "invalid_json", None),
    (b"\xff\xfe", "invalid_json", None),
    (b'{"model": "\xff"}', "invalid_json", None),
    (b'{"model": "\\ud800"}', "invalid_json", None),
    (b'{"a": ' * 3000, "json_too_deep", None),
    (b"null", "invalid_type", None),
    (b"[]", "invalid_type", None),
    (b'"text"', "invalid_type", None),
    (b"12", "invalid_type", None),
    ({}, "missing_required_parameter", "model"),
    ({"model": MODEL}, "missing_required_parameter", "messages"),
    ({"messages": USER}, "missing_required_parameter", "model"),
    (OK | {"model": None}, "invalid_type", "model"),
    (OK | {"model": 7}, "invalid_type", "model"),
    (OK | {"messages": None}, "invalid_type", "messages"),
    (OK | {"messages": "hi"}, "invalid_type", "messages"),
    (OK | {"messages": {}}, "invalid_type", "messages"),
    (OK | {"messages": []}, "invalid_value", "messages"),
    (OK | {"messages": ["hi"]}, "invalid_type", "messages[0]"),
    (OK | {"messages": [*USER, None]}, "invalid_type", "messages[1]"),
    (with_message(content="hi"), "missing_required_parameter", "messages[0].role"),
    (with_message(role="robot", content="hi"), "invalid_value", "messages[0].role"),
    (with_message(role=None, content="hi"), "invalid_value", "messages[0].role"),
    (with_message(role="user"), "missing_required_parameter", "messages[0].content"),
    (with_message(role="user", content=None), "missing_required_parameter", "messages[0].content"),
    (with_message(role="assistant", content=None), "missing_required_parameter", "messages[0].content"),
    (with_message(role="user", content=5), "invalid_type", "messages[0].content"),
    (with_message(role="user", content={}), "invalid_type", "messages[0].content"),
    (with_part("hi"), "invalid_value", "messages[0].content[0]"),
    (with_part({}), "invalid_value", "messages[0].content[0]"),
    (with_part({"type": "poem", "text": "x"}), "invalid_value", "messages[0].content[0]"),
    (with_part({"type": "text"}), "invalid_type", "messages[0].content[0].text"),
    (with_part({"type": "text", "text": 5}), "invalid_type", "messages[0].content[0].text"),
    (with_part({"type": ["text"]}), "invalid_value", "messages[0].content[0]"),
    (with_part({"type": "image_url"}), "unsupported_parameter", "messages[0].content[0]"),
    (with_part({"type": "input_audio"}), "unsupported_parameter", "messages[0].content[0]"),
    (with_part({"type": "file"}), "unsupported_parameter", "messages[0].content[0]"),
    (with_message(role="function", content="hi", name="f"), "unsupported_parameter", "messages[0].role"),
    (
        with_message(role="assistant", content="", tool_calls=[{}]),
        "unsupported_parameter",
        "messages[0].tool_calls",
    ),
    (OK | {"temperature": -0.1}, "invalid_value", "temperature"),
    (OK | {"temperature": 2.1}, "invalid_value", "temperature"),
    (OK | {"temperature": "1"}, "invalid_type", "temperature"),
    (OK | {"temperature": True}, "invalid_type", "temperature"),
    (b'{"model": "m", "messages": [{"role": "user"}], "temperature": NaN}', "invalid_json", None),
    (OK | {"top_p": -0.1}, "invalid_value", "top_p"),
    (OK | {"top_p": 1.5}, "invalid_value", "top_p"),
    (OK | {"max_tokens": 0}, "invalid_value", "max_tokens"),
    (OK | {"max_tokens": -5}, "invalid_value", "max_tokens"),
    (OK | {"max_tokens": 1.5}, "invalid_type", "max_tokens"),
    (OK | {"max_tokens": "10"}, "invalid_type", "max_tokens"),
    (OK | {"max_completion_tokens": 0}, "invalid_value", "max_completion_tokens"),
    (OK | {"seed": 1.5}, "invalid_type", "seed"),
    (OK | {"seed": 2**63}, "invalid_value", "seed"),
    (OK | {"seed": 2**200}, "invalid_value", "seed"),
    (OK | {"stream": "yes"}, "invalid_type", "stream"),
    (OK | {"stream": 1}, "invalid_type", "stream"),
    (OK | {"stream": False, "stream_options": {}}, "invalid_value", "stream_options"),
    (OK | {"stream": True, "stream_options": []}, "invalid_type", "stream_options"),
    (
        OK | {"stream": True, "stream_options": {"include_usage": 1}},
        "invalid_type",
        "stream_options.include_usage",
    ),
    (OK | {"tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
    (OK | {"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
    *((OK | fields, code, param) for fields, code, param in SAMPLING + LOGPROBS),
]


@pytest.mark.parametrize("stream", [False, True])
def test_malformed_bodies(server: Server, stream: bool) -> None:
    assert len(MALFORMED) >= 40
    with server.http as client:
        for content, code, param in MALFORMED:
            if isinstance(content, dict):
                content = json.dumps({"stream": stream} | content).encode()
            error = check_shape(client.post("/v1/chat/completions", content=content), 400)
            assert (error["code"], error["param"]) == (code, param), content[:100]
            assert error["type"] == "invalid_request_error"
        assert client.post("/v1/chat/completions", json=OK).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/v1", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("PUT", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/other/model", 404, "model_not_found"),
        ("GET", "/v1/models/%ff", 404, "model_not_found"),
    ],
)
def test_routes_and_methods(server: Server, method: str, path: str, status: int, code: str) -> None:
    assert check_shape(server.http.request(method, path), status)["code"] == code


def test_a_body_that_is_too_large(server: Server) -> None:
    reply = server.http.post("/v1/chat/completions", content=b"x" * 100_001)
    error = check_shape(reply, 413)
    assert error["code"] == "request_too_large"
    assert "100,000 bytes" in error["message"]


@pytest.mark.parametrize(
    "data", [b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"]
)
def test_bytes_that_are_not_http(server: Server, data: bytes) -> None:
    url = httpx.URL(server.root)
    with socket.create_connection((url.host, url.port or 0), timeout=30) as sock:
        sock.sendall(data)
        reply = b"".join(iter(lambda: sock.recv(4096), b""))
    head, _, content = reply.partition(b"\r\n\r\n")
    assert b" 400 " in head.partition(b"\r\n")[0]
    assert b"x-request-id: req_" in head
    assert json.loads(content)["error"]["type"] == "invalid_request_error"


def test_a_harmless_client_id_comes_back(server: Server) -> None:
    headers = {"x-request-id": "trace-1:2.3"}
    assert server.http.get("/v1/models", headers=headers).headers["x-request-id"] == "trace-1:2.3"
    headers = {"x-request-id": "a b" * 100}
    assert server.http.get("/v1/models", headers=headers).headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("path", ["/", "/api/hello", "/health/live", "/health/ready", "/health"])
def test_probes(server: Server, path: str) -> None:
    assert server.http.head(path).status_code == 200
    assert server.http.head(path).content == b""
    assert server.http.get(path).json()


def test_models(server: Server) -> None:
    listed = server.openai.models.list()
    assert [model.id for model in listed] == [MODEL]
    assert server.openai.models.retrieve(MODEL) == listed.data[0]
    for path in ("/v1/models/org/tiny", "/v1/models/org%2Ftiny", "/v1/models/org/tiny/"):
        assert server.http.get(path).json()["id"] == MODEL
    for path in ("/v1/models/", "/v1/models?limit=1000"):
        assert server.http.get(path).json()["object"] == "list"
