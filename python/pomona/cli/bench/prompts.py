"""Prompts of a wished length, each unlike every other from its first word on, so that none is cached."""

from __future__ import annotations

import random

TEXT = (
    "apple orchard ladder basket morning cider branch winter garden stone river valley harvest market letter "
    "window carpenter bicycle library mountain kettle blanket station violin harbor lantern meadow pencil "
    "railway sparrow teacher thunder village weather written yellow quiet narrow early gentle heavy broken "
    "simple distant careful open under across between beyond during after before about around while because"
)
WORDS = TEXT.split()
TASK = "Continue this list of words with many more words, without an end:"

# First guess; the server's own count corrects it.
WORDS_PER_TOKEN = 0.8


class Prompts:
    """The same seed gives the same prompts."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._words_per_token = WORDS_PER_TOKEN

    def make(self, tokens: int) -> str:
        count = max(1, round(tokens * self._words_per_token))
        words = " ".join(self._random.choices(WORDS, k=count))
        return f"{self._random.getrandbits(64):016x} {TASK} {words}"

    def calibrate(self, wanted_tokens: int, counted_tokens: int) -> None:
        """What a prompt made for `wanted_tokens` came to, by the server's count."""
        self._words_per_token *= wanted_tokens / counted_tokens
