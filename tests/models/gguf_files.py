"""Writes small GGUF files and decodes their tensors, independently of the importer (numpy only)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32, F16, Q4_0, Q4_1, Q8_0, Q4_K = 0, 1, 2, 3, 8, 12
BLOCK = 32
BLOCK_BYTES = {F32: 128, F16: 64, Q4_0: 18, Q4_1: 20, Q8_0: 34, Q4_K: 18}

LAYERS, WIDTH, HEADS, KV_HEADS, HIDDEN = 2, 64, 4, 2, 96
ALIGNMENT = 32


@dataclass
class Gguf:
    """The contents of a file; change what a test is about, then write it."""

    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, tuple[int, tuple[int, ...]]] = field(
        default_factory=dict
    )  # name: type, rows and columns
    seed: int = 1

    def write(self, path: Path) -> Path:
        out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.metadata)))
        for key, value in self.metadata.items():
            out += _string(key) + _value(value)
        random = np.random.default_rng(self.seed)
        data = bytearray()
        for name, (kind, shape) in self.tensors.items():
            out += _string(name) + struct.pack("<I", len(shape))
            out += struct.pack(f"<{len(shape)}Q", *reversed(shape))
            out += struct.pack("<IQ", kind, len(data))
            data += _random_blocks(kind, int(np.prod(shape)), random)
            data += bytes(-len(data) % ALIGNMENT)
        out += bytes(-len(out) % ALIGNMENT)
        path.write_bytes(bytes(out + data))
        return path


def tiny_llama(kind: int = Q4_1, embedding: int = Q8_0, tied: bool = True) -> Gguf:
    """A llama of two layers with a byte-level vocabulary."""
    letters = _byte_letters()
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "he", "Ġt", "the", "Ġthe", "<tool>"]
    head_dim = WIDTH // HEADS
    tensors = {
        "token_embd.weight": (embedding, (len(tokens), WIDTH)),
        "output_norm.weight": (F32, (WIDTH,)),
    }
    if not tied:
        tensors["output.weight"] = (embedding, (len(tokens), WIDTH))
    for i in range(LAYERS):
        tensors |= {
            f"blk.{i}.attn_q.weight": (kind, (HEADS * head_dim, WIDTH)),
            f"blk.{i}.attn_k.weight": (kind, (KV_HEADS * head_dim, WIDTH)),
            f"blk.{i}.attn_v.weight": (kind, (KV_HEADS * head_dim, WIDTH)),
            f"blk.{i}.attn_output.weight": (kind, (WIDTH, HEADS * head_dim)),
            f"blk.{i}.ffn_gate.weight": (kind, (HIDDEN, WIDTH)),
            f"blk.{i}.ffn_up.weight": (kind, (HIDDEN, WIDTH)),
            f"blk.{i}.ffn_down.weight": (kind, (WIDTH, HIDDEN)),
            f"blk.{i}.attn_norm.weight": (F32, (WIDTH,)),
            f"blk.{i}.ffn_norm.weight": (F32, (WIDTH,)),
        }
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 0.00025,
        "llama.context_length": 1024,
        "llama.rope.freq_base": 5000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 4) + [4],
        "tokenizer.ggml.merges": ["h e", "Ġ t", "t he", "Ġt he"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 0,
        "tokenizer.chat_template": "{{ messages }}",
    }
    return Gguf(metadata, tensors)


def decode(kind: int, raw: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The values that a tensor's bytes stand for, by the definition of each type."""
    if kind == F32:
        return np.frombuffer(raw, "<f4").reshape(shape)
    if kind == F16:
        return np.frombuffer(raw, "<f2").astype(np.float32).reshape(shape)
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, BLOCK_BYTES[kind])
    scale = blocks[:, 0:2].copy().view("<f2").astype(np.float32)
    if kind == Q8_0:
        return (scale * blocks[:, 2:].view(np.int8).astype(np.float32)).reshape(shape)
    # The first half of a block lies in the low four bits, the second half in the high ones.
    packed = blocks[:, -16:]
    numbers = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
    if kind == Q4_0:
        return (scale * (numbers - 8)).reshape(shape)
    assert kind == Q4_1
    least = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
    return (scale * numbers + least).reshape(shape)


def _random_blocks(kind: int, elements: int, random: np.random.Generator) -> bytes:
    if kind in (F32, F16):
        return random.normal(size=elements).astype("<f4" if kind == F32 else "<f2").tobytes()
    count = elements // BLOCK
    blocks = random.integers(0, 256, (count, BLOCK_BYTES[kind]), np.uint8)
    halves = {Q8_0: 1, Q4_0: 1, Q4_1: 2, Q4_K: 1}[kind]
    blocks[:, : 2 * halves] = random.normal(size=(count, halves)).astype("<f2").view(np.uint8)
    return blocks.tobytes()


def _byte_letters() -> list[str]:
    """The 256 printable letters that byte-level BPE writes for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        kinds = {type(item): _kind(item) for item in value}
        (kind,) = kinds.values()
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(_bare(item) for item in value)
    return struct.pack("<I", _kind(value)) + _bare(value)


def _kind(value: Any) -> int:
    return {bool: 7, int: 4, float: 6, str: 8}[type(value)]


def _bare(value: Any) -> bytes:
    if isinstance(value, str):
        return _string(value)
    return struct.pack({bool: "<?", int: "<I", float: "<f"}[type(value)], value)
