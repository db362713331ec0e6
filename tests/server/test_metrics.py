"""What /metrics says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests import tiny_tokenizer
from tests.server.conftest import Server, StartServer, body
from tests.server.scripted_worker import CACHED_TOKENS, INFO

from pomona.conversation.errors import WorkerLostError
from pomona.link.client import RowStream
from pomona.link.messages import FinishReason, RowUpdate, Sampling, Submit
from pomona.server.metrics import Metrics, Worker

Samples = dict[str, float]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

# All of docs/metrics.md, without what histograms add to their names.
NAMES = {
    *("requests_total", "rows_ended_total", "prompt_tokens_total", "prompt_tokens_cached_total"),
    *("completion_tokens_total", "time_to_first_token_seconds", "inter_token_seconds", "queue_seconds"),
    *("row_seconds", "info", "ready", "worker_restarts_total", "rows", "pool_blocks"),
    *("pool_blocks_capacity", "engine_idle_seconds", "steps_total", "prefill_tokens_total"),
    *("decode_tokens_total", "parked_total"),
}


def samples(text: str) -> Samples:
    """By name and labels, as Prometheus writes them."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def scrape(server: Server) -> Samples:
    reply = server.http.get("/metrics")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return samples(reply.text)


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Samples, str]]:
    """Figures after some use, and the text they were read from."""
    server = Server(tiny_tokenizer.build(tmp_path_factory.mktemp("metrics") / "tiny"))
    for stream in (False, True):
        assert server.post("say hello", stream=stream).status_code == 200
    assert server.post("say hello", max_tokens=1).status_code == 200
    assert server.post("fail").status_code == 500
    assert server.post("say hi", temperature=99).status_code == 400
    for path in ("/nothing/1", "/nothing/2", "/v1/models/org/tiny", "/v1/models/other"):
        server.http.get(path)
    server.http.request("BREW", "/v1/models")
    yield scrape(server), server.http.get("/metrics").text
    server.terminate()


def test_requests_by_route_and_status(used: tuple[Samples, str]) -> None:
    counted = used[0]

    def of(route: str, method: str, status: int) -> float:
        return counted[f"pomona_requests_total{{method={method},route={route},status={status}}}"]

    assert of("/v1/chat/completions", "POST", 200) == 3
    assert of("/v1/chat/completions", "POST", 500) == 1
    assert of("/v1/chat/completions", "POST", 400) == 1
    assert of("none", "GET", 404) == 2
    assert of("none", "other", 405) == 1
    route = "/v1/models/<name:path>"
    assert (of(route, "GET", 200), of(route, "GET", 404)) == (1, 1)


def test_rows_and_tokens(used: tuple[Samples, str]) -> None:
    counted = used[0]
    ended = {
        reason: counted.get(f"pomona_rows_ended_total{{finish={reason}}}")
        for reason in ("stop", "length", "error", "closed")
    }
    assert ended == {"stop": 2, "length": 1, "error": 1, "closed": None}
    assert counted["pomona_prompt_tokens_cached_total"] == 3 * CACHED_TOKENS
    assert counted["pomona_prompt_tokens_total"] > 3 * CACHED_TOKENS
    tokens = counted["pomona_completion_tokens_total"]
    assert tokens > 3
    assert counted["pomona_time_to_first_token_seconds_count"] == 3
    assert counted["pomona_inter_token_seconds_count"] == tokens - 3
    assert counted["pomona_queue_seconds_count"] == 3
    assert counted["pomona_row_seconds_count"] == 4


def test_the_worker(used: tuple[Samples, str]) -> None:
    counted = used[0]
    assert counted["pomona_ready"] == 1
    assert counted["pomona_worker_restarts_total"] == 0
    assert counted["pomona_rows{state=running}"] == 0
    assert counted["pomona_pool_blocks{state=free}"] == counted["pomona_pool_blocks_capacity"] == 10


