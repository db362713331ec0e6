"""Tiny random checkpoints of true architectures: complete model folders, seeded, built without downloads.

    path = tiny_model("llama")                      # from tests: built once, cached in .cache/tiny-models
    python -m tests.tiny_models FOLDER [NAME ...]   # by hand
    python -m tests.tiny_models FOLDER --check      # also load with mlx-lm, generate, compare chunked prefill

Weights are float32 (half precision makes greedy ties) in MLX layout; widths are multiples of 64, so that
4- and 8-bit quantization applies. Importing this module imports no mlx: the folders are built in a child.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from tests import tiny_tokenizer

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "tiny-models"
SEED = 8  # a seed with which no model repeats itself soon
VOCAB = tiny_tokenizer.VOCAB

# Fixed ids: specials come first in the vocabulary.
SPECIALS = [
    *tiny_tokenizer.SPECIALS,
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<image>", "<fake_token_around_image>", "<global-img>", "[CLS]", "[SEP]", "[MASK]", "[UNK]"),
]
BOS, EOS, PAD = 0, 2, 3
CHAT_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nYou can call these tools:\n"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif -%}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% elif m.content %}"
    "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}"
    "{% elif p.type in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% endif %}{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif -%}"
)

# ---------------------------------------------------------------------------------- architectures

BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
DELTA_NET = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_d_state": 32,
    "mamba_d_conv": 4,
    "mamba_n_groups": 1,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {**BASE, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "qwen3": {**BASE, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    # A sliding window on 3 of 4 layers.
    "gemma3_text": {
        **BASE,
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "num_key_value_heads": 1,
        "sliding_window": 32,
        "sliding_window_pattern": 4,
        "query_pre_attn_scalar": 32,
        "rope_local_base_freq": 10000.0,
    },
    # A sliding window, attention sinks, experts.
    "gpt_oss": {
        **BASE,
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 128,
        "sliding_window": 32,
        "tie_word_embeddings": False,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
    },
    "qwen3_moe": {**BASE, **EXPERTS, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]},
    # Latent attention: K and V differ in width, the model's code touches them (gathered reader).
    "deepseek_v3": {
        **BASE,
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_key_value_heads": 4,
        "kv_lora_rank": 64,
        "q_lora_rank": 64,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "moe_intermediate_size": 64,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "tie_word_embeddings": False,
    },
    # Irregular files: attention written out by hand with a soft cap, ...
    "gemma2": {
        **BASE,
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "query_pre_attn_scalar": 32,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    # ... and attention whose result takes the dtype of V, partial rotary embeddings, biases, layer norm.
    "phi": {
        **{key: value for key, value in BASE.items() if key not in ("head_dim", "rms_norm_eps")},
        "model_type": "phi",
        "architectures": ["PhiForCausalLM"],
        "partial_rotary_factor": 0.5,
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    },
    # Hybrids: recurrent state, and attention on every 4th layer.
    "qwen3_next": {
        **BASE,
        **DELTA_NET,
        **EXPERTS,
        "model_type": "qwen3_next",
        "architectures": ["Qwen3NextForCausalLM"],
        "shared_expert_intermediate_size": 64,
        "partial_rotary_factor": 0.25,
    },
    # A nested text_config, as the released multimodal configs have it.
    "qwen3_5": {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "tie_word_embeddings": True,
        "text_config": {
            **{key: value for key, value in BASE.items() if key != "rope_theta"},
            **DELTA_NET,
            "model_type": "qwen3_5_text",
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [2, 1, 1],
                "rope_theta": 100000.0,
                "partial_rotary_factor": 0.25,
            },
        },
    },
    # Attention and mamba2 in parallel in each layer.
    "falcon_h1": {
        **BASE,
        **MAMBA,
        "model_type": "falcon_h1",
        "architectures": ["FalconH1ForCausalLM"],
        "mamba_d_ssm": 256,
        "mamba_expand": 2,
        "mamba_chunk_size": 64,
        "mamba_rms_norm": False,
        "mamba_norm_before_gate": False,
    },
    # Mamba2 layers with some attention layers.
    "granitemoehybrid": {
        **BASE,
        **MAMBA,
        "model_type": "granitemoehybrid",
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "attention_bias": False,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.2,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 128,
        "position_embedding_type": "nope",
        "intermediate_size": 64,
    },
    "mamba2": {
        "model_type": "mamba2",
        "architectures": ["Mamba2ForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_heads": 8,
        "head_dim": 32,
        "state_size": 32,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "expand": 2,
        "intermediate_size": 256,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "time_step_limit": [0.0, 1e6],
        "time_step_rank": 8,
        "ssm_state_size": 32,
        "max_position_embeddings": 32768,
        "rms_norm": True,
        "chunk_size": 64,
    },
}
NAMES = tuple(ARCHITECTURES)


def tiny_model(name: str) -> Path:
    """The folder of a tiny model, built by the first who asks, also among several test processes."""
    if name not in ARCHITECTURES:
        raise KeyError(f"no tiny model {name}; there are {', '.join(NAMES)}")
    cache = CACHE / _fingerprint()
    path = cache / f"tiny-{name}"
    if path.is_dir():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as temporary:
                command = [sys.executable, "-m", "tests.tiny_models", temporary, name]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
                (Path(temporary) / path.name).rename(path)
    return path


def _fingerprint() -> str:
    parts = [Path(module).read_bytes() for module in (__file__, tiny_tokenizer.__file__)]
    parts += [
        f"{package} {metadata.version(package)}".encode() for package in ("mlx", "mlx-lm", "tokenizers")
    ]
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:12]


# ----------------------------------------------------------------------------------------- building


def build(name: str, folder: Path) -> Path:
    """Write folder/tiny-<name>."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    path = folder / f"tiny-{name}"
    path.mkdir(parents=True)
    write_tokenizer(path)
    config = {
        **ARCHITECTURES[name],
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "torch_dtype": "float32",
    }
    mx.set_default_device(mx.cpu)
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
    parameters = tree_flatten(model.parameters())
    keys = mx.random.split(mx.random.key(SEED), len(parameters))
    weights = {
        parameter: randomise(parameter, array, keys[i]).astype(mx.float32)
        for i, (parameter, array) in enumerate(parameters)
    }
    mx.eval(weights)
    mx.save_safetensors(str(path / "model.safetensors"), weights, metadata={"format": "mlx"})
    (path / "config.json").write_text(json.dumps(config, indent=1))
    generation = {"eos_token_id": [EOS, BOS], "do_sample": False}
    (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def randomise(name: str, array: Any, key: Any) -> Any:
    """Norms at one, decay terms of recurrent layers in a sane range, the rest N(0, 1/sqrt(inputs)): residual
    streams stay finite over thousands of tokens."""
    import mlx.core as mx

    if name.endswith("A_log"):
        return mx.log(mx.random.uniform(1.0, 8.0, array.shape, key=key))
    if name.endswith("dt_bias"):
        return mx.random.uniform(-4.0, -1.0, array.shape, key=key)
    if array.ndim == 1 and ("norm" in name or name.endswith(".D")):
        # Layer norms have a bias as well, and gemma adds one to its weights; neither minds a one too many.
        return array
    if array.ndim <= 1 or name.endswith("bias"):
        return 0.02 * mx.random.normal(array.shape, key=key)
    # Depthwise convolutions are laid out (channels, kernel, 1), stacks of experts (experts, out, in).
    inputs = array.shape[1] if "conv" in name else array.shape[-1]
    scale = 1.0 if "embed_tokens" in name or "embeddings" in name else 1.4
    return scale * mx.random.normal(array.shape, key=key) / inputs**0.5


def write_tokenizer(path: Path) -> None:
    """A byte-level BPE trained on a few lines: every byte is covered, so nothing is unknown."""
    tokenizer = tiny_tokenizer.train(SPECIALS)
    assert tokenizer.get_vocab_size() <= VOCAB
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[BOS],
        "eos_token": SPECIALS[EOS],
        "pad_token": SPECIALS[PAD],
        "unk_token": SPECIALS[BOS],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
        "chat_template": CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)


