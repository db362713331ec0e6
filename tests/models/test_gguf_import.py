"""The importer against an independent decoder of the GGUF bytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.models import gguf_files
from tests.models.gguf_files import F16, F32, Q4_0, Q4_1, Q4_K, Q8_0, Gguf, tiny_llama
from tokenizers import Tokenizer

from pomona.models import ModelError, Progress
from pomona.models.conversion import GGUF_IMPORTER, run_converter
from pomona.models.embedded import embedded_gguf
from pomona.models.gguf import GgufHeader, read_header
from pomona.models.progress import ignore

Arrays = dict[str, NDArray[np.generic]]

MLX_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
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


def convert(source: Path, folder: Path) -> Path:
    folder.mkdir()
    run_converter(GGUF_IMPORTER, source, folder, ignore)
    return folder


def read_safetensors(path: Path) -> Arrays:
    """By its definition: a length, a JSON header, bytes."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    arrays: Arrays = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            dtype = {"F32": "<f4", "U32": "<u4"}[entry["dtype"]]
            arrays[name] = np.frombuffer(data[begin:end], dtype).reshape(entry["shape"])
    return arrays


def values_of(arrays: Arrays, name: str) -> NDArray[np.float32]:
    """A module's weight as float32, unpacked from MLX's quantized layout where it is packed."""
    weight = arrays[f"{name}.weight"]
    if weight.dtype != np.uint32:
        return weight
    scales, biases = arrays[f"{name}.scales"], arrays[f"{name}.biases"]
    bits = weight.shape[1] // scales.shape[1]
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    numbers = (weight[:, :, None] >> shifts) & np.uint32(2**bits - 1)
    grouped = numbers.reshape(*scales.shape, 32).astype(np.float32)
    return (scales[:, :, None] * grouped + biases[:, :, None]).reshape(len(weight), -1)


