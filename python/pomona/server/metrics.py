"""What Prometheus reads of a server, in a registry of our own. docs/metrics.md lists all of it.

Requests are counted where replies leave, rows on their way to and from the worker; the worker's own figures
are those of its last heartbeat, read when asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pomona import __version__
from pomona.link.client import Item, RowStream
from pomona.link.messages import Heartbeat, ModelInfo, Submit

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

FIRST_TOKEN_BUCKETS_S = (0.025, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)
INTER_TOKEN_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10)
QUEUE_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
ROW_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)

# How a row ends besides the worker's own reasons.
CLOSED = "closed"  # by the server: a stop string, a deadline, or a client that has gone
LOST = "lost"  # with its worker
# A request's labels where it names none of ours: what clients send must not make new series.
NO_ROUTE = "none"
OTHER_METHOD = "other"
METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "PATCH", "DELETE")


# A time stamp beside every counter, which only another format than ours has a use for.
disable_created_metrics()  # type: ignore[no-untyped-call]  # of prometheus_client


class Health(Protocol):
    @property
    def ready(self) -> bool: ...


class Worker(Protocol):
    """What is read of a worker."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def heartbeat(self) -> Heartbeat | None: ...
    @property
    def restarts(self) -> int: ...
    def health(self) -> Health: ...
    def submit(self, row: Submit) -> RowStream: ...


class Metrics:
    """The counters of one server."""

    def __init__(self, model: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.registry = CollectorRegistry(auto_describe=False)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"pomona_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"pomona_{name}", text, buckets=buckets, registry=self.registry)

        self._requests = counter(
            "requests", "Replies by route, method and status.", "route", "method", "status"
        )
        self.rows = counter("rows_ended", "Rows that have ended, by reason.", "finish")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts whose computation has begun.")
        self.cached_tokens = counter("prompt_tokens_cached", "Of these, tokens found in the prefix cache.")
        self.completion_tokens = counter("completion_tokens", "Tokens drawn.")
        self.first_token_s = histogram(
            "time_to_first_token_seconds",
            "From handing a row to the worker to its first token.",
            FIRST_TOKEN_BUCKETS_S,
        )
        self.inter_token_s = histogram(
            "inter_token_seconds", "Between two tokens of one row.", INTER_TOKEN_BUCKETS_S
        )
        self.queue_s = histogram(
            "queue_seconds",
            "From handing a row to the worker to the start of its computation.",
            QUEUE_BUCKETS_S,
        )
        self.row_s = histogram("row_seconds", "From handing a row to the worker to its end.", ROW_BUCKETS_S)
        build = GaugeMetricFamily("pomona_info", "Always 1.", labels=("version", "model"))
        build.add_metric((__version__, model), 1)
        self.registry.register(_Fixed(build))

    def watch(self, worker: Worker, closing: Callable[[], bool] = lambda: False) -> MeteredWorker:
        """`worker`, with its rows and its state counted. `closing`: whether requests are refused anyway."""
        self.registry.register(_WorkerState(worker, closing))
        return MeteredWorker(self, worker)

    def replied(self, route: str | None, method: str, status: int) -> None:
        known = method if method in METHODS else OTHER_METHOD
        self._requests.labels(route or NO_ROUTE, known, str(status)).inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)


class MeteredWorker:
    """A worker as the engine sees it."""

    def __init__(self, metrics: Metrics, worker: Worker) -> None:
        self._metrics = metrics
        self._worker = worker

    @property
    def info(self) -> ModelInfo:
        return self._worker.info

    def submit(self, row: Submit) -> RowStream:
        return _MeteredStream(self._metrics, self._worker.submit(row), row.prompt_tokens)


class _MeteredStream(RowStream):
    """The updates of a row, seen on their way to the one who listens."""

    def __init__(self, metrics: Metrics, stream: RowStream, prompt_tokens: int) -> None:
        self._metrics = metrics
        self._stream = stream
        self._prompt_tokens = prompt_tokens
        self._submitted_at = metrics.clock()
        self._token_at: float | None = None
        self._queued = True
        self._over = False

    def listen(self, sink: Callable[[Item], None]) -> None:
        def pass_on(item: Item) -> None:
            self._see(item)
            sink(item)

        self._stream.listen(pass_on)

    def close(self) -> None:
        self._end(CLOSED)
        self._stream.close()

    def _see(self, update: Item) -> None:
        if isinstance(update, Exception):
            self._end(LOST)
            return
        metrics, now = self._metrics, self._metrics.clock()
        if self._queued and (update.prompt_done or update.tokens):
            self._queued = False
            metrics.queue_s.observe(now - self._submitted_at)
            metrics.prompt_tokens.inc(self._prompt_tokens)
            metrics.cached_tokens.inc(min(update.cached_tokens, self._prompt_tokens))
        if update.tokens:
            self._see_tokens(len(update.tokens), now)
        if update.finish is not None:
            self._end(update.finish.value)

    def _see_tokens(self, count: int, now: float) -> None:
        metrics = self._metrics
        metrics.completion_tokens.inc(count)
        if self._token_at is None:
            metrics.first_token_s.observe(now - self._submitted_at)
            count -= 1
            self._token_at = now
        for _ in range(count):
            metrics.inter_token_s.observe((now - self._token_at) / count)
        self._token_at = now

    def _end(self, finish: str) -> None:
        if not self._over:
            self._over = True
            self._metrics.rows.labels(finish).inc()
            self._metrics.row_s.observe(self._metrics.clock() - self._submitted_at)


class _Fixed(Collector):
    def __init__(self, *metrics: Metric) -> None:
        self._all = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._all


class _WorkerState(Collector):
    """The worker's figures begin anew with a new worker, which Prometheus takes for what it is."""

    def __init__(self, worker: Worker, closing: Callable[[], bool]) -> None:
        self._worker = worker
        self._closing = closing

    def collect(self) -> Iterator[Metric]:
        ready = self._worker.health().ready and not self._closing()
        yield _gauge("ready", "1 when a request sent now would be computed.", float(ready))
        yield _counter("worker_restarts", "Times that the worker was started again.", self._worker.restarts)
        beat = self._worker.heartbeat
        if beat is None:
            return
        rows = GaugeMetricFamily("pomona_rows", "Rows in the worker, by state.", labels=("state",))
        rows.add_metric(("running",), beat.running)
        rows.add_metric(("waiting",), beat.waiting)
        yield rows
        blocks = GaugeMetricFamily(
            "pomona_pool_blocks", "Blocks of the key-value pool, by state.", labels=("state",)
        )
        for state, count in msgspec.to_builtins(beat.pool).items():
            if state != "capacity":
                blocks.add_metric((state,), count)
        yield blocks
        yield _gauge("pool_blocks_capacity", "Blocks that the pool can hold.", beat.pool.capacity)
        yield _gauge("engine_idle_seconds", "Since the engine last made progress.", beat.idle_s)
        yield _counter("steps", "Steps of the engine.", beat.steps)
        yield _counter("prefill_tokens", "Prompt tokens computed.", beat.prefill_tokens)
        yield _counter("decode_tokens", "Tokens computed in decoding.", beat.decode_tokens)
        yield _counter("parked", "Times that a row was parked for want of blocks.", beat.parked)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"pomona_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"pomona_{name}", text, value=value)
