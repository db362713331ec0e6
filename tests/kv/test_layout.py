from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models import cache as stock
from mlx_lm.utils import load_model

from pomona.kv import seam
from pomona.kv.layout import (
    AttentionLayer,
    CompositeLayer,
    RecurrentLayer,
    read_layout,
)

seam.install()


def test_sliding_and_full_layers(tiny_model: Callable[[str], Path]) -> None:
    layout = read_layout(load_model(tiny_model("gemma3_text"))[0])
    windows = [layer.window for layer in layout.attention]
    assert windows == [32, 32, 32, 0]
    assert layout.attention[0] == AttentionLayer(1, 32, 1, 32, mx.float32, 32)
    assert layout.bytes_per_token == 4 * (32 + 32) * 4


def test_keys_and_values_of_different_width(tiny_model: Callable[[str], Path]) -> None:
    layer = read_layout(load_model(tiny_model("deepseek_v3"))[0]).attention[0]
    assert layer.k_dim != layer.v_dim


def test_recurrent_and_composite_layers(tiny_model: Callable[[str], Path]) -> None:
    assert all(
        isinstance(layer, RecurrentLayer) for layer in read_layout(load_model(tiny_model("mamba2"))[0]).layers
    )
    composite = read_layout(load_model(tiny_model("falcon_h1"))[0]).layers[0]
    assert isinstance(composite, CompositeLayer)
    assert [type(member) for member in composite.members] == [RecurrentLayer, AttentionLayer]


def test_cache_kinds_without_a_paged_form_stay_mlx_lms_own(tiny_model: Callable[[str], Path]) -> None:
    model = load_model(tiny_model("llama"))[0]
    paged = read_layout(model)
    layers = len(model.layers)
    model.make_cache = lambda: [stock.ChunkedKVCache(64) for _ in range(layers)]
    layout = read_layout(model)
    assert layout.opaque
    assert not layout.attention
    assert layout.bytes_per_token == paged.bytes_per_token


def test_installing_late_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    late = types.ModuleType("mlx_lm.models.late")
    late.__dict__["scaled_dot_product_attention"] = lambda: None
    monkeypatch.setitem(sys.modules, "mlx_lm.models.late", late)
    with pytest.raises(RuntimeError, match="late was imported before"):
        seam.install()