def test_the_names(used: tuple[Samples, str]) -> None:
    """Nothing but what is documented, and all of it."""
    named = set()
    for line in used[1].splitlines():
        if line.startswith("# TYPE "):
            named.add(line.split()[2].removeprefix("pomona_"))
    assert named == NAMES
    documented = re.findall(r"^\| `pomona_(\w+)`", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(NAMES)


def test_a_cancelled_row(start_server: StartServer) -> None:
    server = start_server()
    with server.connect("hang"):
        while not scrape(server)["pomona_rows{state=running}"]:
            pass
    while (counted := scrape(server)).get("pomona_rows_ended_total{finish=closed}") != 1:
        pass
    assert "pomona_time_to_first_token_seconds_count" in counted
    assert counted["pomona_time_to_first_token_seconds_count"] == 0


def test_a_worker_that_is_lost(start_server: StartServer) -> None:
    server = start_server(restart_limit=0)
    server.http.post("/v1/chat/completions", json=body("die"))
    counted = scrape(server)
    assert counted["pomona_ready"] == 0
    assert counted["pomona_rows_ended_total{finish=lost}"] == 1


# ---------------------------------------------------------------- alone


class FakeStream(RowStream):
    def __init__(self) -> None:
        super().__init__(cast(Any, None), 1)
        self.closed = False

    def close(self) -> None:
        self.closed = True


class FakeWorker:
    info = INFO
    heartbeat = None
    restarts = 2

    def __init__(self, stream: FakeStream, ready: bool = False) -> None:
        self._stream = stream
        self._ready = ready

    def health(self) -> Any:
        return type("Health", (), {"ready": self._ready})

    def submit(self, row: Submit) -> RowStream:
        return self._stream


def test_times_are_those_of_the_row() -> None:
    now = 100.0
    metrics = Metrics("m", clock=lambda: now)
    stream, heard = FakeStream(), []
    worker = metrics.watch(cast(Worker, FakeWorker(stream)))
    row = worker.submit(Submit(1, Submit.pack([1, 2, 3, 4]), Sampling(), 9, []))
    row.listen(heard.append)
    updates = [
        RowUpdate(1, prompt_done=4, cached_tokens=2),
        RowUpdate(1, tokens=[5]),
        RowUpdate(1, tokens=[6, 7]),
        RowUpdate(1, finish=FinishReason.STOP),
    ]
    for wait_s, update in zip((3.0, 4.0, 1.0, 1.0), updates, strict=True):
        now += wait_s
        stream.put(update)
    row.close()
    assert heard == updates
    counted = samples(metrics.render().decode())
    assert counted["pomona_queue_seconds_sum"] == 3.0
    assert counted["pomona_time_to_first_token_seconds_sum"] == 7.0
    assert (counted["pomona_inter_token_seconds_sum"], counted["pomona_inter_token_seconds_count"]) == (
        1.0,
        2,
    )
    assert counted["pomona_row_seconds_sum"] == 9.0
    assert counted["pomona_prompt_tokens_total"] == 4
    assert counted["pomona_completion_tokens_total"] == 3
    assert counted["pomona_rows_ended_total{finish=stop}"] == 1
    assert counted["pomona_worker_restarts_total"] == 2
    assert stream.closed


@pytest.mark.parametrize("closing", [False, True])
def test_a_server_that_is_shutting_down_is_not_ready(closing: bool) -> None:
    metrics = Metrics("m")
    metrics.watch(cast(Worker, FakeWorker(FakeStream(), ready=True)), closing=lambda: closing)
    assert samples(metrics.render().decode())["pomona_ready"] == (not closing)


def test_a_lost_row_ends_once() -> None:
    metrics = Metrics("m")
    stream, heard = FakeStream(), []
    row = metrics.watch(cast(Worker, FakeWorker(stream))).submit(Submit(1, b"", Sampling(), 9, []))
    row.listen(heard.append)
    stream.put(WorkerLostError("gone"))
    row.close()
    assert [str(item) for item in heard] == ["gone"]
    counted = samples(metrics.render().decode())
    assert counted["pomona_rows_ended_total{finish=lost}"] == 1
    assert "pomona_rows_ended_total{finish=closed}" not in counted
