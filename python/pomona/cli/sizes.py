"""Sizes as people write them: 800MB, 8GB, 1.5GiB, or plain bytes."""

from __future__ import annotations

import re

import typer

UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
BINARY_UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """The number of bytes; a parser for options (which also get their own default, a number)."""
    match = PATTERN.fullmatch(str(text))
    if match is None or (match[3] and not match[2]):
        raise typer.BadParameter(f"{text!r} is not a size; write for example 800MB or 8GB.")
    unit = match[2].upper()
    count = int(float(match[1]) * (BINARY_UNITS[unit] if match[3] else UNITS[unit]))
    if count == 0:
        raise typer.BadParameter("a size must be more than nothing.")
    return count


def format_bytes(count: int) -> str:
    for unit in ("T", "G", "M", "K"):
        if count >= UNITS[unit]:
            return f"{count / UNITS[unit]:.1f} {unit}B"
    return f"{count} B"
