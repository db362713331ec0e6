"""Amounts as people write them: 800MB, 1.5GiB, 500ms, 2m; and back, without loss."""

from __future__ import annotations

import math
import re
from fractions import Fraction

DECIMAL = {"T": 1000**4, "G": 1000**3, "M": 1000**2, "K": 1000}
BINARY = {"T": 1024**4, "G": 1024**3, "M": 1024**2, "K": 1024}
SECONDS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0, "h": 3600.0}
SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(I?)B?\s*", re.IGNORECASE)
AMOUNT = re.compile(r"\s*([+-]?[0-9.]+(?:e[+-]?\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """A ValueError says what a size looks like."""
    match = SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{text!r} is not a size; write for example 800MB or 8GB")
    unit = match[2].upper()
    factor = (BINARY if match[3] else DECIMAL)[unit] if unit else 1
    # Exact, however large it is.
    return int(Fraction(match[1]) * factor)


def exact_bytes(count: int) -> str:
    """The shortest text that `parse_bytes` turns into the same number."""
    for unit in DECIMAL:
        for factors, suffix in ((BINARY, "iB"), (DECIMAL, "B")):
            if count and count % factors[unit] == 0:
                return f"{count // factors[unit]}{unit}{suffix}"
    return str(count)


def format_bytes(count: int) -> str:
    """Rounded, for people."""
    for unit, factor in DECIMAL.items():
        if count >= factor:
            return f"{count / factor:.1f} {unit}B"
    return f"{count} B"


def parse_seconds(text: str) -> float:
    match = AMOUNT.fullmatch(text)
    factor = SECONDS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a time; write for example 10, 500ms or 2m")
    return parse_number(match[1]) * factor


def parse_whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def parse_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a number")
    return number


def format_number(number: float) -> str:
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)
