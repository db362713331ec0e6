"""What a server writes to stderr: one line for each request at its end, and no text of a prompt unasked."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import httpx
import pytest
from tests.server.conftest import MODEL, Server, StartServer, body

from pomona.link.messages import FinishReason, RowUpdate
from pomona.link.trace import RequestTrace

JSON_LOG = {"log_level": "debug", "log_format": "json"}
SECRET = "xylophone"


def lines_of(server: Server) -> list[dict[str, Any]]:
    """The log of a server that is then stopped."""
    status, _, err = server.terminate()
    assert status == 0
    return [json.loads(line) for line in err.splitlines() if not line.startswith("Loading ")]


def requests_of(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The last lines of requests, by request id."""
    return {line["request_id"]: line for line in lines if line["logger"] == "pomona.server.logs"}


def test_one_line_for_each_request(start_server: StartServer) -> None:
    server = start_server(worker=JSON_LOG)

    def ask(name: str, content: str, **fields: Any) -> None:
        reply = server.http.post(
            "/v1/chat/completions", json=body(content, **fields), headers={"x-request-id": name}
        )
        assert reply.headers["x-request-id"] == name

    ask("whole", "say one two")
    ask("stream", "say one two", stream=True)
    ask("failing", "fail")
    ask("wrong", "say x", max_tokens=-1)
    sock = server.connect("hang")
    while server.http.get("/health/ready").json().get("running") != 1:
        pass
    sock.close()
    assert server.post("await-cancel").status_code == 200
    server.http.get("/nowhere?key=hidden", headers={"x-request-id": "nowhere"})
    requests = requests_of(lines_of(server))

    whole = requests["whole"]
    assert whole["level"] == "info"
    assert (whole["method"], whole["path"], whole["status"]) == ("POST", "/v1/chat/completions", 200)
    assert whole["model"] == MODEL
    assert whole["prompt_tokens"] > whole["cached_tokens"] == 3
    assert whole["completion_tokens"] > 0
    assert 0 <= whole["queue_s"] <= whole["first_token_s"] <= whole["total_s"]
    assert whole["finish"] == "stop"
    same = ("status", "prompt_tokens", "completion_tokens", "finish")
    assert [requests["stream"][name] for name in same] == [whole[name] for name in same]
    failing = requests["failing"]
    assert (failing["level"], failing["status"], failing["finish"]) == ("warning", 500, "error")
    assert failing["error"] == "the model broke"
    assert requests["wrong"]["status"] == 400
    assert "rows" not in requests["wrong"]
    assert requests["nowhere"]["path"] == "/nowhere"
    (gone,) = [line for line in requests.values() if line.get("disconnected")]
    assert (gone["status"], gone["finish"], gone["completion_tokens"]) == (499, "closed", 0)
    probes = [line for line in requests.values() if line["path"] == "/health/ready"]
    assert {line["level"] for line in probes} == {"debug"}


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_text_of_a_prompt_unasked(start_server: StartServer, log_format: str) -> None:
    server = start_server(worker={"log_level": "debug", "log_format": log_format})
    assert SECRET in server.post(f"say {SECRET}").text
    assert server.post(f"say {SECRET}", stream=True).status_code == 200
    assert server.post("fail " + SECRET).status_code == 500
    assert server.post(f"{SECRET} " * 2000).status_code == 400
    assert server.post(SECRET, temperature="x").status_code == 400
    assert server.http.get("/v1/models", params={"q": SECRET}).status_code == 200
    assert server.http.post("/v1/chat/completions", content=f'{{"messages": "{SECRET}').status_code == 400
    assert server.post("die " + SECRET).status_code == 503
    status, _, err = server.terminate()
    assert status == 0
    assert "/v1/models" in err
    assert SECRET not in err


def test_prompts_and_answers_when_asked_for(start_server: StartServer) -> None:
    server = start_server(worker=JSON_LOG, log_prompts=True)
    server.post(f"say {SECRET}")
    (line,) = requests_of(lines_of(server)).values()
    assert json.loads(line["body"]) == body(f"say {SECRET}")
    assert line["answers"] == [SECRET]


def test_a_line_for_people(start_server: StartServer) -> None:
    server = start_server(worker={"log_level": "info"})
    server.post("say one two")
    server.http.get("/a%0Ab%7F")
    url = httpx.URL(server.root)
    with socket.create_connection((url.host, url.port or 0), timeout=30) as sock:
        sock.sendall(b"GET\nforged\x1b[2J / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while sock.recv(4096):
            pass
    _, _, err = server.terminate()
    pattern = (
        r"^[\d-]+ [\d:,]+ INFO pomona\.server\.logs: request req_\w+ POST /v1/chat/completions: "
        r"status=200 .*prompt_tokens=\d+ .*finish=stop"
    )
    assert re.search(pattern, err, re.MULTILINE)
    assert all(re.match(r"[\d-]+ [\d:,]+ [A-Z]+ |Loading ", line) for line in err.splitlines())
    assert "\x1b" not in err


def test_only_what_went_wrong_by_default(start_server: StartServer) -> None:
    server = start_server()
    server.post("say one two")
    server.post("fail")
    _, _, err = server.terminate()
    assert "status=500" in err
    assert "status=200" not in err


def test_the_output_of_a_worker_is_passed_on(start_server: StartServer) -> None:
    server = start_server("traceback")
    status, _, err = server.end()
    assert status == 1
    assert re.search(r"pomona\.worker\.output: worker \d+: ValueError: broken at once", err)
    assert err.splitlines()[-1] == "pomona: The model's worker process ended with status 1."


def test_the_tokens_of_an_answer_are_not_kept_unasked() -> None:
    row = RequestTrace("a").row(10)
    row.take(RowUpdate(1, prompt_done=10, cached_tokens=12))
    row.take(RowUpdate(1, tokens=[1, 2], finish=FinishReason.LENGTH))
    assert (row.cached_tokens, row.new_tokens, row.tokens, row.finish) == (10, 2, [], "length")
