"""What the engine benchmarks share: the machine's name, a loaded engine, figures as text and JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pomona.config import WorkerOptions
from pomona.worker import blas

BLAS = blas.load()  # before anything imports mlx

import numpy as np

from pomona.link.messages import Sampling, Submit
from pomona.models import resolve_model
from pomona.worker.engine import Engine
from pomona.worker.model import LoadedModel, load
from pomona.worker.service import make_engine

GREEDY = Sampling(temperature=0.0)


def machine() -> str:
    """Processor, cores that this process may use, system."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores, {platform.system()} {platform.machine()}"


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", help="model folder (default: the embedded SmolLM2)")
    parser.add_argument("--json", type=Path, help="write the raw values to this file")
    return parser


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
    return np.random.default_rng(seed).integers(30, high, tokens).tolist()


def request(row_id: int, tokens: list[int], max_tokens: int) -> Submit:
    return Submit(row_id, Submit.pack(tokens), GREEDY, max_tokens, [])


def percentile(values: Iterable[float], share: float) -> float:
    return float(np.quantile(np.array(list(values)), share, method="higher"))


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g}..{max(values):.3g}, n={len(values)})"


def report(title: str, figures: dict[str, object], json_file: Path | None) -> None:
    print(f"\n# {title}\nmachine: {machine()}\nBLAS: {BLAS}")
    for name, value in figures.items():
        print(f"{name}: {value}")
    sys.stdout.flush()
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(
            json.dumps({"title": title, "machine": machine(), "blas": BLAS, **figures}, indent=1)
        )
