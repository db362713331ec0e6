"""The models that are on this machine: conversions, the embedded one, and folders of the hub cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pomona.config.home import conversions_folder
from pomona.models import embedded
from pomona.models.errors import ModelError
from pomona.models.folder import ModelFolder

Kind = Literal["configured", "embedded", "conversion", "unfinished", "hub cache"]


@dataclass(frozen=True, slots=True)
class KnownModel:
    name: str
    kind: Kind
    path: Path
    size_bytes: int
    # Why it cannot be served; empty when it can.
    problem: str = ""


def known_models(configured: str | None) -> Iterator[KnownModel]:
    """`configured` is the setting `model`."""
    if configured is not None:
        yield _described(Path(configured).expanduser(), "configured")
    try:
        gguf = embedded.embedded_gguf()
        yield KnownModel(embedded.NAME, "embedded", gguf, gguf.stat().st_size)
    except ModelError:
        pass
    for folder in _folders(conversions_folder()):
        # A part-folder is a conversion under way, or what a killed one left behind.
        yield _described(folder, "unfinished" if folder.name.startswith(".") else "conversion")
    for repository in _folders(hub_cache()):
        if repository.name.startswith("models--"):
            for revision in _folders(repository / "snapshots"):
                model = _described(revision, "hub cache")
                # The hub cache is other programs' too: what is no model for us is not ours to list.
                if not model.problem:
                    yield model


def hub_cache() -> Path:
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    return Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser() / "hub"


def _described(path: Path, kind: Kind) -> KnownModel:
    if path.is_file():
        problem = "" if path.suffix.lower() == ".gguf" else f"{path} is not a .gguf file."
        return KnownModel(path.stem, kind, path, path.stat().st_size, problem)
    # Links followed: the hub cache is made of them.
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    try:
        return KnownModel(ModelFolder.open(path).name, kind, path, size)
    except ModelError as error:
        return KnownModel(path.name, kind, path, size, str(error))


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except OSError:
        return []
