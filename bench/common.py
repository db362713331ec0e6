"""What the benchmarks share: the machine's name, a loaded engine, figures as text and JSON.

Import it before anything that imports mlx: it loads the BLAS, for MLX's own products too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pomona.config import WorkerOptions
from pomona.worker import blas

BLAS = blas.load()  # before anything imports mlx

import mlx.core as mx
import numpy as np

from pomona import _ops
from pomona.cli.machine import cores, processor
from pomona.link.messages import Sampling, Submit
from pomona.models import resolve_model
from pomona.worker.engine import Engine
from pomona.worker.model import LoadedModel, load
from pomona.worker.service import make_engine

GREEDY = Sampling(temperature=0.0)
RESULTS = Path(__file__).resolve().parent / "results"


def machine() -> str:
    """Processor, cores that this process may use, system."""
    return f"{processor()}, {cores()} cores, {platform.system()} {platform.machine()}"


def load_average() -> float:
    """Of the last minute; work of others makes times meaningless."""
    return round(os.getloadavg()[0], 2)


LOAD_AT_START = load_average()


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="model folder or .gguf file (default: the embedded SmolLM2)")
    parser.add_argument("--quick", action="store_true", help="a short run that only shows that all works")
    raw = RESULTS / f"{Path(sys.argv[0]).stem}.json"
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=raw,
        metavar="FILE",
        help="write the raw values to FILE (without FILE: bench/results/SCRIPT.json)",
    )
    return parser


def part_arguments(description: str | None, parts: Sequence[str]) -> argparse.Namespace:
    """The options of a script that compares in pairs and can measure some of its parts only."""
    parser = arguments(description)
    parser.add_argument("--pairs", type=int, help="pairs of each comparison (default: 5)")
    parser.add_argument("--only", choices=parts, nargs="+", default=parts, help="parts to measure")
    args = parser.parse_args()
    args.pairs = args.pairs or (2 if args.quick else 5)
    return args


def progress(text: str) -> None:
    """For a person who waits: apart from the results."""
    print(text, file=sys.stderr, flush=True)


def model_folder(argument: str | None) -> str:
    return str(resolve_model(argument).path)


def load_model(folder: str, **options: Any) -> tuple[LoadedModel, WorkerOptions]:
    chosen = WorkerOptions(model=folder, **options)
    return load(chosen), chosen


def engine(loaded: LoadedModel, options: WorkerOptions) -> Engine:
    """An engine over the loaded model, with an empty cache."""
    loaded.store.clear()
    return make_engine(loaded, options, options.look_ahead)


def prompt(loaded: LoadedModel, tokens: int, seed: int) -> list[int]:
    high = min(loaded.vocab_size, 4000)
    ids: list[int] = np.random.default_rng(seed).integers(30, high, tokens).tolist()
    return ids


def request(row_id: int, tokens: list[int], max_tokens: int) -> Submit:
    return Submit(row_id, Submit.pack(tokens), GREEDY, max_tokens, [])


def percentile(values: Iterable[float], share: float) -> float:
    return float(np.quantile(np.array(list(values)), share, method="higher"))


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g}..{max(values):.3g}, n={len(values)})"


def head(title: str) -> dict[str, object]:
    """What figures belong to."""
    return {
        "title": title,
        "machine": machine(),
        "mlx": mx.__version__,
        "kernels": _ops.cpu_variant(),
        "BLAS": BLAS,
        "load average at the start": LOAD_AT_START,
    }


def report(title: str, figures: dict[str, object], json_file: Path | None) -> None:
    """Print figures with what they belong to, and keep them."""
    values = head(title) | figures
    print(f"\n# {title}")
    for name, value in values.items():
        if name != "title":
            print(f"{name}: {value}")
    sys.stdout.flush()
    save(values, json_file)


def save(values: dict[str, object], json_file: Path | None) -> None:
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(values, indent=1) + "\n")
