"""The command `pomona`."""

from pomona.cli.app import main

__all__ = ["main"]
