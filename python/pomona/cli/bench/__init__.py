"""`pomona bench`: measures a server over its OpenAI-compatible API, and compares two."""

from pomona.cli.bench.command import bench

__all__ = ["bench"]
