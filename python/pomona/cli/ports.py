"""Whether a port can be opened, asked before anything slow is started for it."""

from __future__ import annotations

import os
import socket


def why_unavailable(host: str, port: int) -> str | None:
    """The system's reason why nobody can listen there now, or None."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family):
            return None
    except OSError as error:
        return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
