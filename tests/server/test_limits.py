"""Limits on what a request may look like: its JSON, its headers, its size, and the time it takes to come."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests import tiny_tokenizer
from tests.server.conftest import MODEL, Server, StartServer, body

from pomona.conversation.errors import InvalidRequestError
from pomona.server.limits import JsonLimits

LIMITS = JsonLimits(depth=4, items=10, values=1000)
CHAT = "/v1/chat/completions"


def code_of(data: bytes, limits: JsonLimits = LIMITS) -> str | None:
    try:
        limits.check(data)
    except InvalidRequestError as error:
        return error.code
    return None


# ---------------------------------------------------------------- JSON

NESTED = "[" * 4 + "]" * 4


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", None),
        ("1", None),
        ("{", None),
        ("]]]]]", None),
        ('"', None),
        (NESTED, None),
        (f"[{NESTED}]", "json_too_deep"),
        ('{"a":' * 5, "json_too_deep"),
        (json.dumps(["[" * 50]), None),
        (json.dumps(['"' + "[" * 50]), None),
        (json.dumps(["\\" + '"' + "[" * 50, "\\"]), None),
        ('["\\\\", [[[[1]]]]]', "json_too_deep"),
        ('["\\\\\\"", "[[[[["]', None),
        ("[" + "[]," * 900 + "[]]", "array_too_long"),
        (json.dumps([0] * 10), None),
        (json.dumps([0] * 11), "array_too_long"),
        (json.dumps([[0] * 10] * 10), None),
        (json.dumps([[0] * 10] * 9 + [[0] * 11]), "array_too_long"),
        (json.dumps({"a": {"b": [0] * 11}}), "array_too_long"),
        (json.dumps({str(i): 0 for i in range(11)}), "array_too_long"),
        (json.dumps([",,,,,,,,,,,,,,,,,,"]), None),
        ("[NaN]", "invalid_json"),
        ('{"a": -Infinity}', "invalid_json"),
        ('["NaN Infinity"]', None),
        ("[" * 3000, "too_many_values"),
        ('"' * 3000, "too_many_values"),
        (json.dumps([["a"] * 10] * 100), "too_many_values"),
    ],
)
def test_json(text: str, code: str | None) -> None:
    # The order of two faults in one text does not matter.
    found = code_of(text.encode())
    assert found == code or {found, code} <= {"json_too_deep", "too_many_values", "array_too_long"}


def test_bytes_that_are_no_text() -> None:
    for data in (b"\xff\xfe", bytes(range(256)), b'{"\xc3": [[[[[', b"\\" * 99, b'"\\'):
        assert code_of(data) in (None, "json_too_deep", "invalid_json")


def depth_of(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if items is None else 1 + max(map(depth_of, items), default=0)


def longest_of(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    items = value.values() if isinstance(value, dict) else value
    return max(len(value), *map(longest_of, items), 0)


def test_json_against_a_plain_walk() -> None:
    rng = random.Random(7)
    texts = ["", "a", '"', "\\", '\\"', "[", "]}", ",,,,,,,,,,,,,", "é\u2028", '{"', "\\\\"]

    def value(room: int) -> Any:
        kind = rng.random()
        if room and kind < 0.35:
            return [value(room - 1) for _ in range(rng.choice((0, 1, 2, 3, 9, 10, 11)))]
        if room and kind < 0.6:
            return {rng.choice(texts) + str(i): value(room - 1) for i in range(rng.choice((0, 1, 3, 11)))}
        return rng.choice([rng.choice(texts), 1, -2.5e10, True, None])

    seen = set()
    for _ in range(2000):
        sample = value(rng.randrange(6))
        text = json.dumps(sample, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 1)))
        found = code_of(text.encode(), JsonLimits(4, 10))
        expected = (
            "json_too_deep" if depth_of(sample) > 4 else "array_too_long" if longest_of(sample) > 10 else None
        )
        assert found == expected, text
        seen.add(found)
    assert len(seen) == 3


def test_the_checks_are_linear() -> None:
    """The worst bodies of 8 MB that were thought of; generous, because machines are busy."""
    size = 8_000_000
    limits = JsonLimits(64, 100_000)
    for unit in (b"[", b"[]", b"[],", b'"', b'"",', b"\\", b'\\"', b"[[[[]]]],", b"1,", b'{"":0},', b"x"):
        started = time.perf_counter()
        code_of(unit * (size // len(unit)), limits)
        assert time.perf_counter() - started < 3, unit


# ---------------------------------------------------------------- over HTTP


def refusal(reply: httpx.Response, status: int) -> str | None:
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["code"]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tiny_tokenizer.build(tmp_path_factory.mktemp("strict") / "tiny")
    server = Server(
        folder, max_json_depth=4, max_array_items=16, max_header_bytes=2048, receive_timeout_s=0.5
    )
    yield server
    assert "Traceback" not in server.terminate()[2]


def test_json_limits_of_a_server(strict: Server) -> None:
    with strict.http as client:
        deep = body("say hi", metadata={"a": {"b": {"c": {"d": 1}}}})
        assert refusal(client.post(CHAT, json=deep), 400) == "json_too_deep"
        long = body("say hi", unknown=list(range(17)))
        assert refusal(client.post(CHAT, json=long), 400) == "array_too_long"
        assert client.post(CHAT, json=body("say hi", unknown=list(range(16)))).status_code == 200


def test_a_large_body_is_checked_too(start_server: StartServer) -> None:
    server = start_server(max_body_bytes=4_000_000)
    data = json.dumps(body("say hi", unknown=[0] * 700_000)).encode()
    assert refusal(server.http.post(CHAT, content=data), 400) == "array_too_long"
    assert server.post("say hi", unknown="x" * 3_000_000).status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "zstd", "gzip, gzip"])
def test_compressed_bodies(server: Server, encoding: str) -> None:
    reply = server.http.post(CHAT, content=b"\x1f\x8b", headers={"content-encoding": encoding})
    assert refusal(reply, 415) == "unsupported_content_encoding"


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (None, 200),
        ("", 200),
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ('APPLICATION/JSON;charset="UTF-8"', 200),
        ("text/plain", 200),
        ("application/x-www-form-urlencoded", 200),
        ("nonsense", 200),
        ("application/json; charset=latin-1", 415),
        ("application/json; charset=utf-16", 415),
        ("application/json; charset=" + "x" * 500, 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
def test_content_types(server: Server, content_type: str | None, status: int) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    reply = server.http.post(CHAT, content=json.dumps(body("say hi")), headers=headers)
    assert reply.status_code == status
    if status == 415:
        assert refusal(reply, status) == "unsupported_content_type"


def test_headers_up_to_their_limit(server: Server, strict: Server) -> None:
    # More than the framework's own limit.
    assert server.http.get("/v1/models", headers={"x-long": "x" * 30_000}).status_code == 200
    for count in (1_000, 40_000, 900_000):
        for target in (server, strict)[count < 40_000 :]:
            headers = {f"x-{i}": "x" * 500 for i in range(count // 500 + 2)}
            reply = target.http.get("/v1/models", headers=headers)
            assert refusal(reply, 431) == "headers_too_large"


@pytest.mark.parametrize("size", [100_001, 5_000_000])
def test_bodies_beyond_their_limit(server: Server, size: int) -> None:
    with server.http as client:
        data = b" " * size
        assert refusal(client.post(CHAT, content=data), 413) == "request_too_large"
        chunks = (data[i : i + 60_000] for i in range(0, size, 60_000))
        assert refusal(client.post(CHAT, content=chunks), 413) == "request_too_large"
        # The connection is as good as before.
        assert client.get("/v1/models").status_code == 200


# ---------------------------------------------------------------- raw bytes


def talk(server: Server, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Everything the server says until it closes."""
    url = httpx.URL(server.root)
    with socket.create_connection((url.host, url.port or 0), timeout=20) as sock:
        for part in parts:
            try:
                sock.sendall(part)
            except OSError:  # it has closed already
                break
            if pause_s:
                time.sleep(pause_s)
        try:
            return b"".join(iter(lambda: sock.recv(65536), b""))
        except ConnectionError:
            return b""


