"""The machine: system, memory, open files, disk, port."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from pathlib import Path

from pomona.cli import machine
from pomona.cli.doctor.finding import Finding, State
from pomona.cli.ports import why_unavailable
from pomona.config.units import format_bytes

MEMORY_WANTED_BYTES = 4 * 1000**3
DISK_WANTED_BYTES = 2 * 1000**3
# A connection is a file, and so are weights while they are read.
OPEN_FILES_WANTED = 4096


def check_system() -> Finding:
    known = (platform.system(), platform.machine())
    detail = f"{machine.system()}, {machine.processor()}, {machine.cores()} cores"
    if known == ("Darwin", "arm64") or known[0] == "Linux":
        return Finding(State.OK, "system", detail)
    return Finding(State.FAILED, "system", f"{detail}; pomona runs on Apple Silicon Macs and on Linux")


def check_memory() -> Finding:
    """What this process may have: the machine's, or less where a limit is set."""
    total = machine.memory_bytes()
    limits = [limit for limit, _ in (resource.getrlimit(resource.RLIMIT_AS),) if limit >= 0]
    if cgroup := _cgroup_limit():
        limits.append(cgroup)
    allowed = min([total, *limits])
    detail = format_bytes(total)
    if allowed < total:
        detail += f", of which this process may use {format_bytes(allowed)}"
    if allowed < MEMORY_WANTED_BYTES:
        return Finding(State.WARNING, "memory", f"{detail}; only the smallest models will fit")
    return Finding(State.OK, "memory", detail)


def check_open_files() -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= limit < OPEN_FILES_WANTED:
        return Finding(
            State.WARNING,
            "open files",
            f"at most {limit}: many clients would be refused; raise it: ulimit -n {OPEN_FILES_WANTED}",
        )
    return Finding(State.OK, "open files", f"up to {limit}" if limit >= 0 else "no limit")


def check_disk(folder: Path) -> Finding:
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


def check_port(host: str, port: int) -> Finding:
    what = f"port {port}"
    if reason := why_unavailable(host, port):
        return Finding(
            State.WARNING,
            what,
            f"cannot be opened on {host} ({reason}); stop who has it, or pomona config set port NUMBER",
        )
    return Finding(State.OK, what, f"free on {host}")


def _cgroup_limit() -> int | None:
    try:
        return int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no cgroup, or "max"
        return None
