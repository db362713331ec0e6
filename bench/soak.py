"""A server under mixed load for a long time: does its memory grow, does it become slower?

Several clients send short, long, repeated, sampled and abandoned requests. Every probe stops them, waits
until the server is idle, reads the memory of worker and server, and times one stream alone. Changes are by
the median slope between all pairs of probes after the first sixth, in which the cache fills its pool.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import common
import httpx

from pairs import Goal
from peers import POMONA, HttpPeer, serving, user

TITLE = "A long run under mixed load"
NOUNS = "apple orchard ladder basket morning cider branch winter garden stone river valley harvest market"
REPEATED_PROMPTS = 6
PROBE_TOKENS = 64
# The server's metrics are as old as the worker's last heartbeat.
HEARTBEAT_S, IDLE_LIMIT_S = 1.5, 120.0
# What noise may pretend over the whole run.
GROWTH_GOAL, SLOWING_GOAL = Goal(2, at_most=True), Goal(-5)


@dataclass(frozen=True)
class Probe:
    minutes: float
    worker_bytes: int
    server_bytes: int
    tokens_per_s: float
    requests: int


class Load:
    """Clients that can be held up. A request that fails is counted, by what it said."""

    def __init__(self, peer: HttpPeer, clients: int) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._peer = peer
        self._running = threading.Event()
        self._open = threading.Semaphore(clients)
        self._clients = clients
        self._ended = False
        self._threads = [threading.Thread(target=self._client, args=(i,)) for i in range(clients)]
        for thread in self._threads:
            thread.start()

    def go_on(self) -> None:
        self._running.set()

    def hold(self) -> None:
        """No new requests; returns when those that run have ended."""
        self._running.clear()
        for _ in range(self._clients):
            self._open.acquire()
        for _ in range(self._clients):
            self._open.release()

    def end(self) -> None:
        self._ended = True
        self._running.set()
        for thread in self._threads:
            thread.join()

    def _client(self, number: int) -> None:
        choose = random.Random(number)
        kinds: list[Callable[[random.Random], None]] = [
            *(self.short, self.long, self.repeated, self.sampled, self.abandoned)
        ]
        while True:
            self._running.wait()
            if self._ended:
                return
            with self._open:
                self._request(choose.choice(kinds), choose)

    def _request(self, kind: Callable[[random.Random], None], choose: random.Random) -> None:
        try:
            kind(choose)
        except Exception as error:  # whatever it is, it is counted
            self.failures[f"{kind.__name__}: {type(error).__name__}: {error}"] += 1
        self.counts[kind.__name__] += 1

    def short(self, choose: random.Random) -> None:
        self._peer.ask(user(_words(choose, 12)), choose.randint(4, 48))

    def long(self, choose: random.Random) -> None:
        self._peer.ask(user(_words(choose, choose.randint(200, 1500))), 16)

    def repeated(self, choose: random.Random) -> None:
        self._peer.ask(user(_words(random.Random(choose.randrange(REPEATED_PROMPTS)), 400)), 24)

    def sampled(self, choose: random.Random) -> None:
        self._peer.ask(user(_words(choose, 30)), 32, temperature=0.8, top_p=0.95, seed=choose.getrandbits(31))

    def abandoned(self, choose: random.Random) -> None:
        with self._peer.stream(user(_words(choose, 100)), 200) as chunks:
            for _ in itertools.islice(chunks, choose.randint(1, 12)):
                pass


def _words(choose: random.Random, count: int) -> str:
    return " ".join(choose.choices(NOUNS.split(), k=count))


# ---------------------------------------------------------------- probes


def probe(peer: HttpPeer, load: Load, started: float) -> Probe:
    load.hold()
    _wait_until_idle(peer)
    answer = peer.ask(user("Tell a very long story about a number."), PROBE_TOKENS)
    server = _rss(peer.pid)
    worker = _rss(_worker(peer.pid))
    load.go_on()
    minutes = (time.monotonic() - started) / 60
    return Probe(round(minutes, 3), worker, server, answer.rate, load.counts.total())


def _wait_until_idle(peer: HttpPeer) -> None:
    deadline = time.monotonic() + IDLE_LIMIT_S
    while time.monotonic() < deadline:
        time.sleep(HEARTBEAT_S)
        if metric(peer, "pomona_rows{") == 0:
            return
    raise RuntimeError(f"the server is not idle {IDLE_LIMIT_S:.0f} s after the last request")


def metric(peer: HttpPeer, start: str) -> float:
    """Sum of the samples whose line starts so."""
    lines = httpx.get(f"{peer.url}/metrics", timeout=30).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(start))


def _worker(server: int) -> int:
    """The process with the model."""
    for task in Path(f"/proc/{server}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"pomona.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise RuntimeError("the server has no worker")


def _rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has ended")


# ---------------------------------------------------------------- the result


def change_percent(minutes: list[float], values: list[float]) -> float:
    """By the median slope between all pairs, over the whole time, as a share of the median."""
    points = itertools.combinations(zip(minutes, values, strict=True), 2)
    slope = statistics.median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in points)
    return 100 * slope * (minutes[-1] - minutes[0]) / statistics.median(values)


def summary(probes: list[Probe]) -> list[str]:
    minutes = [one.minutes for one in probes]
    lines = []
    for name, values, unit, goal in (
        ("memory of the worker", [one.worker_bytes / 2**20 for one in probes], "MiB", GROWTH_GOAL),
        ("memory of the server", [one.server_bytes / 2**20 for one in probes], "MiB", GROWTH_GOAL),
        ("decode, 1 stream", [one.tokens_per_s for one in probes], "tokens/s", SLOWING_GOAL),
    ):
        change = change_percent(minutes, values)
        ends = f"{values[0]:.4g} {unit} first, {values[-1]:.4g} last"
        lines.append(f"{name}: {ends}, change {change:+.1f} %; {goal.verdict(change)}")
    return lines


def main() -> int:
    parser = common.arguments(__doc__)
    parser.add_argument("--minutes", type=float, help="default: 30")
    parser.add_argument("--probe-s", type=float, help="seconds between probes (30)")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--pool-tokens", type=int, default=16384, help="small, so that it fills soon")
    args = parser.parse_args()
    minutes = args.minutes or (0.5 if args.quick else 30)
    pause = args.probe_s or (5 if args.quick else 30)
    folder = common.model_folder(args.model)
    with tempfile.TemporaryDirectory() as logs:
        pool = ["--pool-tokens", str(args.pool_tokens)]
        with serving(POMONA, folder, Path(logs, "server.log"), *pool) as peer:
            probes, load = run(peer, args.clients, minutes, pause)
            restarts = metric(peer, "pomona_worker_restarts_total")
    measured = [one for one in probes if one.minutes >= minutes / 6]
    settings = {"model": Path(folder).name, "minutes": minutes, "clients": args.clients}
    settings |= {"requests": dict(load.counts), "failures": dict(load.failures) or "none"}
    settings["restarts of the worker"] = int(restarts)
    common.report(TITLE, settings, None)
    print("\n".join(summary(measured)))
    common.save(common.head(TITLE) | settings | {"probes": [asdict(one) for one in probes]}, args.json)
    return int(bool(load.failures or restarts))


def run(peer: HttpPeer, clients: int, minutes: float, pause_s: float) -> tuple[list[Probe], Load]:
    load = Load(peer, clients)
    started = time.monotonic()
    probes = []
    try:
        while time.monotonic() < started + 60 * minutes:
            load.go_on()
            time.sleep(pause_s)
            probes.append(probe(peer, load, started))
            print(probes[-1], file=sys.stderr, flush=True)
    finally:
        load.end()
    return probes, load


if __name__ == "__main__":
    sys.exit(main())
