"""Runs a model in float32 without touching its weights: embeddings give float32, and MLX widens the rest.

In half precision mlx-lm on the CPU is no oracle: MLX rounds every step, and even sums products of quantized
weights in that precision. MLX's quantized product there is slow besides (minutes for 16 tokens of a large
model), so matrices are dequantized for each use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pomona.worker.substitutions.modules import substitute

EMBEDDINGS = (nn.Embedding, nn.QuantizedEmbedding)


def _dequantized(module: nn.Module, rows: mx.array | slice = slice(None)) -> mx.array:
    """Rows of a quantized module's matrix, never rounded to half precision."""
    scales, biases = module.scales[rows], module.get("biases")
    if biases is not None:
        scales, biases = scales.astype(mx.float32), biases[rows].astype(mx.float32)
    form: dict[str, Any] = {"group_size": module.group_size, "bits": module.bits, "mode": module.mode}
    return mx.dequantize(module.weight[rows], scales, biases, **form).astype(mx.float32)


class Float32Embedding(nn.Module):  # type: ignore[misc]  # mlx ships no types
    """Rows that were never rounded, whatever gives them otherwise."""

    def __call__(self, ids: mx.array) -> mx.array:
        if self.get("scales") is None:
            return self.weight[ids].astype(mx.float32)
        return _dequantized(self, ids)


class Float32Linear(nn.Module):  # type: ignore[misc]
    """The product of a quantized matrix through the BLAS."""

    def __call__(self, x: mx.array) -> mx.array:
        y = x.astype(mx.float32) @ _dequantized(self).T
        bias = self.get("bias")
        return y if bias is None else y + bias


@contextmanager
def float32_activations(model: nn.Module) -> Iterator[None]:
    done = [
        substitute(module, form) for module in model.modules() if (form := _float32_form(module)) is not None
    ]
    try:
        yield
    finally:
        for substitution in reversed(done):
            substitution.undo()


def _float32_form(module: nn.Module) -> type[nn.Module] | None:
    if isinstance(module, EMBEDDINGS):
        return Float32Embedding
    # A matrix that runs on a fused op already keeps it: that op is what is on trial.
    return Float32Linear if type(module) is nn.QuantizedLinear else None
