"""Patterns of MLPs: gated ones, and experts with their routers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from pomona import _ops
from pomona.worker.substitutions import forms
from pomona.worker.substitutions.modules import class_name
from pomona.worker.substitutions.pattern import Pattern, Table, UnfitError, attribute
from pomona.worker.substitutions.single import Linear, Stack, depth
from pomona.worker.substitutions.stage import Stage


@dataclass(frozen=True, slots=True)
class GatedMlp(Pattern):
    """down(activation(gate(x)) * up(x)). `gate` None: no gate.

    gate_up: one matrix for both, the gate first. activation: the op's name of it, or a function of the module
    that gives the name.
    """

    label = "gated MLP"
    form = forms.GatedMlp

    gate: str | None = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    gate_up: str | None = None
    activation: str | Callable[[Any], str] = "silu"

    def describe(self, module: Any, table: Table) -> _ops.GatedMlp:
        activation = self.activation if isinstance(self.activation, str) else self.activation(module)
        down = table.describe(getattr(module, self.down), Linear)
        if self.gate_up:
            both = table.describe(getattr(module, self.gate_up), Linear)
            half = both.rows // 2
            return _ops.GatedMlp(both.part(0, half), both.part(half, half), down, activation)
        gate = table.describe(getattr(module, self.gate), Linear) if self.gate else None
        return _ops.GatedMlp(gate, table.describe(getattr(module, self.up), Linear), down, activation)

    def trial(self, module: Any, stage: Stage, table: Table) -> list[mx.array]:
        return [module(stage.normal(1, 5, depth(getattr(module, self.gate_up or self.up))))]


@dataclass(frozen=True, slots=True)
class SwitchGlu(Pattern):
    """Gated MLPs of experts. `activations`: functions that name one, by the class of its module."""

    label = "switch GLU"
    form = forms.SwitchGlu

    activations: Mapping[str, Callable[[Any], str]]

    def describe(self, module: Any, table: Table) -> _ops.Experts:
        name = class_name(module.activation)
        if name not in self.activations:
            raise UnfitError(f"activation {name} is unknown")
        gate, up, down = (
            table.describe(stack, Stack) for stack in (module.gate_proj, module.up_proj, module.down_proj)
        )
        return _ops.Experts(gate, up, down, self.activations[name](module.activation))

    def trial(self, module: Any, stage: Stage, table: Table) -> list[mx.array]:
        indices = mx.array([[[0, 2], [1, 0], [2, 1]]], mx.uint32) % module.up_proj.num_experts
        return [module(stage.normal(1, 3, module.up_proj.input_dims), indices)]


@dataclass(frozen=True, slots=True)
class ExpertMlp(Pattern):
    """Experts chosen by a router. The names are paths of attributes ('router.layer').

    scoring, normalise: what the op takes, or functions of the module. shared: an MLP beside the experts,
    weighted by sigmoid(shared_gate(x)) where there is a gate.
    """

    label = "expert MLP"
    form = forms.ExpertMlp

    router: str = "gate"
    experts: str = "switch_mlp"
    top_k: str = "top_k"
    scoring: str | Callable[[Any], str] = "softmax"
    normalise: bool | Callable[[Any], bool] = False
    shared: str | None = None
    shared_gate: str | None = None

    def describe(self, module: Any, table: Table) -> _ops.ExpertMlp:
        if getattr(module, "sharding_group", None) is not None:
            raise UnfitError("its experts are on several machines")
        shared = attribute(module, self.shared) if self.shared else None
        shared_gate = attribute(module, self.shared_gate) if self.shared_gate else None
        return _ops.ExpertMlp(
            _router(attribute(module, self.router), table),
            table.describe(attribute(module, self.experts), SwitchGlu),
            attribute(module, self.top_k),
            self.scoring if isinstance(self.scoring, str) else self.scoring(module),
            self.normalise if isinstance(self.normalise, bool) else self.normalise(module),
            table.describe(shared, GatedMlp) if shared is not None else None,
            table.describe(shared_gate, Linear) if shared_gate is not None else None,
        )

    def trial(self, module: Any, stage: Stage, table: Table) -> list[mx.array]:
        return [module(stage.normal(1, 6, attribute(module, self.experts).up_proj.input_dims))]


def _router(module: Any, table: Table) -> _ops.Weights:
    """A linear layer, or a gate that keeps a bare matrix."""
    pattern = table.find(module)
    if isinstance(pattern, Linear):
        return pattern.describe(module, table)
    return _ops.Weights(module.weight)
