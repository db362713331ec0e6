"""Patterns of single modules: linear layers, embeddings, norms, rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from pomona import _ops
from pomona.worker.substitutions import forms
from pomona.worker.substitutions.modules import last_rows
from pomona.worker.substitutions.pattern import Pattern, Table, UnfitError
from pomona.worker.substitutions.stage import Stage

# Products with tall matrices (embeddings, heads) are compared in their last rows only: mlx's are slow.
COMPARED_ROWS = 512
# Rotary embeddings are tried far away, and with values that they leave alone.
FAR = 1000
UNTURNED = 8
# For norms that have no weight to tell it.
ANY_DIM = 64

Turning = tuple[mx.array, bool, float]
"""Frequencies, whether pairs are neighbours, and the factor of the turned values."""


@dataclass(frozen=True, slots=True)
class Matrix(Pattern):
    """A weight matrix, dense or quantized."""

    label = "matrix"

    def describe(self, module: Any, table: Table) -> _ops.Weights:
        if module.get("scales") is None:
            return _ops.Weights(module.weight, bias=module.get("bias"))
        if getattr(module, "global_scale", None) is not None:
            raise UnfitError("its scales have a scale of their own")
        return _ops.Weights(
            module.weight,
            module.scales,
            module.get("biases"),
            module.get("bias"),
            module.group_size,
            module.bits,
            module.mode,
        )


@dataclass(frozen=True, slots=True)
class Stack(Matrix):
    """Matrices of experts."""

    label = "stack of matrices"
    part_only = True


@dataclass(frozen=True, slots=True)
class Linear(Matrix):
    label = "linear layer"
    form = forms.Linear

    def trial(self, module: Any, stage: Stage, table: Table) -> list[mx.array]:
        return [_last_rows_of_product(module, "__call__", stage)]


@dataclass(frozen=True, slots=True)
class Embedding(Matrix):
    label = "embedding"
    form = forms.Embedding

    def trial(self, module: Any, stage: Stage, table: Table) -> list[mx.array]:
        rows = module.weight.shape[0]
        ids = mx.array([[0, 1, rows // 2, rows - 1]], mx.int32)
        return [module(ids), _last_rows_of_product(module, "as_linear", stage)]


@dataclass(frozen=True, slots=True)
class Norm(Pattern):
    """x / rms(x) * weight, or * (1 + weight) with `centered`. `weight` None: no weight at all."""

    label = "norm"
    form = forms.RmsNorm

    weight: str | None = "weight"
    eps: str = "eps"
    centered: bool = False

    def describe(self, module: Any, table: Table) -> _ops.Norm:
        if self.weight is None:
            return _ops.Norm(None, getattr(module, self.eps))
        weight = getattr(module, self.weight)
        weight = 1.0 + weight if self.centered else weight
        mx.eval(weight)
        return _ops.Norm(weight, getattr(module, self.eps))

    def trial(self, module: Any, stage: Stage, table: Table) -> list[mx.array]:
        dim = getattr(module, self.weight).size if self.weight else ANY_DIM
        return [module(stage.normal(2, 3, dim))]


@dataclass(frozen=True, slots=True)
class Rope(Pattern):
    label = "rotary embedding"
    form = forms.Rope

    read: Callable[[Any], Turning]

    def describe(self, module: Any, table: Table) -> _ops.Rope:
        frequencies, traditional, scale = self.read(module)
        mx.eval(frequencies)
        return _ops.Rope(frequencies, traditional, scale)

    def trial(self, module: Any, stage: Stage, table: Table) -> list[mx.array]:
        x = stage.normal(2, 3, 4, 2 * self.read(module)[0].size + UNTURNED)
        if stage.substituted:
            return [module(x, offset=3), module(x, offset=mx.array([FAR, 5], mx.int32))]
        return [module(x, offset=3), mx.concatenate([module(x[:1], offset=FAR), module(x[1:], offset=5)])]


@dataclass(frozen=True, slots=True)
class NoRope(Pattern):
    """Stands where a rotary embedding could be."""

    label = "absent rotary embedding"
    part_only = True

    def describe(self, module: Any, table: Table) -> None:
        return None


def by_base(module: Any) -> Turning:
    """As MLX rounds them: far away, a position turns by many times a frequency."""
    half = module.dims // 2
    steps = mx.arange(0, -half, -1, dtype=mx.float32)
    frequencies = mx.exp(steps * mx.array(math.log(module.base) / half, mx.float32))
    return frequencies * getattr(module, "scale", 1.0), module.traditional, 1.0


def by_wavelengths(traditional: bool = True, scale: str | None = None) -> Callable[[Any], Turning]:
    """From `_freqs`, which holds the reciprocals. traditional: whether the module has such an attribute;
    scale: the attribute with the factor.
    """

    def read(module: Any) -> Turning:
        neighbours = traditional and module.traditional
        return mx.reciprocal(module._freqs), neighbours, getattr(module, scale) if scale else 1.0

    return read


def depth(module: Any) -> int:
    """Width of the inputs of a linear layer or embedding."""
    if module.get("scales") is None:
        return int(module.weight.shape[-1])
    return int(module.scales.shape[-1]) * int(module.group_size)


def _last_rows_of_product(module: Any, method: str, stage: Stage) -> mx.array:
    x = stage.normal(2, depth(module))
    if not stage.substituted:
        module = last_rows(module, COMPARED_ROWS)
    return getattr(type(module), method)(module, x)[..., -COMPARED_ROWS:]
