"""Prompts that no chat template wrote: raw text, token ids, and text around a gap."""

import json
from pathlib import Path

import pytest
from tests import tiny_tokenizer
from tokenizers import processors

from pomona.conversation.conversation import Infill, RawText, TokenIds
from pomona.conversation.errors import InvalidRequestError
from pomona.text.infill import SPELLINGS, Spelling
from pomona.text.model_text import ModelText

BOS = 0


def model(folder: Path, *specials: str, opening: bool = False, bos: bool = True) -> ModelText:
    tiny_tokenizer.build(folder)
    tokenizer = tiny_tokenizer.train([*tiny_tokenizer.SPECIALS, *specials])
    if opening:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A <|im_end|>", special_tokens=[("<|endoftext|>", BOS), ("<|im_end|>", 2)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    if not bos:
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return ModelText.load(folder)


def test_raw_text_begins_as_the_tokenizer_would_begin_it(tmp_path: Path) -> None:
    plain, opened = model(tmp_path / "a"), model(tmp_path / "b", opening=True)
    assert plain.tokenizer.opening == []
    assert opened.tokenizer.opening == [BOS]
    text = "The quick brown fox"
    ids = plain.tokenizer.encode(text).ids
    assert plain.prompts.build(RawText(text)).ids == ids
    assert opened.prompts.build(RawText(text)).ids == [BOS, *ids]
    assert opened.prompts.build(RawText("<|endoftext|>" + text)).ids == [BOS, *ids]
    assert opened.prompts.build(RawText(text)).text == text


def test_token_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    text = model(tmp_path, opening=True)
    prompt = text.prompts.build(TokenIds((70, 71)))
    assert prompt.ids == [70, 71]
    assert prompt.text == text.tokenizer.decode([70, 71])


def test_no_text_at_all(tmp_path: Path) -> None:
    assert model(tmp_path / "a").prompts.build(RawText("")).ids == [BOS]
    assert model(tmp_path / "b", opening=True).prompts.build(RawText("")).ids == [BOS]
    with pytest.raises(InvalidRequestError) as caught:
        model(tmp_path / "c", bos=False).prompts.build(RawText(""))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("opening", [False, True])
def test_a_gap_is_marked_as_the_model_knows_it(tmp_path: Path, spelling: Spelling, opening: bool) -> None:
    text = model(tmp_path, spelling.prefix, spelling.suffix, spelling.middle, "<|file_sep|>", opening=opening)
    prompt = text.prompts.build(Infill(RawText("def add("), "return a"))
    shown = text.tokenizer.decode(prompt.ids, special=True).removeprefix("<|endoftext|>" if opening else "")
    assert (prompt.ids[0] == BOS) == opening
    if spelling.suffix_first:
        assert shown == f"{spelling.suffix}return a{spelling.prefix}def add("
    else:
        assert shown == f"{spelling.prefix}def add({spelling.suffix}return a{spelling.middle}"
    markers = (spelling.prefix, spelling.suffix, spelling.middle, "<|file_sep|>", "<|endoftext|>")
    assert set(prompt.stop_ids) == {text.tokenizer.codec.token_to_id(marker) for marker in markers}


def test_the_prefix_may_be_token_ids(tmp_path: Path) -> None:
    text = model(tmp_path, "<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    ids = text.tokenizer.encode("def add(").ids
    build = text.prompts.build
    assert build(Infill(TokenIds(tuple(ids)), "x")) == build(Infill(RawText("def add("), "x"))


def test_a_model_that_has_no_markers(tmp_path: Path) -> None:
    text = model(tmp_path, "<fim_prefix>", "<fim_suffix>")
    with pytest.raises(InvalidRequestError, match="cannot fill in the middle") as caught:
        text.prompts.build(Infill(RawText("a"), "b"))
    assert caught.value.param == "suffix"
