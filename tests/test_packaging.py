"""What goes into the source archive, and so into the wheel that is built from it."""

from __future__ import annotations

import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


def test_exclusions_name_top_level_folders_only() -> None:
    """Without a leading slash a pattern also drops packages of that name, such as pomona.cli.bench."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["scikit-build"]
    assert all(pattern.startswith("/") for pattern in settings["sdist"]["exclude"])
