"""The bytes of single tokens, which need not be whole characters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

SPACE = "▁"  # SentencePiece's
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes_of(tokenizer: FastTokenizer) -> Callable[[int], bytes]:
    """The function from an id to its token's bytes; none for an id without a token."""
    added = {id_: token.content for id_, token in tokenizer.get_added_tokens_decoder().items()}
    plain = _plain_bytes(_decoder_types(tokenizer))

    def token_bytes(id_: int) -> bytes:
        if id_ in added:
            return added[id_].encode()
        token = tokenizer.id_to_token(id_)
        return b"" if token is None else plain(token)

    return token_bytes


def _plain_bytes(decoders: set[str]) -> Callable[[str], bytes]:
    if "ByteLevel" in decoders:
        return _byte_level
    if decoders & {"ByteFallback", "Metaspace", "Replace"}:
        return _sentencepiece
    return str.encode


def _byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_OF_CHAR[char] for char in token])
    except KeyError:
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    if piece := BYTE_PIECE.fullmatch(token):
        return bytes.fromhex(piece[1])
    return token.replace(SPACE, " ").encode()


def _decoder_types(tokenizer: FastTokenizer) -> set[str]:
    if tokenizer.decoder is None:
        return set()
    state: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    return {str(part.get("type")) for part in [state, *state.get("decoders", [])]}


def _byte_of_char() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_of_char()
