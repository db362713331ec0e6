"""pomona beside mlx-lm's own server: the same model folder, one run, the servers by turns (A B C A B C ...).

Every round measures on each server: the time to the first token of a prompt never seen before, the same of
a second turn, the decoding rate of one stream, and the rate of several streams together. mlx-lm runs
as it is shipped, and once more with the OpenBLAS that pomona's worker loads. Only one server works at a time;
the others are up and idle.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common
import httpx

START_S = 300
REQUEST_S = 600
STOP_S = 60
POMONA, SHIPPED, WITH_BLAS = "pomona", "mlx-lm", "mlx-lm + OpenBLAS"
# Before mlx is imported, as in pomona's worker.
LAUNCHER = "from pomona.worker import blas; blas.load(); from mlx_lm.server import main; main()"
NOUNS = "time year people way day man thing woman life child world school state family student group country"
LONG_TASK = "Tell a very long story about the number {number}."

COLD, WARM, DECODE, TOGETHER = "first token, cold", "first token, second turn", "decode, 1 stream", "together"
LOWER_IS_BETTER = (COLD, WARM)


@dataclass
class Peer:
    name: str
    url: str
    figures: dict[str, list[float]] = field(default_factory=dict)
    prompt_tokens: list[int] = field(default_factory=list)

    def note(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)


@dataclass
class Answer:
    first_s: float
    last_s: float
    text: str
    prompt_tokens: int
    tokens: int

    @property
    def rate(self) -> float:
        """Tokens per second after the first."""
        return (self.tokens - 1) / (self.last_s - self.first_s)


# ---------------------------------------------------------------- servers


@contextlib.contextmanager
def running(name: str, folder: str, log: Path) -> Iterator[Peer]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = ["--host", "127.0.0.1", "--port", str(port)]
    command = {
        POMONA: ["-m", "pomona", "serve", folder, *address],
        SHIPPED: ["-m", "mlx_lm", "server", "--model", folder, *address],
        WITH_BLAS: ["-c", LAUNCHER, "--model", folder, *address],
    }[name]
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, *command], stdout=output, stderr=output)
        try:
            peer = Peer(name, f"http://127.0.0.1:{port}")
            await_answer(peer, process, log)
            yield peer
        finally:
            process.terminate()
            process.wait(STOP_S)


def await_answer(peer: Peer, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the server has answered once, which also warms it up."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError, RuntimeError):
            ask(peer, [{"role": "user", "content": "Say hi."}], 4)
            return
        time.sleep(0.5)
    raise RuntimeError(f"{peer.name} did not start:\n{log.read_text()[-2000:]}")


def ask(peer: Peer, messages: list[dict[str, str]], max_tokens: int) -> Answer:
    request = {
        "model": "default" if peer.name == POMONA else "default_model",
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    first, last, text, usage = 0.0, 0.0, "", {}
    url = f"{peer.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=request, timeout=REQUEST_S) as reply:
        if reply.status_code != 200:
            raise RuntimeError(f"{peer.name} answered {reply.status_code}")
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event: dict[str, Any] = json.loads(line.removeprefix("data: "))
            usage = event.get("usage") or usage
            if piece := "".join(choice["delta"].get("content") or "" for choice in event["choices"]):
                last = time.perf_counter() - started
                first = first or last
                text += piece
    return Answer(first, last, text, usage["prompt_tokens"], usage["completion_tokens"])


# ---------------------------------------------------------------- one round on one server


def measure(peer: Peer, seed: int, args: argparse.Namespace) -> None:
    turns = [{"role": "user", "content": unseen_prompt(seed, args.prompt_tokens)}]
    cold = ask(peer, turns, args.answer_tokens)
    peer.note(COLD, cold.first_s)
    peer.prompt_tokens.append(cold.prompt_tokens)
    turns += [{"role": "assistant", "content": cold.text}, {"role": "user", "content": "Go on."}]
    peer.note(WARM, ask(peer, turns, args.answer_tokens).first_s)
    peer.note(DECODE, ask(peer, task(seed), args.decode_tokens).rate)
    started = time.perf_counter()
    with ThreadPoolExecutor(args.streams) as pool:
        tasks = [task(seed + 1 + i) for i in range(args.streams)]
        answers = list(pool.map(lambda messages: ask(peer, messages, args.decode_tokens), tasks))
    peer.note(TOGETHER, sum(answer.tokens for answer in answers) / (time.perf_counter() - started))


def unseen_prompt(seed: int, tokens: int) -> str:
    choose = random.Random(seed)
    return " ".join(choose.choice(NOUNS.split()) for _ in range(tokens))


def task(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": LONG_TASK.format(number=number)}]


# ---------------------------------------------------------------- the table


def table(peers: list[Peer], args: argparse.Namespace) -> str:
    """Medians with their range; ratios are medians of the rounds' own, above 1 where pomona is better."""
    others = peers[1:]
    head = ["", *(peer.name for peer in peers), *(f"pomona : {peer.name}" for peer in others)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, label in labels(args).items():
        cells = [label, *(cell(peer.figures[name]) for peer in peers)]
        cells += [f"{statistics.median(ratios(name, peers[0], other)):.2f} x" for other in others]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def labels(args: argparse.Namespace) -> dict[str, str]:
    return {
        COLD: f"{COLD}, {args.prompt_tokens} words, s",
        WARM: f"{WARM}, s",
        DECODE: f"{DECODE}, tokens/s",
        TOGETHER: f"{args.streams} streams {TOGETHER}, tokens/s",
    }


def cell(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g}..{max(values):.3g})"


def ratios(name: str, ours: Peer, other: Peer) -> list[float]:
    pairs = zip(ours.figures[name], other.figures[name], strict=True)
    return [theirs / own if name in LOWER_IS_BETTER else own / theirs for own, theirs in pairs]


def main() -> int:
    parser = common.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=64, help="words of the cold prompt")
    parser.add_argument("--answer-tokens", type=int, default=8, help="before the second turn")
    parser.add_argument("--decode-tokens", type=int, default=32, help="of an answer whose rate is measured")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--without-blas", action="store_true", help="leave out mlx-lm with OpenBLAS")
    args = parser.parse_args()
    folder = common.model_folder(args.model)
    names = [POMONA, SHIPPED] if args.without_blas else [POMONA, SHIPPED, WITH_BLAS]
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peers = [
            stack.enter_context(running(name, folder, logs / f"{number}.log"))
            for number, name in enumerate(names)
        ]
        for round_ in range(args.rounds):
            for number, peer in enumerate(peers):
                # A seed of its own for each server and round: nobody has seen the prompt.
                measure(peer, 1000 * (round_ + 1) + 100 * number, args)
            print(f"round {round_ + 1} of {args.rounds} done", file=sys.stderr, flush=True)
    common.report(
        "pomona beside mlx-lm's server",
        {
            "model": Path(folder).name,
            "rounds": args.rounds,
            "prompt tokens with the template": statistics.median(peers[0].prompt_tokens),
            "tokens per answer": args.decode_tokens,
            "figures": {peer.name: peer.figures for peer in peers},
        },
        args.json,
    )
    print(f"\nMedian (lowest..highest) of {args.rounds} rounds:\n\n{table(peers, args)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
