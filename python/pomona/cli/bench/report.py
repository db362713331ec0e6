"""From rounds to figures: medians and spread, ratios of pairs, a table for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import statistics
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from pomona import __version__
from pomona.cli import machine
from pomona.cli.bench.rounds import TTFT_COLD, TTFT_WARM, Plan, Side, figure_names

SCHEMA_VERSION = 1


def spread(values: list[float]) -> dict[str, float] | None:
    """None without values."""
    if not values:
        return None
    low, median, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return {
        "median": median,
        "p25": low,
        "p75": high,
        "min": min(values),
        "max": max(values),
        "count": len(values),
    }


def values(side: Side, name: str) -> list[float]:
    return [round_.figures[name] for round_ in side.rounds if name in round_.figures]


def speedups(a: Side, b: Side, name: str) -> list[float]:
    """For each round in which both have the figure: above 1, A is faster."""
    pairs = [
        (x.figures[name], y.figures[name])
        for x, y in zip(a.rounds, b.rounds, strict=True)
        if name in x.figures and name in y.figures
    ]
    return [y / x if is_time(name) else x / y for x, y in pairs]


def is_time(name: str) -> bool:
    return name.startswith("ttft")


def failures(side: Side) -> list[str]:
    return [failure for round_ in side.rounds for failure in round_.failures]


def table(sides: list[Side], plan: Plan) -> Table:
    shown = Table("", *(f"{side.name}: {side.target.model}" for side in sides), box=None, pad_edge=False)
    if len(sides) == 2:
        shown.add_column("A is faster by")
    for name in figure_names(plan):
        cells = [_cell(spread(values(side, name)), name) for side in sides]
        if len(sides) == 2:
            ratio = spread(speedups(sides[0], sides[1], name))
            cells.append(
                f"{ratio['median']:.2f}x  ({ratio['p25']:.2f} to {ratio['p75']:.2f})" if ratio else "-"
            )
        shown.add_row(f"{name}, {'ms' if is_time(name) else 'tokens/s'}", *cells)
    shown.add_row("prompt tokens", *(_median(_cold(side, "prompt_tokens")) for side in sides))
    shown.add_row("answer tokens", *(_median(_cold(side, "completion_tokens")) for side in sides))
    shown.add_row("of them cached when warm", *(_cached(side) for side in sides))
    shown.add_row("failures", *(str(len(failures(side))) for side in sides))
    return shown


def document(sides: list[Side], plan: Plan) -> dict[str, Any]:
    names = figure_names(plan)
    result: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "pomona": __version__,
        "machine": {
            "processor": machine.processor(),
            "cores": machine.cores(),
            "memory_bytes": machine.memory_bytes(),
            "system": machine.system(),
        },
        "plan": {**dataclasses.asdict(plan), "temperature": 0},
        "sides": [
            {
                "name": side.name,
                "url": side.target.base_url,
                "model": side.target.model,
                "fields": side.target.fields,
                "figures": {name: spread(values(side, name)) for name in names},
                "failures": failures(side),
                "rounds": [
                    {
                        "figures": round_.figures,
                        "samples": {
                            name: [dataclasses.asdict(sample) for sample in samples]
                            for name, samples in round_.samples.items()
                        },
                    }
                    for round_ in side.rounds
                ],
            }
            for side in sides
        ],
    }
    if len(sides) == 2:
        result["speedup_of_a"] = {name: spread(speedups(sides[0], sides[1], name)) for name in names}
    return result


def _cell(figure: dict[str, float] | None, name: str) -> str:
    if figure is None:
        return "-"
    scale = 1000 if is_time(name) else 1
    median, low, high = (figure[key] * scale for key in ("median", "p25", "p75"))
    return f"{median:.1f}  ({low:.1f} to {high:.1f})"


def _cold(side: Side, count: str) -> list[int]:
    samples = [sample for round_ in side.rounds for sample in round_.samples.get(TTFT_COLD, [])]
    return [getattr(sample.usage, count) for sample in samples]


def _cached(side: Side) -> str:
    counts = [s.usage.cached_tokens for round_ in side.rounds for s in round_.samples.get(TTFT_WARM, [])]
    known = [count for count in counts if count is not None]
    return _median(known) if known else "not said"


def _median(counts: list[int]) -> str:
    return f"{statistics.median(counts):.0f}" if counts else "-"