def rope_rows(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF keeps the rotated pairs of a head adjacent; mlx-lm wants all first halves, then all second."""
    head_dim = len(values) // heads
    order = [*range(0, head_dim, 2), *range(1, head_dim, 2)]
    return values.reshape(heads, head_dim, -1)[:, order].reshape(values.shape)


def assert_same_values(source: Path, folder: Path) -> None:
    header, raw = read_header(source), source.read_bytes()
    heads = {
        "attn_q": header.get("llama.attention.head_count"),
        "attn_k": header.get("llama.attention.head_count_kv"),
    }
    arrays = read_safetensors(folder / "model.safetensors")
    seen = set()
    for tensor in header.tensors:
        part = tensor.name.removesuffix(".weight").rpartition(".")[2]
        name = MLX_NAMES[part]
        if tensor.name.startswith("blk."):
            name = f"model.layers.{tensor.name.split('.')[1]}.{name}"
        expected = gguf_files.decode(
            tensor.type, raw[tensor.offset : tensor.offset + tensor.stored_bytes], tensor.shape
        )
        if part in heads:
            expected = rope_rows(expected, heads[part])
        np.testing.assert_array_equal(values_of(arrays, name), expected, err_msg=tensor.name)
        seen |= {key for key in arrays if key.startswith(f"{name}.")}
    assert seen == set(arrays)


@pytest.mark.parametrize("kind", [F32, F16, Q4_0, Q4_1, Q8_0])
def test_values_are_exactly_those_of_the_file(kind: int, tmp_path: Path) -> None:
    source = tiny_llama(kind).write(tmp_path / "tiny.gguf")
    assert_same_values(source, convert(source, tmp_path / "out"))


def test_smollm2_values_are_exactly_those_of_the_file(smollm2: Path) -> None:
    assert_same_values(embedded_gguf(), smollm2)


def test_mlx_lm_loads_and_computes_what_the_file_says(tmp_path: Path) -> None:
    """Logits of the quantized import against the same values written as float32."""
    import mlx.core as mx
    from mlx_lm import load

    source = tiny_llama(Q4_1).write(tmp_path / "tiny.gguf")
    folder = convert(source, tmp_path / "out")
    dense = tmp_path / "dense"
    dense.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (dense / file).write_bytes((folder / file).read_bytes())
    config = json.loads((folder / "config.json").read_text())
    del config["quantization"]
    (dense / "config.json").write_text(json.dumps(config))
    arrays = read_safetensors(folder / "model.safetensors")
    names = {key.rpartition(".")[0] for key in arrays}
    weights = {f"{name}.weight": mx.array(values_of(arrays, name)) for name in names}
    mx.save_safetensors(str(dense / "model.safetensors"), weights)
    tokens = mx.array([[1, 40, 50, 60, 7]])
    ours, expected = (load(str(path))[0](tokens) for path in (folder, dense))
    # Sums of large random numbers, in another order.
    assert (mx.abs(ours - expected).max() / mx.abs(expected).max()).item() < 1e-4


def test_config(tmp_path: Path) -> None:
    source = tiny_llama().write(tmp_path / "tiny.gguf")
    config = json.loads((convert(source, tmp_path / "out") / "config.json").read_text())
    assert config["rms_norm_eps"] == pytest.approx(0.00025)
    assert config["rope_theta"] == 5000.0
    assert config["max_position_embeddings"] == 1024
    assert config["tie_word_embeddings"] is True
    assert config["eos_token_id"] == 2
    assert config["quantization"]["bits"] == 4
    assert config["quantization"]["model.embed_tokens"] == {"group_size": 32, "bits": 8, "mode": "affine"}
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 0]


def test_an_untied_head_stays_a_head(tmp_path: Path) -> None:
    source = tiny_llama(tied=False).write(tmp_path / "tiny.gguf")
    folder = convert(source, tmp_path / "out")
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
    assert_same_values(source, folder)


def test_progress_ends_at_its_total(tmp_path: Path) -> None:
    source = tiny_llama().write(tmp_path / "tiny.gguf")
    seen: list[Progress] = []
    (tmp_path / "out").mkdir()
    run_converter(GGUF_IMPORTER, source, tmp_path / "out", seen.append)
    assert [p.stage for p in seen if p.stage != "converting"] == ["reading", "writing"]
    assert seen[-1].done == seen[-1].total == read_header(source).converted_bytes
    assert [p.done for p in seen] == sorted(p.done for p in seen)


# ---------------------------------------------------------------------------------------- tokenizer


def test_tokenizer_of_a_file(tmp_path: Path) -> None:
    source = tiny_llama().write(tmp_path / "tiny.gguf")
    tokenizer = Tokenizer.from_file(str(convert(source, tmp_path / "out") / "tokenizer.json"))
    text = "<|im_start|>the the 42 <tool>\u00e9\n<|im_end|>"
    encoding = tokenizer.encode(text)
    assert encoding.tokens[:3] == ["<|im_start|>", "the", "Ġthe"]
    assert "<tool>" in encoding.tokens
    assert {"4", "2"} <= set(encoding.tokens)
    assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == text
    assert "<|im_start|>" not in tokenizer.decode(encoding.ids)


def test_a_wanted_bos_is_added(tmp_path: Path) -> None:
    gguf = tiny_llama()
    gguf.metadata["tokenizer.ggml.add_bos_token"] = True
    folder = convert(gguf.write(tmp_path / "tiny.gguf"), tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("the").tokens == ["<|im_start|>", "the"]
    assert tokenizer.encode("the", add_special_tokens=False).tokens == ["the"]


def test_smollm2_tokenizer_round_trip(smollm2: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    for text in (
        "Hello, world! 12345",
        "def f(x):\n\treturn x  # naïve 模型 🙂",
        "<|im_start|>user\nhi<|im_end|>\n",
    ):
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.token_to_id("<|im_end|>") == 2
    assert len(tokenizer.encode("12345").ids) == 5
    assert tokenizer.encode("<|im_start|>").ids == [1]
    config = json.loads((smollm2 / "tokenizer_config.json").read_text())
    assert "<|im_start|>" in config["chat_template"]
    assert config["eos_token"] == "<|im_end|>"


# ------------------------------------------------------------------------------------------ refusal


def with_metadata(**changes: object) -> Gguf:
    gguf = tiny_llama()
    gguf.metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    return gguf


def without_metadata(key: str) -> Gguf:
    gguf = tiny_llama()
    del gguf.metadata[key]
    return gguf


def with_tensor(name: str, kind: int = F32) -> Gguf:
    gguf = tiny_llama()
    gguf.tensors[name] = (kind, (32,))
    return gguf


@pytest.mark.parametrize(
    ("gguf", "words"),
    [
        (with_metadata(general__architecture="mamba"), "architecture 'mamba'"),
        (with_metadata(llama__expert_count=8), "experts"),
        (with_metadata(llama__rope__dimension_count=8), "partial rotary"),
        (with_metadata(llama__rope__scaling__type="yarn"), "scaled rotary"),
        (with_metadata(tokenizer__ggml__model="llama"), "tokenizer of the kind 'llama'"),
        (with_metadata(tokenizer__ggml__pre="qwen2"), "rule 'qwen2'"),
        (with_tensor("blk.0.attn_q.bias"), "blk.0.attn_q.bias"),
        (with_tensor("rope_freqs.weight"), "rope_freqs.weight"),
        (with_tensor("blk.0.ffn_gate_inp.weight"), "ffn_gate_inp"),
        (with_tensor("blk.0.attn_norm.weight", Q4_K), "Q4_K"),
        (without_metadata("llama.context_length"), "llama.context_length"),
    ],
)
def test_the_unknown_is_refused_in_one_sentence(gguf: Gguf, words: str, tmp_path: Path) -> None:
    source = gguf.write(tmp_path / "odd.gguf")
    with pytest.raises(ModelError) as failure:
        convert(source, tmp_path / "out")
    assert words in str(failure.value)
    assert "\n" not in str(failure.value)
    assert str(source) in str(failure.value)
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("length", [0, 3, 20, 200, 9000, -40])
def test_a_cut_file_is_refused(length: int, tmp_path: Path) -> None:
    path = tiny_llama().write(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelError, match=r"cut short|not a GGUF"):
        read_header(path)


def test_a_damaged_length_takes_no_memory(tmp_path: Path) -> None:
    data = bytearray(tiny_llama().write(tmp_path / "odd.gguf").read_bytes())
    data[24:32] = b"\xff" * 8  # the length of the first key
    (tmp_path / "odd.gguf").write_bytes(bytes(data))
    with pytest.raises(ModelError, match=r"damaged"):
        read_header(tmp_path / "odd.gguf")


def test_a_converter_that_dies_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"ended with status 1 .*no_such_converter"):
        run_converter("pomona.models.no_such_converter", tmp_path, tmp_path, ignore)


def test_header_of_a_file(tmp_path: Path) -> None:
    header = read_header(tiny_llama().write(tmp_path / "tiny.gguf"))
    assert isinstance(header, GgufHeader)
    assert header.architecture == "llama"
    assert header.get("tokenizer.ggml.token_type")[:4] == [3, 3, 3, 1]
    by_name = {tensor.name: tensor for tensor in header.tensors}
    assert by_name["blk.1.ffn_down.weight"].shape == (gguf_files.WIDTH, gguf_files.HIDDEN)
    assert by_name["blk.1.ffn_down.weight"].type_name == "Q4_1"
