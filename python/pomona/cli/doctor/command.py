"""The command: all examinations in order, one line per finding, and the exit status."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated

import typer
from rich.console import Console

from pomona import __version__
from pomona.cli.doctor import engine_checks, machine_checks, setup_checks
from pomona.cli.doctor.finding import Finding, State
from pomona.config.errors import SettingsError
from pomona.config.home import config_file, home
from pomona.config.resolve import resolve


def doctor(as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """Check this machine and installation.

    Exits with 1 when something is missing that serving needs.
    """
    findings: list[Finding] = []
    with _progress() as step:
        for finding in examine():
            findings.append(finding)
            if not as_json:
                step(finding)
    failed = sum(finding.state is State.FAILED for finding in findings)
    if as_json:
        print(json.dumps({"ok": not failed, "findings": [finding._asdict() for finding in findings]}))
    elif failed:
        problems = "1 problem" if failed == 1 else f"{failed} problems"
        print(f"\n{problems} found; pomona will not serve before that is solved.")
    else:
        print("\nReady to serve: pomona serve")
    raise typer.Exit(int(bool(failed)))


def examine() -> Iterator[Finding]:
    """The quick ones first; the self-test of the engine takes seconds."""
    yield Finding(State.OK, "pomona", f"{__version__} on Python {platform.python_version()}")
    yield machine_checks.check_system()
    yield machine_checks.check_memory()
    yield machine_checks.check_open_files()
    yield machine_checks.check_disk(home())
    yield setup_checks.check_private("settings file", config_file())
    try:
        settings = resolve()
    except SettingsError as error:
        yield Finding(State.FAILED, "settings", str(error))
    else:
        yield setup_checks.check_settings(settings)
        yield from setup_checks.check_keys(settings)
        yield machine_checks.check_port(settings.value("host"), settings.value("port"))
        yield from setup_checks.check_models(settings)
    yield from engine_checks.check_worker([sys.executable, "-m", engine_checks.SELFTEST])


@contextmanager
def _progress() -> Iterator[Callable[[Finding], None]]:
    """Prints findings as they come, with a spinner below them on a terminal."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with console.status("examining ...") if console.is_terminal else nullcontext():
        yield lambda finding: console.print(f"{finding.state:<8} {finding.what}: {finding.detail}")
