"""Token ids to text, as they come.

Text is given out once later tokens can't change it: an incomplete UTF-8 character waits for its rest.
However the ids are cut into calls, the texts joined are the text of all ids.
"""

from __future__ import annotations

from pomona.text.tokenizer import Codec

REPLACEMENT = "�"
# The incomplete start of a character is at most three bytes; byte-fallback decoders write one
# replacement character for each.
MAX_INCOMPLETE = 3
# Ids that may wait for the rest of a character. A byte-fallback decoder turns a whole run of bytes into
# replacement characters while its last one is incomplete, so nothing is safe before.
MAX_HELD = 8
# Output that never becomes valid text must not be decoded again and again from its start.
MAX_WINDOW = 64
KEPT_WINDOW = 8


class Detokenizer:
    """One answer's ids. Decodes a short window only: the ids of the last text given out and what follows.

    The ids before the new ones are needed because decoders treat the start of a text differently (they
    strip a space, or join bytes).
    """

    def __init__(self, codec: Codec, special_ids: frozenset[int]) -> None:
        self._codec = codec
        self._special_ids = special_ids
        self._window: list[int] = []
        self._pending = 0  # ids at the end of the window whose text is not all given out
        self._given = 0  # characters of the window's text that are given out

    def feed(self, ids: list[int]) -> str:
        return "".join([self._step(id_) for id_ in ids if id_ not in self._special_ids])

    def flush(self) -> str:
        """What was held back, at the end of an answer."""
        rest = self._codec.decode(self._window)[self._given :]
        self._window, self._pending, self._given = [], 0, 0
        return rest

    def _step(self, id_: int) -> str:
        self._window.append(id_)
        self._pending += 1
        text = self._codec.decode(self._window)
        if not text.endswith(REPLACEMENT):
            return self._give_all(text)
        return self._give_invalid(text)

    def _give_all(self, text: str) -> str:
        fresh = text[self._given :]
        if fresh:
            self._keep_last(self._pending)
            self._pending = 0
        elif len(self._window) > MAX_WINDOW:  # ids without text
            self._keep_last(KEPT_WINDOW)
        return fresh

    def _give_invalid(self, text: str) -> str:
        """Hold back what may become a character; give out only what has waited too long for that."""
        if self._pending <= MAX_HELD:
            return ""
        held_back = min(len(text) - len(text.rstrip(REPLACEMENT)), MAX_INCOMPLETE)
        fresh = text[self._given : -held_back]
        self._given = max(self._given, len(text) - held_back)
        if len(self._window) > MAX_WINDOW:
            self._keep_last(KEPT_WINDOW, held_back)
        return fresh

    def _keep_last(self, count: int, held_back: int = 0) -> None:
        del self._window[:-count]
        self._pending = min(self._pending, len(self._window))
        self._given = max(0, len(self._codec.decode(self._window)) - held_back)
