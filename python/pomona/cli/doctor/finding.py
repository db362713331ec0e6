"""What an examination finds."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"  # serving works, but not as well, or not in every case
    FAILED = "failed"  # serving needs this


class Finding(NamedTuple):
    state: State
    what: str
    detail: str
