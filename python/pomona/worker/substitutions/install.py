"""Walks a model from the outside in and substitutes what the table knows."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn

from pomona.worker.substitutions.modules import Substitution, children, class_name, substitute
from pomona.worker.substitutions.pattern import Pattern, UnfitError
from pomona.worker.substitutions.proofs import Proofs
from pomona.worker.substitutions.single import Embedding
from pomona.worker.substitutions.table import TABLE

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Substitutions:
    """What was substituted in a model, and what of the table was left alone and why."""

    done: list[Substitution] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """By label: 'decoder layer', 'norm', ..."""
    unfit: dict[str, str] = field(default_factory=dict)
    """By class: why an instance is not of its pattern's form. Its parts may have been substituted."""
    failed: dict[str, str] = field(default_factory=dict)
    """By class: how an instance failed its trial. This should not happen."""

    def undo(self) -> None:
        while self.done:
            self.done.pop().undo()
        self.counts.clear()

    @property
    def summary(self) -> str:
        """'30 decoder layers, 1 norm'; empty when there are none."""
        return ", ".join(f"{n} {label}{'s' if n > 1 else ''}" for label, n in self.counts.items())

    @property
    def notes(self) -> list[str]:
        done = [f"fused ops run {self.summary}"] if self.counts else []
        return done + [f"{name} is left to mlx-lm: {reason}" for name, reason in self.failed.items()]


class Installer:
    """Substitutes modules of one model. Trials are made once, however often it installs and undoes."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._proofs = Proofs(TABLE, _activations(model))

    def install(self, paged: bool) -> Substitutions:
        """Substitute on the CPU; on another device the model stays as it is.

        paged: attention will read the blocks of the KV pool; else it stays mlx-lm's.
        """
        walk = _Walk(self._proofs, paged)
        if mx.default_device() == mx.cpu:
            walk.visit(self._model)
        return walk.found


class _Walk:
    def __init__(self, proofs: Proofs, paged: bool) -> None:
        self.found = Substitutions()
        self._proofs = proofs
        self._paged = paged
        self._seen: set[int] = set()

    def visit(self, module: nn.Module) -> None:
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        pattern = TABLE.find(module)
        if pattern is None or not self._usable(pattern, module) or not self._substituted(module, pattern):
            for child in children(module):
                self.visit(child)

    def _usable(self, pattern: Pattern, module: nn.Module) -> bool:
        return not pattern.part_only and (self._paged or not pattern.paged) and pattern.applies(module)

    def _substituted(self, module: nn.Module, pattern: Pattern) -> bool:
        name = class_name(module)
        try:
            op = pattern.describe(module, TABLE)
        except UnfitError as unfit:
            self.found.unfit[name] = str(unfit)
            return False
        except Exception as failure:  # whatever an odd instance or an op raises: it stays as it is
            self.found.failed[name] = f"{type(failure).__name__}: {failure}"
            return False
        verdict = self._proofs.verdict(module, pattern, op)
        if verdict.refusal:
            self.found.failed[name] = verdict.refusal
            return False
        self.found.done.append(substitute(module, pattern.form, _op=op, _dtype=verdict.dtype))
        self.found.counts[pattern.label] += 1
        return True


def _activations(model: nn.Module) -> mx.Dtype:
    """The dtype of what an embedding of the model gives."""
    for module in model.modules():
        if isinstance(TABLE.find(module), Embedding):
            return module(mx.zeros((1, 1), mx.int32)).dtype
    return mx.float32