# ----------------------------------------------------------------------------------------- checking


def check(path: Path, tokens: int = 24) -> dict[str, Any]:
    """Load with mlx-lm and generate greedily; compare one prefill with prefill in pieces and single steps."""
    import mlx.core as mx
    from mlx_lm import load
    from mlx_lm.generate import generate_step
    from mlx_lm.models.cache import make_prompt_cache

    model, tokenizer = load(str(path))[:2]
    question = "What is 2 + 2? Answer with one number. " * 3
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
    )
    answer = [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=tokens)]
    text = mx.array([prompt + answer])
    whole = model(text, cache=make_prompt_cache(model))
    cache = make_prompt_cache(model)
    cuts = [0, 17, 33, len(prompt), *range(len(prompt) + 1, text.shape[1] + 1)]
    pieces = [model(text[:, a:b], cache=cache) for a, b in itertools.pairwise(cuts)]
    difference = mx.abs(mx.concatenate(pieces, axis=1) - whole).max().item()
    return {
        "prompt": len(prompt),
        "tokens": len(answer),
        "distinct": len(set(answer)),
        "finite": bool(mx.isfinite(whole).all().item()),
        "max_difference": float(f"{difference:.2e}"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--check", action="store_true", help="also load and generate")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    # Nothing here may reach out to the network.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for name in arguments.names or NAMES:
        path = build(name, arguments.folder)
        print(name, json.dumps(check(path)) if arguments.check else path, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
