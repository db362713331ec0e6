"""mlx and the extension, tested in a child process (`pomona.worker.selftest`): nothing here imports them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

from pomona.cli.doctor.finding import Finding, State

SELFTEST = "pomona.worker.selftest"
SELFTEST_TIMEOUT_S = 300  # the first call on a machine compiles kernels


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
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        advice = "correct that variable" if "POMONA_" in last else "install pomona again"
        yield Finding(State.FAILED, "engine", f"the self-test is not available or crashed ({last}); {advice}")


def _json_lines(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # a library's own print
        if isinstance(value, dict):
            yield value
