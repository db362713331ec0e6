"""The one folder for everything that pomona keeps: settings, API keys, conversions, history."""

from __future__ import annotations

import os
from pathlib import Path

HOME_VARIABLE = "POMONA_HOME"


def home() -> Path:
    """$POMONA_HOME, or ~/.pomona. It may not exist yet."""
    return Path(os.environ.get(HOME_VARIABLE) or "~/.pomona").expanduser().absolute()


def config_file() -> Path:
    return home() / "config.toml"


def keys_file() -> Path:
    return home() / "keys.json"


def conversions_folder() -> Path:
    return home() / "models"


def history_file() -> Path:
    """What was typed in `pomona run`."""
    return home() / "history"
