import json
from pathlib import Path

import pytest
from tests import tiny_tokenizer
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import processors

from pomona.conversation.errors import ModelLoadError
from pomona.text.model_files import SamplingDefaults, sampling_defaults
from pomona.text.tokenizer import FastCodec, SlowCodec, Tokenizer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_tokenizer.build(tmp_path)


def write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def test_stop_ids_are_gathered_from_all_files(model: Path) -> None:
    write(model / "generation_config.json", {"eos_token_id": [5, 0]})
    write(model / "config.json", {"eos_token_id": 0, "text_config": {"eos_token_id": 7}})
    assert Tokenizer.load(model).stop_ids == [5, 0, 7, tiny_tokenizer.EOS]


@pytest.mark.parametrize("eos", [None, "x", True, -1, [None], {}])
def test_stop_ids_that_are_no_ids_are_left_out(model: Path, eos: object) -> None:
    write(model / "generation_config.json", {"eos_token_id": eos})
    assert Tokenizer.load(model).stop_ids == [tiny_tokenizer.EOS]


def test_named_tokens_may_be_objects(model: Path) -> None:
    write(model / "tokenizer_config.json", {"eos_token": {"content": "<|pad|>"}, "pad_token": None})
    tokenizer = Tokenizer.load(model)
    assert tokenizer.named_tokens == {"eos_token": "<|pad|>"}
    assert tokenizer.stop_ids[-1] == tokenizer.codec.token_to_id("<|pad|>")


def test_nothing_is_added_or_cut(model: Path) -> None:
    """A file may ask for a BOS, padding and truncation; a prompt is what the template wrote."""
    raw = FastTokenizer.from_file(str(model / "tokenizer.json"))
    raw.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    raw.enable_truncation(4)
    raw.enable_padding(length=64)
    raw.save(str(model / "tokenizer.json"))
    tokenizer = Tokenizer.load(model)
    text = "<|endoftext|>The quick brown fox jumps over the lazy dog."
    ids = tokenizer.encode(text).ids
    assert ids.count(0) == 1
    assert tokenizer.decode(ids) == text.removeprefix("<|endoftext|>")


def test_a_broken_file_is_an_error_in_words(model: Path) -> None:
    (model / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json could not be read"):
        Tokenizer.load(model)


def test_broken_json_is_an_error_in_words(model: Path) -> None:
    (model / "generation_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="not valid JSON"):
        Tokenizer.load(model)


class PythonTokenizer:
    """The part of a slow transformers tokenizer that is used."""

    unk_token_id = 0
    all_special_ids = (1,)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids = [ord(char) for char in text]
        return [1, *ids, 2] if add_special_tokens else ids

    def decode(self, ids: list[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        return "".join(chr(id_) for id_ in ids)

    def convert_tokens_to_ids(self, token: str) -> int:
        return 0


def test_a_slow_tokenizer_has_no_offsets() -> None:
    codec = SlowCodec(PythonTokenizer())
    assert codec.encode("ab").ids == [97, 98]
    assert codec.encode("ab").ends == []
    assert codec.decode([97, 98]) == "ab"
    assert codec.token_to_id("nothing") is None
    assert codec.special_ids() == {1}
    assert codec.opening() == [1]
    assert codec.token_bytes(233) == "é".encode()


def test_transformers_is_the_fallback(model: Path) -> None:
    files = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    vocabulary = FastTokenizer.from_file(str(model / "tokenizer.json")).model.save(str(model))
    for file in files:
        (model / file).unlink()
    write(model / "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|im_end|>"})
    write(model / "config.json", {"model_type": "gpt2"})
    assert vocabulary
    tokenizer = Tokenizer.load(model)
    assert isinstance(tokenizer.codec, FastCodec)
    assert tokenizer.decode(tokenizer.encode("a server").ids) == "a server"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, SamplingDefaults(1.0, 1.0)),
        ({"temperature": 0.6, "top_p": 0.95}, SamplingDefaults(0.6, 0.95)),
        ({"temperature": 0.6, "top_p": 0.95, "do_sample": False}, SamplingDefaults(1.0, 1.0)),
        ({"temperature": None, "top_p": "x"}, SamplingDefaults(1.0, 1.0)),
        ({"temperature": 7, "top_p": 0}, SamplingDefaults(1.0, 1.0)),
        (
            {"top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05},
            SamplingDefaults(1.0, 1.0, 20, 0.1, 1.05),
        ),
        ({"top_k": -1, "min_p": 2, "repetition_penalty": 0}, SamplingDefaults()),
    ],
)
def test_sampling_defaults(tmp_path: Path, config: object, expected: SamplingDefaults) -> None:
    write(tmp_path / "generation_config.json", config)
    assert sampling_defaults(tmp_path) == expected
