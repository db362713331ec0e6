"""POMONA_* variables: settings, and a few that are none, listed here with what they do."""

from __future__ import annotations

from collections.abc import Mapping

from pomona.config.definitions import DEFINITIONS, PREFIX, Value, did_you_mean
from pomona.config.errors import SettingsError
from pomona.config.home import HOME_VARIABLE

API_KEY_VARIABLE = "POMONA_API_KEY"
VS_API_KEY_VARIABLE = "POMONA_VS_API_KEY"
TRACEBACK_VARIABLE = "POMONA_TRACEBACK"

# Variables that are no settings: no flag, no line in the file.
OTHER_VARIABLES = {
    HOME_VARIABLE: "The folder for everything that pomona keeps. Default: ~/.pomona.",
    API_KEY_VARIABLE: "The key that `pomona run`, `bench` and `ps` send to a server.",
    VS_API_KEY_VARIABLE: "The key that `pomona bench` sends to the server of --vs.",
    TRACEBACK_VARIABLE: "Set to see where an unexpected error came from.",
    "POMONA_CPU_VARIANT": "Forces an instruction set of the CPU kernels, such as avx2. For tests.",
    "POMONA_CPU_THREADS": "How many threads the CPU kernels use. Default: the cores the process may use.",
    "POMONA_TEMPLATE_DIR": "A folder with more chat templates for the tests.",
}

_BY_VARIABLE = {definition.variable: definition for definition in DEFINITIONS.values()}


def read_environment(environment: Mapping[str, str]) -> dict[str, Value]:
    """The settings among the variables, by name. Raises SettingsError for unknown and wrong ones."""
    check_names(environment)
    values: dict[str, Value] = {}
    for variable, definition in _BY_VARIABLE.items():
        if (text := environment.get(variable)) is not None:
            try:
                values[definition.name] = definition.parse(text)
            except ValueError as error:
                raise SettingsError(f"The variable {variable} is wrong: {error}.") from error
    return values


def check_names(environment: Mapping[str, str]) -> None:
    """Refuse a variable that would be ignored in silence."""
    known = {*_BY_VARIABLE, *OTHER_VARIABLES}
    for variable in sorted(environment):
        if variable.startswith(PREFIX) and variable not in known:
            raise SettingsError(
                f"The variable {variable} is not a setting{did_you_mean(variable, known)}; "
                "unset it, or see `pomona config list`."
            )
