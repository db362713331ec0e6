"""Very small random models of nearly every type that mlx-lm knows, built in process and never saved.

Most types share one configuration: a type takes the fields that it knows. They are for looking at modules;
`tests.tiny_models` has checkpoints that can be served.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models
from mlx.utils import tree_flatten, tree_unflatten

HIDDEN, VOCAB = 64, 128

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "layer_norm_eps": 1e-5,
    "norm_eps": 1e-5,
    "norm_epsilon": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "partial_rotary_factor": 0.5,
    "tie_word_embeddings": True,
    "sliding_window": 32,
    "layer_types": ["full_attention", "full_attention"],
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_bias": False,
    "bias": False,
    "logit_scale": 1.0,
    # Experts.
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "shared_expert_intermediate_size": 64,
    "shared_intermediate_size": 64,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    # Latent attention.
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    # Scales.
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.3,
    "embedding_multiplier": 2.0,
    "logits_scaling": 2.0,
    "scale_depth": 1.4,
    "dim_model_base": 64,
    "scale_emb": 1.0,
    "query_pre_attn_scalar": 16,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
    # Layers that are not attention.
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "conv_L_cache": 3,
    "conv_bias": False,
    "full_attn_idxs": [1],
    "block_dim": HIDDEN,
    "block_ff_dim": 128,
    "block_multiple_of": 32,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_dt_rank": 8,
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "mamba_d_head": 16,
    "mamba_head_dim": 16,
    "mamba_n_groups": 1,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    # Names of older types.
    "n_embd": HIDDEN,
    "n_head": 4,
    "n_layer": 2,
    "n_ctx": 512,
    "n_positions": 512,
    "n_inner": 128,
    "num_heads": 4,
    "num_layers": 2,
    "d_model": HIDDEN,
    "model_dim": HIDDEN,
    "num_vocab": VOCAB,
    "use_qkv_bias": False,
    "rotary_emb_base": 10000,
    "rotary_dim": 8,
    "rotary_pct": 0.5,
    "no_bias": True,
    "kv_channels": 16,
    "seq_length": 512,
}

# What some types need beside or instead.
OWN: dict[str, dict[str, Any]] = {
    "afm7": {"hidden_dim": 64, "num_kv_reuse_layers": 1, "num_kv_heads": 2, "hidden_dim_scale_factor": 2.0},
    "baichuan_m1": {"sliding_window_layers": [0], "conv_window": 2, "num_swa_attention_heads": 4},
    "deepseek_v2": {"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale_all_dim": 1.0}},
    "bailing_hybrid": {"layer_group_size": 2, "group_norm_size": 2},
    "kimi_linear": {
        "model_max_length": 512,
        "linear_attn_config": {
            "kda_layers": [1],
            "full_attn_layers": [2],
            "num_heads": 4,
            "head_dim": 16,
            "short_conv_kernel_size": 4,
        },
    },
    "llama4_text": {"intermediate_size_mlp": 64, "no_rope_layers": [1, 0], "use_qk_norm": True},
    "olmo_hybrid": {
        "linear_allow_neg_eigval": True,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "minicpm3": {
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0] * 8,
            "long_factor": [1.0] * 8,
            "original_max_position_embeddings": 1024,
        }
    },
    "longcat_flash": {
        "attention_method": "MLA",
        "zero_expert_type": "identity",
        "zero_expert_num": 1,
        "ffn_hidden_size": 64,
        "expert_ffn_hidden_size": 64,
        "moe_topk": 2,
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    "apertus": {"post_norm": False, "qk_norm": True},
    "bailing_moe_linear": {"layer_group_size": 2, "group_norm_size": 2},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, "moe_layer_interval": 1},
    "exaone4": {"sliding_window_pattern": "LG"},
    "exaone_moe": {"is_moe_layer": [False, True], "layer_types": ["sliding_attention", "full_attention"]},
    "gemma3_text": {"sliding_window_pattern": 2, "rope_local_base_freq": 10000.0},
    "gemma4_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCAB,
        "global_head_dim": 16,
    },
    "glm4_moe": {"use_qk_norm": True},
    "gpt_oss": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 1024,
        },
    },
    "granitemoehybrid": {"layer_types": ["attention", "attention"], "num_local_experts": 0},
    "hunyuan": {
        "moe_topk": 2,
        "num_shared_expert": 1,
        "use_mixed_mlp_moe": True,
        "use_qk_norm": True,
        "use_cla": False,
        "cla_share_factor": 1,
        "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
    },
    "hunyuan_v1_dense": {
        "use_qk_norm": False,
        "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
    },
    "internlm3": {"rope_scaling": {"factor": 2.0, "rope_type": "dynamic"}},
    "jamba": {
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
    },
    "lfm2_moe": {"use_expert_bias": True, "num_dense_layers": 1, "full_attn_idxs": [0, 1]},
    "llama": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    "mellum": {"rope_parameters": {"full_attention": {"rope_theta": 10000.0}}},
    "ministral3": {
        "rope_parameters": {
            "rope_theta": 10000.0,
            "rope_type": "default",
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 64,
        }
    },
    "nemotron-nas": {
        "block_configs": [
            {
                "attention": {"n_heads_in_group": 2, "no_op": False, "replace_with_linear": False},
                "ffn": {"ffn_mult": 2.0, "no_op": False, "replace_with_linear": False},
            }
        ]
        * 2
    },
    "nemotron_h": {
        "hybrid_override_pattern": ["*", "-"],
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 1,
        "mamba_hidden_act": "silu",
        "mlp_hidden_act": "relu2",
        "time_step_limit": (0.0, 1e6),
        "use_conv_bias": True,
        "chunk_size": 16,
        "time_step_min": 0.001,
        "time_step_max": 0.1,
    },
    "olmo3": {"layer_types": ["sliding_attention", "full_attention"]},
    "openelm": {
        "num_transformer_layers": 2,
        "ffn_dim_divisor": 64,
        "num_query_heads": [4, 4],
        "num_kv_heads": [2, 2],
        "ffn_multipliers": [2.0, 2.0],
        "normalize_qk_projections": True,
        "share_input_output_layers": True,
        "rope_freq_constant": 10000,
    },
    "phi3": {
        "partial_rotary_factor": 1.0,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0] * 8,
            "long_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.1, 3.8],
        },
        "original_max_position_embeddings": 1024,
    },
    "qwen3_moe": {"mlp_only_layers": [0]},
    "recurrent_gemma": {
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "attention_window_size": 32,
        "block_types": ["recurrent", "attention"],
    },
    "spark2_5": {
        "hidden_act": "gelu",
        "rope_parameters": {"full_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
    },
    "step3p5": {"num_attention_groups": 2},
}
# These hold a language model of another type.
WRAPPED = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "mistral3": "llama",
    "qwen2_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}


def model_types() -> list[str]:
    folder = Path(mlx_lm.models.__path__[0])
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def small_model(model_type: str) -> Any:
    """The model, or None where this module has no configuration for its type."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            module = importlib.import_module(f"mlx_lm.models.{model_type}")
        arguments = module.ModelArgs.from_dict(_configuration(model_type))
        model = module.Model(arguments)
    except (Exception, SystemExit):  # whatever a type says of fields that do not suit it
        return None
    parameters = tree_flatten(model.parameters())
    keys = mx.random.split(mx.random.key(5), len(parameters))
    model.update(
        tree_unflatten([(name, _noisy(array, keys[i])) for i, (name, array) in enumerate(parameters)])
    )
    mx.eval(model.parameters())
    model.eval()
    return model


def _configuration(model_type: str) -> dict[str, Any]:
    if inner := WRAPPED.get(model_type):
        return {"model_type": model_type, "vocab_size": VOCAB, "text_config": _configuration(inner)}
    return COMMON | {"model_type": model_type} | OWN.get(model_type, {})


def _noisy(array: mx.array, key: mx.array) -> mx.array:
    """As it was initialised, plus noise: norms, biases and sinks must not be all alike."""
    if not mx.issubdtype(array.dtype, mx.floating):
        return array
    return array + 0.1 * mx.random.normal(array.shape, key=key).astype(array.dtype)
