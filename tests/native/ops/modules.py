"""Modules of mlx-lm with small random weights, and the same weights as parts of a native layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map, tree_map_with_path
from mlx_lm.models import gemma3_text, llama, qwen3

from pomona import _ops

M = TypeVar("M", bound=nn.Module)


def randomise(module: M, dtype: mx.Dtype, seed: int = 0) -> M:
    """Weights that keep activations near 1; norms near 1, biases and sinks near 0."""
    state = iter(mx.random.split(mx.random.key(seed), 1000))

    def value(path: str, old: mx.array) -> mx.array:
        noise = mx.random.normal(old.shape, key=next(state))
        if "norm" in path:
            return (old.astype(mx.float32) + 0.1 * noise).astype(dtype)
        scale = old.shape[-1] ** -0.5 if old.ndim > 1 else 0.5
        return (scale * noise).astype(dtype)

    module.update(tree_map_with_path(value, module.parameters()))
    mx.eval(module.parameters())
    return module


def quantize(module: M, group_size: int = 32, bits: int = 4, mode: str = "affine") -> M:
    nn.quantize(module, group_size, bits, mode=mode)
    mx.eval(module.parameters())
    return module


def weights(module: nn.Module) -> _ops.Weights:
    """Of a linear or switch layer, quantized or not."""
    return _ops.Weights(
        module["weight"],
        module.get("scales"),
        module.get("biases"),
        module.get("bias"),
        getattr(module, "group_size", 0),
        getattr(module, "bits", 0),
        getattr(module, "mode", "affine"),
    )


def norm(module: nn.Module | None, plus: float = 0.0) -> _ops.Norm | None:
    return None if module is None else _ops.Norm(module["weight"].astype(mx.float32) + plus, module.eps)


def rope(module: nn.RoPE) -> _ops.Rope:
    half = module.dims // 2
    exponents = mx.arange(0, -half, -1, dtype=mx.float32) * (mx.log(mx.array(module.base)) / half)
    return _ops.Rope(mx.exp(exponents) * module.scale, module.traditional)


def attention(module: Any, plus: float = 0.0) -> _ops.Attention:
    """Of llama, qwen3 and gemma3; `plus` is what the model adds to the weights of its norms."""
    return _ops.Attention(
        *(weights(module[name]) for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
        heads=module.n_heads,
        kv_heads=module.n_kv_heads,
        scale=module.scale,
        rope=rope(module.rope),
        q_norm=norm(module.get("q_norm"), plus),
        k_norm=norm(module.get("k_norm"), plus),
    )


def mlp(module: Any, activation: str = "silu") -> _ops.GatedMlp:
    gate, up, down = (weights(module[name]) for name in ("gate_proj", "up_proj", "down_proj"))
    return _ops.GatedMlp(gate, up, down, activation)


def llama_block(hidden: int = 96, bias: bool = False) -> Any:
    return llama.TransformerBlock(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=hidden,
            num_hidden_layers=1,
            intermediate_size=2 * hidden + 32,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=32,
            rms_norm_eps=1e-5,
            vocab_size=16,
            attention_bias=bias,
            mlp_bias=bias,
        )
    )


def qwen3_block(hidden: int = 64) -> Any:
    return qwen3.TransformerBlock(
        qwen3.ModelArgs(
            model_type="qwen3",
            hidden_size=hidden,
            num_hidden_layers=1,
            intermediate_size=160,
            num_attention_heads=4,
            rms_norm_eps=1e-6,
            vocab_size=16,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            rope_theta=1e6,
            head_dim=32,
            tie_word_embeddings=True,
        )
    )


def gemma3_block(hidden: int = 64, layer: int = 0) -> Any:
    args = gemma3_text.ModelArgs(
        model_type="gemma3_text",
        hidden_size=hidden,
        num_hidden_layers=1,
        intermediate_size=128,
        num_attention_heads=4,
        head_dim=32,
        vocab_size=16,
        num_key_value_heads=1,
        query_pre_attn_scalar=32,
        sliding_window=24,
    )
    block = gemma3_text.TransformerBlock(args, layer)
    # The model adds 1 to the weights of its norms.
    block.update(tree_map(mx.zeros_like, block.parameters()))
    return block


def pre_norm_layer(block: Any) -> _ops.DecoderLayer:
    """Of llama and qwen3."""
    return _ops.DecoderLayer(
        attention(block.self_attn),
        mlp(block.mlp),
        norm(block.input_layernorm),
        norm(block.post_attention_layernorm),
    )


def gemma3_layer(block: Any) -> _ops.DecoderLayer:
    return _ops.DecoderLayer(
        attention(block.self_attn, plus=1.0),
        mlp(block.mlp, "gelu_tanh"),
        norm(block.input_layernorm, 1.0),
        norm(block.pre_feedforward_layernorm, 1.0),
        norm(block.post_attention_layernorm, 1.0),
        norm(block.post_feedforward_layernorm, 1.0),
    )


Build = tuple[Callable[[], Any], Callable[[Any], _ops.DecoderLayer], int]

# Name: the block of mlx-lm, the native layer of such a block, the window of its attention.
BLOCKS: dict[str, Build] = {
    "llama": (llama_block, pre_norm_layer, 0),
    "llama-bias": (lambda: llama_block(bias=True), pre_norm_layer, 0),
    "qwen3": (qwen3_block, pre_norm_layer, 0),
    "gemma3": (lambda: gemma3_block(layer=5), gemma3_layer, 0),
    "gemma3-window": (gemma3_block, gemma3_layer, 24),
}


def kv_shape(module: Any) -> tuple[int, int]:
    """KV heads of an attention module, and their width."""
    heads = module.n_kv_heads
    return heads, module.k_proj.weight.shape[0] // heads
