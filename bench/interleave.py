"""A long prefill beside a running stream.

Prints the stream's token gaps while the prefill runs, against the promise "one decode step + 2 x the
prefill budget", and the rate of a prefill in chunks against one in a single step (A B A B, in one process).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import common

from pomona._core import StepPlanner
from pomona.config import WorkerOptions
from pomona.link.messages import RowUpdate
from pomona.worker.engine import Engine
from pomona.worker.model import LoadedModel
from steps import prefill_seconds

WARM_TOKENS = 24
MAX_STEPS = 1_000_000


def stream_gaps(
    loaded: LoadedModel, options: WorkerOptions, prefill: int
) -> tuple[list[float], list[float], float]:
    """(gaps without the prefill, gaps with it, seconds of the prefill) of a stream's tokens."""
    engine = common.engine(loaded, options)
    engine.scheduler.submit(common.request(1, common.prompt(loaded, 32, 1), 1 << 20))
    quiet = _gaps(engine, until=lambda update, seen: seen >= WARM_TOKENS + 1)
    engine.scheduler.submit(common.request(2, common.prompt(loaded, prefill, 2), 1))
    started = time.perf_counter()
    busy = _gaps(engine, until=lambda update, seen: update.id == 2 and update.finish is not None)
    seconds = time.perf_counter() - started
    engine.scheduler.cancel(1)
    engine.settle()
    return quiet[1:], busy, seconds


def _gaps(engine: Engine, until: Callable[[RowUpdate, int], bool]) -> list[float]:
    gaps: list[float] = []
    last = time.perf_counter()
    for _ in range(MAX_STEPS):
        done = False
        for update in engine.step():
            done |= until(update, len(gaps))
            if update.id == 1 and update.tokens:
                now = time.perf_counter()
                gaps.append(now - last)
                last = now
        if done:
            return gaps
    raise RuntimeError("the benchmark did not end")


def main() -> int:
    parser = common.arguments(__doc__)
    parser.add_argument("--tokens", type=int, help="length of the prefill (4000)")
    parser.add_argument("--pairs", type=int, help="pairs of chunked and unchunked prefills (5)")
    args = parser.parse_args()
    args.tokens = args.tokens or (300 if args.quick else 4000)
    args.pairs = args.pairs or (1 if args.quick else 5)
    folder = common.model_folder(args.model)
    loaded, options = common.load_model(folder, pool_tokens=2 * args.tokens + 4096)
    chunked = common.engine(loaded, options).scheduler.planner
    whole = StepPlanner(options.block_size, budget_s=1e9, min_chunk=args.tokens, max_step_tokens=args.tokens)
    for seed in (8, 9):  # learn the rate, compile what MLX compiles
        prefill_seconds(loaded, options, 512, seed, chunked)
    quiet, busy, seconds = stream_gaps(loaded, options, args.tokens)
    pairs = [
        (
            prefill_seconds(loaded, options, args.tokens, 100 + 2 * i, chunked),
            prefill_seconds(loaded, options, args.tokens, 101 + 2 * i, whole),
        )
        for i in range(args.pairs)
    ]
    budget = options.prefill_budget_ms / 1000
    step = common.percentile(quiet, 0.5)
    limit = step + 2 * budget
    p99 = common.percentile(busy, 0.99)
    ratios = [whole_s / chunked_s for chunked_s, whole_s in pairs]
    common.report(
        f"{args.tokens}-token prefill beside a stream, {loaded.config['model_type']}",
        {
            "model": folder.rsplit("/", 1)[-1],
            "decode step alone, s": round(step, 4),
            "prefill budget, s": budget,
            "prefill beside the stream, s": round(seconds, 2),
            "tokens of the stream meanwhile": len(busy),
            "token gap p50 / p99 / max, s": [
                round(v, 4) for v in (common.percentile(busy, 0.5), p99, max(busy))
            ],
            "p99 limit (decode step + 2 x budget), s": round(limit, 4),
            "p99 within the limit": p99 <= limit,
            "prefill alone, chunked, tokens/s": common.spread([args.tokens / c for c, _ in pairs]),
            "prefill alone, in one step, tokens/s": common.spread([args.tokens / w for _, w in pairs]),
            "chunked / unchunked rate": common.spread(ratios),
        },
        args.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
