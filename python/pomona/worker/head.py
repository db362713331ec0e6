"""Computes the output head only for the rows that need logits: on every device, unlike the CPU's ops.

The head (or the tied embedding) of an unmodified mlx-lm model is substituted by a form that first selects
rows of its input. What its class did before, its own code or an op, it still does.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from pomona.worker.substitutions import Substitution, substitute

HEAD_NAMES = ("lm_head", "output", "embed_out")
EMBEDDING_NAMES = ("embed_tokens", "wte", "embeddings", "tok_embeddings", "embedding")


class WantedRows:
    """The rows of the next call's hidden states, flattened to [B * L, hidden], that get logits."""

    def __init__(self) -> None:
        self.rows: mx.array | None = None

    def select(self, hidden: mx.array) -> mx.array:
        if self.rows is None:
            return hidden
        return hidden.reshape(-1, hidden.shape[-1])[self.rows][:, None, :]


class SelectiveHead(nn.Module):  # type: ignore[misc]  # mlx ships no types
    _wanted: WantedRows

    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(self._wanted.select(x))


class SelectiveEmbedding(nn.Module):  # type: ignore[misc]
    _wanted: WantedRows

    def as_linear(self, x: mx.array) -> mx.array:
        return super().as_linear(self._wanted.select(x))


@dataclass(frozen=True, slots=True)
class SelectedHead:
    wanted: WantedRows
    substitution: Substitution


def install(model: nn.Module) -> SelectedHead | None:
    """Substitute the model's head; None when no head was recognised (then all rows get logits)."""
    wanted = WantedRows()
    outermost_first = sorted(model.named_modules(), key=lambda named: str(named[0]).count("."))
    for names, method, form in (
        (HEAD_NAMES, "weight", SelectiveHead),
        (EMBEDDING_NAMES, "as_linear", SelectiveEmbedding),
    ):
        for name, module in outermost_first:
            if name.rpartition(".")[2] in names and hasattr(module, method):
                return SelectedHead(wanted, substitute(module, form, _wanted=wanted))
    return None
