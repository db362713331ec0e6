"""What a pattern of modules is, and the table that finds patterns by class name.

A pattern says which attributes of a module hold what, and makes the description that an op takes of them. It
also knows a trial: calls with seeded inputs that show whether an instance does the same with its op as
without (`proofs.py` makes them).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import mlx.core as mx
import mlx.nn as nn

from pomona.worker.substitutions import forms
from pomona.worker.substitutions.modules import class_name
from pomona.worker.substitutions.stage import Stage

P = TypeVar("P", bound="Pattern")


class UnfitError(Exception):
    """The instance is not what its pattern describes; the text says why."""


class Pattern(ABC):
    label: ClassVar[str]
    form: ClassVar[type[forms.Form]]
    # Whether the op reads and writes the blocks of the KV pool.
    paged: ClassVar[bool] = False
    # Whether it only occurs as a part of other patterns.
    part_only: ClassVar[bool] = False

    @abstractmethod
    def describe(self, module: Any, table: Table) -> Any:
        """What the op takes. Raises UnfitError."""

    def trial(self, module: Any, stage: Stage, table: Table) -> list[mx.array]:
        """Outputs of the module, as it is or substituted, for the stage's inputs."""
        raise NotImplementedError

    def parts(self, module: Any, table: Table) -> list[nn.Module]:
        """Modules inside it whose own trials are needed too."""
        return []

    def applies(self, module: Any) -> bool:
        """False for instances of a class with several forms that are of another form."""
        return True


class Table:
    def __init__(self, patterns: Mapping[str, Pattern]) -> None:
        """Patterns by class name ('llama.Attention', 'nn.Linear')."""
        self.patterns = patterns

    def find(self, module: Any) -> Pattern | None:
        return self.patterns.get(class_name(module))

    def require(self, module: Any, kind: type[P]) -> P:
        """The module's pattern, which must be of this kind. Raises UnfitError."""
        pattern = self.find(module)
        if not isinstance(pattern, kind):
            raise UnfitError(f"{class_name(module)} is no known {kind.label}")
        return pattern

    def describe(self, module: Any, kind: type[Pattern]) -> Any:
        return self.require(module, kind).describe(module, self)


def attribute(module: Any, path: str) -> Any:
    """'gate.wg' is module.gate.wg; None where there is nothing."""
    for name in path.split("."):
        module = getattr(module, name, None)
    return module
