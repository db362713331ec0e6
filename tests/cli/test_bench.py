"""`pomona bench` against a real server, and against one that does what other servers do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import command
from tests.e2e.server import serve

from pomona.cli.bench.measure import Sample, decode_tokens_per_s
from pomona.cli.bench.prompts import Prompts
from pomona.cli.bench.report import spread
from pomona.cli.client import Usage, parse_line
from pomona.cli.errors import CommandError

DELAY_S = 0.02


def test_a_real_server_against_itself(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    with serve(tiny_model("llama")) as server:
        child = command(
            *("bench", "--url", server.url, "--vs", server.url, "--prompt-tokens", "512"),
            *("--max-tokens", "24", "--streams", "1,4", "--json", str(out)),
        )
    assert (child.returncode, child.stderr) == (0, "")
    for words in ("ttft cold, ms", "decode x4, tokens/s", "A is faster by", "cores"):
        assert words in child.stdout
    found = json.loads(out.read_text())
    assert [side["name"] for side in found["sides"]] == ["A", "B"]
    prompts = set()
    for side in found["sides"]:
        assert side["failures"] == []
        assert len(side["rounds"]) == 5
        for name in ("ttft cold", "ttft warm", "prefill"):
            assert side["figures"][name]["count"] == 5
            assert side["figures"][name]["min"] > 0
        for round_ in side["rounds"]:
            (cold,), (warm,) = round_["samples"]["ttft cold"], round_["samples"]["ttft warm"]
            # The cold prompt is new, the warm one is known to its last token, and greedy answers agree.
            assert cold["usage"]["cached_tokens"] < 64
            assert warm["usage"]["cached_tokens"] == warm["usage"]["prompt_tokens"] - 1
            assert cold["digest"] == warm["digest"]
            assert 256 < cold["usage"]["prompt_tokens"] < 1024
            assert len(round_["samples"]["decode x4"]) == 4
            prompts |= {sample["digest"] for samples in round_["samples"].values() for sample in samples}
    assert len(prompts) > 10
    assert found["speedup_of_a"]["ttft warm"]["count"] == 5
    assert found["machine"]["cores"]


class OtherServer(BaseHTTPRequestHandler):
    """Refuses unknown fields, sends a role frame and a comment at once and tokens after a while."""

    usage: Any = None

    def do_GET(self) -> None:
        self._reply(200, {"data": [{"id": "other"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "ignore_eos" in body:
            self._reply(400, {"error": {"message": "unknown field"}})
            return
        self.send_response(200)
        self.end_headers()
        self._send(": keep-alive")
        self._event({"role": "assistant", "content": ""})
        for word in ("a ", "b ", "c ", "d"):
            time.sleep(DELAY_S)
            self._event({"content": word})
        self._event({}, finish_reason="length")
        usage = {"prompt_tokens": 100, "completion_tokens": 4} if self.usage is None else self.usage
        self._send("data: " + json.dumps({"choices": [], "usage": usage or None}))
        self._send("data: [DONE]")

    def _event(self, delta: dict[str, str], finish_reason: str | None = None) -> None:
        self._send("data: " + json.dumps({"choices": [{"delta": delta, "finish_reason": finish_reason}]}))

    def _send(self, line: str) -> None:
        self.wfile.write(f"{line}\n\n".encode())
        self.wfile.flush()

    def _reply(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def other_server(**attributes: Any) -> Iterator[str]:
    handler = type("Handler", (OtherServer,), attributes)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_only_visible_deltas_count() -> None:
    with other_server() as url:
        child = command("bench", "--url", url, "--streams", "1,2", "--json", "-")
    assert child.returncode == 0
    assert "not said" in child.stderr
    found = json.loads(child.stdout)
    (side,) = found["sides"]
    assert side["model"] == "other"
    assert side["fields"] == {}
    # Four tokens, one every DELAY_S: the role frame and the comment came before.
    assert side["figures"]["ttft cold"]["min"] >= DELAY_S
    assert side["figures"]["decode x1"]["max"] <= 3 / (3 * DELAY_S) * 1.1
    assert "speedup_of_a" not in found


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--url", "http://127.0.0.1:1"], 1, "No server answers at http://127.0.0.1:1/v1"),
        (["--rounds", "2"], 2, "5"),
        (["--streams", "1,x"], 2, "such as 1,4,8"),
        (["--streams", "65"], 2, "from 1 to 64"),
    ],
)
def test_errors_are_a_sentence(arguments: list[str], status: int, words: str) -> None:
    child = command("bench", *arguments)
    assert child.returncode == status
    assert words in child.stderr
    assert "Traceback" not in child.stderr


def test_a_server_that_does_not_count_is_not_measured() -> None:
    with other_server(usage={}) as url:
        child = command("bench", "--url", url)
    assert child.returncode == 1
    assert "counts no tokens" in child.stderr


def sample(first: float, last: float, tokens: int, pieces: int = 10) -> Sample:
    return Sample(0.0, first, last, last, pieces, Usage(1, tokens, None), "stop", "")


def test_decoding_in_company_is_one_rate() -> None:
    assert decode_tokens_per_s([sample(1.0, 3.0, 21)]) == 10.0
    assert decode_tokens_per_s([sample(1.0, 3.0, 21), sample(2.0, 5.0, 21)]) == 10.0
    assert decode_tokens_per_s([sample(1.0, 1.0001, 21, pieces=1)]) is None


def test_prompts_are_unique_and_get_the_wished_length() -> None:
    prompts = Prompts(1)
    made = [prompts.make(100) for _ in range(50)]
    assert len({prompt[:16] for prompt in made}) == 50
    assert [Prompts(1).make(100)] == made[:1]
    before = len(prompts.make(100))
    prompts.calibrate(100, 200)
    assert len(prompts.make(100)) < 0.7 * before


def test_spread() -> None:
    assert spread([]) is None
    assert spread([2.0]) == {"median": 2.0, "p25": 2.0, "p75": 2.0, "min": 2.0, "max": 2.0, "count": 1}
    figures = spread([5.0, 1.0, 3.0, 2.0, 4.0])
    assert figures is not None
    assert (figures["p25"], figures["median"], figures["p75"]) == (2.0, 3.0, 4.0)


def test_lines_of_streams() -> None:
    assert parse_line(": keep-alive") is None
    assert parse_line("") is None
    assert parse_line("event: ping") is None
    assert parse_line("data: [DONE]") is None
    delta = parse_line('data: {"choices":[{"delta":{"reasoning":"hm"}}],"usage":null}')
    assert delta is not None
    assert (delta.text, delta.reasoning, delta.usage) == ("", "hm", None)
    with pytest.raises(CommandError, match="ended the answer: worker lost"):
        parse_line('data: {"error": {"message": "worker lost"}}')
    with pytest.raises(CommandError, match="not an OpenAI-compatible server"):
        parse_line("data: <html>")
