"""The commands and how they end: with a sentence and a status, never with a traceback."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from pomona import __version__
from pomona.cli.bench import bench
from pomona.cli.config import config
from pomona.cli.doctor import doctor
from pomona.cli.errors import CommandError
from pomona.cli.keys import keys
from pomona.cli.models import models
from pomona.cli.ps import ps
from pomona.cli.run import run
from pomona.cli.serve import serve
from pomona.config.environment import TRACEBACK_VARIABLE
from pomona.config.errors import SettingsError
from pomona.conversation.errors import PomonaError
from pomona.models import ModelError

app = typer.Typer(
    help="LLM inference server for Apple Silicon and Linux, built on MLX.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (serve, run, ps, models, bench, doctor):
    app.command()(command)
app.add_typer(config, name="config")
app.add_typer(keys, name="keys")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pomona {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and exit."""
    try:
        app(prog_name="pomona")
    except (CommandError, ModelError, PomonaError, SettingsError) as error:
        _fail(str(error))
    except BrokenPipeError:
        # The reader of our output has gone. Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # the last resort of a command: a sentence instead of a traceback
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        _fail(
            f"Unexpected {type(error).__name__}: {error}. "
            f"This is a bug: please report it with what {TRACEBACK_VARIABLE}=1 prints."
        )


def _fail(sentence: str) -> None:
    print(f"pomona: {sentence}", file=sys.stderr)
    sys.exit(1)
