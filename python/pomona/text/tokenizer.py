"""Text to token ids and back, through `tokenizers`, or transformers where no fast tokenizer exists.

A chat template writes the special tokens it wants, so nothing is added when encoding: a BOS is there
once or not at all, exactly as the template says. Raw text is another matter: see `Tokenizer.opening`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer as FastTokenizer

from pomona.conversation.errors import ModelLoadError
from pomona.text.model_files import JsonObject, declared_stop_ids, read_json, token_text
from pomona.text.token_bytes import token_bytes_of

# Any text will do to see what a tokenizer puts before it.
SAMPLE = "a"


@dataclass(frozen=True, slots=True)
class Encoding:
    """`ends[i]` is the character of the text where token i ends; empty where the tokenizer can't tell."""

    ids: list[int]
    ends: list[int] = field(default_factory=list)


class Codec(Protocol):
    """What differs between a fast and a slow tokenizer."""

    def encode(self, text: str) -> Encoding: ...

    def opening(self) -> list[int]:
        """The special tokens that the tokenizer's own rules put before a text, mostly a BOS or none."""
        ...

    def decode(self, ids: list[int], special: bool = False) -> str:
        """The text of ids, with special tokens or without."""
        ...

    def token_bytes(self, id_: int) -> bytes:
        """A token's own bytes, which need not be whole characters."""
        ...

    def token_to_id(self, token: str) -> int | None: ...

    def special_ids(self) -> frozenset[int]: ...

    def vocabulary(self) -> Collection[str]:
        """The tokens as they are stored, at least as many characters as they stand for."""
        ...


class FastCodec:
    """A tokenizer.json."""

    def __init__(self, tokenizer: FastTokenizer) -> None:
        # Both may be stored in the file; they would cut or fill prompts.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.token_bytes = token_bytes_of(tokenizer)

    def encode(self, text: str) -> Encoding:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return Encoding(encoding.ids, [end for _, end in encoding.offsets])

    def opening(self) -> list[int]:
        encoding = self._tokenizer.encode(SAMPLE)
        count = next((i for i, special in enumerate(encoding.special_tokens_mask) if not special), 0)
        return list(encoding.ids[:count])

    def decode(self, ids: list[int], special: bool = False) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=not special))

    def token_to_id(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def special_ids(self) -> frozenset[int]:
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(id_ for id_, token in added.items() if token.special)

    def vocabulary(self) -> Collection[str]:
        return self._tokenizer.get_vocab(with_added_tokens=True)


class SlowCodec:
    """A tokenizer of transformers that has no fast form. It knows no offsets."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> Encoding:
        return Encoding(list(self._tokenizer.encode(text, add_special_tokens=False)))

    def opening(self) -> list[int]:
        with_special, plain = self._tokenizer.encode(SAMPLE, add_special_tokens=True), self.encode(SAMPLE).ids
        count = len(with_special) - len(plain)
        return next(
            (with_special[:i] for i in range(1, count + 1) if with_special[i:][: len(plain)] == plain), []
        )

    def decode(self, ids: list[int], special: bool = False) -> str:
        return str(
            self._tokenizer.decode(ids, skip_special_tokens=not special, clean_up_tokenization_spaces=False)
        )

    def token_bytes(self, id_: int) -> bytes:
        return self.decode([id_], special=True).encode()

    def token_to_id(self, token: str) -> int | None:
        id_ = self._tokenizer.convert_tokens_to_ids(token)
        return id_ if isinstance(id_, int) and id_ != self._tokenizer.unk_token_id else None

    def special_ids(self) -> frozenset[int]:
        return frozenset(self._tokenizer.all_special_ids)

    def vocabulary(self) -> Collection[str]:
        return list(self._tokenizer.get_vocab())


class Tokenizer:
    """A model's tokenizer, with the ids that end its turn and the texts of its named special tokens."""

    def __init__(self, codec: Codec, named_tokens: dict[str, str], stop_ids: list[int]) -> None:
        self.codec = codec
        self.named_tokens = named_tokens  # "bos_token", "eos_token", ...: templates read them
        self.stop_ids = stop_ids
        self.opening = codec.opening()
        self._longest_token = max(map(len, codec.vocabulary()), default=1)

    @staticmethod
    def load(folder: Path) -> Tokenizer:
        codec = _load_codec(folder)
        named = _named_tokens(folder)
        return Tokenizer(codec, named, _stop_ids(folder, codec, named))

    def encode(self, text: str) -> Encoding:
        return self.codec.encode(text)

    def least_tokens(self, characters: int) -> int:
        """Known at once, where encoding takes about a second per million characters."""
        return characters // self._longest_token

    def encode_raw(self, text: str) -> list[int]:
        """Text that no template wrote: with the opening, unless it is there already."""
        ids = self.encode(text).ids
        return ids if ids[: len(self.opening)] == self.opening else [*self.opening, *ids]

    @property
    def beginning(self) -> list[int]:
        """What to continue where there is no text at all: the BOS, or nothing where there is none."""
        bos = self.named_tokens.get("bos_token")
        id_ = None if bos is None else self.codec.token_to_id(bos)
        return [] if id_ is None else [id_]

    def decode(self, ids: list[int], special: bool = False) -> str:
        return self.codec.decode(ids, special)


def _load_codec(folder: Path) -> Codec:
    path = folder / "tokenizer.json"
    if not path.is_file():
        return _load_with_transformers(folder)
    try:
        return FastCodec(FastTokenizer.from_file(str(path)))
    except Exception as error:  # tokenizers raises plain Exception
        raise ModelLoadError(f"{path} could not be read: {error}") from error


def _load_with_transformers(folder: Path) -> Codec:
    # Slow to import and not needed for most models.
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelLoadError(f"{folder} has no tokenizer that can be loaded: {error}") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return FastCodec(backend) if isinstance(backend, FastTokenizer) else SlowCodec(tokenizer)


def _named_tokens(folder: Path) -> dict[str, str]:
    merged: JsonObject = read_json(folder / "special_tokens_map.json")
    merged |= read_json(folder / "tokenizer_config.json")
    texts = {name: token_text(value) for name, value in merged.items() if name.endswith("_token")}
    return {name: text for name, text in texts.items() if text is not None}


def _stop_ids(folder: Path, codec: Codec, named: dict[str, str]) -> list[int]:
    ids = declared_stop_ids(folder)
    eos = codec.token_to_id(named["eos_token"]) if "eos_token" in named else None
    return ids if eos is None or eos in ids else [*ids, eos]
