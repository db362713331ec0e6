"""A progress bar on standard error for the conversion of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from pomona.models import Progress, Report


@contextmanager
def shown_progress(title: str) -> Iterator[Report]:
    """Yields the report to hand down. Shows nothing until something is reported; without a terminal it
    prints one line per stage."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Bar(*columns, console=console, transient=True) as bar:
            yield _BarReport(bar, title)
    else:
        yield _LineReport(console, title)


class _BarReport:
    def __init__(self, bar: Bar, title: str) -> None:
        self._bar = bar
        self._title = title
        self._task: TaskID | None = None

    def __call__(self, progress: Progress) -> None:
        if self._task is None:
            self._task = self._bar.add_task("")
        self._bar.update(
            self._task,
            description=f"{self._title}: {progress.stage}",
            completed=progress.done,
            total=progress.total or None,
        )


class _LineReport:
    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._stage = ""

    def __call__(self, progress: Progress) -> None:
        if progress.stage != self._stage:
            self._stage = progress.stage
            self._console.print(f"pomona: {self._title}: {progress.stage}", markup=False, soft_wrap=True)
