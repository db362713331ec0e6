"""Mixtures of experts against mlx-lm's, and the promise of equal bits."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.switch_layers import SwitchGLU
from tests.native.ops import modules
from tests.native.ops.reference import random

from pomona import _ops

DTYPES = {mx.float32: 2e-5, mx.bfloat16: 2e-2, mx.float16: 2e-3}
FORMATS = {"dense": None, "q4": (32, 4, "affine"), "mxfp4": (32, 4, "mxfp4")}


def difference(a: mx.array, b: mx.array) -> float:
    assert a.shape == b.shape
    a, b = a.astype(mx.float32), b.astype(mx.float32)
    return (mx.abs(a - b) / mx.maximum(1, mx.abs(b))).max().item()


def mixture(name: str, dtype: mx.Dtype = mx.float32, quantized: Any = None) -> tuple[Any, _ops.ExpertMlp]:
    build, convert = modules.MIXTURES[name]
    module = modules.randomise(build(), dtype)
    if quantized is not None:
        # A matrix of one row or of odd width stays as it is.
        modules.quantize(module, *quantized)
    return module, convert(module)


@pytest.mark.parametrize("quantized", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", modules.MIXTURES)
def test_against_mlx_lm(name, dtype, quantized):
    module, mlp = mixture(name, dtype, quantized)
    for rows in (1, 5, 90):
        x = random((1, rows, 64), dtype, rows)
        out = _ops.expert_mlp(x, mlp)
        assert out.dtype == dtype
        module.set_dtype(mx.float32)
        assert difference(out, module(x.astype(mx.float32))) < DTYPES[dtype]


@pytest.mark.parametrize("name", modules.MIXTURES)
def test_neighbours_change_no_bit(name):
    _, mlp = mixture(name, quantized=(32, 4, "affine"))
    x = random((700, 64), mx.float32, 1)
    whole = _ops.expert_mlp(x, mlp)
    for size in (1, 2, 3, 13, 64, 300):
        for start in (0, 41, 300):
            part = _ops.expert_mlp(x[start : start + size], mlp)
            assert mx.array_equal(part, whole[start : start + size]), (size, start)
    order = mx.array(np.random.default_rng(0).permutation(700))
    assert mx.array_equal(_ops.expert_mlp(x[order], mlp), whole[order])


def test_rows_of_one_expert():
    """All rows choose the same experts: more than a product takes at once."""
    module, _ = mixture("mixtral")
    bias = mx.array([0.0, 90, 0, 80, 0, 0])
    router = _ops.Weights(mx.zeros((6, 64)), bias=bias)
    mlp = _ops.ExpertMlp(router, modules.experts(module.switch_mlp), 2, "topk_softmax")
    x = random((600, 64), mx.float32, 2)
    indices = mx.broadcast_to(mx.array([1, 3]), (600, 2))
    share = mx.softmax(mx.array([90.0, 80.0]))
    expected = (module.switch_mlp(x, indices) * share[:, None]).sum(-2)
    assert difference(_ops.expert_mlp(x, mlp), expected) < 2e-5


def test_more_rows_than_the_buffers_hold():
    """16 M floats of activations are packed at once: 819 rows of these."""
    module = modules.randomise(SwitchGLU(512, 512, 20), mx.float32)
    experts = modules.experts(module)
    router = _ops.Weights(random((20, 512), mx.float32, 1))
    mlp = _ops.ExpertMlp(router, experts, 20, "softmax")
    x = random((850, 512), mx.float32, 2)
    assert mx.array_equal(_ops.expert_mlp(x, mlp)[800:], _ops.expert_mlp(x[800:], mlp))
    indices = mx.broadcast_to(mx.arange(20), (850, 20))
    whole = _ops.switch_glu(x, experts, indices)
    assert mx.array_equal(whole[800:], _ops.switch_glu(x[800:], experts, indices[800:]))


def test_equal_logits_choose_lower_ids():
    module, _ = mixture("mixtral")
    mlp = _ops.ExpertMlp(
        _ops.Weights(mx.zeros((6, 64)), bias=mx.array([1.0, 2, 1, 2, 2, 1])),
        modules.experts(module.switch_mlp),
        4,
        "topk_softmax",
    )
    x = random((3, 64), mx.float32, 2)
    indices = mx.broadcast_to(mx.array([0, 1, 3, 4]), (3, 4))
    share = mx.softmax(mx.array([1.0, 2, 2, 2]))
    expected = (module.switch_mlp(x, indices) * share[:, None]).sum(-2)
    assert difference(_ops.expert_mlp(x, mlp), expected) < 2e-5


def test_sigmoid_scoring():
    module, _ = mixture("mixtral")
    mlp = _ops.ExpertMlp(
        modules.weights(module.gate), modules.experts(module.switch_mlp), 2, "sigmoid", normalise=True
    )
    x = random((9, 64), mx.float32, 2)
    logits = module.gate(x)
    indices = mx.argsort(-logits, axis=-1)[:, :2]
    scores = mx.sigmoid(mx.take_along_axis(logits, indices, axis=-1))
    scores /= scores.sum(-1, keepdims=True)
    expected = (module.switch_mlp(x, indices) * scores[..., None]).sum(-2)
    assert difference(_ops.expert_mlp(x, mlp), expected) < 2e-5


def test_a_row_of_nan_hurts_no_other():
    _, mlp = mixture("qwen3_moe")
    x = np.array(random((5, 64), mx.float32, 3))
    whole = _ops.expert_mlp(mx.array(x), mlp)
    x[2] = np.nan
    out = _ops.expert_mlp(mx.array(x), mlp)
    assert mx.isnan(out[2]).all()
    for row in (0, 1, 3, 4):
        assert mx.array_equal(out[row], whole[row])


# ---------------------------------------------------------------- switch_glu


@pytest.mark.parametrize("quantized", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_switch_glu(dtype, quantized):
    module = modules.randomise(SwitchGLU(64, 96, 7, bias=True), dtype)
    if quantized is not None:
        modules.quantize(module, *quantized)
    native = modules.experts(module)
    module.set_dtype(mx.float32)
    for shape in [(1, 1), (2, 3), (1, 300)]:
        x = random((*shape, 64), dtype, 1)
        indices = mx.random.randint(0, 7, (*shape, 3), key=mx.random.key(2)).astype(mx.uint32)
        out = _ops.switch_glu(x, native, indices)
        assert out.dtype == dtype
        assert difference(out, module(x.astype(mx.float32), indices)) < DTYPES[dtype]


def test_switch_glu_of_strided_indices_and_unknown_experts():
    module = modules.randomise(SwitchGLU(32, 64, 4), mx.float32)
    native = modules.experts(module)
    x = random((6, 32), mx.float32, 1)
    wide = mx.array(np.random.default_rng(3).integers(0, 4, (3, 6)), mx.int32)
    out = _ops.switch_glu(x, native, wide.T)
    assert difference(out, module(x, wide.T)) < 2e-5
    partly = _ops.switch_glu(x, native, mx.array([[0, 4], [-1, 1], [2, 2], [3, 3], [0, 0], [1, 1]]))
    unknown = mx.isnan(partly).all(axis=-1).tolist()
    assert unknown == [[False, True], [True, False], *[[False, False]] * 4]
    none = _ops.switch_glu(x, native, mx.zeros((6, 0), mx.int32))
    mx.eval(none)
    assert none.shape == (6, 0, 32)


def refused(match: str) -> Any:
    return pytest.raises(ValueError, match=match)


def test_what_does_not_fit():
    def w(*shape: int) -> _ops.Weights:
        return _ops.Weights(mx.zeros(shape))

    good = _ops.Experts(w(4, 16, 8), w(4, 16, 8), w(4, 8, 16), "silu")
    with refused("stacks of equally many matrices, got 4, 4 and 3"):
        _ops.Experts(w(4, 16, 8), w(4, 16, 8), w(3, 8, 16), "silu")
    with refused("got 0, 4 and 4"):
        _ops.Experts(w(16, 8), w(4, 16, 8), w(4, 8, 16), "silu")
    with refused(r"up is \[16, 8\], down \[8, 15\]"):
        _ops.Experts(w(4, 16, 8), w(4, 16, 8), w(4, 8, 15), "silu")
    with refused("Experts: activation tanh is not"):
        _ops.Experts(w(4, 16, 8), w(4, 16, 8), w(4, 8, 16), "tanh")
    with refused(r"the router is \[5, 8\], expected \[4, 8\]"):
        _ops.ExpertMlp(w(5, 8), good, 2, "softmax")
    with refused("top_k is 5, there are 4 experts"):
        _ops.ExpertMlp(w(4, 8), good, 5, "softmax")
    with refused("scoring max is not softmax"):
        _ops.ExpertMlp(w(4, 8), good, 2, "max")
    with refused("shared_gate needs a shared MLP"):
        _ops.ExpertMlp(w(4, 8), good, 2, "softmax", shared_gate=w(1, 8))
    mlp = _ops.ExpertMlp(w(4, 8), good, 2, "softmax")
    with refused(r"expert_mlp: x has shape \(2,9\), expected \[..., 8\]"):
        _ops.expert_mlp(mx.zeros((2, 9)), mlp)
    with refused(r"switch_glu: indices have shape \(3,2\), x \(2,8\)"):
        _ops.switch_glu(mx.zeros((2, 8)), good, mx.zeros((3, 2), mx.int32))
    with refused("indices must be int32 or uint32"):
        _ops.switch_glu(mx.zeros((2, 8)), good, mx.zeros((2, 2)))
    with pytest.raises(TypeError):
        _ops.DecoderLayer(None, None, None, None)
