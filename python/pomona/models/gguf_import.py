"""Converts a GGUF file of the llama architecture into a model folder. Runs in a process of its own:

    python -m pomona.models.gguf_import SOURCE.gguf FOLDER

Quantized weights (Q4_0, Q4_1, Q8_0) are repacked bit by bit, nothing is quantized again; their scales become
float32, as do F16 and F32 tensors, so every value stays exactly what the file says. What the importer does
not know it refuses. Progress and errors go to standard output as JSON lines (`progress.ConverterLine`).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from pomona.models.errors import ModelError
from pomona.models.gguf import BLOCK, GgufHeader, TensorInfo, read_header
from pomona.models.progress import ConverterLine, Progress, Report

ARCHITECTURE = "llama"
LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

# Weights are saved in files of at most this size, so that memory holds two copies of one file at most.
SHARD_BYTES = 2 * 1024**3

# tokenizer.ggml.token_type
CONTROL, USER_DEFINED = 3, 4

# The splitting rule of Llama 3, by its tokenizer.json.
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that tensor layout and config need."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int


def convert(source: Path, folder: Path, report: Report) -> None:
    """Write a complete model folder into the existing `folder`."""
    report(Progress("reading"))
    header = read_header(source)
    shape = read_shape(header)
    names = {tensor.name: mlx_name(header, tensor) for tensor in header.tensors}
    write_tokenizer(header, folder)
    quantization = write_weights(header, shape, names, folder, report)
    config = build_config(header, shape, quantization, tied="lm_head" not in names.values())
    _write_json(folder / "generation_config.json", {"eos_token_id": _eos_ids(header)})
    _write_json(folder / "config.json", config)


def read_shape(header: GgufHeader) -> Shape:
    """Check that the file is a llama we know in all its parts."""
    if header.architecture != ARCHITECTURE:
        raise ModelError(
            f"{header.path} has the architecture {header.architecture!r}; pomona imports {ARCHITECTURE} "
            "from GGUF: for others fetch an MLX folder."
        )
    heads, width = int(header.get("llama.attention.head_count")), int(header.get("llama.embedding_length"))
    head_dim = int(header.metadata.get("llama.attention.key_length", width // heads))
    unsupported = {
        "experts": header.metadata.get("llama.expert_count", 0) != 0,
        "partial rotary embeddings": header.metadata.get("llama.rope.dimension_count", head_dim) != head_dim,
        "scaled rotary embeddings": header.metadata.get("llama.rope.scaling.type", "none") != "none",
        "values wider than keys": header.metadata.get("llama.attention.value_length", head_dim) != head_dim,
    }
    for feature, found in unsupported.items():
        if found:
            raise ModelError(f"{header.path} has {feature}, which is not known here; fetch an MLX folder.")
    return Shape(
        layers=int(header.get("llama.block_count")),
        width=width,
        heads=heads,
        kv_heads=int(header.metadata.get("llama.attention.head_count_kv", heads)),
        head_dim=head_dim,
    )


def mlx_name(header: GgufHeader, tensor: TensorInfo) -> str:
    """The module path mlx-lm has for a tensor; the unknown is refused."""
    match tensor.name.split("."):
        case ["blk", layer, part, "weight"] if layer.isdecimal() and part in LAYER_NAMES:
            return f"model.layers.{layer}.{LAYER_NAMES[part]}"
        case [part, "weight"] if part in TOP_NAMES:
            return TOP_NAMES[part]
    raise ModelError(
        f"{header.path} holds the tensor {tensor.name}, which is not known here; fetch an MLX folder."
    )


def build_config(
    header: GgufHeader, shape: Shape, quantization: dict[str, Any], tied: bool
) -> dict[str, Any]:
    tokens = header.get("tokenizer.ggml.tokens")
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "intermediate_size": header.get("llama.feed_forward_length"),
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": header.get("llama.attention.layer_norm_rms_epsilon"),
        "vocab_size": len(tokens),
        "max_position_embeddings": header.get("llama.context_length"),
        "rope_theta": header.metadata.get("llama.rope.freq_base", 10000.0),
        "tie_word_embeddings": tied,
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": header.metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": header.metadata.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }
    return {**config, "quantization": quantization} if quantization else config


# ------------------------------------------------------------------------------------------ weights


def write_weights(
    header: GgufHeader, shape: Shape, names: dict[str, str], folder: Path, report: Report
) -> dict[str, Any]:
    """Save all tensors under their new names; returns the quantization entry of the config."""
    mx.set_default_device(mx.cpu)
    arrays = mx.load(str(header.path), format="gguf")
    assert isinstance(arrays, dict)
    row_heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}
    total, done = header.converted_bytes, 0
    bits: dict[str, int] = {}
    shards = Shards(folder)
    for tensor in header.tensors:
        base, name = tensor.name.removesuffix(".weight"), names[tensor.name]
        part = base.rpartition(".")[2]
        found = {suffix: arrays.pop(f"{base}.{suffix}", None) for suffix in ("weight", "scales", "biases")}
        present = {suffix: array for suffix, array in found.items() if array is not None}
        if "scales" in present:
            # Packed 32-bit words per row, over blocks of 32 elements per row, is bits per element.
            bits[name] = present["weight"].shape[-1] // present["scales"].shape[-1]
        for suffix, array in present.items():
            if part in row_heads:
                array = unpermute(array, row_heads[part])
            if array.dtype != mx.uint32:
                array = array.astype(mx.float32)
            shards.add(f"{name}.{suffix}", mx.contiguous(array))
        done += tensor.converted_bytes
        report(Progress("converting", done, total))
    report(Progress("writing", total, total))
    shards.finish()
    return _quantization(bits)


def unpermute(rows: mx.array, heads: int) -> mx.array:
    """Undo GGUF's interleaving of q and k rows: (heads, d/2, 2) to (heads, 2, d/2).

    Rows stay whole, so the same works on packed weights, scales and biases.
    """
    count = rows.shape[0]
    split = rows.reshape(heads, count // heads // 2, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


class Shards:
    """Collects arrays and saves them in files of at most SHARD_BYTES, named as mlx-lm expects."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._arrays: dict[str, mx.array] = {}
        self._bytes = 0
        self._saved: list[tuple[Path, list[str]]] = []

    def add(self, name: str, array: mx.array) -> None:
        mx.eval(array)
        if self._arrays and self._bytes + array.nbytes > SHARD_BYTES:
            self._save()
        self._arrays[name] = array
        self._bytes += array.nbytes

    def finish(self) -> None:
        self._save()
        if len(self._saved) == 1:
            self._saved[0][0].rename(self._folder / "model.safetensors")
            return
        weight_map: dict[str, str] = {}
        for number, (path, names) in enumerate(self._saved, start=1):
            final = f"model-{number:05d}-of-{len(self._saved):05d}.safetensors"
            path.rename(self._folder / final)
            weight_map |= dict.fromkeys(names, final)
        _write_json(self._folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})

    def _save(self) -> None:
        path = self._folder / f"part-{len(self._saved)}.safetensors"
        mx.save_safetensors(str(path), self._arrays, metadata={"format": "mlx"})
        self._saved.append((path, list(self._arrays)))
        self._arrays, self._bytes = {}, 0


