"""Two things measured by turns (A B A B ...), so that what disturbs the machine disturbs both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Timed = Callable[[], float]
"""Does something and returns the seconds it took, or seconds per unit of it."""


@dataclass(frozen=True)
class Pairs:
    """Times of A and B, in the order they were taken."""

    a: list[float]
    b: list[float]

    @property
    def ratios(self) -> list[float]:
        """Each pair's own: above 1, A took less time."""
        return [b / a for a, b in zip(self.a, self.b, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


@dataclass(frozen=True)
class Goal:
    """What a figure should reach."""

    limit: float
    at_most: bool = False

    def verdict(self, value: float) -> str:
        reached = value <= self.limit if self.at_most else value >= self.limit
        side = "at most" if self.at_most else "at least"
        return f"wanted {side} {self.limit:g}: {'reached' if reached else 'falls short'}"


def timed(call: Callable[[], object], slice_s: float) -> Timed:
    """Seconds per call, over as many calls as fill `slice_s`. Calls once or twice to find out how many."""
    once = _seconds(call, 1)
    if once < slice_s:
        once = _seconds(call, 1)
    count = max(1, round(slice_s / once))
    return lambda: _seconds(call, count)


def _seconds(call: Callable[[], object], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count


def alternate(a: Timed, b: Timed, pairs: int) -> Pairs:
    taken = [(a(), b()) for _ in range(pairs)]
    return Pairs([first for first, _ in taken], [second for _, second in taken])


def spread(values: Sequence[float], decimals: int | None = None) -> str:
    """Median (lowest..highest); three digits that count, where `decimals` says nothing else."""
    low, median, high = (
        _text(value, decimals) for value in (min(values), statistics.median(values), max(values))
    )
    return f"{median} ({low}..{high})"


def milliseconds(seconds: Sequence[float]) -> str:
    return spread([1e3 * s for s in seconds])


def _text(value: float, decimals: int | None) -> str:
    if decimals is not None:
        return f"{value:.{decimals}f}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded so that it can be read as text too."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
