"""Start, loss of the worker, and end of a server process."""

import signal
import socket

import openai
import pytest
from tests.server.conftest import MODEL, StartServer, body, streamed_text


def test_one_ready_line_with_an_address_and_a_curl(start_server: StartServer) -> None:
    server = start_server()
    assert server.ready_line.startswith(f"Ready: {MODEL} at http://127.0.0.1:")
    assert f"curl {server.root}/v1/chat/completions" in server.ready_line
    assert server.http.get("/health/ready").json()["status"] == "ready"
    status, out, err = server.terminate()
    assert (status, out) == (0, "")
    assert err == f"Loading {MODEL} ...\n"


def test_a_model_that_does_not_load(start_server: StartServer) -> None:
    server = start_server("load-failed")
    assert server.ready_line == ""
    status, _, err = server.end()
    assert status == 1
    assert err.splitlines()[-1] == "pomona: the weights are not there"


def test_a_port_in_use(start_server: StartServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = start_server(port=taken.getsockname()[1])
        status, _, err = server.end()
    assert status == 1
    assert "Cannot listen on 127.0.0.1" in err


def test_a_lost_worker(start_server: StartServer) -> None:
    server = start_server()
    stream = server.openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "begin hello"}], stream=True
    )
    assert next(stream).choices[0].delta.role == "assistant"
    reply = server.post("die")
    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "5"
    with pytest.raises(openai.APIError, match="ended with status 7"):
        list(stream)
    assert "status 7" in server.await_not_ready()["reason"]
    assert server.http.get("/health/live").status_code == 200
    assert server.post("say hi").json()["error"]["code"] == "unavailable"
    assert server.terminate()[0] == 0


def test_running_answers_end_before_the_server(start_server: StartServer) -> None:
    server = start_server()
    with (
        server.http as client,
        client.stream("POST", "/v1/chat/completions", json=body("await-file go", stream=True)) as reply,
    ):
        lines = reply.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        assert server.await_not_ready()["reason"] == "The server is shutting down."
        refused = server.post("say hi")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        (server.folder / "go").touch()
        assert streamed_text(lines) == "found"
    status, out, _ = server.end()
    assert (status, out) == (0, "")


def test_answers_that_do_not_end_are_cut_with_an_error(start_server: StartServer) -> None:
    server = start_server(shutdown_grace_s=0.0)
    with (
        server.http as client,
        client.stream("POST", "/v1/chat/completions", json=body("begin hello", stream=True)) as reply,
    ):
        lines = reply.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGINT)
        events = [line for line in lines if line.startswith("data: ")]
    assert '"error"' in events[-1]
    assert server.end()[0] == 0


def test_a_second_signal_ends_at_once(start_server: StartServer) -> None:
    server = start_server()
    with server.connect("hang", stream=True) as sock:
        sock.recv(1)
        server.process.send_signal(signal.SIGINT)
        server.await_not_ready()
        server.process.send_signal(signal.SIGINT)
        status, _, _ = server.end()
    assert status == 128 + signal.SIGINT
