"""docs/settings.md, made from the schema: `python -m pomona.config.reference > docs/settings.md`."""

from __future__ import annotations

import itertools

from pomona.config.definitions import DEFINITIONS, Definition
from pomona.config.environment import OTHER_VARIABLES

HEAD = """\
# Settings

<!-- Made from python/pomona/config/schema.py by `python -m pomona.config.reference`; not edited by hand. -->

A setting can be given as a flag of `pomona serve`, as a variable, or in the settings file. The strongest
wins: flag, then variable, then file, then default. A name that is not a setting, and a value that would
have no effect, are errors in all three.

| way | `max_rows` as an example |
|---|---|
| flag | `pomona serve --max-rows 8`; switches have `--look-ahead` and `--no-look-ahead` |
| variable | `POMONA_MAX_ROWS=8` |
| file | `max_rows = 8` in `$POMONA_HOME/config.toml`; `pomona config set max_rows 8` writes it |

`pomona config list` shows what holds, `pomona config explain NAME` where it comes from. Sizes are written as
800MB or 1.5GiB, times in seconds or as 500ms, 2m or 1h; lists with commas (in the file as arrays); `none` is
no value. All settings take effect when a server starts. The scope says whether a value belongs to the server
or to a model.
"""

FOLDER = """
## The folder

Everything that pomona keeps is in one folder: `$POMONA_HOME`, or `~/.pomona`.

| file | what | |
|---|---|---|
| `config.toml` | settings | mode 0600, replaced as a whole |
| `keys.json` | API keys as hashes; changes take effect at once | mode 0600, replaced as a whole |
| `models/` | converted models ([models.md](models.md)) | can be deleted at any time |
| `history` | what was typed in `pomona run` | mode 0600, can be deleted at any time |

Logs go to standard error; nothing is logged into a file.
"""

VARIABLES = """
## Variables that are no settings

| variable | what |
|---|---|
"""


def reference() -> str:
    parts = [HEAD]
    for group, settings in itertools.groupby(DEFINITIONS.values(), lambda d: d.setting.group):
        parts.append(f"\n## {group}\n\n| setting | type | default | scope | what |\n|---|---|---|---|---|\n")
        parts += [_row(setting) for setting in settings]
    parts.append(FOLDER)
    parts.append(VARIABLES)
    parts += [f"| `{name}` | {text} |\n" for name, text in OTHER_VARIABLES.items()]
    return "".join(parts)


def _row(setting: Definition) -> str:
    about = setting.setting
    notes = about.help
    if about.positional:
        notes += " The argument of `serve`, not a flag."
    if about.only_on:
        notes += f" Only on {about.only_on.capitalize()}."
    cells = (f"`{setting.name}`", setting.type_text, setting.default_text, about.scope, notes)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    print(reference(), end="")
