"""The engine in process, without HTTP.

decode    its step beside the bare model call with the same kernels, caches, tokens and look-ahead
thin      a step of a 30-layer llama of negligible width: what is not arithmetic, beside stock mlx-lm
prefill   tokens per second of prompts of 64 to 2048 tokens

Steps are measured in slices that take turns, greedy, with nothing in flight between them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import common
import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from pairs import Goal, Pairs, alternate, milliseconds, spread, table
from pomona.kv import seam
from pomona.worker.model import LoadedModel
from steps import BareRows, EngineRows, StockRow, equal_answers, prefill_seconds, prompts, step_seconds

TITLE = "The engine in process"
PARTS = ("decode", "thin", "prefill")
OVERHEAD_GOAL, THIN_GOAL = Goal(1.05, at_most=True), Goal(3, at_most=True)
# The step's share of the whole is largest where the model is quickest: short contexts.
SHORT_CONTEXT = 100
DECODE_ROWS, CONTEXTS = [1, 4, 8], [SHORT_CONTEXT, 2000]
PREFILLS = [64, 128, 256, 512, 1024, 2048]
STEPS, STOCK_STEPS = 32, 8
# Beside the rows' own blocks: what the scheduler reserves for each.
SPARE_TOKENS = 2048

THIN_LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def decode_part(args: argparse.Namespace) -> dict[str, object]:
    cases = [(rows, context) for context in CONTEXTS for rows in DECODE_ROWS]
    found = {case: _engine_and_bare(args, *case) for case in (cases[:1] if args.quick else cases)}
    lines = []
    for (rows, context), pairs in found.items():
        verdict = OVERHEAD_GOAL.verdict(pairs.ratio) if context == SHORT_CONTEXT else ""
        lines.append(
            [
                *(str(context), str(rows), _rate(rows, pairs.b), _rate(rows, pairs.a)),
                *(milliseconds(pairs.b), milliseconds(pairs.a), spread(pairs.ratios, 3), verdict),
            ]
        )
    head = ["context", "rows", "engine, tokens/s", "bare, tokens/s"]
    head += ["engine, ms", "bare, ms", "engine : bare", ""]
    print(f"\n## Decode steps\n\n{table(head, lines)}")
    return {"decode": [{"rows": r, "context": c, **asdict(pairs)} for (r, c), pairs in found.items()]}


def _engine_and_bare(args: argparse.Namespace, rows: int, context: int) -> Pairs:
    """A: the bare model call. B: the engine."""
    steps = 8 if args.quick else STEPS
    # Each side runs one slice to warm up.
    tokens = context + steps * (args.pairs + 1) + 2
    folder = common.model_folder(args.model)
    loaded, options = common.load_model(folder, pool_tokens=rows * (2 * tokens + SPARE_TOKENS))
    texts = prompts(loaded, rows, context, 1000 * rows + context)
    engine = EngineRows(loaded, options, texts)
    bare = BareRows(loaded, texts, tokens)
    sides = step_seconds(bare, steps), step_seconds(engine, steps)
    for side in sides:
        side()
    pairs = alternate(*sides, args.pairs)
    if not equal_answers(engine.answers, bare.answers):
        raise SystemExit("the engine's tokens are not those of the bare model call")
    common.progress(f"{rows} rows at {context}: engine : bare {spread(pairs.ratios, 3)}")
    return pairs


def thin_part(args: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as parent:
        folder = thin_llama(Path(parent))
        loaded, options = common.load_model(str(folder), pool_tokens=1 << 14)
        stock, _ = load_model(folder)
    texts = prompts(loaded, 1, SHORT_CONTEXT, 1)
    tokens = SHORT_CONTEXT + 2 * STEPS * (args.pairs + 2)
    bare = step_seconds(BareRows(loaded, texts, tokens), STEPS)
    engine = step_seconds(EngineRows(loaded, options, texts), STEPS)
    theirs = step_seconds(StockRow(stock, texts[0]), STOCK_STEPS)
    for side in (bare, engine, theirs):
        side()
    times: dict[str, list[float]] = {"engine": [], "bare": [], "mlx-lm": []}
    for _ in range(args.pairs):
        for name, side in zip(times, (engine, bare, theirs), strict=True):
            times[name].append(side())
    lines = []
    for name, taken in times.items():
        over = [t / s for t, s in zip(times["mlx-lm"], taken, strict=True)]
        goal = THIN_GOAL.verdict(1e3 * statistics.median(taken)) if name == "bare" else ""
        lines.append([name, milliseconds(taken), spread(over), goal])
    print(f"\n## A step of 30 thin layers, one row\n\n{table(['', 'ms', 'times mlx-lm', ''], lines)}")
    return {"thin": times}


def thin_llama(parent: Path) -> Path:
    """A model folder with random float32 weights."""
    folder = parent / "thin-llama"
    folder.mkdir()
    seam.install()  # before the first of mlx-lm's model modules
    module: Any = importlib.import_module("mlx_lm.models.llama")
    model = module.Model(module.ModelArgs.from_dict(dict(THIN_LLAMA)))
    shapes = tree_flatten(model.parameters())
    keys = mx.random.split(mx.random.key(1), len(shapes))
    weights = {
        name: mx.ones(array.shape) if array.ndim == 1 else _random(array.shape, key)
        for (name, array), key in zip(shapes, keys, strict=True)
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(THIN_LLAMA))
    return folder


def _random(shape: tuple[int, ...], key: mx.array) -> mx.array:
    """As large as keeps the residual stream in range."""
    return mx.random.normal(shape, key=key) / shape[-1] ** 0.5


def prefill_part(args: argparse.Namespace) -> dict[str, object]:
    lengths = PREFILLS[:1] if args.quick else PREFILLS
    loaded, options = common.load_model(common.model_folder(args.model), pool_tokens=2 * max(lengths) + 1024)
    planner = common.engine(loaded, options).scheduler.planner
    for seed in (1, 2):  # it learns the rate
        prefill_seconds(loaded, options, lengths[-1] // 4, seed, planner)
    rates: dict[int, list[float]] = {length: [] for length in lengths}
    for round_ in range(args.pairs):
        for length in lengths:
            seconds = prefill_seconds(loaded, options, length, 100 + round_, planner)
            rates[length].append(length / seconds)
    lines = [[str(length), spread(rate)] for length, rate in rates.items()]
    print(f"\n## Prefill of {_name(loaded)}\n\n{table(['tokens', 'tokens/s'], lines)}")
    return {"prefill": rates}


def _name(loaded: LoadedModel) -> str:
    quantization = loaded.config.get("quantization") or {}
    return f"{loaded.config['model_type']}, {quantization.get('bits', 32)} bit"


def _rate(rows: int, seconds: list[float]) -> str:
    return spread([rows / s for s in seconds])


def main() -> int:
    args = common.part_arguments(__doc__, PARTS)
    folder = Path(common.model_folder(args.model)).name
    found: dict[str, object] = {"model": folder, "slices": args.pairs}
    common.report(TITLE, found, None)
    parts = {"decode": decode_part, "thin": thin_part, "prefill": prefill_part}
    for name, part in parts.items():
        if name in args.only:
            found |= part(args)
    common.save(common.head(TITLE) | found, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