def head(*lines: str, method: str = "POST", path: str = CHAT, version: str = "1.1") -> bytes:
    text = "\r\n".join((f"{method} {path} HTTP/{version}", "Host: localhost", *lines, "", ""))
    return text.encode()


def status_of(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


def test_told_in_time_a_large_body_is_not_sent(server: Server) -> None:
    reply = talk(server, head("Content-Length: 1000000", "Expect: 100-continue", "Connection: close"))
    assert status_of(reply) == 413
    assert b"100 Continue" not in reply


def test_expect_continue(server: Server) -> None:
    data = json.dumps(body("say hi")).encode()
    lines = (f"Content-Length: {len(data)}", "Expect: 100-continue", "Connection: close")
    reply = talk(server, head(*lines) + data)
    assert b"100 Continue" in reply
    assert b" 200 OK" in reply


def test_a_head_that_trickles_in(strict: Server) -> None:
    started = time.monotonic()
    reply = talk(strict, *(b"GET / HTTP/1.1\r\n", *(b"x" for _ in range(100))), pause_s=0.05)
    assert status_of(reply) == 408 or not reply
    assert time.monotonic() - started < 6


@pytest.mark.parametrize("part", [b"", b'{"model": '])
def test_a_body_that_stops(strict: Server, part: bytes) -> None:
    reply = talk(strict, head("Content-Length: 1000"), part)
    assert status_of(reply) == 408
    assert b'"code":"timeout"' in reply


def test_a_chunked_body_that_stops(strict: Server) -> None:
    reply = talk(strict, head("Transfer-Encoding: chunked"), b"5\r\nab")
    assert status_of(reply) == 408


@pytest.mark.parametrize("chunks", [b"x\r\nabc\r\n", b"-1\r\n\r\n", b"5;" + b"x" * 200])
def test_broken_chunks(server: Server, chunks: bytes) -> None:
    reply = talk(server, head("Transfer-Encoding: chunked", "Connection: close"), chunks)
    assert status_of(reply) == 400


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    requests = []
    for text in ("one", "two", "three"):
        data = json.dumps(body(f"say {text}")).encode()
        requests.append(head(f"Content-Length: {len(data)}") + data)
    requests.append(head("Connection: close", method="GET", path="/nothing"))
    reply = talk(server, b"".join(requests))
    assert reply.count(b" 200 OK\r\n") == 3
    assert reply.index(b'"one"') < reply.index(b'"two"') < reply.index(b'"three"') < reply.index(b" 404 ")


def test_http_1_0(server: Server) -> None:
    data = json.dumps(body("say hi")).encode()
    reply = talk(server, head(f"Content-Length: {len(data)}", version="1.0") + data)
    assert status_of(reply) == 200
    assert MODEL.encode() in reply
    assert status_of(talk(server, b"GET /v1/models HTTP/1.0\r\n\r\n")) == 200


@pytest.mark.parametrize(
    "data",
    [
        b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        head("Content-Length: -1"),
        head("Content-Length: 1e3"),
        head("Content-Length: " + "9" * 5000),
        head("Content-Length: 5", "Content-Length: 6"),
        head("Content-Length: 5", "Transfer-Encoding: chunked"),
        head("no colon here"),
        head(method="GET /x"),
        b"\x00" * 100 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        "GET /é HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
    ],
)
def test_heads_that_are_refused(server: Server, data: bytes) -> None:
    reply = talk(server, data.replace(b"Host: localhost\r\n", b"Host: localhost\r\nConnection: close\r\n", 1))
    assert status_of(reply) == 400
    assert b"x-request-id: req_" in reply
    assert b'"error":{"message":' in reply
