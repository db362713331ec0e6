"""Admits substitutions: a module must give the same with its op as without, once for each kind of module."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pomona.worker.substitutions.modules import kind, substitute
from pomona.worker.substitutions.pattern import Pattern, Table
from pomona.worker.substitutions.stage import Stage

# Largest accepted difference, as a share of the largest value. The arithmetic is proved with float32
# activations, where only the order of sums differs; embeddings of half precision are rounded once.
FLOAT32, ROUNDED = 1e-4, 1e-2
# With activations in half precision the trial shows that the op takes them. mlx sums products of quantized
# weights in that precision on the CPU: 6 % off in bfloat16 at a depth of 2,048.
HALF = 0.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """`refusal` is empty for what may be substituted. `dtype`: of the outputs for the model's activations."""

    refusal: str
    dtype: mx.Dtype = mx.float32


class Proofs:
    """Verdicts by kind of module, for a model whose activations are in `dtype`."""

    def __init__(self, table: Table, dtype: mx.Dtype) -> None:
        self._table = table
        self._dtype = dtype
        self._verdicts: dict[Hashable, Verdict] = {}

    def verdict(self, module: nn.Module, pattern: Pattern, op: Any) -> Verdict:
        key = kind(module)
        if key not in self._verdicts:
            try:
                self._verdicts[key] = self._try(module, pattern, op)
            except Exception as failure:  # whatever model code or an op raises: this module stays as it is
                self._verdicts[key] = Verdict(f"{type(failure).__name__}: {failure}")
        return self._verdicts[key]

    def _try(self, module: nn.Module, pattern: Pattern, op: Any) -> Verdict:
        for part in pattern.parts(module, self._table):
            if (part_pattern := self._table.find(part)) is not None:
                verdict = self.verdict(part, part_pattern, part_pattern.describe(part, self._table))
                if verdict.refusal:
                    return verdict
        # The model's own dtype comes last, because its outputs' dtype is the one to keep.
        for dtype in dict.fromkeys((mx.float32, self._dtype)):
            verdict = self._trial(module, pattern, op, dtype)
            if verdict.refusal:
                break
        return verdict

    def _trial(self, module: nn.Module, pattern: Pattern, op: Any, dtype: mx.Dtype) -> Verdict:
        stage = Stage(dtype)
        expected = pattern.trial(module, stage, self._table)
        given = expected[0].dtype
        stage.substituted = True
        substitution = substitute(module, pattern.form, _op=op, _dtype=given)
        try:
            actual = pattern.trial(module, stage, self._table)
            mx.eval(actual)
        finally:
            substitution.undo()
        if dtype != mx.float32 and not _computable(expected):
            expected = actual
        return Verdict(_disagreement(expected, actual, dtype), given)


def _computable(arrays: list[mx.array]) -> bool:
    """Some of MLX's own operations know only float32 on the CPU."""
    try:
        mx.eval(arrays)
    except RuntimeError:
        return False
    return True


def _disagreement(expected: list[mx.array], actual: list[mx.array], activations: mx.Dtype) -> str:
    for ours, theirs in zip(actual, expected, strict=True):
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return f"gives {ours.dtype} {ours.shape} for {theirs.dtype} {theirs.shape}"
        if not mx.isfinite(ours).all().item():
            return "outputs are not finite"
        differences = _differences(ours, theirs)
        if activations == mx.float32:
            difference, tolerance = differences[-1], FLOAT32 if theirs.dtype == mx.float32 else ROUNDED
        else:
            # A router may choose another expert for a close tie, so the middle row counts.
            difference, tolerance = differences[len(differences) // 2], HALF
        if not difference <= tolerance:
            return f"outputs differ by {difference:.1e}"
    return ""


def _differences(ours: mx.array, theirs: mx.array) -> list[float]:
    """The largest of each row, in order, as shares of the largest value."""
    ours, theirs = ours.astype(mx.float32), theirs.astype(mx.float32)
    largest = max(float(mx.abs(theirs).max().item()), 1e-30)
    rows = mx.abs(ours - theirs).reshape(-1, theirs.shape[-1]).max(axis=-1) / largest
    return sorted(rows.tolist())
