"""Eight requests on one long prefix: KV blocks they hold together, and tokens that go through the model.

Blocks are counted against one request alone with the same settings. What remains above 1.0 is each
row's own last block, so it falls with the block size and with the length of the prefix.
"""

from __future__ import annotations

import sys

import common
from msgspec import structs

from pomona.config import WorkerOptions
from pomona.worker.model import LoadedModel, load

ANSWER_TOKENS = 8


def run(loaded: LoadedModel, options: WorkerOptions, prompt: list[int], rows: int) -> tuple[int, int]:
    """(most blocks held at once, tokens run through the model)."""
    engine = common.engine(loaded, options)
    for i in range(rows):
        engine.scheduler.submit(common.request(i, prompt, ANSWER_TOKENS))
    peak = 0
    while engine.busy:
        engine.step()
        peak = max(peak, engine.scheduler.store.pool.in_use)
    return peak, engine.scheduler.counters.computed_tokens


def main() -> int:
    parser = common.arguments(__doc__)
    parser.add_argument("--tokens", type=int, help="length of the shared prefix (2000)")
    parser.add_argument("--rows", type=int, default=8)
    args = parser.parse_args()
    args.tokens = args.tokens or (200 if args.quick else 2000)
    folder = common.model_folder(args.model)
    figures: dict[str, object] = {"model": folder.rsplit("/", 1)[-1]}
    for block_size in (16, 32, 64):
        base = WorkerOptions(model=folder, pool_tokens=4 * args.tokens, block_size=block_size)
        loaded = load(structs.replace(base))
        prompt = common.prompt(loaded, args.tokens, 1)
        one, alone = run(loaded, base, prompt, 1)
        many, together = run(loaded, base, prompt, args.rows)
        figures[f"block size {block_size}"] = (
            f"{many} blocks for {args.rows} rows, {one} for one: {many / one:.3f}; "
            f"tokens computed {together} against {alone}"
        )
    common.report(f"{args.rows} requests on one {args.tokens}-token prefix", figures, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
