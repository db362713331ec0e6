import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny_tokenizer import VOCAB, train
from tokenizers import Tokenizer, decoders, models, normalizers

from pomona.text.detokenize import MAX_WINDOW, Detokenizer
from pomona.text.tokenizer import FastCodec

BYTE_LEVEL = FastCodec(train())


def byte_fallback() -> FastCodec:
    """As SentencePiece models are: `▁` for a space, single bytes for what is not in the vocabulary."""
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁▁", "a", "▁a", "b", "▁ab"]
    vocab = [(piece, -float(i)) for i, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>"])
    return FastCodec(tokenizer)


BYTE_FALLBACK = byte_fallback()


def detokenize(codec: FastCodec, ids: list[int], sizes: list[int]) -> list[str]:
    detokenizer = Detokenizer(codec, codec.special_ids())
    rest = iter(ids)
    texts = []
    for size in [*sizes, len(ids)]:
        texts.append(detokenizer.feed(list(itertools.islice(rest, size))))
    return [*texts, detokenizer.flush()]


ids_of_any_kind = st.lists(st.integers(0, VOCAB + 20), max_size=60)
chunk_sizes = st.lists(st.integers(0, 7), max_size=20)


@given(ids_of_any_kind, chunk_sizes)
@settings(max_examples=300)
def test_any_ids_in_any_chunks_give_the_whole_text(ids: list[int], sizes: list[int]) -> None:
    assert "".join(detokenize(BYTE_LEVEL, ids, sizes)) == BYTE_LEVEL.decode(ids)


@given(st.text(max_size=40), chunk_sizes)
@settings(max_examples=200)
def test_text_in_any_chunks_comes_back(text: str, sizes: list[int]) -> None:
    ids = BYTE_LEVEL.encode(text).ids
    assert "".join(detokenize(BYTE_LEVEL, ids, sizes)) == text


@given(st.text(st.sampled_from("ab 😀é한\n"), max_size=30), chunk_sizes)
@settings(max_examples=200)
def test_byte_fallback_in_any_chunks_gives_the_whole_text(text: str, sizes: list[int]) -> None:
    ids = BYTE_FALLBACK.encode(text).ids
    assert "".join(detokenize(BYTE_FALLBACK, ids, sizes)) == BYTE_FALLBACK.decode(ids)


@pytest.mark.parametrize("codec", [BYTE_LEVEL, BYTE_FALLBACK])
def test_an_incomplete_character_is_held_back(codec: FastCodec) -> None:
    ids = codec.encode("😀").ids
    texts = [text for text in detokenize(codec, ids, [1] * len(ids)) if text]
    assert texts == ["😀"]


def test_special_tokens_are_not_shown() -> None:
    ids = [BYTE_LEVEL.token_to_id("<|im_start|>"), *BYTE_LEVEL.encode("a b").ids, 0]
    assert "".join(detokenize(BYTE_LEVEL, [id_ for id_ in ids if id_ is not None], [1] * 9)) == "a b"


class CountingCodec(FastCodec):
    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.longest = 0

    def decode(self, ids: list[int]) -> str:
        self.longest = max(self.longest, len(ids))
        return super().decode(ids)


@pytest.mark.parametrize("piece", ["Ā", "ÿ", None])
def test_ids_that_never_become_text_stay_cheap(piece: str | None) -> None:
    """Lone continuation bytes, invalid bytes and ids outside the vocabulary."""
    codec = CountingCodec(train())
    id_ = VOCAB + 7 if piece is None else codec.token_to_id(piece)
    assert id_ is not None
    ids = [id_] * 1000
    expected = codec.decode(ids)
    codec.longest = 0
    assert "".join(detokenize(codec, ids, [])) == expected
    assert codec.longest <= MAX_WINDOW + 2
