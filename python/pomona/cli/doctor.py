"""`pomona doctor`: looks at the machine and the installation, one line per finding.

mlx and the extension are tested in a child process (`pomona.worker.selftest`): nothing here imports them.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from pomona import __version__
from pomona.cli.ports import why_unavailable
from pomona.config.home import home
from pomona.config.schema import DEFAULT_HOST, DEFAULT_PORT
from pomona.config.units import format_bytes
from pomona.models.embedded import NAME, embedded_gguf
from pomona.models.errors import ModelError

SELFTEST = "pomona.worker.selftest"
SELFTEST_TIMEOUT_S = 300  # the first call on a machine compiles kernels
MEMORY_WANTED_BYTES = 4 * 1000**3
DISK_WANTED_BYTES = 2 * 1000**3


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"  # serving works, but not as well, or not in every case
    FAILED = "failed"  # serving needs this


class Finding(NamedTuple):
    state: State
    what: str
    detail: str


def doctor(
    host: Annotated[str, typer.Option(help="Address whose port is tried.")] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(help="Port to try.", min=1, max=65535)] = DEFAULT_PORT,
) -> None:
    """Check this machine and installation. Exits with 1 when something is missing that serving needs."""
    failed = 0
    for finding in examine(host, port):
        failed += finding.state is State.FAILED
        print(f"{finding.state:<8} {finding.what}: {finding.detail}", flush=True)
    if failed:
        problems = "1 problem" if failed == 1 else f"{failed} problems"
        print(f"\n{problems} found; pomona will not serve before that is solved.")
        raise typer.Exit(1)
    print("\nReady to serve: pomona serve")


def examine(host: str, port: int) -> Iterator[Finding]:
    yield Finding(State.OK, "pomona", f"{__version__} on Python {platform.python_version()}")
    yield _check_system()
    yield _check_memory()
    yield from check_worker([sys.executable, "-m", SELFTEST])
    yield _check_embedded()
    yield _check_port(host, port)
    yield _check_disk(home())


def check_worker(command: list[str]) -> Iterator[Finding]:
    """What the self-test of mlx and the extension says: JSON lines, one with the device, one per check."""
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=SELFTEST_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        yield Finding(State.FAILED, "engine", f"the self-test did not end within {SELFTEST_TIMEOUT_S} s")
        return
    reported_failure = False
    for line in _json_lines(child.stdout):
        if device := line.get("device"):
            details = f"mlx {line.get('mlx', '?')}, {device}, kernels {line.get('kernels', '?')}"
            yield Finding(State.OK, "engine", details)
            if blas := line.get("blas"):
                yield Finding(State.OK, "matrix products", str(blas))
        elif check := line.get("check"):
            problem = line.get("problem")
            reported_failure |= bool(problem)
            state = State.FAILED if problem else State.OK
            yield Finding(state, str(check), str(problem or "works"))
    if child.returncode != 0 and not reported_failure:
        last = child.stderr.strip().splitlines()[-1:] or ["no message"]
        yield Finding(
            State.FAILED,
            "engine",
            f"the self-test is not available or crashed ({last[0]}); install pomona again",
        )


def _check_system() -> Finding:
    system, machine = platform.system(), platform.machine()
    detail = f"{platform.platform(terse=True)}, {machine}, {_processor()}, {os.cpu_count()} cores"
    if (system, machine) == ("Darwin", "arm64") or system == "Linux":
        return Finding(State.OK, "system", detail)
    return Finding(State.FAILED, "system", f"{detail}; pomona runs on Apple Silicon Macs and on Linux")


def _check_memory() -> Finding:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if total < MEMORY_WANTED_BYTES:
        return Finding(State.WARNING, "memory", f"{format_bytes(total)}; only the smallest models will fit")
    return Finding(State.OK, "memory", format_bytes(total))


def _check_embedded() -> Finding:
    try:
        path = embedded_gguf()
    except ModelError as error:
        return Finding(State.WARNING, "embedded model", str(error))
    return Finding(State.OK, "embedded model", f"{NAME}, {format_bytes(path.stat().st_size)}")


def _check_port(host: str, port: int) -> Finding:
    what = f"port {port}"
    if reason := why_unavailable(host, port):
        return Finding(
            State.WARNING, what, f"cannot be opened on {host} ({reason}); stop who has it or use serve --port"
        )
    return Finding(State.OK, what, f"free on {host}")


def _check_disk(folder: Path) -> Finding:
    what = "folder"
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return Finding(State.FAILED, what, f"{folder} cannot be written; set POMONA_HOME to another folder")
    free = shutil.disk_usage(existing).free
    if free < DISK_WANTED_BYTES:
        return Finding(
            State.WARNING,
            what,
            f"{folder} has {format_bytes(free)} free; conversions of large models will not fit",
        )
    return Finding(State.OK, what, f"{folder}, {format_bytes(free)} free")


def _processor() -> str:
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown processor"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown processor")


def _json_lines(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # a library's own print
        if isinstance(value, dict):
            yield value
