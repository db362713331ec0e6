"""Every test of the command line has a POMONA_HOME of its own and no settings from outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pomona.config.home import HOME_VARIABLE


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Not yet made: commands must not need it.
    folder = tmp_path_factory.mktemp("home") / "pomona"
    for variable in [name for name in os.environ if name.startswith("POMONA_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv(HOME_VARIABLE, str(folder))
    return folder
