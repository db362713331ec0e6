"""Patterns of attention blocks and of whole decoder layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pomona import _ops
from pomona.worker.substitutions import forms
from pomona.worker.substitutions.mlps import ExpertMlp, GatedMlp
from pomona.worker.substitutions.modules import class_name
from pomona.worker.substitutions.pattern import Pattern, Table, UnfitError, attribute
from pomona.worker.substitutions.single import Linear, Norm, NoRope, Rope, depth
from pomona.worker.substitutions.stage import Stage


@dataclass(frozen=True, slots=True)
class Attention(Pattern):
    """Projections, a norm of each head's q and k, rotary embedding, attention, projection.

    qkv: one matrix for all three, q first. kv_heads None: as many as q has. scale None: 1 / sqrt(head dim).
    rope_if, norms_if: attributes that tell whether there are any. unfit_if: an attribute that says that there
    is something more.
    """

    label = "attention block"
    form = forms.Attention
    paged = True

    q: str = "q_proj"
    k: str = "k_proj"
    v: str = "v_proj"
    o: str = "o_proj"
    qkv: str | None = None
    heads: str = "n_heads"
    kv_heads: str | None = "n_kv_heads"
    scale: str | None = "scale"
    rope: str | None = "rope"
    rope_if: str | None = None
    q_norm: str | None = None
    k_norm: str | None = None
    norms_if: str | None = None
    unfit_if: str | None = None
    sinks: str | None = None

    def describe(self, module: Any, table: Table) -> _ops.Attention:
        if self.unfit_if and getattr(module, self.unfit_if):
            raise UnfitError(f"it has {self.unfit_if}")
        heads = getattr(module, self.heads)
        kv_heads = getattr(module, self.kv_heads) if self.kv_heads else heads
        q, k, v = self._projections(module, heads, kv_heads, table)
        rope = self._rope(module, table)
        normed = not self.norms_if or getattr(module, self.norms_if)
        return _ops.Attention(
            *(q, k, v, table.describe(getattr(module, self.o), Linear)),
            heads,
            kv_heads,
            float(getattr(module, self.scale) if self.scale else (q.rows // heads) ** -0.5),
            table.describe(rope, Rope) if rope is not None else None,
            _norm(module, self.q_norm, table) if normed else None,
            _norm(module, self.k_norm, table) if normed else None,
            getattr(module, self.sinks) if self.sinks else None,
        )

    def _projections(
        self, module: Any, heads: int, kv_heads: int, table: Table
    ) -> tuple[_ops.Weights, _ops.Weights, _ops.Weights]:
        if not self.qkv:
            q, k, v = (table.describe(getattr(module, name), Linear) for name in (self.q, self.k, self.v))
            return q, k, v
        joined = table.describe(getattr(module, self.qkv), Linear)
        head_dim = joined.rows // (heads + 2 * kv_heads)
        q_rows, kv_rows = heads * head_dim, kv_heads * head_dim
        return (
            joined.part(0, q_rows),
            joined.part(q_rows, kv_rows),
            joined.part(q_rows + kv_rows, kv_rows),
        )

    def _rope(self, module: Any, table: Table) -> Any:
        if not self.rope or (self.rope_if and not getattr(module, self.rope_if)):
            return None
        rope = getattr(module, self.rope)
        return None if rope is None or isinstance(table.find(rope), NoRope) else rope

    def parts(self, module: Any, table: Table) -> list[nn.Module]:
        rope = self._rope(module, table)
        return [] if rope is None else [rope]

    def hidden(self, module: Any) -> int:
        return depth(getattr(module, self.qkv or self.q))

    def trial(self, module: Any, stage: Stage, table: Table) -> list[mx.array]:
        return stage.attend(module, self.hidden(module))


@dataclass(frozen=True, slots=True)
class DecoderLayer(Pattern):
    """h = x + after_attention(attention(before_attention(x))); h + after_mlp(mlp(before_mlp(h))).

    The names are paths of attributes; norms that are None are not there. residual_scale multiplies what is
    added to x and to h. clips_float16: sums of residuals are clipped in float16.
    """

    label = "decoder layer"
    form = forms.DecoderLayer
    paged = True

    attention: str = "self_attn"
    mlp: str = "mlp"
    before_attention: str | None = "input_layernorm"
    before_mlp: str | None = "post_attention_layernorm"
    after_attention: str | None = None
    after_mlp: str | None = None
    residual_scale: Callable[[Any], float] | None = None
    clips_float16: bool = False

    def describe(self, module: Any, table: Table) -> _ops.DecoderLayer:
        if self.clips_float16 and attribute(module, f"{self.before_mlp}.weight").dtype == mx.float16:
            raise UnfitError("it clips float16 residuals")
        attention = table.describe(self._attention(module), Attention)
        return _ops.DecoderLayer(
            attention,
            self._mlp(module, table),
            _norm(module, self.before_attention, table),
            _norm(module, self.before_mlp, table),
            _norm(module, self.after_attention, table),
            _norm(module, self.after_mlp, table),
            self.residual_scale(module) if self.residual_scale else 1.0,
        )

    def applies(self, module: Any) -> bool:
        """Layers of hybrid models may have something else than attention."""
        return self._attention(module) is not None

    def _attention(self, module: Any) -> Any:
        return attribute(module, self.attention)

    def _mlp(self, module: Any, table: Table) -> _ops.GatedMlp | _ops.ExpertMlp:
        mlp = attribute(module, self.mlp)
        pattern = table.find(mlp)
        if isinstance(pattern, (GatedMlp, ExpertMlp)):
            return pattern.describe(mlp, table)
        raise UnfitError(f"{class_name(mlp)} is no known MLP")

    def parts(self, module: Any, table: Table) -> list[nn.Module]:
        attention = self._attention(module)
        return table.require(attention, Attention).parts(attention, table)

    def trial(self, module: Any, stage: Stage, table: Table) -> list[mx.array]:
        attention = self._attention(module)
        hidden = table.require(attention, Attention).hidden(attention)
        outputs = stage.attend(module, hidden)
        if stage.dtype != mx.float32:
            return outputs
        # What the layer adds shows more than the sum, which may be mostly its input.
        return [y - x for y, x in zip(outputs, stage.prompt_and_token(hidden), strict=True)]


def _norm(module: Any, path: str | None, table: Table) -> _ops.Norm | None:
    if path is None:
        return None
    norm = attribute(module, path)
    return table.require(norm, Norm).describe(norm, table)
