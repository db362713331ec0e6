"""The time that a client, or the server, gives a request."""

import json
from typing import Any

import httpx
import pytest
from tests.server.conftest import MODEL, Server, StartServer, body
from tests.server.test_errors import check_shape

CHAT = "/v1/chat/completions"


def post(server: Server, content: str, timeout: str, **fields: Any) -> httpx.Response:
    return server.http.post(CHAT, json=body(content, **fields), headers={"x-request-timeout": timeout})


@pytest.mark.parametrize("command", ["hang", "begin hello"])
def test_a_collected_reply_that_takes_too_long(server: Server, command: str) -> None:
    reply = post(server, command, "0.2")
    assert check_shape(reply, 408)["code"] == "request_timeout"
    assert reply.headers["x-should-retry"] == "false"
    assert server.post("await-cancel").json()["choices"][0]["message"]["content"] == "cancelled"


def test_a_streamed_reply_that_takes_too_long(server: Server) -> None:
    reply = post(server, "begin hello", "0.2", stream=True)
    assert reply.status_code == 200
    *_, text, error = [line for line in reply.text.split("\n\n") if line.startswith("data: ")]
    assert "finish_reason" in text
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "request_timeout"
    assert server.post("await-cancel").json()["choices"][0]["message"]["content"] == "cancelled"


def test_completions_have_deadlines_too(server: Server) -> None:
    fields = {"model": MODEL, "prompt": "hang"}
    reply = server.http.post("/v1/completions", json=fields, headers={"x-request-timeout": "0.2"})
    assert check_shape(reply, 408)["code"] == "request_timeout"
    server.post("await-cancel")


def test_enough_time(server: Server) -> None:
    assert post(server, "say hi", "30").json()["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize("timeout", ["0", "-1", "soon", "nan", "inf", "", "1e999"])
def test_what_is_no_time(server: Server, timeout: str) -> None:
    error = check_shape(post(server, "say hi", timeout), 400)
    assert (error["param"], error["code"]) == ("x-request-timeout", "invalid_value")


def test_the_setting_limits_every_request(start_server: StartServer) -> None:
    server = start_server(request_timeout_s=0.2)
    assert check_shape(server.post("hang"), 408)["code"] == "request_timeout"
    assert check_shape(post(server, "hang", "30"), 408)["code"] == "request_timeout"
