"""The options of `pomona bench`, and what it prints."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pomona.cli import machine
from pomona.cli.bench.measure import Target
from pomona.cli.bench.report import document, failures, table
from pomona.cli.bench.rounds import Plan, Side, Step, run_rounds
from pomona.cli.client import api_key, base_url
from pomona.cli.errors import CommandError
from pomona.config.environment import VS_API_KEY_VARIABLE
from pomona.config.resolve import resolve

# A benchmark is a bounded load, not an attack.
MAX_STREAMS = 64
MIN_ROUNDS = 5


def bench(
    url: Annotated[
        str | None,
        typer.Option(
            help="Base URL of the server. Default: the configured one.", metavar="URL", show_default=False
        ),
    ] = None,
    vs: Annotated[
        str | None,
        typer.Option(help="A second server, measured in turns.", metavar="URL", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Default: the first that the server names.", show_default=False)
    ] = None,
    vs_model: Annotated[
        str | None, typer.Option(help="The model of the second server.", show_default=False)
    ] = None,
    rounds: Annotated[int, typer.Option(help="After one untimed.", min=MIN_ROUNDS, max=1000)] = MIN_ROUNDS,
    prompt_tokens: Annotated[
        int, typer.Option(help="Length of the prompts whose first token is timed.", min=64, max=1_000_000)
    ] = 512,
    max_tokens: Annotated[int, typer.Option(help="Length of the answers.", min=2, max=100_000)] = 64,
    streams: Annotated[str, typer.Option(help="Answers at once, when decoding is timed.")] = "1,4,8",
    seed: Annotated[
        int | None,
        typer.Option(help="Of the prompts; the same one finds them cached.", min=0, show_default=False),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one answer.", min=1.0)] = 300.0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write every figure here; - is standard output.", show_default=False),
    ] = None,
) -> None:
    """Measure a server, or two in turns.

    Time to the first visible token, cold and warm; prefill; decoding alone and in company. Works with every
    OpenAI-compatible server that counts tokens in its streams.
    """
    plan = Plan(
        rounds, prompt_tokens, max_tokens, _streams(streams), secrets.randbits(32) if seed is None else seed
    )
    sides = [Side("A", Target(base_url(url, resolve()), model, api_key(), timeout), plan)]
    if vs is not None:
        key = os.environ.get(VS_API_KEY_VARIABLE)
        sides.append(Side("B", Target(base_url(vs, resolve()), vs_model, key, timeout), plan))
    asyncio.run(_measure(sides, plan))
    to_stdout = json_file == Path("-")
    console = Console(stderr=to_stdout, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 200
    console.print(f"{machine.processor()}, {machine.cores()} cores, {machine.system()}")
    console.print(f"median of {rounds} rounds (25 % to 75 %)")
    console.print(table(sides, plan))
    if json_file is not None:
        _write(json_file, json.dumps(document(sides, plan), indent=None if to_stdout else 1))
    if failed := [failure for side in sides for failure in failures(side)]:
        answers = "1 answer" if len(failed) == 1 else f"{len(failed)} answers"
        raise CommandError(f"{answers} failed, the first so: {failed[0]}")


async def _measure(sides: list[Side], plan: Plan) -> None:
    try:
        with _progress(len(sides) * (plan.rounds + 1) * plan.steps) as step:
            await run_rounds(sides, plan, step)
    finally:
        for side in sides:
            await side.target.close()


@contextmanager
def _progress(total: int) -> Iterator[Step]:
    """On a terminal; elsewhere nothing is shown."""
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=total)
        started = False

        def step(name: str) -> None:
            nonlocal started
            bar.update(task, description=name, advance=int(started))
            started = True

        yield step


def _streams(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        counts = (0,)
    if counts[0] < 1 or counts[-1] > MAX_STREAMS:
        raise typer.BadParameter(
            f"write numbers from 1 to {MAX_STREAMS}, such as 1,4,8.", param_hint="'--streams'"
        )
    return counts


def _write(path: Path, text: str) -> None:
    if path == Path("-"):
        print(text)
        return
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written ({error.strerror or error}).") from error
