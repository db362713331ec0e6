"""Modules of mlx-lm with small random weights, and the same weights as parts of a native layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map, tree_map_with_path
from mlx_lm.models import gemma3_text, gpt_oss, llama, mixtral, qwen3
from mlx_lm.models import qwen2_moe as qwen2_moe_module
from mlx_lm.models import qwen3_moe as qwen3_moe_module

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


def rope(module: Any) -> _ops.Rope:
    """Of nn.RoPE and of mlx-lm's YarnRoPE."""
    if "_freqs" in module:
        return _ops.Rope(1 / module._freqs, module.traditional, module.mscale)
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


def llama_block(hidden: int = 96, head_dim: int = 32, bias: bool = False) -> Any:
    return llama.TransformerBlock(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=hidden,
            num_hidden_layers=1,
            intermediate_size=2 * hidden + 32,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=head_dim,
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


def gpt_oss_block() -> Any:
    rope = {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
    return gpt_oss.TransformerBlock(
        gpt_oss.ModelArgs(
            num_hidden_layers=2,
            num_local_experts=8,
            num_experts_per_tok=3,
            vocab_size=16,
            hidden_size=64,
            intermediate_size=96,
            head_dim=32,
            num_attention_heads=4,
            num_key_value_heads=2,
            sliding_window=24,
            rope_scaling=rope,
        )
    )


def gpt_oss_layer(block: Any) -> _ops.DecoderLayer:
    module = block.self_attn
    attention = _ops.Attention(
        *(weights(module[name]) for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
        heads=module.num_attention_heads,
        kv_heads=module.num_key_value_heads,
        scale=module.sm_scale,
        rope=rope(module.rope),
        sinks=module.sinks,
    )
    return _ops.DecoderLayer(
        attention,
        gpt_oss_mlp(block.mlp),
        norm(block.input_layernorm),
        norm(block.post_attention_layernorm),
    )


# ---------------------------------------------------------------- mixtures of experts


def experts(module: Any, activation: str = "silu") -> _ops.Experts:
    """Of mlx-lm's SwitchGLU."""
    gate, up, down = (weights(module[name]) for name in ("gate_proj", "up_proj", "down_proj"))
    return _ops.Experts(gate, up, down, activation)


def gpt_oss_mlp(module: Any) -> _ops.ExpertMlp:
    return _ops.ExpertMlp(
        weights(module.router),
        experts(module.experts, "swiglu_oai"),
        module.num_experts_per_tok,
        "topk_softmax",
    )


def mixtral_mlp(module: Any) -> _ops.ExpertMlp:
    return _ops.ExpertMlp(
        weights(module.gate), experts(module.switch_mlp), module.num_experts_per_tok, "topk_softmax"
    )


def qwen3_moe_mlp(module: Any) -> _ops.ExpertMlp:
    return _ops.ExpertMlp(
        weights(module.gate), experts(module.switch_mlp), module.top_k, "softmax", module.norm_topk_prob
    )


def qwen2_moe_mlp(module: Any) -> _ops.ExpertMlp:
    return _ops.ExpertMlp(
        weights(module.gate),
        experts(module.switch_mlp),
        module.top_k,
        "softmax",
        shared=mlp(module.shared_expert),
        shared_gate=weights(module.shared_expert_gate),
    )


def mixtral_moe() -> Any:
    return mixtral.MixtralSparseMoeBlock(
        mixtral.ModelArgs(model_type="mixtral", hidden_size=64, intermediate_size=96, num_local_experts=6)
    )


def qwen3_moe(normalise: bool = True) -> Any:
    return qwen3_moe_module.Qwen3MoeSparseMoeBlock(
        qwen3_moe_module.ModelArgs(
            model_type="qwen3_moe",
            hidden_size=64,
            num_hidden_layers=1,
            intermediate_size=96,
            num_attention_heads=4,
            num_experts=20,
            num_experts_per_tok=4,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            moe_intermediate_size=96,
            rms_norm_eps=1e-6,
            vocab_size=16,
            num_key_value_heads=2,
            head_dim=16,
            rope_theta=1e6,
            tie_word_embeddings=True,
            max_position_embeddings=4096,
            norm_topk_prob=normalise,
        )
    )


def qwen2_moe() -> Any:
    return qwen2_moe_module.Qwen2MoeSparseMoeBlock(
        qwen2_moe_module.ModelArgs(
            model_type="qwen2_moe",
            hidden_size=64,
            num_hidden_layers=1,
            intermediate_size=96,
            num_attention_heads=4,
            num_experts_per_tok=3,
            num_experts=9,
            moe_intermediate_size=64,
            shared_expert_intermediate_size=128,
            rms_norm_eps=1e-6,
            vocab_size=16,
        )
    )


def gpt_oss_moe() -> Any:
    return gpt_oss_block().mlp


# Name: mlx-lm's module, and the native MLP of such a module.
MIXTURES: dict[str, tuple[Callable[[], Any], Callable[[Any], _ops.ExpertMlp]]] = {
    "mixtral": (mixtral_moe, mixtral_mlp),
    "qwen3_moe": (qwen3_moe, qwen3_moe_mlp),
    "qwen3_moe-plain": (lambda: qwen3_moe(normalise=False), qwen3_moe_mlp),
    "qwen2_moe": (qwen2_moe, qwen2_moe_mlp),
    "gpt_oss": (gpt_oss_moe, gpt_oss_mlp),
}

# Name: mlx-lm's block, the native layer of such a block, the window of its attention.
BLOCKS: dict[str, tuple[Callable[[], Any], Callable[[Any], _ops.DecoderLayer], int]] = {
    "llama": (llama_block, pre_norm_layer, 0),
    "llama-bias": (lambda: llama_block(bias=True), pre_norm_layer, 0),
    "llama-odd": (lambda: llama_block(100, head_dim=20), pre_norm_layer, 0),
    "qwen3": (qwen3_block, pre_norm_layer, 0),
    "gemma3": (lambda: gemma3_block(layer=5), gemma3_layer, 0),
    "gemma3-window": (gemma3_block, gemma3_layer, 24),
    "gpt_oss": (gpt_oss_block, gpt_oss_layer, 0),
    "gpt_oss-window": (gpt_oss_block, gpt_oss_layer, 24),
}


def kv_shape(module: Any) -> tuple[int, int]:
    """KV heads of an attention module, and their width."""
    heads = getattr(module, "n_kv_heads", 0) or module.num_key_value_heads
    return heads, module.k_proj.weight.shape[0] // heads
