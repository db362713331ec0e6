"""Fill-in-the-middle: the markers by which a model is asked for the text between a prefix and a suffix.

A model can do it when all markers of one spelling are tokens of its own; there is nothing else to read
it from.
"""

from __future__ import annotations

from dataclasses import dataclass

from pomona.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Spelling:
    prefix: str
    suffix: str
    middle: str  # the model's text follows
    suffix_first: bool = False


SPELLINGS = (
    Spelling("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    Spelling("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    Spelling("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    Spelling("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek  # noqa: RUF001  (its own letters)
    Spelling("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    Spelling("<PRE>", "<SUF>", "<MID>"),  # CodeLlama, as some converters write it
    Spelling("[PREFIX]", "[SUFFIX]", "[MIDDLE]", suffix_first=True),  # Codestral
)
# What such models write where the middle is complete, besides a marker.
ENDS = (
    *("<|endoftext|>", "<|file_sep|>", "<|file_separator|>", "<|repo_name|>", "<|fim_pad|>"),
    *("<file_sep>", "<fim_pad>", "<fim-pad>", "<|EOT|>", "▁<EOT>", "<EOT>"),
)


@dataclass(frozen=True, slots=True)
class InfillTokens:
    prefix: int
    suffix: int
    middle: int
    suffix_first: bool
    stop_ids: tuple[int, ...]

    @staticmethod
    def find(tokenizer: Tokenizer) -> InfillTokens | None:
        ids = tokenizer.codec.token_to_id
        for spelling in SPELLINGS:
            prefix, suffix, middle = ids(spelling.prefix), ids(spelling.suffix), ids(spelling.middle)
            if prefix is not None and suffix is not None and middle is not None:
                ends = [id_ for text in ENDS if (id_ := ids(text)) is not None]
                stop_ids = (prefix, suffix, middle, *ends)
                return InfillTokens(prefix, suffix, middle, spelling.suffix_first, stop_ids)
        return None

    def arrange(self, prefix: list[int], suffix: list[int]) -> list[int]:
        before, after = [self.prefix, *prefix], [self.suffix, *suffix]
        return [*after, *before] if self.suffix_first else [*before, *after, self.middle]
