"""Runs the real server before a scripted worker: `serve_scripted.py SETTINGS_JSON [MODE]`."""

import sys

import msgspec
from tests.server import scripted_worker

from pomona.config import ServeSettings
from pomona.server.main import run

if __name__ == "__main__":
    mode = sys.argv[2] if len(sys.argv) > 2 else "ready"
    settings = msgspec.json.decode(sys.argv[1], type=ServeSettings)
    sys.exit(run(settings, [sys.executable, scripted_worker.__file__, mode]))
