"""Runs a converter in a child process: the server never imports mlx, and a crash stays the child's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from pomona.models.errors import ModelError
from pomona.models.progress import ConverterLine, Report

GGUF_IMPORTER = "pomona.models.gguf_import"
STOP_S = 5.0

_decoder = msgspec.json.Decoder(ConverterLine)


def run_converter(module: str, source: Path, folder: Path, report: Report) -> None:
    """Convert `source` into the existing, empty `folder`; a ModelError carries the converter's sentence."""
    command = [sys.executable, "-m", module, str(source), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        error, other = None, "it said nothing"
        try:
            assert child.stdout is not None
            for line in child.stdout:
                try:
                    message = _decoder.decode(line)
                except msgspec.DecodeError:
                    other = line.decode(errors="replace").strip() or other
                    continue
                error = message.error or error
                if message.progress:
                    report(message.progress)
            child.wait()
        except BaseException:  # the child must not outlive us, an interrupt included; it goes on
            _stop(child)
            raise
    if error:
        raise ModelError(error)
    if child.returncode != 0:
        raise ModelError(
            f"The conversion of {source} ended with status {child.returncode} ({other}); "
            "check that memory and disk suffice and try again."
        )


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
