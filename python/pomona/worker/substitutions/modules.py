"""Module instances of a model: what class they are, what kind, and changing the class of one of them.

An instance is substituted by giving it another class, made of a mixin (`forms.py`) and its own class. Its
parameters, attributes and place in the model stay as they are; undoing gives it its class back.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

MODELS = "mlx_lm.models."
LAYERS = "mlx.nn."
# Attributes that number the layers; they do not make layers different.
NUMBERS = re.compile(r"(layer_?)?(idx|id|index|number)")
# Arrays that are no parameters (rope frequencies) are compared by value up to this size.
COMPARED_BYTES = 1 << 16


def class_name(module: nn.Module) -> str:
    """'llama.Attention' for a class of mlx-lm's models, 'nn.Linear' for one of MLX's."""
    cls = type(module)
    if cls.__module__.startswith(MODELS):
        return f"{cls.__module__.removeprefix(MODELS)}.{cls.__qualname__}"
    if cls.__module__.startswith(LAYERS):
        return f"nn.{cls.__qualname__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def children(module: nn.Module) -> list[nn.Module]:
    return [child for _, child in tree_flatten(module.children(), is_leaf=nn.Module.is_module)]


def kind(module: nn.Module) -> Hashable:
    """Equal for modules that do the same with other weights: classes, shapes, dtypes and settings agree."""
    return class_name(module), *_arrays(module), *_settings(module), *map(kind, children(module))


def _arrays(module: nn.Module) -> Iterator[Hashable]:
    for name, value in sorted(module.items()):
        if isinstance(value, mx.array):
            constant = name.startswith("_") and value.nbytes <= COMPARED_BYTES
            yield (
                name,
                value.shape,
                str(value.dtype),
                bytes(memoryview(value.astype(mx.float32))) if constant else None,
            )


def _settings(module: nn.Module) -> Iterator[Hashable]:
    for name, value in sorted(vars(module).items()):
        plain = value is None or isinstance(value, (bool, int, float, str)) or callable(value)
        if plain and not NUMBERS.fullmatch(name):
            yield name, value


@dataclass(frozen=True, slots=True)
class Substitution:
    module: nn.Module
    original: type
    attributes: tuple[str, ...]

    def undo(self) -> None:
        """Only the newest substitution of a module can be undone."""
        for name in self.attributes:
            delattr(self.module, name)
        self.module.__class__ = self.original


def substitute(module: nn.Module, form: type[nn.Module], **attributes: Any) -> Substitution:
    """Let `form` handle the module's calls. It finds `attributes` on the instance, and the module's own
    methods by `super()`.
    """
    original = type(module)
    for name, value in attributes.items():
        setattr(module, name, value)
    module.__class__ = _mixed(form, original)  # type: ignore[arg-type]  # mypy: classes have no hash
    return Substitution(module, original, tuple(attributes))


@cache
def _mixed(form: type[nn.Module], original: type[nn.Module]) -> type[nn.Module]:
    return type(f"{form.__name__}{original.__name__}", (form, original), {"__module__": __name__})


def last_rows(module: nn.Module, count: int) -> nn.Module:
    """The same matrix module with its last rows only."""
    part = copy.copy(module)
    for name in ("weight", "scales", "biases", "bias"):
        if part.get(name) is not None:
            part[name] = part[name][-count:]
    return part