def _quantization(bits: dict[str, int]) -> dict[str, Any]:
    """The most frequent width as the default, an entry of its own for each module that differs."""
    if not bits:
        return {}
    values = list(bits.values())
    default = max(set(values), key=values.count)
    entry = {"group_size": BLOCK, "bits": default, "mode": "affine"}
    return {**entry, **{name: {**entry, "bits": own} for name, own in bits.items() if own != default}}


# ---------------------------------------------------------------------------------------- tokenizer


def write_tokenizer(header: GgufHeader, folder: Path) -> None:
    """Rebuild the byte-level BPE tokenizer from the metadata."""
    tokenizer = build_tokenizer(header)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = header.get("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": header.get("llama.context_length"),
        "add_bos_token": _adds_bos(header),
        "clean_up_tokenization_spaces": False,
    }
    for key, role in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        if (token := header.metadata.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            config[f"{role}_token"] = tokens[token]
    if template := header.metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    _write_json(folder / "tokenizer_config.json", config)


def build_tokenizer(header: GgufHeader) -> Tokenizer:
    if (model := header.get("tokenizer.ggml.model")) != "gpt2":
        raise ModelError(
            f"{header.path} has a tokenizer of the kind {model!r}; pomona imports byte-level BPE (gpt2) "
            "from GGUF: for others fetch an MLX folder."
        )
    tokens: list[str] = header.get("tokenizer.ggml.tokens")
    types = header.metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[_merge(header, merge) for merge in header.get("tokenizer.ggml.merges")],
            fuse_unk=False,
            byte_fallback=False,
        )
    )
    tokenizer.pre_tokenizer = _pre_tokenizer(header)
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, special=kind == CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ]
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])
    if _adds_bos(header):
        bos = header.get("tokenizer.ggml.bos_token_id")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]}:0 $A:0",
            pair=f"{tokens[bos]}:0 $A:0 {tokens[bos]}:1 $B:1",
            special_tokens=[(tokens[bos], bos)],
        )
    return tokenizer


def _pre_tokenizer(header: GgufHeader) -> pre_tokenizers.PreTokenizer:
    """How text is cut before merging, by the name GGUF has for it."""
    rule = header.metadata.get("tokenizer.ggml.pre", "default")
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if rule in ("gpt-2", "gpt2"):
        return gpt2
    if rule == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    if rule in ("llama-bpe", "llama3", "llama-v3"):
        split = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated")
        return pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    raise ModelError(
        f"{header.path} cuts text by the rule {rule!r}, which is not known here; fetch an MLX folder."
    )


def _merge(header: GgufHeader, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise ModelError(
            f"{header.path} has a merge rule that is not two tokens ({merge!r}); fetch it again."
        )
    return left, right


def _adds_bos(header: GgufHeader) -> bool:
    return bool(header.metadata.get("tokenizer.ggml.add_bos_token", False))


def _eos_ids(header: GgufHeader) -> list[int]:
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    return list(dict.fromkeys(int(header.metadata[key]) for key in keys if key in header.metadata))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# ------------------------------------------------------------------------------------------ process


def main(arguments: list[str]) -> int:
    source, folder = map(Path, arguments)
    try:
        convert(source, folder, lambda progress: _print(ConverterLine(progress=progress)))
    except ModelError as error:
        _print(ConverterLine(error=str(error)))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _print(line: ConverterLine) -> None:
    # Flushed at once; a reader that has died ends this process by the broken pipe.
    print(msgspec.json.encode(line).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
