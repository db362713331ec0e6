"""How far a conversion is: one line of JSON per step, from the converter process to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """`done` and `total` count bytes of weights; a total of 0 means that the end is not known."""

    stage: str
    done: int = 0
    total: int = 0


Report = Callable[[Progress], None]


class ConverterLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line on the converter's standard output: progress, or the sentence it failed with."""

    progress: Progress | None = None
    error: str | None = None


def ignore(progress: Progress) -> None:
    """The report of a caller who does not want to know."""
