import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.text.test_detokenize import BYTE_FALLBACK, BYTE_LEVEL
from tests.tiny_tokenizer import VOCAB
from tokenizers import Tokenizer, decoders, models

from pomona.text.token_bytes import BYTE_OF_CHAR
from pomona.text.tokenizer import FastCodec


def test_every_byte_has_its_character() -> None:
    assert sorted(BYTE_OF_CHAR.values()) == list(range(256))


@given(st.text(max_size=30))
def test_bytes_of_tokens_are_the_bytes_of_the_text(text: str) -> None:
    ids = BYTE_LEVEL.encode(text).ids
    assert b"".join(map(BYTE_LEVEL.token_bytes, ids)) == text.encode()


@given(st.text(st.sampled_from("ab 😀é한\n"), min_size=1, max_size=20))
def test_byte_fallback(text: str) -> None:
    """SentencePiece models begin a text with a space of their own."""
    ids = BYTE_FALLBACK.encode(text).ids
    assert b"".join(map(BYTE_FALLBACK.token_bytes, ids)) == b" " + text.encode()


@pytest.mark.parametrize("codec", [BYTE_LEVEL, BYTE_FALLBACK])
def test_ids_without_a_token_have_no_bytes(codec: FastCodec) -> None:
    assert codec.token_bytes(VOCAB + 1000) == b""


def test_special_tokens_are_their_text() -> None:
    id_ = BYTE_LEVEL.token_to_id("<|im_end|>")
    assert id_ is not None
    assert BYTE_LEVEL.token_bytes(id_) == b"<|im_end|>"


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece()])
def test_other_tokenizers_give_their_pieces(decoder: decoders.Decoder | None) -> None:
    tokenizer = Tokenizer(models.WordLevel({"é": 0, "b": 1}, unk_token="b"))
    if decoder is not None:
        tokenizer.decoder = decoder
    assert FastCodec(tokenizer).token_bytes(0) == "é".encode()
