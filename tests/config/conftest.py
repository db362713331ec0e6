"""Every test has a POMONA_HOME of its own and no settings from outside."""

from tests.cli.conftest import home

__all__ = ["home"]
