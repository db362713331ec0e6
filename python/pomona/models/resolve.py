"""From what the user typed to a model folder: nothing (the embedded model), a folder, or a .gguf file."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from pomona.models import embedded
from pomona.models.cache import convert_once
from pomona.models.conversion import GGUF_IMPORTER, run_converter
from pomona.models.errors import ModelError
from pomona.models.folder import ModelFolder
from pomona.models.gguf import read_header
from pomona.models.progress import Report, ignore

# "SmolLM2-135M-Instruct.Q4_1" is the model SmolLM2-135M-Instruct.
QUANTIZATION_SUFFIX = re.compile(r"[.-](Q\d\w*|F16|F32)$", re.IGNORECASE)


def resolve_model(argument: str | None = None, report: Report = ignore) -> ModelFolder:
    """The folder to serve. Converts at most once; `report` hears how far that is."""
    if argument is None:
        return _import_gguf(embedded.embedded_gguf(), embedded.NAME, report)
    path = Path(argument).expanduser()
    if path.is_dir():
        return ModelFolder.open(path)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(
                f"{path} is a file of a kind pomona does not read; give a model folder or a .gguf file."
            )
        return _import_gguf(path.resolve(), QUANTIZATION_SUFFIX.sub("", path.stem), report)
    raise ModelError(
        f"There is no folder or .gguf file {argument}; pomona does not download models from a hub yet, "
        "so fetch it first and give its folder."
    )


def _import_gguf(source: Path, name: str, report: Report) -> ModelFolder:
    folder = convert_once(
        source,
        name,
        needed_bytes=lambda: read_header(source).converted_bytes,
        convert=partial(_run_importer, report=report),
        report=report,
    )
    return ModelFolder.open(folder, name)


def _run_importer(source: Path, folder: Path, report: Report) -> None:
    run_converter(GGUF_IMPORTER, source, folder, report)
