"""What can be wrong with a setting or with the files in POMONA_HOME."""

from __future__ import annotations


class SettingsError(Exception):
    """One sentence for the user: which setting or file, what is wrong, and what to do."""
