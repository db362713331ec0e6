"""What ends a command that talks to a server or a terminal."""

from __future__ import annotations


class CommandError(Exception):
    """One sentence for the user: what is wrong, and what to do."""
