"""Runs a model in float32 without touching its weights: embeddings give float32, and MLX widens the rest.

In half precision mlx-lm on the CPU is no oracle: MLX rounds every step, and even sums products of quantized
weights in that precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pomona.worker.substitutions.modules import substitute

EMBEDDINGS = (nn.Embedding, nn.QuantizedEmbedding)


class Float32Embedding(nn.Module):  # type: ignore[misc]  # mlx ships no types
    """Rows that were never rounded, whatever gives them otherwise."""

    def __call__(self, ids: mx.array) -> mx.array:
        if self.get("scales") is None:
            return self.weight[ids].astype(mx.float32)
        scales, biases = self.scales[ids], self.get("biases")
        if biases is not None:
            scales, biases = scales.astype(mx.float32), biases[ids].astype(mx.float32)
        form: dict[str, Any] = {"group_size": self.group_size, "bits": self.bits, "mode": self.mode}
        return mx.dequantize(self.weight[ids], scales, biases, **form).astype(mx.float32)


@contextmanager
def float32_activations(model: nn.Module) -> Iterator[None]:
    embeddings = [module for module in model.modules() if isinstance(module, EMBEDDINGS)]
    done = [substitute(module, Float32Embedding) for module in embeddings]
    try:
        yield
    finally:
        for substitution in reversed(done):
            substitution.undo()
