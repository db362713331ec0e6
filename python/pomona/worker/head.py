"""Computes the output head only for the rows that need logits.

The head (or the tied embedding) of an unmodified mlx-lm model is replaced by a module that first selects
rows of its input. This is one entry of the table of module-instance substitutions.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

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
    def __init__(self, head: nn.Module, wanted: WantedRows) -> None:
        super().__init__()
        self.head = head
        self._wanted = wanted

    def __call__(self, x: mx.array) -> mx.array:
        return self.head(self._wanted.select(x))


class SelectiveEmbedding(nn.Module):  # type: ignore[misc]
    def __init__(self, embedding: nn.Module, wanted: WantedRows) -> None:
        super().__init__()
        self.embedding = embedding
        self._wanted = wanted

    def __call__(self, x: mx.array) -> mx.array:
        return self.embedding(x)

    def as_linear(self, x: mx.array) -> mx.array:
        return self.embedding.as_linear(self._wanted.select(x))

    @property
    def weight(self) -> mx.array:
        return self.embedding.weight


def install(model: nn.Module) -> WantedRows | None:
    """Substitute the model's head; None when no head was recognised (then all rows get logits)."""
    wanted = WantedRows()
    for parent, name, module in _children(model):
        if name in HEAD_NAMES and hasattr(module, "weight"):
            setattr(parent, name, SelectiveHead(module, wanted))
            return wanted
    for parent, name, module in _children(model):
        if name in EMBEDDING_NAMES and hasattr(module, "as_linear"):
            setattr(parent, name, SelectiveEmbedding(module, wanted))
            return wanted
    return None


def uninstall(model: nn.Module) -> None:
    for parent, name, module in _children(model):
        if isinstance(module, SelectiveHead):
            setattr(parent, name, module.head)
        elif isinstance(module, SelectiveEmbedding):
            setattr(parent, name, module.embedding)


def _children(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """(parent, attribute, module) of every direct module attribute, outermost first."""
    found = []
    for _, parent in reversed(model.named_modules()):
        found += [(parent, name, child) for name, child in parent.items() if isinstance(child, nn.Module)]
    return found
